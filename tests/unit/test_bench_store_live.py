"""The comparison of stores works; nothing here asserts a time."""

from pathlib import Path

import pytest
from bench.store_live import compared, slow

from contract.bucket_world import s3proxy_absent


def test_a_delayed_request_is_passed_on() -> None:
    assert slow(0.001)(0) == "passed"


# Two releases of processes take half a minute to start; every run has tests/contract/test_store_release.py.
@pytest.mark.nightly
@pytest.mark.skipif(bool(s3proxy_absent()), reason=s3proxy_absent())
def test_versions_go_live_from_both_stores(tmp_path: Path) -> None:
    [(bucket, server)] = compared(tmp_path, 2_000, 2, 1, 1)

    assert bucket > 0
    assert server > 0
