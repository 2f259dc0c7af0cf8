"""The count of a bucket's costs works; nothing here asserts a time."""

from pathlib import Path

import pytest
from bench.bucket_costs import Meter, measured, scaled, table_of

from contract.bucket_world import s3proxy_absent
from contract.relay import Relay


def test_requests_are_counted_by_their_prices_since_the_last_count() -> None:
    line = Relay(1)
    meter = Meter(line)
    line.requests, line.up = ["GET /b/a", "PUT /b/a"], 5
    meter.count()
    line.requests += ["GET /b?delimiter=%2F&list-type=2", "PUT /b/b", "GET /b/b", "HEAD /b/c", "DELETE /b/b"]
    line.up += 7

    spent = meter.count()

    assert spent.requests == {"LIST": 1, "PUT": 1, "GET": 1, "HEAD": 1, "DELETE": 1}
    assert (spent.up, spent.down) == (7, 0)
    assert scaled(spent, 1000).usd == pytest.approx(0.005 + 0.005 + 0.0004 + 0.0004)


# A release of processes that starts and publishes takes a minute; every run has the counting in test_bench_bucket_costs.py.
@pytest.mark.nightly
@pytest.mark.skipif(bool(s3proxy_absent()), reason=s3proxy_absent())
def test_a_version_and_an_idle_hour_are_counted(tmp_path: Path) -> None:
    each, idle = measured(tmp_path, 2, 4, 70)

    # Of each version: parts of a base or delta, of its checkpoint and of its dictionary, two files of a model, and five documents.
    assert each.requests["PUT"] >= 3 * 4 + 2 + 5
    # Each second both donefiles, each minute a scan.
    assert 0 < idle.requests["LIST"] < 1000
    assert 3600 <= idle.requests["GET"] < 9000
    assert len(table_of(each, idle, 4)) == 4
