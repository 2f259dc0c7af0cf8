"""Checks that take long, or never end: what goes on meanwhile, and what becomes of their answers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.serving.workers import WorkerLost
from serving.pods import pod


async def test_a_check_that_hangs_holds_up_neither_a_rollback_nor_a_worker_started_anew(tmp_path: Path) -> None:
    async with pod(tmp_path, live=1) as it:
        it.document(live=2, previous=1)
        await it.until(lambda: it.releases.serving == 2)
        it.running[0].hangs_at(3)
        it.document(live=2, previous=1, candidate=3)
        await it.until(lambda: (0, 3) in it.did("check"))

        anew = it.start_anew(1)
        await it.until(lambda: anew.listening)
        before = anew.pinned
        it.document(live=1, previous=2, held=True)
        await it.until(lambda: it.releases.serving == 1)

    assert before == 2
    assert [each.pinned for each in it.in_order()] == [1, 1]


async def test_a_rollback_reaches_all_others_while_a_worker_at_a_check_hears_nothing(tmp_path: Path) -> None:
    async with pod(tmp_path, live=1) as it:
        it.document(live=2, previous=1)
        await it.until(lambda: it.releases.serving == 2)
        it.running[0].deaf = True
        answer = it.running[0].hangs_at(3)
        it.document(live=2, previous=1, candidate=3)
        await it.until(lambda: (0, 3) in it.did("check"))
        it.document(live=1, previous=2, held=True)
        await it.until(lambda: it.running[1].pinned == 1)
        meanwhile = it.running[0].pinned
        answer.set_result({"passed": 0.0})
        await it.until(lambda: it.releases.serving == 1)

    assert meanwhile == 2


async def test_a_rollback_that_is_taken_back_reaches_all_others_too_while_a_worker_at_a_check_hears_nothing(
    tmp_path: Path,
) -> None:
    async with pod(tmp_path) as it:
        deaf, other = it.in_order()
        it.document(live=1)
        await it.until(lambda: it.releases.serving == 1)
        it.document(live=2, previous=1)
        await it.until(lambda: it.releases.serving == 2)
        deaf.deaf = True
        answer = deaf.hangs_at(3)
        it.document(live=2, previous=1, candidate=3)
        await it.until(lambda: (0, 3) in it.did("check"))
        it.document(live=1, previous=2, held=True)
        await it.until(lambda: other.pinned == 1)

        it.document(live=2, previous=1)
        await it.until(lambda: other.pinned == 2)
        meanwhile = deaf.answers_with, deaf.pinned
        answer.set_result({"passed": 1e-7})
        await it.until(lambda: it.did("pin").count((0, 2)) == 2 and not it.releases._checks)
        await it.until(lambda: deaf.answers_with == deaf.pinned == 2)

    assert meanwhile == (2, 2)
    assert it.did("pin") == [(0, 1), (1, 1), (0, 2), (1, 2), (1, 1), (0, 1), (1, 2), (0, 2)]


async def test_a_live_version_whose_check_hangs_in_one_worker_is_answered_with_by_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_ctr.serving.releases._TURN_SECONDS", 0.01)
    async with pod(tmp_path, workers=3, live=1) as it:
        it.running[0].deaf = True
        answer = it.running[0].hangs_at(2)
        it.document(live=2, previous=1)
        await it.until(lambda: [each.pinned for each in it.in_order()] == [1, 2, 2])
        ready, _ = it.releases.ready(it.workers)
        it.document(live=1, previous=2, held=True)
        await it.until(lambda: [each.pinned for each in it.in_order()] == [1, 1, 1])
        it.document(live=2, previous=1)
        await it.until(lambda: [each.pinned for each in it.in_order()] == [1, 2, 2])
        answer.set_result({"passed": 1e-7})
        await it.until(lambda: it.releases.serving == 2)

    assert ready
    assert it.did("check") == [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 2)]


async def test_documents_that_come_all_the_time_do_not_keep_the_next_worker_from_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_ctr.serving.releases._TURN_SECONDS", 0.05)
    async with pod(tmp_path, live=1) as it:
        it.running[0].hangs_at(2)
        while it.running[1].pinned != 2:
            it.document(live=2, previous=1)
            await asyncio.sleep(0.005)


async def test_a_candidate_over_whose_check_a_worker_hangs_is_not_given_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_ctr.serving.releases._TURN_SECONDS", 0.01)
    async with pod(tmp_path, live=1) as it:
        answer = it.running[0].hangs_at(2)
        it.document(live=1, candidate=2)
        await it.until(lambda: (0, 2) in it.did("check"))
        for _ in range(3):
            it.document(live=1, candidate=2)
            await asyncio.sleep(0.02)
        meanwhile = it.did("check")
        answer.set_result({"passed": 1e-7})
        await it.until(lambda: 2 in it.running[1].passed)

    assert meanwhile == [(0, 1), (1, 1), (0, 2)]


async def test_a_worker_at_the_check_of_the_live_version_is_given_no_candidate_until_that_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_ctr.serving.releases._TURN_SECONDS", 0.01)
    async with pod(tmp_path, live=1) as it:
        answer = it.running[0].hangs_at(2)
        it.document(live=2, previous=1, candidate=3)
        await it.until(lambda: 3 in it.releases.passed)
        meanwhile = it.did("check")
        answer.set_result({"passed": 1e-7})
        await it.until(lambda: 3 in it.running[0].passed)

    # Were it at both and ended, nobody would know over which.
    assert meanwhile == [(0, 1), (1, 1), (0, 2), (1, 2), (1, 3)]


async def test_what_cannot_be_checked_yet_is_checked_again_while_a_candidates_check_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_ctr.serving.releases._AGAIN_SECONDS", 0.01)
    monkeypatch.setattr("elastic_ctr.serving.releases._TURN_SECONDS", 0.01)
    async with pod(tmp_path, live=1) as it:
        it.running[0].hangs_at(3)
        it.running[1].outcome[2] = {"later": "version 2 cannot be checked yet: cube is not there"}
        it.document(live=2, previous=1, candidate=3)
        await it.until(lambda: (0, 3) in it.did("check"))
        del it.running[1].outcome[2]

        await it.until(lambda: it.releases.serving == 2)


@pytest.mark.parametrize("outcome", [{"passed": 1e-7}, {"later": "version 2 cannot be checked yet"}])
async def test_a_candidate_that_is_taken_back_is_let_go_and_checked_anew_when_it_comes_again(
    tmp_path: Path, outcome: dict[str, Any]
) -> None:
    async with pod(tmp_path, workers=1) as it:
        [worker] = it.in_order()
        it.document(live=1)
        await it.until(lambda: it.releases.serving == 1 and worker.kept == {1})
        before = it.did("keep")
        answer = worker.hangs_at(2)
        it.document(live=1, candidate=2)
        await it.until(lambda: (0, 2) in it.did("check"))
        # Both at once: what it has loaded has never been among what it was told to keep.
        answer.set_result(outcome)
        it.document(live=1)
        await it.until(lambda: it.did("keep") != before and worker.kept == {1})
        meanwhile = sorted(worker.passed), sorted(it.releases.passed)
        worker.outcome.clear()
        it.document(live=1, candidate=2)
        await it.until(lambda: 2 in it.releases.passed)

    assert meanwhile == ([1], [1])
    assert it.did("check") == [(0, 1), (0, 2), (0, 2)]


@pytest.mark.parametrize("outcome", [{"passed": 1e-7}, {"refused": "version 2 answers wrongly"}])
async def test_a_check_that_was_left_alone_is_not_asked_for_twice_and_counts_when_it_is_answered(
    tmp_path: Path, outcome: dict[str, Any]
) -> None:
    async with pod(tmp_path, live=1) as it:
        answer = it.running[0].hangs_at(2)
        it.document(live=1, candidate=2)
        await it.until(lambda: (0, 2) in it.did("check"))
        for _ in range(3):
            it.document(live=1, candidate=2)
            await asyncio.sleep(0.01)
        meanwhile = it.did("check")
        answer.set_result(outcome)
        passes = "passed" in outcome
        await it.until(lambda: 2 in (it.running[1].passed if passes else it.releases.refused))

    assert meanwhile == [(0, 1), (1, 1), (0, 2)]
    assert it.did("check") == [*meanwhile, *([(1, 2)] if passes else [])]
    assert it.releases.passed.keys() == ({1, 2} if passes else {1})


async def test_what_is_still_checked_is_let_go_when_that_is_done(tmp_path: Path) -> None:
    async with pod(tmp_path, workers=1, live=1) as it:
        answer = it.running[0].hangs_at(2)
        it.document(live=1, candidate=2)
        await it.until(lambda: (0, 2) in it.did("check"))
        it.document(live=3, previous=1)
        await it.until(lambda: it.releases.serving == 3 and 3 in it.running[0].kept)
        meanwhile = set(it.running[0].kept), (tmp_path / "scratch" / "version-2").exists()
        answer.set_result({"passed": 1e-7})
        await it.until(lambda: it.running[0].kept == {1, 3})
        await it.until(lambda: not (tmp_path / "scratch" / "version-2").exists())

    assert meanwhile == ({1, 2, 3}, True)
    assert it.releases.passed.keys() == it.running[0].passed == {1, 3}


async def test_a_worker_that_ends_at_two_checks_is_the_fault_of_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_ctr.serving.releases._AGAIN_SECONDS", 0.01)
    monkeypatch.setattr("elastic_ctr.serving.releases._LOSSES", 1)
    async with pod(tmp_path, workers=1, live=1) as it:
        answers = [it.running[0].hangs_at(3), it.running[0].hangs_at(2)]
        it.document(live=1, candidate=3)
        await it.until(lambda: (0, 3) in it.did("check"))
        it.document(live=2, previous=1, candidate=3)
        await it.until(lambda: (0, 2) in it.did("check"))
        it.running[0].outcome.clear()
        for answer in answers:
            answer.set_exception(WorkerLost("worker 0 ended"))
        await it.until(lambda: {2, 3} <= it.running[0].passed)

    assert it.releases.refused == {}


async def test_a_worker_that_ends_at_a_check_once_it_has_answered_another_ends_by_the_fault_of_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_ctr.serving.releases._LOSSES", 1)
    async with pod(tmp_path, workers=1, live=1) as it:
        answers = [it.running[0].hangs_at(3), it.running[0].hangs_at(2)]
        it.document(live=1, candidate=3)
        await it.until(lambda: (0, 3) in it.did("check"))
        it.document(live=2, previous=1, candidate=3)
        await it.until(lambda: (0, 2) in it.did("check"))
        it.running[0].outcome.clear()
        answers[0].set_result({"passed": 1e-7})
        answers[1].set_exception(WorkerLost("worker 0 ended"))
        await it.until(lambda: 2 in it.running[0].passed or 2 in it.releases.refused)

    assert it.releases.refused.keys() == {2}


async def test_what_one_worker_has_refused_another_that_was_at_it_does_not_answer_with(tmp_path: Path) -> None:
    async with pod(tmp_path, live=1) as it:
        answer = it.running[1].hangs_at(2)
        it.document(live=2, previous=1)
        await it.until(lambda: (1, 2) in it.did("check"))
        it.start_anew(0).outcome[2] = {"refused": "version 2 answers wrongly"}
        await it.until(lambda: 2 in it.releases.refused)
        answer.set_result({"passed": 1e-7})
        await it.until(lambda: it.running[0].pinned == 1 and not it.releases._checks)

    assert 2 not in it.releases.passed
    assert it.running[1].pinned == 1
