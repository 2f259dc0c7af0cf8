"""Requests that the candidate answers beside those of the live version."""

import asyncio

import numpy as np
import pytest

from elastic_ctr.serving.batching.canary import CanaryRule
from elastic_ctr.serving.batching.pooling import Floats
from elastic_ctr.serving.batching.schema import Schema
from serving.running import SAMPLES, SLOTS, Sum, running, until

ALL = CanaryRule(1)


async def test_requests_of_the_candidate_and_of_the_live_version_are_different_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("elastic_ctr.serving.batching.batcher._CANARY_SECONDS", 60.0)
    async with running(canary_rule=ALL) as it:
        it.add(1)
        it.add(2)
        it.batcher.pin(1)
        it.batcher.canary.version = 2
        version = it.batcher.canary.version_for(SAMPLES, Schema(SLOTS))

        answers = [await each for each in (it.ask([[5], []]), it.ask([[5], []], version=version), it.ask([[6], []]))]

    assert answers == [([105.0], 1), ([205.0], 2), ([106.0], 1)]
    assert (it.counters.totals["rows"], it.counters.totals["canary_rows"]) == (3, 1)
    assert it.counters.totals["predicted_millionths"] == 416_000_000
    assert it.counters.totals["canary_predicted_millionths"] == 205_000_000


@pytest.mark.parametrize("rows", [1, 5])
async def test_a_candidate_that_cube_no_longer_holds_is_answered_for_by_the_live_version(rows: int) -> None:
    """In a batch and in parts."""
    async with running(live=1, max_rows=2) as it:
        it.add(1)
        it.add(2)
        it.batcher.pin(1)
        it.table.held = {1}

        answer = await it.ask(*[[[5], []]] * rows, version=2)

    assert answer == ([105.0] * rows, 1)


@pytest.mark.parametrize("rows", [1, 5])
async def test_a_candidate_that_was_unloaded_meanwhile_is_answered_for_by_the_live_version(rows: int) -> None:
    async with running(max_rows=2) as it:
        it.add(1)
        network = it.add(2)
        it.batcher.pin(1)
        it.batcher.canary.version = 2
        asked = it.ask(*[[[5], []]] * rows, version=2)
        it.batcher.keep({1})

        answer = await asked

    assert answer == ([105.0] * rows, 1)
    assert network.closed
    assert it.batcher.canary.version is None


async def test_a_candidate_that_goes_live_has_no_share_any_more() -> None:
    async with running(canary_rule=ALL) as it:
        it.add(1)
        it.add(2)
        it.batcher.pin(1)
        it.batcher.canary.version = 2

        it.batcher.pin(2)

    assert it.batcher.canary.version_for(SAMPLES, Schema(SLOTS)) is None
    assert it.batcher.pinned == 2


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("trouble", ["down", "network"])
async def test_a_candidate_that_fails_is_answered_for_by_the_live_version_and_rests(rows: int, trouble: str) -> None:
    """In a batch and in parts: its only holder is gone, or its network raises."""

    class Broken(Sum):
        def predict(self, _pooled: Floats, _numbers: Floats | None = None, /) -> Floats:
            raise RuntimeError("no network")

    async with running(max_rows=2, canary_rule=ALL) as it:
        it.add(1)
        it.add(2, network=Broken() if trouble == "network" else None)
        it.batcher.pin(1)
        it.batcher.canary.version = 2
        it.table.fails = {2} if trouble == "down" else set()

        answer = await it.ask(*[[[5], []]] * rows, version=2)
        chosen = it.batcher.canary.version_for(SAMPLES, Schema(SLOTS))

    assert answer == ([105.0] * rows, 1)
    assert chosen is None


async def test_a_candidate_that_is_slow_is_answered_for_soon_and_asked_again_after_its_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("elastic_ctr.serving.batching.batcher._CANARY_SECONDS", 0.05)
    monkeypatch.setattr("elastic_ctr.serving.batching.canary._RESTS_SECONDS", 0.2)
    async with running(max_rows=2, canary_rule=ALL) as it:
        it.add(1)
        network = it.add(2)
        it.batcher.pin(1)
        it.batcher.canary.version = 2
        it.table.behind = lambda version, _keys: version == 2
        it.table.gate.clear()
        small, large = it.ask([[5], []], version=2), it.ask(*[[[6], []]] * 5, version=2)

        answer = await asyncio.wait_for(small, 5)
        resting = it.batcher.canary.version_for(SAMPLES, Schema(SLOTS))
        # The large request has the candidate alone: it waits, and holds up nobody.
        others = [await asyncio.wait_for(it.ask([[7], []]), 5) for _ in range(5)]
        waits = not large.done()
        it.table.gate.set()
        whole = await large
        await until(lambda: it.batcher.canary.version_for(SAMPLES, Schema(SLOTS)) == 2)
        it.batcher.keep({1})
        await until(lambda: network.closed)

    assert answer == ([105.0], 1)
    assert resting is None
    assert others == [([107.0], 1)] * 5
    assert waits
    assert whole == ([206.0] * 5, 2)


@pytest.mark.parametrize("rows", [1, 5])
async def test_where_the_candidates_answer_is_no_number_the_live_version_answers_and_the_candidate_goes_on(
    rows: int,
) -> None:
    """In a batch and in parts. One request must not end the canary: its number may be the reason."""

    class NoNumber(Sum):
        def predict(self, pooled: Floats, _numbers: Floats | None = None, /) -> Floats:
            return super().predict(pooled) * np.float32(np.nan)

    async with running(canary_rule=ALL, max_rows=2) as it:
        it.add(1)
        it.add(2, network=NoNumber())
        it.batcher.pin(1)
        it.batcher.canary.version = 2

        answer = await it.ask(*[[[5], []]] * rows, version=2)

        assert it.batcher.canary.asked == 2
    assert answer == ([105.0] * rows, 1)
    assert it.counters.totals["canary_rows"] == 0
