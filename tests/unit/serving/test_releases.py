"""The order of checks and switches, with workers that answer as a test says; the real ones are in tests/contract."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from elastic_ctr.cube.release import Holder, Placement, ReleaseDocument
from elastic_ctr.serving.releases import Releases
from elastic_ctr.serving.workers import Worker, WorkerHung, WorkerLost, Workers
from elastic_ctr.store import FileStore
from elastic_ctr.versions import layout
from elastic_ctr.versions.manifest import VersionManifest, publish

PARTITIONS = 2


def put(store: FileStore, version: int, folder: Path) -> None:
    files = []
    for name in ("network.pdmodel", "network.pdiparams", "sample.jsonl"):
        source = folder / name
        source.write_text(f"{name} of {version}")
        files.append(publish(store, source, f"{layout.model_folder(version)}/{name}"))
    manifest = VersionManifest(
        version=version, kind="base", base=version, parent=None, pass_id="1", event_time_max=1, created_at=1.0,
        partitions=PARTITIONS, dim=1, keys=0, slots=("0",), sparse_dim=None, network="slot-dnn", cube_files=(),
        model_files=tuple(files), samples=0, auc_live=None, auc_published=None,
    )  # fmt: skip
    store.put_bytes(manifest.to_json(), layout.version_manifest(version))


class Scripted:
    """A worker: `outcome[version]` is what its check ends with, at once or when the test says so.

    At a check a `deaf` one hears nothing. A pin of what it has not passed, or has let go, is one of its `faults`: the
    real one would end over it.
    """

    def __init__(self, index: int, log: list[tuple[Any, ...]]) -> None:
        self.index = index
        self.passed: set[int] = set()
        self.kept: set[int] = set()
        self.pinning: int | None = None
        self.pinned: int | None = None
        self.listening = False
        self.silent = False
        self.deaf = False
        self.outcome: dict[int, dict[str, Any] | Exception | asyncio.Future[dict[str, Any]]] = {}
        self._at_check: asyncio.Future[dict[str, Any]] | None = None
        self.listens = {"ok": True}
        self.answers_with: int | None = None
        self.faults: list[int] = []
        self._has: set[int] = set()
        self._log = log

    @property
    def answering(self) -> bool:
        return self.listening and not self.silent

    async def order(self, do: str, **what: Any) -> dict[str, Any]:
        return await self.send(do, **what)

    def send(self, do: str, **what: Any) -> "asyncio.Future[dict[str, Any]]":
        self._log.append((self.index, do, what["stage"] if do == "stage" else what.get("version")))
        answer = asyncio.ensure_future(self._answer(do, what))
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        return answer

    async def _answer(self, do: str, what: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0)
        if self.deaf and self._at_check is not None:
            await asyncio.shield(self._at_check)
        if do == "listen":
            return self.listens
        if do == "pin":
            self.answers_with = what["version"]
            if self.answers_with not in self._has:
                self.faults.append(self.answers_with)
        if do == "keep":
            self._has &= {*what["versions"], self.answers_with}
        return await self._checked(what["version"]) if do == "check" else {"ok": True}

    async def _checked(self, version: int) -> dict[str, Any]:
        outcome = self.outcome.get(version, {"passed": 1e-7})
        if isinstance(outcome, Exception):
            raise outcome
        if isinstance(outcome, asyncio.Future):
            self._at_check = outcome
            outcome = await asyncio.shield(outcome)
        if "passed" in outcome:
            self._has.add(version)
        return outcome

    def hangs_at(self, version: int) -> "asyncio.Future[dict[str, Any]]":
        """Until what is returned has a result."""
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.outcome[version] = answer
        return answer


class Pod:
    def __init__(self, releases: Releases, count: int) -> None:
        self.releases = releases
        self.log: list[tuple[Any, ...]] = []
        self.running = {index: Scripted(index, self.log) for index in range(count)}
        self.workers = cast("Workers", self)
        self._revision = 0
        self.keepers: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def kept(self) -> None:
        await self.keepers

    def in_order(self) -> list[Scripted]:
        return [self.running[index] for index in sorted(self.running)]

    def document(self, **fields: Any) -> None:
        self._revision += 1
        versions = {fields.get(name) for name in ("live", "previous", "candidate")} - {None}
        holders = {version: {"cube:1": Holder(partitions=tuple(range(PARTITIONS)))} for version in versions}
        document = ReleaseDocument(
            **{
                "generation": 1,
                "revision": self._revision,
                "placement": Placement(shards=1),
                "wanted": tuple(versions),
                "holders": holders,
                **fields,
            }
        )
        self.releases.take(document, self.workers)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.001)

    def start_anew(self, index: int) -> Scripted:
        self.running[index] = Scripted(index, self.log)
        self.releases.started(cast("Worker", self.running[index]))
        return self.running[index]

    def did(self, do: str) -> list[tuple[Any, ...]]:
        return [(index, what) for index, done, what in self.log if done == do]


@asynccontextmanager
async def pod(tmp_path: Path, versions: tuple[int, ...] = (1, 2, 3), workers: int = 2) -> AsyncIterator[Pod]:
    store = FileStore(tmp_path / "store")
    for version in versions:
        put(store, version, tmp_path)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    it = Pod(Releases(store, scratch), workers)
    task = asyncio.create_task(it.releases.run(it.workers))
    try:
        yield it
    finally:
        assert not task.done()
        assert not any(worker.faults for worker in it.in_order())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_workers_check_and_switch_in_turn_and_listen_once_they_have_passed(tmp_path: Path) -> None:
    async with pod(tmp_path) as it:
        it.document(live=1)
        await it.until(lambda: it.releases.serving == 1 and all(each.listening for each in it.in_order()))

        it.document(live=1, candidate=2)
        await it.until(lambda: all(2 in each.passed for each in it.in_order()))
        before = [each.pinned for each in it.in_order()]
        it.document(live=2, previous=1)
        await it.until(lambda: it.releases.serving == 2)

    assert before == [1, 1]
    assert it.did("check") == [(0, 1), (1, 1), (0, 2), (1, 2)]
    assert it.did("pin") == [(0, 1), (1, 1), (0, 2), (1, 2)]
    assert it.releases.passed == {1: 1e-7, 2: 1e-7}
    assert it.releases.ready(it.workers) == (True, "version 2 is live and answered with")


async def test_a_live_version_that_fails_here_is_not_switched_to(tmp_path: Path) -> None:
    async with pod(tmp_path) as it:
        it.document(live=1)
        await it.until(lambda: it.releases.serving == 1)
        it.running[1].outcome[2] = {"refused": "version 2 answers wrongly", "maxAbsDiff": 0.5}
        it.document(live=2, previous=1)
        await it.until(lambda: 2 in it.releases.refused)
        await it.until(lambda: it.running[1].kept == {1})

        ready, why = it.releases.ready(it.workers)

    assert [each.pinned for each in it.in_order()] == [1, 1]
    assert it.running[0].kept == it.running[1].kept == {1}
    assert not ready
    assert it.releases.last_refusal == "version 2 answers wrongly"
    assert it.releases.differences == {2: 0.5}
    assert "version 2" in why


async def test_a_new_pod_falls_back_on_the_previous_version_when_the_live_one_fails(tmp_path: Path) -> None:
    async with pod(tmp_path, workers=1) as it:
        it.running[0].outcome[2] = {"refused": "version 2 answers wrongly"}
        it.document(live=2, previous=1)
        await it.until(lambda: it.releases.serving == 1)

        ready, _ = it.releases.ready(it.workers)

    assert it.did("check") == [(0, 2), (0, 1)]
    assert not ready


async def test_a_version_that_ends_the_process_that_checks_it_is_refused_the_third_time(tmp_path: Path) -> None:
    async with pod(tmp_path, workers=1) as it:
        it.document(live=1)
        await it.until(lambda: it.releases.serving == 1)
        it.running[0].outcome[2] = WorkerLost("worker 0 ended")
        it.document(live=1, candidate=2)
        await it.until(lambda: 2 in it.releases.refused)

    assert "ended the process that checked it" in it.releases.refused[2]
    assert it.did("check").count((0, 2)) == 3
    assert it.releases.serving == 1


async def test_a_version_whose_checks_hang_until_we_kill_them_is_checked_again_and_never_refused_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_ctr.serving.releases._AGAIN_SECONDS", 0.01)
    async with pod(tmp_path, workers=1) as it:
        it.document(live=1)
        await it.until(lambda: it.releases.serving == 1)
        it.running[0].outcome[2] = WorkerHung("worker 0 hung, and was killed")
        it.document(live=1, candidate=2)
        await it.until(lambda: it.did("check").count((0, 2)) == 5)
        await it.until(lambda: "worker 0 hung, and was killed" in it.releases.stage)
        del it.running[0].outcome[2]
        await it.until(lambda: 2 in it.running[0].passed)

    assert it.releases.refused == {}


async def test_a_store_that_is_away_for_a_while_refuses_nothing(tmp_path: Path) -> None:
    async with pod(tmp_path, workers=1) as it:
        it.document(live=1)
        await it.until(lambda: it.releases.serving == 1)
        (tmp_path / "store").rename(tmp_path / "away")
        it.document(live=1, candidate=2)
        await asyncio.sleep(1.2)
        refused = dict(it.releases.refused)
        (tmp_path / "away").rename(tmp_path / "store")
        await it.until(lambda: 2 in it.running[0].passed)

    assert refused == {}


async def test_a_version_that_this_disk_has_no_room_for_costs_nothing_that_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_ctr.serving.releases._AGAIN_SECONDS", 0.01)
    async with pod(tmp_path) as it:
        it.document(live=1)
        await it.until(lambda: it.releases.serving == 1)
        fetched = it.releases._fetched
        tries: list[int] = []

        async def full_twice(version: int) -> Path:
            tries.append(version)
            if len(tries) < 3:
                raise OSError(errno.ENOSPC, "No space left on device")
            return await fetched(version)

        monkeypatch.setattr(it.releases, "_fetched", full_twice)
        it.document(live=2, previous=1)
        await it.until(lambda: len(tries) == 2)
        meanwhile = it.releases.serving
        await it.until(lambda: it.releases.serving == 2)

    assert meanwhile == 1
    assert it.releases.refused == {}


async def test_what_cannot_be_checked_yet_is_checked_again(tmp_path: Path) -> None:
    async with pod(tmp_path, workers=1) as it:
        it.running[0].outcome[1] = {"later": "version 1 cannot be checked yet: cube is not there"}
        it.document(live=1)
        await it.until(lambda: "cube is not there" in it.releases.stage)
        del it.running[0].outcome[1]

        await it.until(lambda: it.releases.serving == 1)

    assert (0, "stage", "version 1 cannot be checked yet: cube is not there") in it.log
    assert it.releases.refused == {}


async def test_a_candidate_waits_until_every_partition_is_held(tmp_path: Path) -> None:
    async with pod(tmp_path, workers=1) as it:
        it.document(candidate=1, holders={1: {"cube:1": Holder(partitions=(0,))}})
        await it.until(lambda: "cube holds 1 of 2 partitions of version 1" in it.releases.stage)
        before = it.did("check")

        it.document(candidate=1)
        await it.until(lambda: 1 in it.releases.passed)

    assert before == []
    assert it.did("pin") == []


async def test_a_manifest_that_is_not_there_is_refused_the_second_time(tmp_path: Path) -> None:
    async with pod(tmp_path, workers=1) as it:
        it.document(candidate=9)
        await it.until(lambda: 9 in it.releases.refused)

    assert layout.version_manifest(9) in it.releases.refused[9]


async def test_versions_nobody_wants_are_let_go_with_their_files(tmp_path: Path) -> None:
    async with pod(tmp_path, workers=1) as it:
        for live, previous in ((1, None), (2, 1), (3, 2)):
            it.document(live=live, previous=previous)
            await it.until(lambda live=live: it.releases.serving == live)  # type: ignore[misc]
        await it.until(lambda: 1 not in it.releases.manifests)

        folders = sorted(each.name for each in (tmp_path / "scratch").iterdir())

    assert folders == ["version-2", "version-3"]
    assert it.running[0].passed == {2, 3}
    assert it.releases.passed.keys() == {2, 3}
    assert (0, None) in it.did("keep")


async def test_a_rollback_goes_back_to_a_version_checked_anew(tmp_path: Path) -> None:
    async with pod(tmp_path, workers=1) as it:
        for live, previous in ((1, None), (2, 1), (3, 2)):
            it.document(live=live, previous=previous)
            await it.until(lambda live=live: it.releases.serving == live)  # type: ignore[misc]

        it.document(live=1, previous=3, held=True)
        await it.until(lambda: it.releases.serving == 1)

    assert it.did("check") == [(0, 1), (0, 2), (0, 3), (0, 1)]


async def test_after_a_rollback_a_worker_started_anew_answers_with_what_served_until_the_old_version_has_passed_again(
    tmp_path: Path,
) -> None:
    async with pod(tmp_path) as it:
        for live, previous in ((1, None), (2, 1), (3, 2)):
            it.document(live=live, previous=previous)
            await it.until(lambda live=live: it.releases.serving == live)  # type: ignore[misc]
        await it.until(lambda: 1 not in it.releases.manifests)
        for worker in it.in_order():
            worker.outcome[1] = {"later": "version 1 cannot be checked yet: cube is not there"}
        it.document(live=1, previous=3, held=True)
        anew = it.start_anew(1)
        anew.outcome[1] = it.running[0].outcome[1]

        await it.until(lambda: anew.listening)

    assert anew.pinned == 3


async def test_what_failed_and_is_wanted_no_more_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_ctr.serving.releases._AGAIN_SECONDS", 0.01)
    monkeypatch.setattr("elastic_ctr.serving.releases._TRIES", 1_000_000)
    async with pod(tmp_path) as it:
        it.running[0].outcome[3] = WorkerLost("worker 0 ended")
        it.document(candidate=3)
        await it.until(lambda: it.releases._losses[3] > 0)
        it.document(candidate=9)
        await it.until(lambda: it.releases._failures[9] > 0)

        it.document(live=1)
        await it.until(lambda: not it.releases._losses and not it.releases._failures)


async def test_a_check_that_hangs_holds_up_neither_a_rollback_nor_a_worker_started_anew(tmp_path: Path) -> None:
    async with pod(tmp_path) as it:
        it.document(live=1)
        await it.until(lambda: it.releases.serving == 1)
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
    async with pod(tmp_path) as it:
        it.document(live=1)
        await it.until(lambda: it.releases.serving == 1)
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
    async with pod(tmp_path, workers=3) as it:
        it.document(live=1)
        await it.until(lambda: it.releases.serving == 1)
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
    async with pod(tmp_path) as it:
        it.document(live=1)
        await it.until(lambda: it.releases.serving == 1)
        it.running[0].hangs_at(2)
        while it.running[1].pinned != 2:
            it.document(live=2, previous=1)
            await asyncio.sleep(0.005)


async def test_a_candidate_over_whose_check_a_worker_hangs_is_not_given_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_ctr.serving.releases._TURN_SECONDS", 0.01)
    async with pod(tmp_path) as it:
        it.document(live=1)
        await it.until(lambda: it.releases.serving == 1)
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
    async with pod(tmp_path) as it:
        it.document(live=1)
        await it.until(lambda: it.releases.serving == 1)
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
    async with pod(tmp_path) as it:
        it.document(live=1)
        await it.until(lambda: it.releases.serving == 1)
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
    async with pod(tmp_path) as it:
        it.document(live=1)
        await it.until(lambda: it.releases.serving == 1)
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
    async with pod(tmp_path, workers=1) as it:
        it.document(live=1)
        await it.until(lambda: it.releases.serving == 1)
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
    async with pod(tmp_path, workers=1) as it:
        it.document(live=1)
        await it.until(lambda: it.releases.serving == 1)
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
    async with pod(tmp_path, workers=1) as it:
        it.document(live=1)
        await it.until(lambda: it.releases.serving == 1)
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
    async with pod(tmp_path) as it:
        it.document(live=1)
        await it.until(lambda: it.releases.serving == 1)
        answer = it.running[1].hangs_at(2)
        it.document(live=2, previous=1)
        await it.until(lambda: (1, 2) in it.did("check"))
        it.start_anew(0).outcome[2] = {"refused": "version 2 answers wrongly"}
        await it.until(lambda: 2 in it.releases.refused)
        answer.set_result({"passed": 1e-7})
        await it.until(lambda: it.running[0].pinned == 1 and not it.releases._checks)

    assert 2 not in it.releases.passed
    assert it.running[1].pinned == 1


@pytest.mark.parametrize(("fields", "stage"), [({}, "no version has been published yet")])
async def test_before_a_version_is_live_the_pod_is_ready_and_says_what_it_waits_for(
    tmp_path: Path, fields: dict[str, Any], stage: str
) -> None:
    async with pod(tmp_path, workers=1) as it:
        unknown = it.releases.ready(it.workers)
        it.document(**fields)
        await it.until(lambda: it.running[0].listening and it.releases.stage == stage)

        known = it.releases.ready(it.workers)

    assert unknown == (False, "the release document has not come yet")
    assert known == (True, f"no version is live yet: {stage}")


async def test_a_worker_whose_doors_cannot_be_opened_is_asked_again_and_the_stage_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_ctr.serving.releases._AGAIN_SECONDS", 0.01)
    async with pod(tmp_path, workers=1) as it:
        it.running[0].listens = {"error": "the doors cannot be opened"}  # type: ignore[dict-item]
        it.document(live=1)
        await it.until(lambda: it.did("listen") != [])
        await it.until(lambda: it.releases.stage == "worker 0: the doors cannot be opened")
        meanwhile = it.running[0].listening, it.releases.ready(it.workers)[0]
        it.running[0].listens = {"ok": True}
        await it.until(lambda: it.releases.ready(it.workers)[0])

    assert meanwhile == (False, False)


async def test_a_worker_that_is_silent_does_not_make_the_pod_ready(tmp_path: Path) -> None:
    async with pod(tmp_path) as it:
        it.document(live=1)
        await it.until(lambda: it.releases.serving == 1 and all(each.listening for each in it.in_order()))

        ready = []
        for silent in ((False, True), (True, True), (False, False)):
            for worker, is_silent in zip(it.in_order(), silent, strict=True):
                worker.silent = is_silent
            ready.append(it.releases.ready(it.workers)[0])

    assert ready == [True, False, True]


async def test_when_workers_are_kept_no_longer_the_following_of_releases_ends_with_the_reason(tmp_path: Path) -> None:
    releases = Releases(FileStore(tmp_path), tmp_path)
    it = Pod(releases, 1)
    following = asyncio.create_task(releases.run(it.workers))
    it.keepers.set_exception(RuntimeError("a keeper has failed"))

    with pytest.raises(RuntimeError, match="a keeper has failed"):
        await following
