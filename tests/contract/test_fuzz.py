"""A small share of `make fuzz`: thousands of inputs for each parser of foreign bytes, with bounds checking on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.__main__ import NAMES

ROOT = Path(__file__).parents[2]


# Files are written, and YAML is read by Python.
SLOW = {"published-files": 2000, "release-state": 2000, "values-file": 1000}


@pytest.mark.parametrize("name", NAMES)
def test_no_input_breaks_a_parser(name: str) -> None:
    cache = {"NUMBA_CACHE_DIR": str(ROOT / "build" / "numba-boundscheck")}

    done = subprocess.run(
        [sys.executable, "-m", "fuzz", "--only", name, "--inputs", str(SLOW.get(name, 10_000))],
        cwd=ROOT / "tests", env={**os.environ, **cache}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{name}: {SLOW.get(name, 10_000):,} inputs" in done.stdout
