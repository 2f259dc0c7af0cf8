"""Which version serving answers with: checks, switches, refusals; with a real cube-server and real networks."""

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract import serving_world
from contract.serving_world import (
    FEATURES,
    FIRST,
    PARTITIONS,
    SECOND,
    SLOTS,
    TOLERANCE,
    Cube,
    Exported,
    Running,
    Transfer,
    expected,
    lines_of,
    probabilities,
    put_version,
    serving,
)
from elastic_ctr.config.serving_settings import Canary
from elastic_ctr.runtime import process_pool
from elastic_ctr.serving.batching.canary import CanaryRule
from elastic_ctr.serving.batching.instances import instances_of
from elastic_ctr.serving.worker_pool import ServingWorker, WorkerPool
from elastic_ctr.store.backends import FileStore

# pytest finds fixtures by the names of a module.
exports, started_cube, cube = serving_world.exports, serving_world.started_cube, serving_world.cube
store, transfer, scratch = serving_world.store, serving_world.transfer, serving_world.scratch


async def test_before_any_version_is_live_serving_is_ready_and_answers_503_with_the_stage(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    put_version(store, exports[FIRST])
    begin = "no version is live yet: "
    async with serving(store, transfer, scratch) as running:
        unknown = await running.admin("/readyz")
        await transfer.publish()
        await running.until(lambda: running.process.rollout.ready()[0])
        nothing = await running.until_refused(FEATURES[:1], begin + "no version has been published yet")
        ready = await running.admin("/readyz")
        await transfer.publish(candidate=FIRST, wanted=(FIRST,))
        candidate = await running.until_refused(
            FEATURES[:1], f"{begin}version {FIRST} cannot be checked yet: cube holds 0 of its {PARTITIONS} partitions"
        )

    assert unknown.status_code == 503
    assert ready.status_code == 200
    assert (nothing.status_code, candidate.status_code) == (503, 503)


async def test_under_load_every_answer_belongs_to_the_version_it_names_while_versions_are_switched(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    for version in (FIRST, SECOND):
        put_version(store, exports[version])
    holders = {version: cube.holders() for version in (FIRST, SECOND)}
    await transfer.publish(live=FIRST, wanted=(FIRST,), holders=holders)
    truth = {version: [exports[version].probability(each) for each in FEATURES] for version in (FIRST, SECOND)}
    seen: dict[int, int] = {FIRST: 0, SECOND: 0}
    wrong: list[Any] = []
    stop = asyncio.Event()

    async def ask(running: Running, shift: int) -> None:
        while not stop.is_set():
            places = [(shift + place) % len(FEATURES) for place in range(1 + shift)]
            answer = await running.lines([FEATURES[place] for place in places])
            if answer.status_code != 200:
                wrong.append(answer.text)
                continue
            probability, version = (each["data"] for each in answer.json()["outputs"])
            for place, p, v in zip(places, probability, version, strict=True):
                seen[v] += 1
                if abs(p - truth[v][place]) > TOLERANCE or len(set(version)) != 1:
                    wrong.append((place, p, v, version))

    async def switch(running: Running, version: int, other: int) -> None:
        wanted = {"wanted": (FIRST, SECOND), "holders": holders}
        await transfer.publish(live=other, candidate=version, **wanted)
        await running.until(lambda: version in running.process.rollout.validated)
        await transfer.publish(live=version, previous=other, **wanted)
        await running.until_version(version)
        before = seen[version]
        await running.until(lambda: seen[version] > before + 50)

    async with serving(store, transfer, scratch, workers=2, max_batch_rows=8) as running:
        await running.until_version(FIRST)
        await running.until(lambda: len(running.process.workers.in_order()) == 2)
        asking = [asyncio.create_task(ask(running, shift)) for shift in range(10)]
        for _ in range(3):
            await switch(running, SECOND, FIRST)
            await switch(running, FIRST, SECOND)
        stop.set()
        await asyncio.gather(*asking)

    assert wrong == []
    assert min(seen.values()) > 100


async def test_under_load_the_candidate_answers_the_same_share_of_the_requests_in_every_worker(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    """Lines and the source's requests, from one connection each; several of a user together in the native frontend's batches."""
    for version in (FIRST, SECOND):
        put_version(store, exports[version])
    holders = {version: cube.holders() for version in (FIRST, SECOND)}
    wanted = {"wanted": (FIRST, SECOND), "holders": holders}
    truth = {version: [exports[version].probability(each) for each in FEATURES] for version in (FIRST, SECOND)}
    answered: dict[int, set[int]] = {place: set() for place in range(len(FEATURES))}
    wrong: list[Any] = []
    rows = [[[key for key, slot in each if slot == name] for name in SLOTS] for each in FEATURES]
    chosen = CanaryRule(0.5, "0").chosen(instances_of(rows, len(SLOTS)), SLOTS, np.arange(len(rows))).tolist()

    async def ask(running: Running, shift: int) -> None:
        for turn in range(40):
            place = (shift + turn) % len(FEATURES)
            answer = await (running.lines([FEATURES[place]]) if turn % 2 else running.infer([FEATURES[place]]))
            if answer.status_code != 200:
                wrong.append(answer.text)
                continue
            if turn % 2:
                probability, version = (each["data"][0] for each in answer.json()["outputs"])
            else:
                # It does not say its version; the probabilities of the two differ.
                probability = answer.json()["predictions"][0]["prob1"]
                version = min(truth, key=lambda each: abs(truth[each][place] - probability))
            answered[place].add(version)
            if abs(probability - truth[version][place]) > TOLERANCE:
                wrong.append((place, probability, version))

    async with serving(store, transfer, scratch, workers=2, canary=Canary(share=0.5, feature="0")) as running:
        await transfer.publish(live=FIRST, candidate=SECOND, canary=True, **wanted)
        await running.until(lambda: [each.canary for each in running.process.workers.in_order()] == [SECOND, SECOND])
        # Where the machine is busy and the candidate late, the live version answers for some seconds.
        for _ in range(20):
            await asyncio.gather(*(ask(running, shift) for shift in range(0, 60, 3)))
            if [SECOND in answered[place] for place in range(len(FEATURES))] == chosen:
                break
        during = dict(answered)
        metrics = (await running.admin("/metrics")).text
        only_live = await running.hot("POST", f"/v2/models/ctr/versions/{FIRST}/infer", json=lines_of(FEATURES))
        # Refused: it answers nothing more.
        document = await transfer.publish(
            live=FIRST, refused={SECOND: "it was worse"}, wanted=(FIRST,), holders=holders
        )
        await running.until(lambda: running.process.release_client.document == document)
        await running.until(lambda: running.process.rollout.canary is None)
        answered = {place: set() for place in answered}
        await asyncio.gather(*(ask(running, shift) for shift in range(0, 60, 3)))

    assert wrong == []
    assert [SECOND in during[place] for place in range(len(rows))] == chosen
    assert all(FIRST in during[place] for place in range(len(rows)) if not chosen[place])
    assert f"elastic_ctr_serving_canary_version {SECOND}.0" in metrics
    assert only_live.status_code == 200
    assert {version for versions in answered.values() for version in versions} == {FIRST}


async def test_a_version_whose_weights_were_changed_is_refused_and_the_old_one_stays(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    put_version(store, exports[FIRST])
    changed = exports[SECOND]._replace(folder=scratch.parent / "changed")
    shutil.copytree(exports[SECOND].folder, changed.folder)
    parameters = bytearray((changed.folder / "network.pdiparams").read_bytes())
    # The last four bytes are a float of the last parameter.
    parameters[-4:] = (np.frombuffer(parameters[-4:], np.float32) + np.float32(0.5)).tobytes()
    (changed.folder / "network.pdiparams").write_bytes(parameters)
    put_version(store, changed)
    holders = {version: cube.holders() for version in (FIRST, SECOND)}
    await transfer.publish(live=FIRST, wanted=(FIRST,), holders=holders)
    async with serving(store, transfer, scratch) as running:
        await running.until_version(FIRST)
        await transfer.publish(live=FIRST, candidate=SECOND, wanted=(FIRST, SECOND), holders=holders)
        await running.until(lambda: any(SECOND in report.refused for report in transfer.reports))
        forced = await transfer.publish(live=SECOND, previous=FIRST, wanted=(FIRST, SECOND), holders=holders)
        await running.until(lambda: running.process.release_client.document == forced)

        answer = await running.infer(FEATURES)
        ready = await running.admin("/readyz")

    sentence = transfer.reports[-1].refused[SECOND]
    assert sentence.startswith(f"version {SECOND} answers sample line ")
    assert "was published" in sentence
    assert transfer.reports[-1].max_abs_diff[SECOND] > TOLERANCE
    assert probabilities(answer) == expected(exports[FIRST])
    assert ready.status_code == 503


async def test_a_version_with_one_published_value_off_is_refused_by_the_line(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    put_version(store, exports[FIRST], off=3e-5, samples=40)
    await transfer.publish(candidate=FIRST, wanted=(FIRST,), holders={FIRST: cube.holders()})
    async with serving(store, transfer, scratch) as running:
        await running.until(lambda: FIRST in running.process.rollout.refused)
        refused = running.process.rollout.refused[FIRST]
        await running.until(lambda: any(each.listening for each in running.process.workers.in_order()))
        answer = await running.infer(FEATURES[:1])

    assert f"version {FIRST} answers sample line 40 with" in refused
    assert answer.status_code == 503
    assert answer.json()["error"].startswith(f"no version is live yet: version {FIRST} answers sample line 40")


async def test_a_file_that_is_not_what_its_manifest_says_is_refused(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    manifest = put_version(store, exports[FIRST])
    path = store.root / manifest.model_files[1].path
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    await transfer.publish(candidate=FIRST, wanted=(FIRST,), holders={FIRST: cube.holders()})
    async with serving(store, transfer, scratch) as running:
        await running.until(lambda: FIRST in running.process.rollout.refused)

        refused = running.process.rollout.refused[FIRST]

    assert "network.pdiparams" in refused
    assert "is not what its manifest says" in refused


async def test_a_round_whose_version_cube_holds_no_longer_is_repeated_at_live(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    for version in (FIRST, SECOND):
        put_version(store, exports[version])
    both = {version: cube.holders() for version in (FIRST, SECOND)}
    await transfer.publish(live=FIRST, candidate=SECOND, wanted=(FIRST, SECOND), holders=both)
    async with serving(store, transfer, scratch, max_batch_rows=16) as running:
        await running.until(lambda: {FIRST, SECOND} <= running.process.rollout.validated.keys())
        await running.until_version(FIRST)
        cube.unload(FIRST)
        await transfer.publish(live=SECOND, wanted=(SECOND,), holders={SECOND: cube.holders()})

        large, *small = await asyncio.gather(
            running.infer(FEATURES), *(running.lines([each]) for each in FEATURES[:10])
        )

    assert probabilities(large) == expected(exports[SECOND])
    assert [each.json()["outputs"][1]["data"] for each in small] == [[SECOND]] * 10
    assert [each.json()["outputs"][0]["data"][0] for each in small] == expected(exports[SECOND], FEATURES[:10])


async def test_lower_generations_are_ignored_and_a_silent_transfer_changes_nothing(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    for version in (FIRST, SECOND):
        put_version(store, exports[version])
    both = {version: cube.holders() for version in (FIRST, SECOND)}
    await transfer.publish(generation=5, live=FIRST, wanted=(FIRST,), holders=both)
    async with serving(store, transfer, scratch) as running:
        await running.until_version(FIRST)
        await transfer.publish(generation=4, revision=99, live=SECOND, wanted=(SECOND,), holders=both)
        seen = len(transfer.reports)
        await running.until(lambda: len(transfer.reports) > seen + 1)
        stayed = running.process.rollout.serving
        await transfer.stop()
        await running.until(lambda: running.process.release_client.error is not None)

        answer = await running.infer(FEATURES)

    assert stayed == FIRST
    assert probabilities(answer) == expected(exports[FIRST])


async def test_the_version_that_is_answered_with_stays_known_when_a_document_names_it_no_more(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    put_version(store, exports[FIRST])
    await transfer.publish(live=FIRST, wanted=(FIRST,), holders={FIRST: cube.holders()})
    async with serving(store, transfer, scratch) as running:
        await running.until_version(FIRST)
        await transfer.publish()
        seen = len(transfer.reports)
        await running.until(lambda: len(transfer.reports) > seen + 1)

        answer = await running.infer(FEATURES)

    assert probabilities(answer) == expected(exports[FIRST])


async def test_a_worker_that_is_killed_is_replaced_and_its_successor_answers_the_same(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    put_version(store, exports[FIRST])
    await transfer.publish(live=FIRST, wanted=(FIRST,), holders={FIRST: cube.holders()})
    async with serving(store, transfer, scratch) as running:
        await running.until_version(FIRST)
        [worker] = running.process.workers.in_order()
        os.kill(worker.process.pid, signal.SIGKILL)
        await running.until(lambda: running.process.workers.restarts == 1)
        await running.until(lambda: any(each.listening for each in running.process.workers.in_order()))

        answer = await running.infer(FEATURES)

    assert probabilities(answer) == expected(exports[FIRST])
    assert transfer.reports[-1].validated == (FIRST,)


# tests/unit/serving/test_rollout.py has the same with workers that are played, and tests/unit/runtime/test_process_pool.py the clock.
@pytest.mark.nightly
async def test_a_worker_that_hangs_does_not_make_the_pod_ready_and_is_replaced(
    exports: dict[int, Exported],
    cube: Cube,
    store: FileStore,
    transfer: Transfer,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_pool, "SILENT_SECONDS", 3)
    monkeypatch.setattr(process_pool, "HUNG_SECONDS", 8)
    put_version(store, exports[FIRST])
    await transfer.publish(live=FIRST, wanted=(FIRST,), holders={FIRST: cube.holders()})
    async with serving(store, transfer, scratch) as running:
        workers, releases = running.process.workers, running.process.rollout
        await running.until_version(FIRST)
        [worker] = workers.in_order()
        await running.until(lambda: not worker.watchdog.busy)
        os.kill(worker.process.pid, signal.SIGSTOP)
        await running.until(lambda: not releases.ready()[0])
        [short_repr] = running.process.status().workers
        metrics = (await running.admin("/metrics")).text
        await running.until(lambda: workers.restarts == 1)
        await running.until(lambda: releases.ready()[0])

        answer = await running.infer(FEATURES)

    assert (short_repr.pid, short_repr.listening) == (worker.process.pid, False)
    assert "elastic_ctr_serving_workers_ready 0.0" in metrics
    assert probabilities(answer) == expected(exports[FIRST])


# tests/unit/serving/test_rollout.py has the same with workers that are played, and tests/unit/runtime/test_process_pool.py the clock.
@pytest.mark.nightly
async def test_a_check_that_hangs_is_killed_at_its_deadline_and_repeated_while_predictions_go_on(
    exports: dict[int, Exported],
    cube: Cube,
    store: FileStore,
    transfer: Transfer,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for version in (FIRST, SECOND):
        put_version(store, exports[version])
    holders = {version: cube.holders() for version in (FIRST, SECOND)}
    await transfer.publish(live=FIRST, wanted=(FIRST,), holders=holders)
    async with serving(store, transfer, scratch) as running:
        workers, releases = running.process.workers, running.process.rollout
        await running.until_version(FIRST)
        hanging = workers.checker
        assert hanging is not None
        os.kill(hanging.process.pid, signal.SIGSTOP)
        monkeypatch.setattr("elastic_ctr.serving.rollout._CHECK_SECONDS", 1)
        # A process that ends by itself would be the version's fault the first time.
        monkeypatch.setattr("elastic_ctr.serving.rollout._LOSSES", 1)
        await transfer.publish(live=FIRST, candidate=SECOND, wanted=(FIRST, SECOND), holders=holders)
        await running.until(lambda: hanging.process.poll() is not None)
        meanwhile = await running.infer(FEATURES)
        monkeypatch.setattr("elastic_ctr.serving.rollout._CHECK_SECONDS", 120)
        await running.until(lambda: SECOND in releases.validated)

    assert hanging.process.returncode == -signal.SIGKILL
    assert probabilities(meanwhile) == expected(exports[FIRST])
    assert releases.refused == {}
    assert workers.restarts == 0


async def test_workers_have_a_core_before_the_check_of_a_version(
    store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    await transfer.publish()
    async with serving(store, transfer, scratch) as running:
        workers = running.process.workers
        await running.until(lambda: workers.checker is not None)
        checker = workers.checker
        assert checker is not None
        await checker.started()
        await running.until(lambda: all(each.listening for each in workers.in_order()))
        nices = [os.getpriority(os.PRIO_PROCESS, each.process.pid) for each in (checker, *workers.in_order())]

    here = os.getpriority(os.PRIO_PROCESS, 0)
    assert nices == [min(here + 5, 19), here]


async def test_serving_ends_though_all_its_workers_hang(store: FileStore, transfer: Transfer, scratch: Path) -> None:
    await transfer.publish()
    async with serving(store, transfer, scratch, workers=2, grace_seconds=1) as running:
        workers = running.process.workers
        await running.until(lambda: [each.listening for each in workers.in_order()] == [True, True])
        processes = [each.process for each in workers.in_order()]
        for process in processes:
            os.kill(process.pid, signal.SIGSTOP)

    assert [process.returncode for process in processes] == [-signal.SIGKILL] * 2


# tests/contract/test_cube_workers.py has the same watchdog over a standstill.
@pytest.mark.nightly
async def test_workers_that_were_silent_while_their_parent_stood_still_are_not_restarted(
    store: FileStore, transfer: Transfer, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "HUNG_SECONDS", 6)
    await transfer.publish()
    async with serving(store, transfer, scratch) as running:
        workers = running.process.workers
        await running.until(lambda: any(each.listening and not each.watchdog.busy for each in workers.in_order()))
        before = [each.process.pid for each in workers.in_order()]
        for pid in before:
            os.kill(pid, signal.SIGSTOP)
        # Nothing runs in this process, which is the parent.
        time.sleep(10)
        for pid in before:
            os.kill(pid, signal.SIGCONT)
        # Long enough for it to look again.
        await asyncio.sleep(3)

        after = [each.process.pid for each in workers.in_order()]

    assert (after, workers.restarts) == (before, 0)


async def test_a_worker_that_cannot_be_started_at_first_is_started_later(
    store: FileStore, transfer: Transfer, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen, missing = subprocess.Popen, [OSError(errno.EAGAIN, "no process"), OSError(errno.ENOMEM, "no memory")]

    def scarce(*given: Any, **more: Any) -> Any:
        if missing:
            raise missing.pop()
        return popen(*given, **more)

    monkeypatch.setattr(subprocess, "Popen", scarce)
    await transfer.publish()
    async with serving(store, transfer, scratch) as running:
        await running.until(lambda: running.process.rollout.ready()[0])

    assert missing == []


async def test_serving_that_can_keep_no_workers_ends_with_the_reason(
    store: FileStore, transfer: Transfer, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def spawn(self: WorkerPool, index: int) -> ServingWorker:
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr(WorkerPool, "_start_worker", spawn)

    with pytest.raises(RuntimeError, match="nobody thought of this"):
        async with serving(store, transfer, scratch) as running:
            await asyncio.wait([running.task], timeout=60)


async def test_pinned_versions_are_kept_alive_in_cube_and_reported(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    put_version(store, exports[FIRST])
    await transfer.publish(live=FIRST, wanted=(FIRST,), holders={FIRST: cube.holders()})
    async with serving(store, transfer, scratch) as running:
        await running.until_version(FIRST)
        await running.until(lambda: cube.loaded()["lastAskedSeconds"][str(FIRST)] > 1)

        # Nobody but the keep-alive asks for it here.
        await running.until(lambda: cube.loaded()["lastAskedSeconds"][str(FIRST)] < 1)
        await running.until(lambda: transfer.reports[-1].pinned == (FIRST,))
