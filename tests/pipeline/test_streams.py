"""A real broker and a real followed folder, trained micro-pass after micro-pass by the whole pipeline."""

import gzip
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import xxhash

from contract.kafka_world import PASSWORD, READER, SecureBroker, why_not
from elastic_ctr.cube.client.blocking import BlockingCubeClient
from elastic_ctr.export.published import layout_of
from elastic_ctr.export.table_text import Vectors, parse_rows
from elastic_ctr.features.synthetic import PRESETS, Truth
from elastic_ctr.local.endpoints import answers, predict
from elastic_ctr.store import open_store
from elastic_ctr.versions.manifest import CheckpointManifest, read_checkpoint, read_version
from pipeline.running import Run, values_for
from ports import free_port

TRUTH = Truth(PRESETS["easy"], seed=3)
SLOTS = list(TRUTH.slots)
CHECKPOINT_SECONDS = 20


def clicks(rows: int, seed: int) -> list[bytes]:
    return TRUTH.text(TRUTH.draw(rows, np.random.default_rng(seed))).splitlines()


def stream_values(url: str) -> dict[str, Any]:
    values = values_for(
        Path("/"),
        SLOTS,
        "earliest",
        "",
        trainer={"replicas": 1, "config": {"batchSize": 64, "epochs": 1}},
        pserver={"replicas": 1},
    )
    del values["data"]["end"]
    values["data"] |= {"source": {"url": url}, "stream": {"windowMs": 500}}
    return values


def trained(run: Run, records: int) -> Callable[[], bool]:
    """So many records are trained, the last pass is done, and its version answers."""

    def done() -> bool:
        status = run.session.status
        if status is None or status["ledger"]["trained"] < records:
            return False
        if any(each["state"] not in ("done", "waiting") for each in status["passes"]):
            return False
        versions = [each["version"] for each in status["passes"] if each["state"] == "done" and each["version"]]
        return bool(versions) and run.session.live == versions[-1] and versions[-1] in run.session.seen

    return done


def answers_are_those_of_the_version(run: Run) -> None:
    """The version's own sample, as it was scored while it was trained."""
    assert run.session.live is not None
    assert run.session.seen[run.session.live].max_abs_diff <= 1e-5
    _, versions = predict(run.places.serving, "ctr", [line.split(maxsplit=2)[2].decode() for line in clicks(50, 1)])
    assert set(versions) == {run.session.live}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SecureBroker]:
    with SecureBroker(tmp_path / "kafka") as running:
        yield running


