"""Compiled code with every index checked: its unit tests again, and a small share of `make fuzz` for each parser of foreign bytes.

One file, so that one process after the other finds what the first has compiled. Compiling it anew takes a minute or two. A run whose
code has passed, as `bounds_checked.json` records, is checked again by `make nightly` alone. `make test` has the same unit tests without
checks, and tests/unit/machine_code/test_bounds_checked_runs.py has the sources of a run.
"""

import os
import subprocess
import sys

import pytest
from _pytest.mark import ParameterSet

from contract.compiled_modules import UNIT_TESTS, have_passed
from fuzz.__main__ import NAMES
from fuzz.checked_code import ROOT, checked_code

PASSED = have_passed()
# Files are written, YAML is read by Python, each input has a connection of its own.
SLOW = {
    "published-files": 1000, "release-state": 2000, "values-file": 1000, "cube-blocking-client": 5000, "serving-http": 5000,
    "serving-rows": 5000, "csv-files": 200, "record-files": 200,
    "rotations": 400,
}  # fmt: skip


def checked(run: str) -> ParameterSet:
    return pytest.param(run, marks=pytest.mark.nightly if run in PASSED else ())


@pytest.mark.timeout(900)
@pytest.mark.parametrize("tests", [checked(each) for each in UNIT_TESTS])
def test_no_compiled_code_leaves_its_memory(tests: str) -> None:
    files = [f"tests/unit/{name}.py" for name in UNIT_TESTS[tests]]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files]
    # Machine code with checks must not mix with that without.
    env = {**os.environ, "NUMBA_CACHE_DIR": str(checked_code()), "NUMBA_BOUNDSCHECK": "1"}

    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [checked(each) for each in NAMES])
def test_no_input_breaks_a_parser(name: str) -> None:
    inputs = SLOW.get(name, 10_000)

    done = subprocess.run(
        [sys.executable, "-m", "fuzz", "--only", name, "--inputs", str(inputs)],
        cwd=ROOT / "tests", capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{name}: {inputs:,} inputs" in done.stdout
