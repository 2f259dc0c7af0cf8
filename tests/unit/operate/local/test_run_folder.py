"""The folder of a run, as commands see it that did not start the run."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from elastic_ctr.operate.cli.main import build
from elastic_ctr.operate.local.run_folder import RunFolder


@pytest.fixture
def of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its state folder is mode 0700 of another user: the lock in it cannot be opened."""
    opened = os.open

    def closed(path: Any, *given: Any, **named: Any) -> int:
        if str(path).endswith("state/.lock"):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *given, **named)

    monkeypatch.setattr(os, "open", closed)
    return tmp_path


@pytest.fixture
def runner(of_somebody_else: Path) -> Iterator[int]:
    """A process with the words that `local up` starts."""
    words = ["elastic-ctr", "local", "run", "--keep", "--dir", str(of_somebody_else)]
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", *words])
    yield process.pid
    process.kill()
    process.wait()


def test_a_run_of_another_user_names_the_user_and_the_process(of_somebody_else: Path, runner: int) -> None:
    owner = of_somebody_else.owner()

    ended = CliRunner().invoke(build("local"), ["local", "down", "--dir", str(of_somebody_else)])

    sentence = (
        f"{of_somebody_else} belongs to {owner} (pid {runner}), and this user may not look into it; ask as that user, or name "
        "another folder by --dir"
    )
    assert RunFolder(of_somebody_else).absence() == sentence
    assert (ended.exit_code, ended.stderr) == (2, f"{sentence}\n")


def test_where_its_process_cannot_be_seen_the_user_is_named_alone(of_somebody_else: Path) -> None:
    assert RunFolder(of_somebody_else).stranger() == of_somebody_else.owner()


def test_a_folder_without_a_run_is_nobody_s(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).stranger() is None
    assert "no run was ever started there" in RunFolder(tmp_path).absence()
