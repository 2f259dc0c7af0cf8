import os
import threading
from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.config.load import load
from elastic_ctr.config.values_file import Values
from elastic_ctr.cube.release import Placement, ReleaseDocument
from elastic_ctr.operate.local import session as module
from elastic_ctr.operate.local.plan import RunPlaces
from elastic_ctr.operate.local.report import SampleResult
from elastic_ctr.operate.local.run_folder import RunFolder, write_json
from elastic_ctr.operate.local.session import RoleRefused, RunFailed, Session, failure, pause_after
from elastic_ctr.runtime.auth import Right
from elastic_ctr.runtime.lock import StateInUse
from elastic_ctr.runtime.status.master_status import TrainingStatus

SAMPLE = SampleResult(0.0, 512, 0.0, None, None)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    values = Values.model_validate(
        {"data": {"source": {"url": "file:///logs"}, "start": "20200401/00", "slots": ["a"]}}
    )
    return Session(RunPlaces(tmp_path, values))


def status(*versions: tuple[int, str], finished: bool = True, **given: Any) -> TrainingStatus:
    return TrainingStatus.model_validate(
        {
            "finished": finished,
            "passes": [],
            "ledger": {},
            "versions": [{"id": number, "state": state, "reason": f"why {number}"} for number, state in versions],
            **given,
        }
    )


def release(live: int | None, refused: dict[int, str] | None = None) -> ReleaseDocument:
    return ReleaseDocument(generation=1, revision=1, placement=Placement(shards=1), live=live, refused=refused or {})


def test_a_run_is_finished_once_its_last_version_is_live_and_has_answered(session: Session) -> None:
    session.status = status((7, "published"), (8, "published"))
    finished = []
    for document, asked in ((release(7), {}), (release(8), {}), (release(8), {8: SAMPLE})):
        session.release, session.seen = document, dict(asked)
        finished.append(session.finished())

    assert finished == [False, False, True]


def test_a_run_is_not_finished_before_the_status_of_the_master_is(session: Session) -> None:
    assert not session.finished()
    session.status = status((7, "published"), finished=False)
    session.release = release(7)
    assert not session.finished()


def test_a_pass_that_is_stopped_ends_the_run_with_its_reason(session: Session) -> None:
    session.status = status(current={"pass": "20200401/00", "state": "stopped", "reason": "3 lines were refused"})

    with pytest.raises(RunFailed, match="pass 20200401/00 is stopped: 3 lines were refused"):
        session.raise_for_problems()
    assert not session.finished()


def test_a_last_version_that_serving_refused_ends_the_run(session: Session) -> None:
    session.status = status((7, "published"))
    session.release = release(None, refused={7: "sample 3 differs"})

    with pytest.raises(RunFailed, match="version 7 was refused: sample 3 differs"):
        session.raise_for_problems()
    assert not session.finished()


def test_a_run_without_one_published_version_ends_with_the_last_refusal(session: Session) -> None:
    session.status = status((7, "refused"), (8, "refused"))
    session.release = release(None)

    with pytest.raises(RunFailed, match="no version was published: why 8"):
        session.raise_for_problems()
    assert not session.finished()


