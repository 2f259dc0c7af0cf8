"""Clicks that are posted to an intake, trained micro-pass after micro-pass by the whole pipeline."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import xxhash

from elastic_ctr.operate.local.endpoints import answers
from pipeline.running import Run, open_to_others
from pipeline.streaming import (
    CHECKPOINT_SECONDS,
    answers_are_those_of_the_version,
    clicks,
    newest_save,
    shows_and_clicks,
    stream_values,
    table_and_answers,
    table_of,
    trained,
)
from ports import free_port


def posted(run: Run, lines: list[bytes], key: str) -> dict[str, Any]:
    """Sent until the intake answers, as a client that must lose nothing does."""
    headers = {
        "authorization": f"Bearer {(run.places.folder / 'tokens' / 'clicks').read_text().split()[1]}",
        "idempotency-key": key,
    }
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


# The next test has the same intake with a join in front of it, killed and asked again in the same way; the table and the answers of
# a stream are compared in test_stream_releases.py, and lines without a join in tests/unit/sources/intake.
@pytest.mark.nightly
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
    status = run.status
    assert (status.ledger.trained, status.ledger.refused) == (len(sent), 1)
    assert status.stream is not None
    assert (status.stream.lag, status.ledger.rolled_back, status.ledger.repeated) == (0, 0, 0)
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
    internal = {"authorization": f"Bearer {(run.places.folder / 'tokens' / 'internal').read_text().split()[1]}"}
    end = httpx.get(f"http://{run.places.intake}/v1/log", headers=internal).json()["end"]
    run.until(
        lambda: httpx.get(f"http://{run.places.intake}/status").json()["neededFrom"] == end, 10, "the intake knows"
    )
    assert open_to_others(run.places.folder) == []


@pytest.mark.timeout(500)
def test_clicks_that_name_their_impression_alone_are_trained_as_if_they_had_come_with_it_and_no_number_ends_training(
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
    values["features"]["price"] = {"type": "numeric", "transform": [], "missing": 0}
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
        # A client that has lost its answer.
        again = posted(run, late, f"clicked-{number}")
        assert (again["first"], again["end"], again["repeated"]) == (answer["first"], answer["end"], True)
        assert answer["end"] - answer["first"] == len(clicked)
        appended = answer["end"]
        for _, user, item, click in drawn:
            for name in (f"user\0u{user}", f"item\0i{item}"):
                key = max(xxhash.xxh3_64_intdigest(name.encode()), 1)
                shows, clicks_of_key = wanted.get(key, (0.0, 0.0))
                wanted[key] = shows + 1, clicks_of_key + click
        if number == 2:
            run.until(trained(run, appended), 200, "the first version")
    # All but two are trained.
    awkward = [
        {"id": f"price-{price}", "user": "u98", "item": "i98", "shown": 1, "click": 0, "price": price}
        for price in (1e30, -0.0, 1e308, 5e-324)
    ]
    answer = posted(run, [json.dumps(row).encode() for row in awkward], "awkward")
    run.until(trained(run, appended + 2), 200, "the awkward rows")
    ends = time.monotonic() + CHECKPOINT_SECONDS
    run.until(lambda: time.monotonic() > ends, CHECKPOINT_SECONDS + 5, "the next save to be due")
    last = {"id": "last", "user": "u99", "item": "i99", "shown": 1, "click": 0}
    posted(run, [json.dumps(last).encode()], "last")
    run.until(trained(run, appended + 3), 200, "the save")

    status = run.status
    assert (status.ledger.trained, status.ledger.refused) == (appended + 3, 2)
    quarantined = [
        json.loads(line)
        for file in (run.places.folder / "store" / "quarantine").rglob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    assert {(each["offset"], each["reason"]) for each in quarantined} == {
        (answer["first"] + place, "number_too_large") for place in (0, 2)
    }
    rows = [row.split() for text in table_of(run, newest_save(run)) for row in text.decode().splitlines()]
    found = {int(row[0]): (float(row[4]), float(row[5])) for row in rows}
    assert {key: found[key] for key in wanted} == wanted
    assert len(found) == len(wanted) + 4
    assert open_to_others(run.places.folder) == []
