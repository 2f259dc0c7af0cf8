"""Unit tests of compiled code, run again with every index checked. Compiling it anew takes a minute or two."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Machine code with checks must not mix with that without: a cache of its own, kept between runs.
CHECKED = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(ROOT / "build" / "numba-boundscheck")}
CUBE = (
    "dictionary/test_kernel", "dictionary/test_table", "dictionary/test_perfect_hash", "server/test_loop",
    "builder/test_hash_sort", "builder/test_rows", "builder/test_input", "builder/test_part",
)  # fmt: skip
FEATURES = ("test_convert", "test_blocks")
RUNS = {
    "cube": [f"tests/unit/cube/{name}.py" for name in CUBE],
    "features": [f"tests/unit/features/{name}.py" for name in FEATURES],
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("room", RUNS)
def test_no_compiled_code_leaves_its_memory(room: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *RUNS[room]]

    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **CHECKED}, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
