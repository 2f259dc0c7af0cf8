"""Versions of a stream: one that is worse goes back, and a compacted log is the base of those behind it."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elastic_ctr.operate.local.endpoints import predict
from elastic_ctr.runtime.status.master_status import TrainingStatus
from elastic_ctr.store.backends import open_store
from elastic_ctr.store.versions.published_files import read_version
from pipeline.running import Run
from pipeline.streaming import (
    answers_are_those_of_the_version,
    checkpoints,
    clicks,
    clicks_with_a_freshness,
    newest_save,
    shows_and_clicks,
    stream_values,
    table_and_answers,
    table_of,
    trained,
)


def poisoned(lines: list[bytes]) -> list[bytes]:
    """Each label is that of the line before. Versions of inverted labels are refused before they are live: one probability for all is better."""
    return [b"1 " + before[2:3] + line[3:] for before, line in zip([lines[-1], *lines], lines, strict=False)]


# tests/unit/training/master/test_publishing_hold.py has the windows that hold publishing, tests/contract/test_release.py a real transfer that
# goes back below the suspects and goes on when it is resumed.
@pytest.mark.nightly
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

    def status() -> TrainingStatus:
        return run.status

    def published() -> list[int]:
        return [each.id for each in status().versions if each.state == "published"]

    def suspects() -> tuple[int, int] | None:
        hold = status().hold
        return None if hold is None else hold.suspects

    def many_good() -> bool:
        feed()
        return len(published()) >= 25 and run.session.live == published()[-1]

    def gone_back() -> bool:
        feed(poisoned)
        live = run.session.live
        return live is not None and (found := suspects()) is not None and live < found[0]

    run = start(stream_values(f"file://{log}?follow"))
    run.until(lambda: run.session.status is not None, 60, "the master")
    run.until(many_good, 240, "good windows")
    began = time.monotonic()
    run.until(gone_back, 60, "the release goes back")
    took = time.monotonic() - began
    suspected, good, live = suspects(), published(), run.session.live

    assert live in good
    assert suspected is not None
    assert suspected[1] == good[-1]
    versions.clear()
    # Poison is trained, and nobody sees it.
    more = sent[0] + 6

    def all_trained() -> bool:
        if sent[0] < more:
            feed(poisoned)
        return sent[0] == more and status().ledger.trained == 300 * sent[0]

    run.until(all_trained, 60, "the poison is trained")
    assert set(versions) == {live}
    assert len(versions) == 6
    assert published() == good
    assert took < 60

    resumed = subprocess.run(
        [sys.executable, "-m", "elastic_ctr", "rollback", "--resume", "--dir", run.places.folder],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "publishing goes on. It was held because" in resumed.stdout

    def on_again() -> bool:
        feed()
        return run.session.live == published()[-1] > good[-1]

    run.until(on_again, 120, "publishing goes on")
    assert status().hold is None
    # The suspects are refused, so no delta stands on them.
    [first] = [each for each in status().versions if each.id > good[-1] and each.state == "published"][:1]
    assert first.kind == "base"
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
    before = len(sent)
    store = open_store(run.places.store)

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
        time.sleep(4)
    status = run.status
    assert (status.ledger.trained, status.ledger.refused) == (len(sent), 0)
    # Each version was live before the pserver was lost, and is loaded from its log.
    assert status.ledger.rolled_back == 0
    # Each click counts once, from the second version on.
    assert clicks_with_a_freshness(run) == len(sent) - before
    saved, answered = table_and_answers(run)
    np.testing.assert_allclose(answered, saved, rtol=1e-5, atol=1e-7)
    rows = [row.split() for text in table_of(run, newest_save(run)) for row in text.decode().splitlines()]
    assert {int(row[0]): (float(row[4]), float(row[5])) for row in rows} == shows_and_clicks(sent)
