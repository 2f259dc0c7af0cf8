"""`network check` without an engine; tests/contract/test_network_check.py has it with its real processes."""

import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.config.values_file import Values
from elastic_ctr.operate.local import network_check as module
from elastic_ctr.operate.local.network_check import CheckRefused, try_network

VALUES = Values.model_validate(
    {
        "data": {"source": {"url": "file:///nowhere"}, "start": "20200401/00", "slots": ["a"]},
        "model": {"network": {"source": "def logit(inputs, settings): ..."}},
    }
)
TRAINED = {"parameters": [], "unchanged": [], "records": 512, "trainingMicroseconds": 1.0}


def runs(monkeypatch: pytest.MonkeyPatch, *command: str) -> list["subprocess.Popen[bytes]"]:
    """Have each process of a check be this one, and return them."""
    started = []

    def start(*_: Any) -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen(command))
        return started[-1]

    monkeypatch.setattr(module, "_start", start)
    return started


@pytest.fixture
def differ(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Serving's scores differ so much from those of training."""

    def by(difference: float) -> None:
        answers = {"train": TRAINED, "serve": {"maxAbsDiff": difference, "predictionMicroseconds": 1.0}}
        runs(monkeypatch, "true")
        monkeypatch.setattr(module, "_answer", lambda step, *_: answers[step])

    return by


@pytest.mark.parametrize(("difference", "shown"), [(float("nan"), "nan"), (2e-5, "2.0e-05"), (float("inf"), "inf")])
def test_scores_that_differ_or_are_no_numbers_are_refused(differ: Any, difference: float, shown: str) -> None:
    differ(difference)

    with pytest.raises(CheckRefused, match=f"^serving scores rows by {shown} otherwise than training, above 1e-05; "):
        try_network(VALUES)


def test_scores_that_are_nearly_the_same_are_taken(differ: Any) -> None:
    differ(1e-5)

    assert try_network(VALUES).max_abs_diff == 1e-5


def test_an_engine_that_is_killed_is_named_with_its_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    runs(monkeypatch, "sh", "-c", "kill -9 $$")

    with pytest.raises(CheckRefused, match=r"^the engine was ended by SIGKILL while it was trained: it said nothing$"):
        try_network(VALUES)


def test_a_check_that_is_stopped_ends_its_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = runs(monkeypatch, "sleep", "600")
    stop = threading.Event()
    stop.set()

    with pytest.raises(KeyboardInterrupt):
        module._answer("train", {}, tmp_path, stop)

    assert [each.poll() for each in started] == [-9]