def access(broker: SecureBroker, folder: Path) -> dict[str, Any]:
    """Settings of a reader, whose name and password are in files of the folder."""
    for name, text in (("username", READER), ("password", PASSWORD)):
        (folder / name).write_text(text)
    files = {"usernameFile": str(folder / "username"), "passwordFile": str(folder / "password")}
    return {"tls": True, "caFile": str(broker.certificates.authority), "saslMechanism": "SCRAM-SHA-256", **files}


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.timeout(500)
def test_every_message_of_a_topic_is_trained_once_though_broker_trainer_and_master_are_lost(
    tmp_path: Path, start: Callable[..., Run], broker: SecureBroker
) -> None:
    broker.create("clicks", 2)
    broker.produce("clicks", clicks(3000, 1))
    broker.produce("clicks", [*clicks(1000, 2), b"no line of clicks"], partition=1)
    values = stream_values(f"kafka://{broker.addresses['SASL']}/clicks")
    values["data"]["source"]["kafka"] = access(broker, tmp_path)
    run = start(values)
    run.until(trained(run, 4000), 240, "the first version of the stream")
    answers_are_those_of_the_version(run)
    [version] = {each["version"] for each in run.session.status["passes"] if each["version"]}  # type: ignore[index]

    broker.produce("clicks", clicks(2000, 3))
    run.until(lambda: run.state().endswith(("training", "evaluating", "saving")), 60, "a pass under way")
    run.engine("ctr-trainer-0").kill()
    run.kill("ctr-master-0")
    broker.kill()
    # Nothing can be read now, and what was trained is answered.
    answers_are_those_of_the_version(run)
    broker.start()
    broker.produce("clicks", [*clicks(500, 4), b"1 2 also:none"])
    run.until(trained(run, 6500), 200, "the records after the losses")

    status = run.session.status
    assert status is not None
    assert status["ledger"]["trained"] == 6500
    assert (status["ledger"]["refused"], status["ledger"]["parked"]) == (2, 0)
    assert status["stream"]["lag"] == 0
    assert {name: each["following"] for name, each in status["stream"]["partitions"].items()} == {
        "clicks/0": 5501, "clicks/1": 1001
    }  # fmt: skip
    assert run.session.live != version
    answers_are_those_of_the_version(run)
    quarantined = [
        (file.name.rpartition("-")[0], json.loads(line)["offset"])
        for file in (run.places.folder / "store" / "quarantine").rglob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    assert sorted(set(quarantined)) == [("clicks_0", 5500), ("clicks_1", 1000)]


def test_lines_that_are_appended_to_a_followed_folder_are_in_the_next_versions(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    log = tmp_path / "log"
    log.mkdir()
    [first, *others] = clicks(2001, 5)
    with (log / "clicks-0").open("wb") as out:
        # The last line is being written.
        out.write(b"\n".join(others[:1000]) + b"\n" + first[:7])
        out.flush()
        run = start(stream_values(f"file://{log}?follow"))
        run.until(trained(run, 1000), 120, "the first version")
        assert run.session.status is not None
        assert run.session.status["waitsFor"] == f"records of file://{log}?follow"
        out.write(first[7:] + b"\n")
    (log / "clicks-1").write_bytes(b"\n".join(others[1000:]) + b"\n")
    began = time.time()
    run.until(trained(run, 2001), 120, "the version with what was appended")

    assert run.session.status["ledger"]["refused"] == 0
    assert [each["kind"] for each in run.session.status["versions"]][:2] == ["base", "delta"]
    answers_are_those_of_the_version(run)
    assert run.session.live is not None
    version = read_version(open_store(run.places.store_url), run.session.live)
    # What the version knows is no older than what was appended last.
    assert version.event_time_max >= int(began)
    # The keys that were trained, and no table, are in the delta.
    assert version.in_one_file
    assert version.keys > 0


def posted(run: Run, lines: list[bytes], key: str) -> dict[str, Any]:
    """Sent until the intake answers, as a client that must lose nothing does."""
    headers = {"authorization": f"Bearer {run.places.token_file.read_text().strip()}", "idempotency-key": key}
    while True:
        # Processes that have ended are started again by who looks after them.
        run.session.look()
        try:
            answer = httpx.post(f"http://{run.places.intake}/v1/clicks", content=b"\n".join(lines), headers=headers)
        except httpx.TransportError:
            time.sleep(0.2)
            continue
        assert answer.status_code in {200, 503}, answer.text
        if answer.status_code == 200:
            return dict(answer.json())


@pytest.mark.timeout(500)
def test_each_click_that_an_intake_has_taken_is_trained_once_though_it_is_killed(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    port = free_port()
    values = stream_values("intake://")
    values["data"]["stream"] |= {"checkpointSeconds": CHECKPOINT_SECONDS}
    values["intake"] = {"enabled": True, "config": {"port": port}}
    pieces = [clicks(100, seed) for seed in range(40)]
    run = start(values)
    run.until(lambda: answers(f"http://{run.places.intake}/healthz"), 60, "the intake")
    sent: list[bytes] = []
    offsets: list[tuple[int, int]] = []

    for number, piece in enumerate(pieces):
        if number == 15:
            run.until(trained(run, len(sent)), 200, "the first version")
        if number in {18, 27}:
            # Between a request and its repeat.
            run.kill("ctr-intake-0")
        answer = posted(run, piece, f"piece-{number}")
        sent += piece
        offsets.append((answer["first"], answer["end"]))
    # A client that has lost its answers.
    again = [posted(run, piece, f"piece-{number}") for number, piece in enumerate(pieces)]
    run.until(trained(run, len(sent)), 200, "all that was sent")

    assert offsets == [(100 * number, 100 * number + 100) for number in range(40)]
    assert [(each["first"], each["end"], each["repeated"]) for each in again] == [(*each, True) for each in offsets]
    ends = time.monotonic() + CHECKPOINT_SECONDS
    run.until(lambda: time.monotonic() > ends, CHECKPOINT_SECONDS + 5, "the next save to be due")
    last = clicks(100, 99)
    posted(run, [*last, b"no line of clicks"], "last")
    sent += last
    run.until(trained(run, len(sent)), 120, "the save")
    status = run.session.status
    assert status is not None
    assert (status["ledger"]["trained"], status["ledger"]["refused"]) == (len(sent), 1)
    assert (status["stream"]["lag"], status["ledger"]["rolledBack"], status["ledger"]["repeated"]) == (0, 0, 0)
    answers_are_those_of_the_version(run)
    saved, answered = table_and_answers(run)
    np.testing.assert_allclose(answered, saved, rtol=1e-5, atol=1e-7)
    rows = [row.split() for text in table_of(run, newest_save(run)) for row in text.decode().splitlines()]
    assert {int(row[0]): (float(row[4]), float(row[5])) for row in rows} == shows_and_clicks(sent)
    # What is no line is known by its offset.
    [quarantined] = [
        json.loads(line)["offset"]
        for file in (run.places.folder / "store" / "quarantine").rglob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    assert quarantined == len(sent)
    # A recovery would go on behind the newest save.
    end = httpx.get(f"http://{run.places.intake}/v1/log").json()["end"]
    run.until(
        lambda: httpx.get(f"http://{run.places.intake}/status").json()["neededFrom"] == end, 10, "the intake knows"
    )


@pytest.mark.timeout(500)
def test_clicks_that_name_their_impression_alone_are_trained_as_if_they_had_come_with_it(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    values = stream_values("intake://")
    values["data"] |= {
        "slots": None, "format": "jsonl", "label": "click", "shows": "shown",
        "stream": {
            "windowMs": 500, "lateClicks": True, "checkpointSeconds": CHECKPOINT_SECONDS, "join": {"key": "id"},
        },
    }  # fmt: skip
    values["features"] = {name: {"type": "categorical"} for name in ("user", "item")}
    values["intake"] = {"enabled": True, "config": {"port": free_port()}}
    run = start(values)
    run.until(lambda: answers(f"http://{run.places.intake}/healthz"), 60, "the intake")
    rng = np.random.default_rng(7)
    wanted: dict[int, tuple[float, float]] = {}
    appended = 0

    for number in range(12):
        drawn = [(f"{number}-{row}", *rng.integers(0, 40, 2), bool(rng.random() < 0.3)) for row in range(100)]
        shown = [
            {"id": id_, "user": f"u{user}", "item": f"i{item}", "shown": 1, "click": 0} for id_, user, item, _ in drawn
        ]
        clicked = [{"id": id_, "click": 1} for id_, _, _, click in drawn if click]
        posted(run, [json.dumps(row).encode() for row in shown], f"shown-{number}")
        if number in {4, 8}:
            run.kill("ctr-intake-0")
        # Each click comes twice, and one is of no impression.
        late = [json.dumps(row).encode() for row in [*clicked, *clicked, {"id": "unknown", "click": 1}]]
        answer = posted(run, late, f"clicked-{number}")
        assert answer["end"] - answer["first"] == len(clicked)
        appended = answer["end"]
        for _, user, item, click in drawn:
            for name in (f"user\0u{user}", f"item\0i{item}"):
                key = max(xxhash.xxh3_64_intdigest(name.encode()), 1)
                shows, clicks_of_key = wanted.get(key, (0.0, 0.0))
                wanted[key] = shows + 1, clicks_of_key + click
        if number == 2:
            run.until(trained(run, appended), 200, "the first version")
    ends = time.monotonic() + CHECKPOINT_SECONDS
    run.until(lambda: time.monotonic() > ends, CHECKPOINT_SECONDS + 5, "the next save to be due")
    last = {"id": "last", "user": "u99", "item": "i99", "shown": 1, "click": 0}
    posted(run, [json.dumps(last).encode()], "last")
    run.until(trained(run, appended + 1), 200, "the save")

    status = run.session.status
    assert status is not None
    assert (status["ledger"]["trained"], status["ledger"]["refused"]) == (appended + 1, 0)
    rows = [row.split() for text in table_of(run, newest_save(run)) for row in text.decode().splitlines()]
    found = {int(row[0]): (float(row[4]), float(row[5])) for row in rows}
    assert {key: found[key] for key in wanted} == wanted
    assert len(found) == len(wanted) + 2


def checkpoints(run: Run) -> list[CheckpointManifest]:
    """Oldest first."""
    store = open_store(run.places.store_url)
    names = [path.split("/")[1] for path in map(str, store.walk("checkpoints")) if path.endswith("manifest.json")]
    return sorted((read_checkpoint(store, name) for name in names), key=lambda each: each.pass_ordinal)


def newest_save(run: Run) -> CheckpointManifest:
    return [each for each in checkpoints(run) if not each.stands_on][-1]


def table_of(run: Run, saved: CheckpointManifest) -> list[bytes]:
    """The rows of the table by partition, as Paddle saved them."""
    store = open_store(run.places.store_url)
    return [gzip.decompress(store.get_bytes(entry.path)) for entry in saved.files if "/000/" in entry.path]


def table_and_answers(run: Run) -> tuple[Vectors, Vectors]:
    """The rows of the newest save, which is of the pass of the live version, as Paddle saved them and as cube answers."""
    assert run.session.live is not None
    manifest, model = newest_save(run), run.places.values.model
    assert manifest.pass_id == read_version(open_store(run.places.store_url), run.session.live).pass_id
    [server] = [role.file for role in run.session.supervisor.roles if role.command == "cube-server"]
    saved, answered = [], []
    with BlockingCubeClient([f"127.0.0.1:{server.cube.port}"]) as client:  # type: ignore[attr-defined]
        for text in table_of(run, manifest):
            rows = parse_rows(text, layout_of(model))
            values, missing = client.lookup(run.session.live, rows.keys)
            assert not missing.any(), f"{missing.sum()} of {len(missing)} rows are in no version"
            saved.append(rows.values)
            answered.append(values)
    return np.concatenate(saved), np.concatenate(answered)


def shows_and_clicks(lines: list[bytes]) -> dict[int, tuple[int, int]]:
    """By key, of lines."""
    found: dict[int, tuple[int, int]] = {}
    for line in lines:
        show, click, *features = line.decode().split()
        for key in (int(feature.split(":")[0]) for feature in features):
            had = found.get(key, (0, 0))
            found[key] = had[0] + int(show), had[1] + int(click)
    return found


def some_late(lines: list[bytes]) -> list[bytes]:
    """Every second click is a line of its own, after all the impressions."""
    clicked = [number for number, line in enumerate(lines) if line.startswith(b"1 1 ")][::2]
    late = [b"0 1 " + lines[number].removeprefix(b"1 1 ") for number in clicked]
    assert late
    return [line.replace(b"1 1 ", b"1 0 ", 1) if at in clicked else line for at, line in enumerate(lines)] + late


def clicks_with_a_freshness(run: Run) -> float:
    """Which the serving pod has counted."""
    [serving] = [role.file for role in run.session.supervisor.roles if role.command == "serving"]
    text = httpx.get(f"http://127.0.0.1:{serving.serving.admin_port}/metrics").text  # type: ignore[attr-defined]
    [found] = re.findall(r"elastic_ctr_serving_click_freshness_seconds_count (\S+)", text)
    return float(found)


def test_a_version_answers_every_row_as_the_table_has_it_though_a_pserver_is_lost_between_deltas(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    log = tmp_path / "log"
    log.mkdir()
    values = stream_values(f"file://{log}?follow")
    values["data"]["stream"] |= {"checkpointSeconds": CHECKPOINT_SECONDS, "lateClicks": True}
    sent: list[bytes] = []

    def append() -> None:
        lines = some_late(clicks(400, len(sent)))
        (log / f"clicks-{len(sent)}").write_bytes(b"\n".join(lines) + b"\n")
        sent.extend(lines)

    def train() -> None:
        append()
        run.until(trained(run, len(sent)), 120, f"{len(sent)} lines in a version")

    def wait(seconds: float) -> None:
        ends = time.monotonic() + seconds
        run.until(lambda: time.monotonic() > ends, seconds + 5, "some seconds")

    append()
    run = start(values)
    run.until(trained(run, len(sent)), 120, "the first version")
    before = len(sent)
    train()
    while not checkpoints(run)[-1].stands_on:
        # One by log is made five seconds after the one before; on a slow machine the next save may be due before.
        assert len(sent) < 4000
        wait(5)
        train()
    run.engine("ctr-pserver-0").kill()
    train()
    train()
    assert run.generation() == 2
    # The last save has a checkpoint of the whole table, too.
    wait(CHECKPOINT_SECONDS)
    train()
    status = run.session.status
    assert status is not None
    assert status["ledger"]["trained"] == len(sent)

    saved, answered = table_and_answers(run)

    assert len(saved) > 100
    np.testing.assert_allclose(answered, saved, rtol=1e-5, atol=1e-7)
    # What was trained between the save and the loss was not trained again, and is in every column.
    assert "is loaded by log" in (run.places.folder / "logs" / "ctr-master-0.log").read_text()
    assert status["ledger"]["rolledBack"] == 0
    # Each click counts once, however often its pass was begun, from the second version on.
    assert clicks_with_a_freshness(run) == len(sent) - before
    rows = [row.split() for text in table_of(run, newest_save(run)) for row in text.decode().splitlines()]
    assert {int(row[0]): (float(row[4]), float(row[5])) for row in rows} == shows_and_clicks(sent)


def poisoned(lines: list[bytes]) -> list[bytes]:
    """Clicks are impressions without one, and the other way round."""
    return [b"1 " + (b"0" if line[2:3] == b"1" else b"1") + line[3:] for line in lines]


def test_a_release_goes_back_by_itself_when_labels_are_poisoned_and_goes_on_when_an_operator_says_so(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    log = tmp_path / "log"
    log.mkdir()
    sent, answered = [0], [0.0]
    versions: list[int] = []
    line = clicks(1, 1)[0].split(maxsplit=2)[2].decode()

    def feed(label: Callable[[list[bytes]], list[bytes]] = list) -> None:
        """Some lines each third of a second; and one prediction, whose version is kept."""
        if time.monotonic() - answered[0] < 0.3:
            return
        answered[0] = time.monotonic()
        with (log / "clicks").open("ab") as out:
            out.write(b"\n".join(label(clicks(300, sent[0]))) + b"\n")
        sent[0] += 1
        if run.session.live is not None and run.session.live in run.session.seen:
            versions.extend(predict(run.places.serving, "ctr", [line])[1])

    def status() -> dict[str, Any]:
        assert run.session.status is not None
        return run.session.status

    def published() -> list[int]:
        return [each["id"] for each in status()["versions"] if each["state"] == "published"]

    def many_good() -> bool:
        feed()
        return len(published()) >= 25 and run.session.live == published()[-1]

    def gone_back() -> bool:
        feed(poisoned)
        hold = status()["hold"]
        return hold is not None and run.session.live is not None and run.session.live < hold["suspects"][0]

    run = start(stream_values(f"file://{log}?follow"))
    run.until(lambda: run.session.status is not None, 60, "the master")
    run.until(many_good, 240, "good windows")
    began = time.monotonic()
    run.until(gone_back, 60, "the release goes back")
    took = time.monotonic() - began
    hold, good, live = status()["hold"], published(), run.session.live

    assert live in good
    assert hold["suspects"][1] == good[-1]
    versions.clear()
    # Poison is trained, and nobody sees it.
    more = sent[0] + 6

    def all_trained() -> bool:
        if sent[0] < more:
            feed(poisoned)
        return sent[0] == more and status()["ledger"]["trained"] == 300 * sent[0]

    run.until(all_trained, 60, "the poison is trained")
    assert set(versions) == {live}
    assert len(versions) == 6
    assert published() == good
    assert took < 60

    resumed = subprocess.run(
        [sys.executable, "-m", "elastic_ctr", "rollback", "--resume", "--dir", run.places.folder],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "the newest version goes live" in resumed.stdout

    def on_again() -> bool:
        feed()
        return run.session.live == published()[-1] > good[-1]

    run.until(on_again, 120, "publishing goes on")
    assert status()["hold"] is None
    # The suspects are refused, so no delta stands on them.
    [first] = [each for each in status()["versions"] if each["id"] > good[-1] and each["state"] == "published"][:1]
    assert first["kind"] == "base"
    run.until(trained(run, 300 * sent[0]), 60, "the last version")
    answers_are_those_of_the_version(run)


@pytest.mark.timeout(500)
def test_a_compacted_log_is_the_base_of_later_versions_and_what_a_recovery_loads(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    log = tmp_path / "log"
    log.mkdir()
    values = stream_values(f"file://{log}?follow")
    values["data"]["stream"] |= {"checkpointSeconds": 60, "compactVersions": 4}
    sent: list[bytes] = []

    def append() -> None:
        lines = clicks(300, 1000 + len(sent))
        (log / f"clicks-{len(sent)}").write_bytes(b"\n".join(lines) + b"\n")
        sent.extend(lines)

    def train() -> None:
        append()
        run.until(trained(run, len(sent)), 120, f"{len(sent)} lines in a version")

    append()
    run = start(values)
    run.until(trained(run, len(sent)), 120, "the first version")
    store = open_store(run.places.store_url)

    def compacted_base() -> int | None:
        """The base of the live version, if that is a compacted one."""
        assert run.session.live is not None
        base = read_version(store, run.session.live).base
        return base if read_version(store, base).compacts else None

    while compacted_base() is None:
        assert len(sent) < 30_000
        train()
    base = compacted_base()
    assert base is not None
    live, compacted = read_version(store, run.session.live or 0), read_version(store, base)
    [table] = [each for each in checkpoints(run) if each.stands_on == each.name][-1:]
    assert (table.follows_version, table.log) == (base, ())
    # It is older than the version that answered when it was published, and never answers itself.
    assert compacted.compacts is not None
    assert compacted.compacts < base < live.version
    assert compacted.offsets == read_version(store, compacted.compacts).offsets
    assert base not in run.session.seen
    answers_are_those_of_the_version(run)

    # The next checkpoint by log stands on it.
    ends = time.monotonic() + 60
    while not any(table.name == each.stands_on != each.name for each in checkpoints(run)):
        assert time.monotonic() < ends
        train()
    run.engine("ctr-pserver-0").kill()
    train()
    assert run.generation() == 2
    assert "is loaded by log" in (run.places.folder / "logs" / "ctr-master-0.log").read_text()
    answers_are_those_of_the_version(run)

    saves = {each.name for each in checkpoints(run) if not each.stands_on}
    ends = time.monotonic() + 200
    while not {each.name for each in checkpoints(run) if not each.stands_on} - saves:
        assert time.monotonic() < ends
        train()
        time.sleep(1)
    status = run.session.status
    assert status is not None
    assert (status["ledger"]["trained"], status["ledger"]["refused"]) == (len(sent), 0)
    saved, answered = table_and_answers(run)
    np.testing.assert_allclose(answered, saved, rtol=1e-5, atol=1e-7)
    rows = [row.split() for text in table_of(run, newest_save(run)) for row in text.decode().splitlines()]
    assert {int(row[0]): (float(row[4]), float(row[5])) for row in rows} == shows_and_clicks(sent)
