"""Commands run in-process configure the log of the whole process."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _log_handlers_end_with_their_test() -> Iterator[None]:
    """A command run in-process sends the log to the stream of its own test."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = [handler for handler in root.handlers if handler in before]
    root.setLevel(level)
