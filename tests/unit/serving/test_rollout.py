"""The order of checks and switches."""

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.cube.release import Holder
from elastic_ctr.runtime.process_pool import WorkerHung, WorkerLost
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import VersionManifest
from serving.pods import CHECKER, Pod, pod


async def test_a_version_is_checked_once_and_then_every_worker_loads_it_and_switches(tmp_path: Path) -> None:
    async with pod(tmp_path) as it:
        it.document(live=1)
        await it.until(lambda: it.rollout.serving == 1 and all(each.listening for each in it.in_order()))

        it.document(live=1, candidate=2)
        await it.until(lambda: all(2 in each.loaded for each in it.in_order()))
        before = [each.pinned for each in it.in_order()]
        it.document(live=2, previous=1)
        await it.until(lambda: it.rollout.serving == 2)

    assert before == [1, 1]
    assert it.did("check") == [(CHECKER, 1), (CHECKER, 2)]
    assert sorted(it.did("load")) == sorted(it.did("pin")) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert it.rollout.validated == {1: 1e-7, 2: 1e-7}
    assert it.rollout.ready() == (True, "version 2 is live and answered with")


async def test_a_live_version_that_fails_here_is_not_switched_to(tmp_path: Path) -> None:
    async with pod(tmp_path, live=1) as it:
        it.checker.outcome[2] = {"refused": "version 2 answers wrongly", "maxAbsDiff": 0.5}
        it.document(live=2, previous=1)
        await it.until(lambda: 2 in it.rollout.refused)
        await it.until(lambda: 2 not in it.rollout._fetches)

        ready, why = it.rollout.ready()

    assert [each.pinned for each in it.in_order()] == [1, 1]
    assert it.running[0].kept == it.running[1].kept == {1}
    assert not ready
    assert it.rollout.last_refusal == "version 2 answers wrongly"
    assert it.rollout.differences == {2: 0.5}
    assert "version 2" in why


async def test_a_new_pod_falls_back_on_the_previous_version_when_the_live_one_fails(tmp_path: Path) -> None:
    async with pod(tmp_path, workers=1) as it:
        it.checker.outcome[2] = {"refused": "version 2 answers wrongly"}
        it.document(live=2, previous=1)
        await it.until(lambda: it.rollout.serving == 1)

        ready, _ = it.rollout.ready()

    assert it.checked() == [2, 1]
    assert not ready


async def test_a_version_that_ends_the_process_that_checks_it_is_refused_the_third_time(tmp_path: Path) -> None:
    async with pod(tmp_path, workers=1, live=1) as it:
        it.checker.outcome[2] = WorkerLost("the checker ended")
        it.document(live=1, candidate=2)
        await it.until(lambda: 2 in it.rollout.refused)

    assert "ended the process that checked it" in it.rollout.refused[2]
    assert it.checked().count(2) == 3
    assert it.rollout.serving == 1


async def test_a_version_whose_checks_hang_until_we_kill_them_is_checked_again_and_never_refused_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_ctr.serving.rollout._AGAIN_SECONDS", 0.01)
    async with pod(tmp_path, workers=1, live=1) as it:
        it.checker.outcome[2] = WorkerHung("the checker hung, and was killed")
        it.document(live=1, candidate=2)
        await it.until(lambda: it.checked().count(2) == 5)
        await it.until(lambda: "the checker hung, and was killed" in it.rollout.stage)
        del it.checker.outcome[2]
        await it.until(lambda: 2 in it.rollout.validated)

    assert it.rollout.refused == {}


async def test_a_store_that_is_away_for_a_while_refuses_nothing(tmp_path: Path) -> None:
    async with pod(tmp_path, workers=1, live=1) as it:
        (tmp_path / "store").rename(tmp_path / "away")
        it.document(live=1, candidate=2)
        await asyncio.sleep(1.2)
        refused = dict(it.rollout.refused)
        (tmp_path / "away").rename(tmp_path / "store")
        await it.until(lambda: 2 in it.rollout.validated)

    assert refused == {}


