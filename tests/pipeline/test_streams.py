"""A real broker and a real followed folder, trained micro-pass after micro-pass by the whole pipeline."""

import gzip
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.kafka_world import PASSWORD, READER, SecureBroker, why_not
from elastic_ctr.store.backends import open_store
from elastic_ctr.store.versions.published_files import read_version
from pipeline.running import Run
from pipeline.streaming import (
    CHECKPOINT_SECONDS,
    answers_are_those_of_the_version,
    checkpoints,
    clicks,
    clicks_with_a_freshness,
    newest_save,
    shows_and_clicks,
    some_late,
    stream_values,
    table_and_answers,
    table_of,
    trained,
)


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
    [version] = {each.version for each in run.status.passes if each.version}

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

    status = run.status
    assert status.ledger.trained == 6500
    assert (status.ledger.refused, status.ledger.parked) == (2, 0)
    assert status.stream is not None
    assert status.stream.lag == 0
    assert {name: each.following for name, each in status.stream.partitions.items()} == {
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


# Rotation is in tests/unit/sources/streams/test_rotation.py and the fuzzer `rotations`; test_stream_releases.py follows folders.
@pytest.mark.nightly
def test_lines_that_are_appended_to_a_followed_folder_are_in_the_next_versions_though_its_files_are_rotated(
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
        assert run.status.waits_for == f"records of file://{log}?follow"
        (log / "clicks-0").rename(log / "clicks-0.1")
        out.write(first[7:] + b"\n")
    (log / "clicks-0").write_bytes(b"\n".join(others[1000:1500]) + b"\n")
    (log / "clicks-1").write_bytes(b"\n".join(others[1500:]) + b"\n")
    began = time.time()
    run.until(trained(run, 2001), 120, "the version with what was appended")

    assert (run.status.ledger.trained, run.status.ledger.refused) == (2001, 0)
    # The compressed file was read already.
    (log / "clicks-0.1.gz").write_bytes(gzip.compress((log / "clicks-0.1").read_bytes()))
    (log / "clicks-0.1").unlink()
    with (log / "clicks-1").open("ab") as more:
        more.write(first + b"\n")
    run.until(trained(run, 2002), 120, "one line more")
    assert run.status.ledger.trained == 2002
    assert run.status.stream is not None
    assert (run.status.stream_gone, run.status.stream.notices) == (0, ())
    assert [each.kind for each in run.status.versions][:2] == ["base", "delta"]
    answers_are_those_of_the_version(run)
    assert run.session.live is not None
    version = read_version(open_store(run.places.store), run.session.live)
    # What the version knows is no older than what was appended last.
    assert version.event_time_max >= int(began)
    # The keys that were trained, and no table, are in the delta.
    assert version.in_one_file
    assert version.keys > 0


# test_stream_releases.py loses a pserver between deltas, too, and compares each row; test_intake_streams.py has late clicks.
@pytest.mark.nightly
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
    status = run.status
    assert status.ledger.trained == len(sent)

    saved, answered = table_and_answers(run)

    assert len(saved) > 100
    np.testing.assert_allclose(answered, saved, rtol=1e-5, atol=1e-7)
    # What was trained between the save and the loss was not trained again, and is in every column.
    assert "is loaded by log" in (run.places.folder / "logs" / "ctr-master-0.log").read_text()
    assert status.ledger.rolled_back == 0
    # Each click counts once, however often its pass was begun, from the second version on.
    assert clicks_with_a_freshness(run) == len(sent) - before
    rows = [row.split() for text in table_of(run, newest_save(run)) for row in text.decode().splitlines()]
    assert {int(row[0]): (float(row[4]), float(row[5])) for row in rows} == shows_and_clicks(sent)
