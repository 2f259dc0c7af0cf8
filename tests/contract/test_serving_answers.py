"""What clients of serving get, with a real cube-server, a real store and networks that Paddle exported."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from contract import serving_world
from contract.serving_world import (
    FEATURES,
    FIRST,
    Cube,
    Exported,
    Transfer,
    expected,
    line_of,
    probabilities,
    put_version,
    serving,
)
from elastic_ctr.runtime.status.serving_status import ServingStatus
from elastic_ctr.store.backends import FileStore
from elastic_ctr.training.model.evaluation import weighted_auc, weighted_logloss
from status_documents import complete

# pytest finds fixtures by the names of a module.
exports, started_cube, cube = serving_world.exports, serving_world.started_cube, serving_world.cube
store, transfer, scratch = serving_world.store, serving_world.transfer, serving_world.scratch


async def test_a_version_on_disk_answers_as_its_network_and_embeddings_say(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    put_version(store, exports[FIRST])
    await transfer.publish(live=FIRST, wanted=(FIRST,), holders={FIRST: cube.holders()})
    async with serving(store, transfer, scratch) as running:
        await running.until_version(FIRST)

        answer = await running.infer(FEATURES)
        by_line = await running.lines(FEATURES)
        ready, answered = await running.admin("/readyz"), (await running.admin("/status")).content

    assert probabilities(answer) == expected(exports[FIRST])
    assert np.ptp(probabilities(answer)) > 0.3
    probability, version = by_line.json()["outputs"]
    assert probability["data"] == expected(exports[FIRST])
    assert set(version["data"]) == {FIRST}
    assert ready.status_code == 200
    status = complete(ServingStatus, answered)
    assert (status.version, status.live, status.refused) == (FIRST, FIRST, {})
    assert 3500 < (status.freshness_seconds or 0) < 4600


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
    assert 'elastic_ctr_serving_requests_total{code="400",endpoint="open_inference"} 1.0' in metrics
    assert f"elastic_ctr_serving_version {float(FIRST)}" in metrics
    assert "elastic_ctr_serving_freshness_seconds" in metrics


async def test_nothing_that_is_sent_takes_the_server_down(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    put_version(store, exports[FIRST])
    await transfer.publish(live=FIRST, wanted=(FIRST,), holders={FIRST: cube.holders()})
    random = np.random.default_rng(5)
    good = json.dumps({"instances": [{"slots": [{"slot_name": "0", "feasigns": [1]}]}]}).encode()
    head = b"POST /ElasticCTRPredictionService/inference HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"

    async def send(port: int, sent: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(sent)
            writer.write_eof()
            return await asyncio.wait_for(reader.read(), 30)
        except ConnectionError:
            return b""
        finally:
            writer.close()

    def mangled(request: bytes) -> bytes:
        bytes_of = bytearray(request)
        for _ in range(int(random.integers(1, 6))):
            bytes_of[int(random.integers(len(bytes_of)))] = int(random.integers(256))
        return bytes(bytes_of[: int(random.integers(1, len(bytes_of) + 1))])

    async with serving(store, transfer, scratch) as running:
        await running.until_version(FIRST)
        port = running.port
        bodies = [b"[" * 200_000, b'{"instances":[' + b"[]," * 1000 + b"[]]}", b'{"a":' * 5000, b"\xff" * 100, b"0"]
        answers = [await send(port, head % len(body) + body) for body in bodies]
        answers += [await send(port, mangled(head % len(good) + good)) for _ in range(150)]
        answers += [await send(port, random.bytes(int(random.integers(1, 500)))) for _ in range(50)]

        answer = await running.infer(FEATURES)

        assert running.process.workers.restarts == 0

    assert all(each.startswith(b"HTTP/1.1 400") for each in answers[: len(bodies)])
    assert not [each for each in answers if each.startswith(b"HTTP/1.1 5")]
    assert probabilities(answer) == expected(exports[FIRST])


PREDICT = "import typer; from elastic_ctr.operate.cli.predict import predict; typer.run(predict)"


async def predict(*arguments: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", PREDICT, *arguments],
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )


async def test_predict_prints_a_probability_a_line_and_says_how_good_they_are(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path, tmp_path: Path
) -> None:
    put_version(store, exports[FIRST])
    await transfer.publish(live=FIRST, wanted=(FIRST,), holders={FIRST: cube.holders()})
    clicks = [number % 3 for number in range(len(FEATURES))]
    lines = [f"2 {click} {line_of(each)}\n" for click, each in zip(clicks, FEATURES, strict=True)]
    file = tmp_path / "lines.txt"
    file.write_text("".join(lines))
    async with serving(store, transfer, scratch) as running:
        await running.until_version(FIRST)
        address = ("--address", f"127.0.0.1:{running.port}")

        plain = await predict(str(file), *address, "--batch", "7")
        written = await predict("-", *address, "--batch", "7", "--output", str(tmp_path / "out"), given="".join(lines))
        bare = await predict("-", "--no-clicks", "--json", *address, given=line_of(FEATURES[0]) + "\n")
        bad = await predict("-", *address, given=f"{lines[0]}1 2 5:0\n1 0\n\n{lines[1]}")

    p = [float(each) for each in plain.stdout.split()]
    assert p == expected(exports[FIRST])
    shows = [2] * len(p)
    auc, loss = weighted_auc(p, clicks, shows), weighted_logloss(p, clicks, shows)
    assert f"AUC {auc:.6f}, logloss {loss:.6f}" in plain.stderr
    assert (plain.returncode, written.returncode, bare.returncode, bad.returncode) == (0, 0, 0, 1)
    assert (written.stdout, (tmp_path / "out").read_text()) == ("", plain.stdout)
    assert json.loads(bare.stdout)["version"] == FIRST
    assert "AUC" not in bare.stderr
    answers = bad.stdout.split()
    assert [answers[0], *answers[-1:]] == plain.stdout.split()[:2]
    assert (answers[1], answers[3]) == ("nan", "nan")
    assert "line 2: click_above_show" in bad.stderr
    assert "line 4: empty" in bad.stderr


async def test_predict_says_in_a_sentence_why_it_has_no_answer(
    store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    await transfer.publish()
    async with serving(store, transfer, scratch) as running:
        await running.until(lambda: any(each.listening for each in running.process.workers.in_order()))

        early = await predict("-", "--address", f"127.0.0.1:{running.port}", given="1 0 5:0\n")
    gone = await predict("-", "--address", f"127.0.0.1:{running.port}", given="1 0 5:0\n")

    assert (early.returncode, gone.returncode) == (2, 2)
    assert "answers 503: no version is live yet" in early.stderr
    assert "does not answer" in gone.stderr
