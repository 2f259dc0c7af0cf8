import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
SUITE = """
import pytest
from needs import program

def test_with_a_program_that_is_absent():
    program("no-such-program")

def test_with_another_reason():
    pytest.skip("this machine has no ::1")
"""


def test_the_end_of_a_run_names_what_was_absent_and_the_command_that_brings_it(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(SUITE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "conftest",
        "-p",
        "no:helm-charts",
        "-n",
        "1",
        "test_some.py",
    ]

    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(TESTS)}, capture_output=True, text=True, check=False
    )

    [after] = done.stdout.split("not tested here")[1:]
    assert "   1 tests need no-such-program: tools/get no-such-program" in after.splitlines()
    assert "::1" not in after