async def test_a_version_that_this_disk_has_no_room_for_costs_nothing_that_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_ctr.serving.rollout._AGAIN_SECONDS", 0.01)
    async with pod(tmp_path, live=1) as it:
        fetched = it.rollout._fetched
        tries: list[int] = []

        async def full_twice(version: int) -> VersionManifest:
            tries.append(version)
            if len(tries) < 3:
                raise OSError(errno.ENOSPC, "No space left on device")
            return await fetched(version)

        monkeypatch.setattr(it.rollout, "_fetched", full_twice)
        it.document(live=2, previous=1)
        await it.until(lambda: len(tries) == 2)
        meanwhile = it.rollout.serving
        await it.until(lambda: it.rollout.serving == 2)

    assert meanwhile == 1
    assert it.rollout.refused == {}


async def test_a_version_that_cannot_be_checked_yet_is_checked_again(tmp_path: Path) -> None:
    async with pod(tmp_path, workers=1) as it:
        it.checker.outcome[1] = {"later": "cube is not there"}
        it.document(live=1)
        await it.until(lambda: "cube is not there" in it.rollout.stage)
        del it.checker.outcome[1]

        await it.until(lambda: it.rollout.serving == 1)

    assert (0, "stage", "version 1 cannot be checked yet: cube is not there") in it.log
    assert it.rollout.refused == {}


async def test_a_candidate_waits_until_every_partition_is_held(tmp_path: Path) -> None:
    async with pod(tmp_path, workers=1) as it:
        it.document(candidate=1, holders={1: {"cube:1": Holder(partitions=(0,))}})
        await it.until(lambda: "version 1 cannot be checked yet: cube holds 1 of its 2 partitions" in it.rollout.stage)
        before = it.checked()

        it.document(candidate=1)
        await it.until(lambda: 1 in it.rollout.validated)

    assert before == []
    assert it.did("pin") == []


async def test_a_manifest_that_is_not_there_is_refused_the_second_time(tmp_path: Path) -> None:
    async with pod(tmp_path, workers=1) as it:
        it.document(candidate=9)
        await it.until(lambda: 9 in it.rollout.refused)

    assert layout.version_manifest(9) in it.rollout.refused[9]


async def test_a_version_that_is_wanted_no_more_is_unloaded_and_its_files_deleted(tmp_path: Path) -> None:
    async with pod(tmp_path, workers=1) as it:
        for live, previous in ((1, None), (2, 1), (3, 2)):
            it.document(live=live, previous=previous)
            await it.until(lambda live=live: it.rollout.serving == live)  # type: ignore[misc]
        await it.until(lambda: 1 not in it.rollout.manifests)

        folders = sorted(each.name for each in (tmp_path / "scratch").iterdir())

    assert folders == ["version-2", "version-3"]
    assert it.running[0].loaded == {2, 3}
    assert it.rollout.validated.keys() == {2, 3}
    assert (0, None) in it.did("keep")


async def test_a_rollback_goes_back_to_a_version_checked_anew(tmp_path: Path) -> None:
    async with pod(tmp_path, workers=1) as it:
        for live, previous in ((1, None), (2, 1), (3, 2)):
            it.document(live=live, previous=previous)
            await it.until(lambda live=live: it.rollout.serving == live)  # type: ignore[misc]

        it.document(live=1, previous=3, promotion_paused=True)
        await it.until(lambda: it.rollout.serving == 1)

    assert it.checked() == [1, 2, 3, 1]


async def test_after_a_rollback_a_worker_started_anew_answers_with_what_served_until_the_old_version_has_passed_again(
    tmp_path: Path,
) -> None:
    async with pod(tmp_path) as it:
        for live, previous in ((1, None), (2, 1), (3, 2)):
            it.document(live=live, previous=previous)
            await it.until(lambda live=live: it.rollout.serving == live)  # type: ignore[misc]
        await it.until(lambda: 1 not in it.rollout.manifests)
        it.checker.outcome[1] = {"later": "cube is not there"}
        it.document(live=1, previous=3, promotion_paused=True)
        anew = it.start_anew(1)

        await it.until(lambda: anew.listening)

    assert anew.pinned == 3


async def test_the_failures_of_a_version_that_is_wanted_no_more_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_ctr.serving.rollout._AGAIN_SECONDS", 0.01)
    monkeypatch.setattr("elastic_ctr.serving.rollout._TRIES", 1_000_000)
    async with pod(tmp_path) as it:
        it.checker.outcome[3] = WorkerLost("the checker ended")
        it.document(candidate=3)
        await it.until(lambda: it.rollout._losses[3] > 0)
        it.document(candidate=9)
        await it.until(lambda: it.rollout._failures[9] > 0)

        it.document(live=1)
        await it.until(lambda: not it.rollout._losses and not it.rollout._failures)