def test_a_run_that_is_kept_goes_on_past_a_stopped_pass_and_leaves_the_problem_in_its_folder(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = status(current={"pass": "20200401/00", "state": "stopped", "reason": "3 lines"}, finished=False)
    mended = status((7, "published"))
    session.release = release(7)
    session.seen[7] = SAMPLE
    looks = iter([stopped, stopped, mended])
    named: list[list[str]] = []
    monkeypatch.setattr(session, "look", lambda: setattr(session, "status", next(looks)))

    done = session.wait(threading.Event(), lambda one: named.append(one.problems()), keep=True)

    assert done
    assert named == [["pass 20200401/00 is stopped: 3 lines"]] * 2 + [[]]


def test_a_role_that_cannot_run_ends_a_run_that_is_not_kept(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.supervisor, "problems", lambda: ["ctr-serving-0 cannot run: no disk"])

    with pytest.raises(RoleRefused, match="ctr-serving-0 cannot run: no disk"):
        session.raise_for_problems()


def test_before_the_master_answers_nothing_has_failed() -> None:
    assert failure(None, None) == ""


def test_abandoned_versions_are_not_waited_for(session: Session) -> None:
    session.status = status((7, "published"), (9, "abandoned"))
    session.release = release(7)
    session.seen[7] = SAMPLE

    assert session.finished()


def test_each_role_has_its_file_and_only_the_owner_may_read_the_tokens(session: Session) -> None:
    (session.run_folder.path / "token").write_text("of an earlier release")
    session._write_files()
    files = [session.run_folder.token_file(right) for right in Right]
    before = [file.read_text() for file in files]
    session._write_files()

    assert [file.stat().st_mode & 0o777 for file in files] == [0o600] * 3
    assert [file.read_text() for file in files] == before
    assert len({token for _, token in map(str.split, before)}) == 3
    assert all(len(token) >= 32 for _, token in map(str.split, before))
    assert not (session.run_folder.path / "token").exists()
    for role in session.supervisor.roles:
        assert load(type(role.file), session.places.config_file(role)) == role.file


def test_the_run_folder_describes_its_run_while_it_runs_and_after(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session.supervisor, "start", lambda: None)
    monkeypatch.setattr(module, "find_ports_free", lambda _: None)
    folder = session.run_folder

    assert "no run was ever started there" in folder.absence()
    with session.running():
        during, runner = folder.read(), folder.runner()
        session.end_reason = "pass 20200401/00 is stopped: 3 lines"
    after = folder.read()

    assert during is not None
    assert (during.ended_at, during.predictions, runner) == (None, ["127.0.0.1:8400"], os.getpid())
    assert after is not None
    assert after.ended_at is not None
    assert folder.runner() is None
    assert folder.absence().endswith(": pass 20200401/00 is stopped: 3 lines")
    assert str(folder.path) in folder.absence()


def test_the_absence_of_a_killed_runner_has_the_last_lines_of_its_log(session: Session) -> None:
    folder = session.run_folder
    folder.logs.mkdir()
    folder.write(session.places.info)
    folder.runner_log.write_text("first\n\nMemoryError\n")

    assert folder.absence().endswith(": first / MemoryError")


def test_two_runs_in_one_folder_are_refused(session: Session) -> None:
    with session._lock, pytest.raises(StateInUse, match="is used by another process"):
        Session(session.places)._lock.acquire()


def test_a_report_without_an_answer_of_the_master_is_refused(session: Session) -> None:
    with pytest.raises(RunFailed, match="the master never answered"):
        session.report()


def test_a_report_is_written_whole(tmp_path: Path) -> None:
    write_json(tmp_path / "new" / "report.json", {"live": 7})

    assert (tmp_path / "new" / "report.json").read_text() == '{\n "live": 7\n}\n'
    assert list((tmp_path / "new").iterdir()) == [tmp_path / "new" / "report.json"]


@pytest.mark.parametrize(("took", "pause"), [(0.001, 0.25), (0.05, 1.0), (5.0, 2.0)])
def test_a_look_that_takes_long_is_seldom_but_processes_are_looked_after(took: float, pause: float) -> None:
    assert pause_after(took) == pause


def test_readable_files_of_the_run_are_closed_to_others_and_files_not_of_the_run_are_left(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    for name in ("state/intake/clicks.sqlite", "logs/ctr-master-0.log", "store/output/a", "mine/notes"):
        (folder.path / name).parent.mkdir(parents=True)
        (folder.path / name).touch(mode=0o644)
    (folder.path / "state" / "link").symlink_to(folder.path / "mine" / "notes")
    outside = os.umask(0o022)
    os.umask(outside)

    with folder.private():
        folder.close_to_others()
        (folder.path / "state" / "new").mkdir()
        (folder.path / "state" / "new" / "file").touch()

    found = {each: each.lstat().st_mode & 0o777 for each in folder.path.rglob("*") if not each.is_symlink()}
    mine = folder.path / "mine"
    assert {mode for each, mode in found.items() if each.is_file() and mine not in each.parents} == {0o600}
    assert {mode for each, mode in found.items() if each.is_dir() and each != mine} == {0o700}
    assert found[mine / "notes"] & 0o044
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert os.umask(outside) == outside


def test_a_store_that_training_waits_for_is_among_the_problems_of_the_run_until_it_is_back(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`local up` and other commands read them from the folder."""
    monkeypatch.setattr(session.supervisor, "watch", lambda: None)
    for waits in ("the store is read-only; it is tried again", ""):
        answer = status(finished=False, error=waits)
        monkeypatch.setattr(module, "status_and_release", lambda _, answer=answer: (answer, None))
        session.look()
        found = session.run_folder.read()

        assert found is not None
        assert found.problems == ([waits] if waits else [])
