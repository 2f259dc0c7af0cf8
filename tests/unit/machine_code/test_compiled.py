import os
import subprocess
import sys
from pathlib import Path

from elastic_ctr.machine_code.compiled import compiled


def test_machine_code_says_what_the_function_says() -> None:
    def doubled(number: int) -> int:
        return 2 * number

    assert compiled(doubled)(21) == 42


KEPT = """
from typing import NamedTuple
import {types} as types
from elastic_ctr.machine_code.compiled import anew_if_stale, compiled

@compiled
def total(pair):
    return pair.one + pair.other

print(anew_if_stale(lambda: total(types.Pair(1, 2))))
"""
TYPES = "from typing import NamedTuple\nclass Pair(NamedTuple):\n    one: int\n    other: int\n"


def test_a_cache_that_another_release_left_does_not_stop_this_one(tmp_path: Path) -> None:
    def run(types: str) -> str:
        # The types move to another module; the function's file keeps its name, its size and its time.
        script = tmp_path / "kept.py"
        script.write_text(KEPT.format(types=types))
        os.utime(script, (1, 1))
        (tmp_path / f"{types}.py").write_text(TYPES)
        done = subprocess.run(
            [sys.executable, "-c", "import kept"], cwd=tmp_path, capture_output=True, text=True, check=False,
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
        (tmp_path / f"{types}.py").unlink()
        return done.stdout + done.stderr

    assert run("old_") == "3\n"
    assert list((tmp_path / "cache").rglob("*.nbi"))
    assert run("new_") == "3\n"
