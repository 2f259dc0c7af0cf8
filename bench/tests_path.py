"""Puts the tests' folders on the path, for benches that use the servers and worlds of the tests."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "tests"), str(Path(__file__).parents[1] / "tests" / "unit")]