@pytest.mark.parametrize(("fields", "stage"), [({}, "no version has been published yet")])
async def test_before_a_version_is_live_the_pod_is_ready_and_says_what_it_waits_for(
    tmp_path: Path, fields: dict[str, Any], stage: str
) -> None:
    async with pod(tmp_path, workers=1) as it:
        unknown = it.rollout.ready()
        it.document(**fields)
        await it.until(lambda: it.running[0].listening and it.rollout.stage == stage)

        known = it.rollout.ready()

    assert unknown == (False, "the release document has not come yet")
    assert known == (True, f"no version is live yet: {stage}")


async def test_a_worker_that_cannot_listen_is_ordered_to_again_and_the_stage_has_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_ctr.serving.rollout._AGAIN_SECONDS", 0.01)
    async with pod(tmp_path, workers=1) as it:
        it.running[0].listens = {"error": "the doors cannot be opened"}  # type: ignore[dict-item]
        it.document(live=1)
        await it.until(lambda: it.did("listen") != [])
        await it.until(lambda: it.rollout.stage == "worker 0: the doors cannot be opened")
        meanwhile = it.running[0].listening, it.rollout.ready()[0]
        it.running[0].listens = {"ok": True}
        await it.until(lambda: it.rollout.ready()[0])

    assert meanwhile == (False, False)


async def test_a_worker_that_is_silent_does_not_make_the_pod_ready(tmp_path: Path) -> None:
    async with pod(tmp_path) as it:
        it.document(live=1)
        await it.until(lambda: it.rollout.serving == 1 and all(each.listening for each in it.in_order()))

        ready = []
        for silent in ((False, True), (True, True), (False, False)):
            for worker, is_silent in zip(it.in_order(), silent, strict=True):
                worker.silent = is_silent
            ready.append(it.rollout.ready()[0])

    assert ready == [True, False, True]


async def test_when_workers_are_kept_no_longer_the_following_of_releases_ends_with_the_reason(tmp_path: Path) -> None:
    it = Pod(FileStore(tmp_path), tmp_path, 1)
    following = asyncio.create_task(it.rollout.run())
    it.keepers.set_exception(RuntimeError("a keeper has failed"))

    with pytest.raises(RuntimeError, match="a keeper has failed"):
        await following


async def test_a_checked_candidate_answers_its_share_while_the_document_says_so(tmp_path: Path) -> None:
    async with pod(tmp_path, live=1) as it:
        it.document(live=1, candidate=2)
        await it.until(lambda: all(2 in each.loaded for each in it.in_order()))
        before = it.did("canary")
        it.document(live=1, candidate=2, canary=True)
        await it.until(lambda: {each.canary for each in it.in_order()} == {2})
        during = it.rollout.canary, [each.pinned for each in it.in_order()]
        it.document(live=2, previous=1)
        await it.until(lambda: it.rollout.serving == 2 and {each.canary for each in it.in_order()} == {None})

    assert before == []
    assert during == (2, [1, 1])
    assert it.rollout.canary is None


async def test_a_canary_that_is_gone_from_the_document_answers_nothing_more(tmp_path: Path) -> None:
    async with pod(tmp_path, live=1) as it:
        it.document(live=1, candidate=2, canary=True)
        await it.until(lambda: {each.canary for each in it.in_order()} == {2})

        it.document(live=1, refused={2: "it was worse"})
        await it.until(lambda: {each.canary for each in it.in_order()} == {None})
        it.start_anew(0)
        await it.until(lambda: it.running[0].pinned == 1)

    assert it.rollout.serving == 1
    assert it.running[0].canary is None


async def test_a_candidate_that_fails_here_answers_no_share_here(tmp_path: Path) -> None:
    async with pod(tmp_path, live=1) as it:
        it.checker.outcome[2] = {"refused": "version 2 answers wrongly"}
        it.document(live=1, candidate=2, canary=True)
        await it.until(lambda: 2 in it.rollout.refused)
        it.document(live=1, previous=3, candidate=2, canary=True)
        await it.until(lambda: 3 in it.running[0].kept)

    assert it.did("canary") == []
