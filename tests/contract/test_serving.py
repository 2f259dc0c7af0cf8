"""Serving against a real cube-server, a real store and networks that Paddle exported."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving_world import (
    PARTITIONS,
    Cube,
    Exported,
    Running,
    Transfer,
    cube_server,
    export,
    features_of,
    line_of,
    put_version,
    serving,
)

from elastic_ctr.store import FileStore

FIRST, SECOND = 1001, 1002
TOLERANCE = 1e-5
FEATURES = [features_of(number) for number in range(60)]


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Exported]:
    folder = tmp_path_factory.mktemp("exports")
    return {version: export(folder / str(version), version) for version in (FIRST, SECOND)}


@pytest.fixture(scope="module")
def started_cube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cube]:
    yield from cube_server(tmp_path_factory.mktemp("dict"))


@pytest.fixture
def cube(started_cube: Cube, exports: dict[int, Exported]) -> Cube:
    """Holds both versions, whatever an earlier test has taken from it."""
    for version in (FIRST, SECOND):
        if str(version) not in started_cube.held()["versions"]:
            started_cube.load(exports[version])
    return started_cube


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


@pytest.fixture
async def transfer() -> AsyncIterator[Transfer]:
    transfer = await Transfer().start()
    yield transfer
    await transfer.stop()


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


def expected(exported: Exported, features: list[list[tuple[int, str]]] = FEATURES) -> Any:
    return pytest.approx([exported.probability(each) for each in features], abs=TOLERANCE)


def probabilities(answer: Any) -> list[float]:
    assert answer.status_code == 200, answer.text
    return [each["prob1"] for each in answer.json()["predictions"]]


# -- answers


async def test_a_version_on_disk_answers_as_its_network_and_embeddings_say(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    put_version(store, exports[FIRST])
    await transfer.publish(live=FIRST, wanted=(FIRST,), holders={FIRST: cube.holders()})
    async with serving(store, transfer, scratch) as running:
        await running.until_version(FIRST)

        answer = await running.infer(FEATURES)
        by_line = await running.lines(FEATURES)
        ready, status = await running.admin("/readyz"), (await running.admin("/status")).json()

    assert probabilities(answer) == expected(exports[FIRST])
    assert np.ptp(probabilities(answer)) > 0.3
    probability, version = by_line.json()["outputs"]
    assert probability["data"] == expected(exports[FIRST])
    assert set(version["data"]) == {FIRST}
    assert ready.status_code == 200
    assert (status["version"], status["live"], status["refused"]) == (FIRST, FIRST, {})
    assert 3500 < status["knowledgeAgeSeconds"] < 4600


async def test_a_request_larger_than_a_round_is_answered_whole(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    put_version(store, exports[FIRST])
    await transfer.publish(live=FIRST, wanted=(FIRST,), holders={FIRST: cube.holders()})
    async with serving(store, transfer, scratch, max_batch_rows=7, max_instances=60) as running:
        await running.until_version(FIRST)

        large = asyncio.create_task(running.infer(FEATURES))
        small = await asyncio.gather(*(running.infer([each]) for each in FEATURES[:20]))
        answer = await large
        too_large = await running.infer([*FEATURES, FEATURES[0]])

    assert probabilities(answer) == expected(exports[FIRST])
    assert [probabilities(each)[0] for each in small] == expected(exports[FIRST], FEATURES[:20])
    assert too_large.status_code == 413
    assert "61 instances" in too_large.json()["err_msg"]


async def test_the_doors_say_what_they_are_and_refuse_what_they_are_not(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    put_version(store, exports[FIRST])
    await transfer.publish(live=FIRST, wanted=(FIRST,), holders={FIRST: cube.holders()})
    async with serving(store, transfer, scratch, max_body_bytes=5000) as running:
        await running.until_version(FIRST)

        known = ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/ctr", "/v2/models/ctr/ready")
        got = {path: await running.hot("GET", path) for path in known}
        refused = [
            await running.hot("GET", "/v2/models/other"),
            await running.hot("GET", "/nowhere"),
            await running.hot("GET", "/v2/models/ctr/infer"),
            await running.hot("POST", "/v2/models/ctr/infer", json={"inputs": [], "x": 1}),
            await running.hot("POST", "/v2/models/ctr/infer", content=b"x" * 6000),
        ]
        answer = await running.infer(FEATURES[:1])
        await running.until(lambda: running.process.workers.counted().requests["open_inference", 400] == 1)
        metrics = (await running.admin("/metrics")).text

    assert {each.status_code for each in got.values()} == {200}
    assert got["/v2/models/ctr"].json()["versions"] == [str(FIRST)]
    assert [each.status_code for each in refused] == [404, 404, 405, 400, 413]
    assert all(each.json()["error"] for each in refused)
    assert probabilities(answer) == expected(exports[FIRST], FEATURES[:1])
    assert 'elastic_ctr_serving_requests_total{code="400",door="open_inference"} 1.0' in metrics
    assert f"elastic_ctr_serving_version {float(FIRST)}" in metrics
    assert "elastic_ctr_serving_knowledge_age_seconds" in metrics


# -- versions


async def test_before_any_version_is_live_serving_is_ready_and_answers_503_with_the_stage(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    put_version(store, exports[FIRST])
    async with serving(store, transfer, scratch) as running:
        unknown = await running.admin("/readyz")
        await transfer.publish()
        await running.until(lambda: running.process.releases.ready(running.process.workers)[0])
        await running.until(lambda: "published" in running.process.releases.stage)
        nothing = await running.infer(FEATURES[:1])
        ready = await running.admin("/readyz")
        await transfer.publish(candidate=FIRST, wanted=(FIRST,))
        await running.until(lambda: "cube holds 0 of" in running.process.releases.stage)
        candidate = await running.infer(FEATURES[:1])

    assert unknown.status_code == 503
    assert ready.status_code == 200
    assert (nothing.status_code, candidate.status_code) == (503, 503)
    begin = "no version is live yet: "
    assert nothing.json()["error"] == begin + "no version has been published yet"
    assert candidate.json()["error"] == f"{begin}cube holds 0 of {PARTITIONS} partitions of version {FIRST}"


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
        await running.until(lambda: version in running.process.releases.passed)
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
        await running.until(lambda: running.process.follower.document == forced)

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
        await running.until(lambda: FIRST in running.process.releases.refused)
        refused = running.process.releases.refused[FIRST]
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
        await running.until(lambda: FIRST in running.process.releases.refused)

        refused = running.process.releases.refused[FIRST]

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
        await running.until(lambda: {FIRST, SECOND} <= running.process.releases.passed.keys())
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
        stayed = running.process.releases.serving
        await transfer.stop()
        await running.until(lambda: running.process.follower.trouble is not None)

        answer = await running.infer(FEATURES)

    assert stayed == FIRST
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
    assert transfer.reports[-1].passed == (FIRST,)


async def test_pinned_versions_are_kept_alive_in_cube_and_reported(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    put_version(store, exports[FIRST])
    await transfer.publish(live=FIRST, wanted=(FIRST,), holders={FIRST: cube.holders()})
    async with serving(store, transfer, scratch) as running:
        await running.until_version(FIRST)
        await running.until(lambda: cube.held()["lastAskedSeconds"][str(FIRST)] > 1)

        # Nobody but the keep-alive asks for it here.
        await running.until(lambda: cube.held()["lastAskedSeconds"][str(FIRST)] < 1)

    assert transfer.reports[-1].pinned == (FIRST,)


# -- the process


ROLE = """
import sys
from pathlib import Path
import typer
from elastic_ctr.cli.serving import start_serving
from elastic_ctr.runtime.logging import configure
from elastic_ctr.store import open_store

