"""What `local run` prints of a run that has ended."""

from types import SimpleNamespace
from typing import Any

import pytest

from elastic_ctr.operate.cli import local
from elastic_ctr.runtime.status.master_status import TrainingStatus
from operate.cli.answers import DELTA, master
from operate.local.test_report import SEEN


def test_a_pipe_gets_every_column_of_the_passes(capsys: pytest.CaptureFixture[str]) -> None:
    status = TrainingStatus.model_validate(master())
    session: Any = SimpleNamespace(status=status, seen={DELTA: SEEN[7]})

    local._tell_report(session, None)

    head, *rows, learned = capsys.readouterr().out.splitlines()
    assert "seconds to live  largest difference" in head
    assert rows[-1].endswith("1.0e-06 of 512")
    assert learned.startswith("learned: pass 20200401/01")
