"""Commands run in-process configure the log of the whole process."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from operate.cli.fake_kubectl import FakeKubectl


@pytest.fixture(autouse=True)
def _log_handlers_end_with_their_test() -> Iterator[None]:
    """A command run in-process sends the log to the stream of its own test."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = [handler for handler in root.handlers if handler in before]
    root.setLevel(level)


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKubectl]:
    """A kubectl on PATH; whatever it has started has ended with its test."""
    folder = tmp_path / "bin"
    folder.mkdir()
    fake = FakeKubectl(folder)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.delenv("KUBECTL", raising=False)
    yield fake
    assert fake.running() == []
