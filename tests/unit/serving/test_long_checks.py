"""Checks and loads that take long, or never end: what goes on meanwhile, and what becomes of their versions."""

import asyncio
import threading
from pathlib import Path

import pytest

from elastic_ctr.store.versions.manifest import VersionManifest
from serving.pods import Pod, pod


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_ctr.serving.rollout._AGAIN_SECONDS", 0.01)


async def checking(it: Pod, version: int, times: int = 1) -> None:
    await it.until(lambda: it.checked().count(version) == times)


async def test_a_check_that_hangs_holds_up_neither_a_rollback_nor_a_worker_started_anew(tmp_path: Path) -> None:
    async with pod(tmp_path, live=1) as it:
        it.document(live=2, previous=1)
        await it.until(lambda: it.rollout.serving == 2)
        it.checker.hangs_at(3)
        it.document(live=2, previous=1, candidate=3)
        await checking(it, 3)

        anew = it.start_anew(1)
        await it.until(lambda: anew.listening)
        before = anew.pinned
        it.document(live=1, previous=2, candidate=3, promotion_paused=True)
        await it.until(lambda: it.rollout.serving == 1)

    assert before == 2
    assert [each.pinned for each in it.in_order()] == [1, 1]
    assert it.checker.killed == 0


async def test_the_check_of_a_candidate_that_hangs_is_ended_for_a_version_that_becomes_live(tmp_path: Path) -> None:
    async with pod(tmp_path, live=1) as it:
        it.checker.hangs_at(3)
        it.document(live=1, candidate=3)
        await checking(it, 3)
        it.document(live=2, previous=1, candidate=3)
        await it.until(lambda: it.rollout.serving == 2)
        killed = it.checker.killed
        await checking(it, 3, times=2)

    assert killed == 1
    assert it.rollout.refused == {}


@pytest.mark.usefixtures("soon")
async def test_a_check_that_exceeds_its_deadline_is_killed_and_tried_again_and_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pod(tmp_path, live=1) as it:
        monkeypatch.setattr("elastic_ctr.serving.rollout._CHECK_SECONDS", 0.1)
        it.checker.hangs_at(2)
        it.document(live=1, candidate=2)
        await checking(it, 2, times=3)
        stage, killed = it.rollout.stage, it.checker.killed
        monkeypatch.undo()
        it.checker.outcome.clear()
        await it.until(lambda: 2 in it.rollout.validated)

    assert "version 2" in stage
    assert killed == 2
    assert it.rollout.refused == {}


@pytest.mark.usefixtures("soon")
async def test_a_live_version_whose_check_hangs_takes_turns_with_the_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pod(tmp_path, live=1) as it:
        monkeypatch.setattr("elastic_ctr.serving.rollout._CHECK_SECONDS", 1.0)
        it.checker.hangs_at(2)
        it.document(live=2, previous=1, candidate=3)
        await it.until(lambda: 3 in it.rollout.validated)
        pinned = [each.pinned for each in it.in_order()]

    assert it.checked()[:3] == [1, 2, 3]
    assert pinned == [1, 1]


async def test_a_store_that_hangs_is_no_refusal_and_keeps_no_other_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pod(tmp_path, live=1) as it:
        fetch, reached = it.rollout._fetch, threading.Event()

        def hangs(version: int) -> VersionManifest:
            if version == 2:
                reached.wait(60)
            return fetch(version)

        monkeypatch.setattr(it.rollout, "_fetch", hangs)
        it.document(live=1, candidate=2)
        await it.until(lambda: 2 in it.rollout._fetches)
        it.document(live=3, previous=1, candidate=2)
        await it.until(lambda: it.rollout.serving == 3)
        reached.set()
        await it.until(lambda: 2 in it.rollout.validated)

    assert it.rollout.refused == {}


async def test_a_load_that_hangs_in_one_worker_keeps_no_other_from_the_live_version_or_a_rollback(
    tmp_path: Path,
) -> None:
    async with pod(tmp_path, workers=3, live=1) as it:
        answer = it.running[0].hangs_at(2)
        it.document(live=2, previous=1)
        await it.until(lambda: [each.pinned for each in it.in_order()] == [1, 2, 2])
        ready, _ = it.rollout.ready()
        it.document(live=1, previous=2, promotion_paused=True)
        await it.until(lambda: [each.pinned for each in it.in_order()] == [1, 1, 1])
        it.document(live=2, previous=1)
        await it.until(lambda: [each.pinned for each in it.in_order()] == [1, 2, 2])
        answer.set_result({"ok": True})
        await it.until(lambda: it.rollout.serving == 2)

    assert ready
    assert it.checked() == [1, 2]


@pytest.mark.usefixtures("soon")
async def test_a_version_that_a_worker_cannot_load_at_first_is_loaded_later(tmp_path: Path) -> None:
    async with pod(tmp_path, live=1) as it:
        it.running[0].outcome[2] = {"error": "no memory"}
        it.document(live=2, previous=1)
        await it.until(lambda: it.rollout.stage == "worker 0: no memory")
        await it.until(lambda: it.running[1].pinned == 2)
        before = it.running[0].pinned
        it.running[0].outcome.clear()
        await it.until(lambda: it.rollout.serving == 2)

    assert before == 1


async def test_documents_that_come_all_the_time_neither_begin_a_check_anew_nor_end_it(tmp_path: Path) -> None:
    async with pod(tmp_path, live=1) as it:
        answer = it.checker.hangs_at(2)
        for _ in range(5):
            it.document(live=1, candidate=2)
            await asyncio.sleep(0.01)
        answer.set_result({"passed": 1e-7})
        await it.until(lambda: all(2 in each.loaded for each in it.in_order()))

    assert it.checked() == [1, 2]
    assert it.checker.killed == 0


async def test_a_candidate_that_is_taken_back_is_let_go_and_checked_anew_when_it_comes_again(tmp_path: Path) -> None:
    async with pod(tmp_path, workers=1, live=1) as it:
        it.checker.hangs_at(2)
        it.document(live=1, candidate=2)
        await checking(it, 2)
        it.document(live=1)
        await it.until(lambda: not (tmp_path / "scratch" / "version-2").exists())
        it.checker.outcome.clear()
        it.document(live=1, candidate=2)
        await it.until(lambda: 2 in it.running[0].loaded)

    assert it.checked() == [1, 2, 2]


async def test_a_dropped_candidate_that_a_worker_still_loads_is_unloaded_when_that_is_done(tmp_path: Path) -> None:
    async with pod(tmp_path, workers=1, live=1) as it:
        [worker] = it.in_order()
        answer = worker.hangs_at(2)
        it.document(live=1, candidate=2)
        await it.until(lambda: (0, 2) in it.did("load"))
        it.document(live=3, previous=1)
        await it.until(lambda: 3 in it.rollout.validated)
        meanwhile = (tmp_path / "scratch" / "version-2").exists()
        answer.set_result({"ok": True})
        await it.until(lambda: it.rollout.serving == 3 and worker.kept == {1, 3})
        await it.until(lambda: not (tmp_path / "scratch" / "version-2").exists())

    assert meanwhile
    assert worker.loaded == {1, 3}
