from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.features import tokens


@given(names=st.lists(st.binary(min_size=1, max_size=12), min_size=1, max_size=40, unique=True))
def test_the_slot_table_holds_each_name_once(names: list[bytes]) -> None:
    starts = np.cumsum([0, *map(len, names)]).astype(np.int64)
    table = np.empty(256, dtype=np.int32)

    tokens.slot_table(np.frombuffer(b"".join(names), dtype=np.uint8), starts, table)

    assert sorted(slot for slot in table if slot >= 0) == list(range(len(names)))


def test_the_tests_of_the_converter_pass_with_every_index_checked(tmp_path: Path) -> None:
    # A cache of its own: the kept machine code of this machine was compiled without the checks.
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    here = Path(__file__).parent
    tests = [str(here / name) for name in ("test_convert.py", "test_blocks.py")]
    # Its own configuration: what other tests need of plugins is not needed here.
    given_options = ["-q", "-c", os.devnull, "-p", "no:cacheprovider", "-p", "no:helm-charts", "-p", "no:asyncio"]

    done = subprocess.run(
        [sys.executable, "-m", "pytest", *given_options, *tests],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=here.parents[2],
    )

    assert done.returncode == 0, done.stdout + done.stderr