store, transfer, scratch, port, admin_port = sys.argv[1:]
sys.argv[1:] = []
configure("serving")

def main() -> None:
    start_serving(open_store(store), transfer, "serving-0", Path(scratch), "127.0.0.1", int(port), int(admin_port), 1,
        "ctr", 1000, 1 << 20, 8192, 1e-5, 5000, 20, None)

typer.run(main)
"""


def free_ports(count: int) -> list[int]:
    bound = [socket.socket() for _ in range(count)]
    for each in bound:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in bound]
    for each in bound:
        each.close()
    return ports


def role(store: FileStore, transfer: Transfer, scratch: Path, port: int, admin_port: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-c", ROLE, store.url, transfer.url, str(scratch), str(port), str(admin_port)]
    )


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connected(port: int) -> Streams | None:
    try:
        return await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return None


async def until_connected(port: int) -> Streams:
    deadline = time.monotonic() + 120
    while (streams := await connected(port)) is None:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    return streams


async def until_refused(port: int) -> None:
    deadline = time.monotonic() + 120
    while (streams := await connected(port)) is not None:
        streams[1].close()
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_told_to_end_it_finishes_what_was_asked_and_exits_with_0(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    put_version(store, exports[FIRST])
    await transfer.publish(live=FIRST, wanted=(FIRST,), holders={FIRST: cube.holders()})
    port, admin_port = free_ports(2)
    process = role(store, transfer, scratch, port, admin_port)
    try:
        reader, writer = await until_connected(port)
        tensor = {"name": "line", "shape": [1], "datatype": "BYTES", "data": [line_of(FEATURES[0])]}
        body = json.dumps({"inputs": [tensor]}).encode()
        writer.write(b"POST /v2/models/ctr/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body))
        writer.write(body[:10])
        await writer.drain()
        # A second request has been answered: the half of the first has arrived before it.
        await until_answered(port)
        process.send_signal(signal.SIGTERM)
        await until_refused(port)

        writer.write(body[10:])
        answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        code = await asyncio.to_thread(process.wait, 60)
    finally:
        process.kill()
        process.wait()

    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"connection: close" in answer
    assert code == 0


async def until_answered(port: int) -> None:
    reader, writer = await until_connected(port)
    writer.write(b"GET /v2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_workers_die_with_a_parent_that_is_killed(store: FileStore, transfer: Transfer, scratch: Path) -> None:
    await transfer.publish()
    port, admin_port = free_ports(2)
    process = role(store, transfer, scratch, port, admin_port)
    try:
        await until_answered(port)
    finally:
        process.kill()
        process.wait()

    await until_refused(port)


async def test_a_taken_port_is_one_sentence_and_exit_code_2(
    store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    port = taken.getsockname()[1]

    process = subprocess.run(
        [sys.executable, "-c", ROLE, store.url, transfer.url, str(scratch), str(port), "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    taken.close()

    assert process.returncode == 2
    assert f"127.0.0.1:{port} cannot be used" in process.stderr
