"""Every test here runs the whole pipeline as real processes of this machine."""

import contextlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.running import Run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[dict[str, Any]], Run]]:
    """Starts a run; it is ended with the test."""
    with contextlib.ExitStack() as stack:

        def begin(values: dict[str, Any], folder: str = "run", only: Collection[str] | None = None) -> Run:
            run = Run(tmp_path / folder, values, only)
            stack.enter_context(run.session.running())
            return run

        yield begin
