"""What `local up` says while it waits for the first answer."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from elastic_ctr.operate.cli import local
from elastic_ctr.operate.cli.check import Checked, CheckFailed

WRONG = "serving at 127.0.0.1:8400 answers 500: the log says why"


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`local up` of a run whose version 7 is live, with the answers of serving."""

    def following(*looks: CheckFailed | int, states: Sequence[dict[str, Any]] = (), last: str | None = None) -> None:
        given = iter(looks)

        def verify(_address: str, _model: str) -> Checked:
            look = next(given)
            if isinstance(look, CheckFailed):
                raise look
            return Checked("", {"version": look})

        release = SimpleNamespace(live=7, candidate=None, refused={})
        places: Any = SimpleNamespace(
            serving="127.0.0.1:8400", folder=tmp_path, info=SimpleNamespace(model="ctr", predictions=["127.0.0.1:8400"])
        )
        process: Any = SimpleNamespace(poll=lambda: None, stdin=SimpleNamespace(closed=True))
        folder: Any = SimpleNamespace(read=lambda: None)
        monkeypatch.setattr(local, "verify_serving", verify)
        statuses = iter(states)
        monkeypatch.setattr(local, "status_and_release", lambda _: (next(statuses, {}), release))
        monkeypatch.setattr(local, "troubles", lambda _: [])
        monkeypatch.setattr(local, "_print_next_of_up", lambda _: None)
        monkeypatch.setattr(local, "failure", lambda *_: None)
        monkeypatch.setattr(local, "stage", lambda *_: "the roles start")
        monkeypatch.setattr("time.sleep", lambda _: None)
        local._follow_start(process, places, folder, last)

    return following


def test_it_names_what_it_waits_for_once_and_returns_with_the_first_answer(
    follow: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    later = CheckFailed("serving at 127.0.0.1:8400: answers 503: version 7 is being checked")
    follow(later, later, 6, 7)

    told = " ".join(capsys.readouterr().err.split())
    assert told.count("version 7 is being checked") == 1
    assert "serving answers with version 6, and 7 is live" in told
    assert "predictions: http://127.0.0.1:8400" in told


def test_with_a_last_hour_it_returns_once_the_version_of_that_hour_answers(
    follow: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def status(*versions: int, finished: bool) -> dict[str, Any]:
        published = [{"id": each, "state": "published"} for each in versions]
        return {"finished": finished, "versions": published, "current": None}

    # One look alone: serving is asked for its version at the end.
    follow(
        7,
        states=[status(6, finished=False), status(6, 7, finished=False), status(6, 7, finished=True)],
        last="20200401/01",
    )

    assert "predictions: http://127.0.0.1:8400" in " ".join(capsys.readouterr().err.split())


def test_an_answer_that_stays_wrong_ends_it_with_a_sentence(
    follow: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "SETTLE_SECONDS", 0)
    with pytest.raises(typer.Exit) as ended:
        follow(CheckFailed(WRONG, is_wrong=True))

    told = " ".join(capsys.readouterr().err.split())
    assert ended.value.exit_code == 1
    assert WRONG in told
    assert "no prediction is answered until this is mended" in told
