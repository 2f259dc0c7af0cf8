"""What `local up` says while it waits for the first answer."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from elastic_ctr.operate.cli import local
from elastic_ctr.operate.cli.check import Checked, CheckFailed
from elastic_ctr.runtime.status.master_status import TrainingStatus

WRONG = "serving at 127.0.0.1:8400 answers 500: the log says why"


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`local up` of a run whose version 7 is live, with the answers of serving."""

    def following(
        *looks: CheckFailed | int, states: Sequence[TrainingStatus] = (), last: str | None = None, paused: bool = False
    ) -> None:
        given = iter(looks)

        def verify(_address: str, _model: str) -> Checked:
            look = next(given)
            if isinstance(look, CheckFailed):
                raise look
            return Checked("", {"version": look})

        release = SimpleNamespace(live=7, candidate=None, refused={}, promotion_paused=paused)
        places: Any = SimpleNamespace(
            serving="127.0.0.1:8400", folder=tmp_path, info=SimpleNamespace(model="ctr", predictions=["127.0.0.1:8400"])
        )
        process: Any = SimpleNamespace(poll=lambda: None, stdin=SimpleNamespace(closed=True))
        folder: Any = SimpleNamespace(read=lambda: None)
        monkeypatch.setattr(local, "verify_serving", verify)
        statuses = iter(states)
        monkeypatch.setattr(local, "status_and_release", lambda _: (next(statuses, status(finished=False)), release))
        monkeypatch.setattr(local, "troubles", lambda _: [])
        monkeypatch.setattr(local, "_print_next_of_up", lambda _: None)
        monkeypatch.setattr(local, "stage", lambda *_: "the roles start")
        monkeypatch.setattr("time.sleep", lambda _: None)
        local._follow_start(process, places, folder, last)
        assert next(statuses, None) is None, "it did not wait for all of these"

    return following


def test_it_names_what_it_waits_for_once_and_returns_with_the_first_answer(
    follow: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    later = CheckFailed("serving at 127.0.0.1:8400: answers 503: version 7 is being checked")
    follow(later, later, 6, 7)

    words = told(capsys)
    assert words.count("version 7 is being checked") == 1
    assert "serving answers with version 6, and 7 is live" in words
    assert "predictions: http://127.0.0.1:8400" in words


def status(*versions: int, finished: bool, **others: Any) -> TrainingStatus:
    published = [{"id": each, "state": "published"} for each in versions]
    return TrainingStatus.model_validate(
        {"finished": finished, "versions": published, "passes": [], "ledger": {}, **others}
    )


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


def test_with_a_last_hour_it_returns_once_the_version_of_that_hour_answers(
    follow: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    states = [status(6, finished=False), status(6, 7, finished=False), status(6, 7, finished=True)]

    follow(7, states=states, last="20200401/01")

    assert "predictions: http://127.0.0.1:8400" in told(capsys)


@pytest.mark.parametrize(
    ("waits_for", "paused", "words"),
    [
        ("20200401/05/donefile", False, "they do not know 20200401/05 yet: the master waits for 20200401/05/donefile"),
        ("", True, "they do not know 20200401/05 yet: promotion is paused"),
    ],
)
def test_a_last_hour_that_does_not_come_by_itself_is_named(
    follow: Any, capsys: pytest.CaptureFixture[str], waits_for: str, paused: bool, words: str
) -> None:
    states = [status(6, 7, finished=False, waitsFor=waits_for)]

    follow(7, states=states, last="20200401/05", paused=paused)

    assert words in told(capsys)


def test_a_training_that_is_stopped_before_its_last_hour_ends_it_with_1(
    follow: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    current = {"pass": "20200401/01", "state": "stopped", "reason": "too many lines are refused"}
    stopped = status(7, finished=False, current=current)

    with pytest.raises(typer.Exit) as ended:
        follow(7, states=[stopped, stopped], last="20200401/01")

    words = told(capsys)
    assert ended.value.exit_code == 1
    assert "pass 20200401/01 is stopped" in words
    assert "predictions: http://127.0.0.1:8400" in words
    assert "training does not go on until this is mended" in words


def test_an_answer_that_stays_wrong_ends_it_with_a_sentence(
    follow: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "SETTLE_SECONDS", 0)
    with pytest.raises(typer.Exit) as ended:
        follow(CheckFailed(WRONG, is_wrong=True))

    words = told(capsys)
    assert ended.value.exit_code == 1
    assert WRONG in words
    assert "no prediction is answered until this is mended" in words
