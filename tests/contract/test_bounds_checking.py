"""Compiled code with every index checked: its unit tests again, and a small share of `make fuzz` for each parser of foreign bytes.

One file, so that one process after the other finds what the first has compiled. Compiling it anew takes a minute or two. Machine code
that has passed, as `bounds_checked.txt` records, is checked again by `make nightly` alone.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from contract.compiled_modules import have_passed
from fuzz.__main__ import NAMES

ROOT = Path(__file__).parents[2]
# Machine code with checks must not mix with that without: a cache of its own, kept between runs.
CACHE = {"NUMBA_CACHE_DIR": str(ROOT / "build" / "numba-boundscheck")}
CUBE = (
    "dictionary/test_kernel", "dictionary/test_table", "dictionary/test_perfect_hash", "server/test_loop",
    "dictionary/test_value_kinds", "builder/test_hash_sort", "builder/test_rows", "builder/test_quantise", "builder/test_input", "builder/test_part",
)  # fmt: skip
ROWS = (
    "formats/test_convert", "formats/test_blocks", "formats/test_decimals", "formats/test_json_scan", "formats/readers/test_text", "formats/readers/test_jsonl",
    "features/statistics/test_collector", "features/transforms/test_formulas", "features/transforms/test_transformer",
)  # fmt: skip
RUNS = {
    "cube": [f"tests/unit/cube/{name}.py" for name in CUBE],
    "rows": [f"tests/unit/{name}.py" for name in ROWS],
}
# Files are written, YAML is read by Python, each input has a connection of its own.
SLOW = {
    "published-files": 1000, "release-state": 2000, "values-file": 1000, "cube-blocking-client": 5000, "serving-http": 5000,
    "serving-rows": 5000, "csv-files": 200, "record-files": 200,
    "rotations": 400,
}  # fmt: skip


# Each run feeds these: what they read is not all in the digest.
PYTHON_ALONE = {
    "published-files",
    "release-state",
    "release-messages",
    "values-file",
    "csv-files",
    "record-files",
    "rotations",
}
_WHEN_CHANGED = [pytest.mark.nightly] if have_passed() else []


@pytest.mark.timeout(900)
@pytest.mark.parametrize("room", [pytest.param(room, marks=_WHEN_CHANGED) for room in RUNS])
def test_no_compiled_code_leaves_its_memory(room: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *RUNS[room]]
    env = {**os.environ, **CACHE, "NUMBA_BOUNDSCHECK": "1"}

    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in PYTHON_ALONE else _WHEN_CHANGED) for name in NAMES]
)
def test_no_input_breaks_a_parser(name: str) -> None:
    inputs = SLOW.get(name, 10_000)

    done = subprocess.run(
        [sys.executable, "-m", "fuzz", "--only", name, "--inputs", str(inputs)],
        cwd=ROOT / "tests", env={**os.environ, **CACHE}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{name}: {inputs:,} inputs" in done.stdout
