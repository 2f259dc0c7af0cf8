import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from elastic_ctr.cube.client.reader import CubeUnavailable, VersionNotHeld
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.serving.batching.instances import Instances, instances_of
from elastic_ctr.serving.batching.pooling import MOST_INLINE, Floats
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.request_error import NoProbability, RequestError
from serving.running import SAMPLES, SLOTS, Sum, Witness, running, until

Live = Callable[[], Any]


async def test_requests_that_arrive_during_a_round_are_the_next_one_with_each_key_once() -> None:
    async with running() as it:
        it.add(1)
        it.batcher.pin(1)
        it.table.gate.clear()
        first = it.ask([[5], []])
        await until(lambda: len(it.table.asked) == 1)
        rest = [it.ask([[5, 5], [6]]), it.ask([[7], [0]], [[6], []])]
        it.table.gate.set()

        answers = [await first, *[await each for each in rest]]

    assert it.table.asked == [(1, [5]), (1, [5, 6, 7])]
    assert answers == [([105.0], 1), ([316.0], 1), ([107.0, 106.0], 1)]
    assert it.counters.totals["batches"] == 2


@pytest.mark.parametrize("max_rows", [64, 2])
async def test_an_answer_counts_the_known_feasigns_of_each_instance_where_requested(
    max_rows: int,
) -> None:
    """In a round with others, and in parts."""
    read = instances_of([[[5, 6], [5]], [[0], [6]], [[], [7]]], 2)
    asked = replace(read, known=[], ignored=4)
    answered = asyncio.Event()
    async with running(max_rows=max_rows) as it:
        it.table.unknown = {6}
        it.add(1)
        it.batcher.pin(1)
        it.table.gate.clear()
        first = it.ask([[5], []])
        await until(lambda: len(it.table.asked) == 1)
        second = it.ask([[6], [6]])
        it.batcher.submit(lambda _: asked, asked, Schema(SLOTS), lambda _outcome, _version: answered.set())
        it.table.gate.set()
        await asyncio.gather(first, second, answered.wait())

    assert asked.known is not None
    assert np.concatenate(asked.known).tolist() == [2, 0, 1]
    assert it.counters.totals["ignored_features"] == 4


@pytest.mark.parametrize(("rows", "row_seconds"), [(1, 0.0), (1, 0.0079), (512, 1e-5)])
async def test_a_short_round_is_computed_by_the_loop_while_paddles_thread_is_idle(
    rows: int, row_seconds: float
) -> None:
    network = Witness(row_seconds)
    async with running() as it:
        it.add(1, network=network)
        it.batcher.pin(1)

        await it.ask(*[[[5], []]] * rows)

    assert network.threads == [threading.get_ident()]


async def test_a_round_waits_for_paddles_thread_while_that_has_something_to_do() -> None:
    network, loaded = Witness(), threading.Event()
    async with running() as it:
        it.add(1, network=network)
        it.batcher.pin(1)
        loading = it.paddle.submit(lambda: (network.predict(np.zeros((1, 1), np.float32)), loaded.wait(30)))
        asked = it.ask([[5], []])
        await until(lambda: bool(it.table.asked))
        await asyncio.sleep(0.05)

        assert not asked.done()
        loaded.set()
        assert await asked == ([105.0], 1)
        await asyncio.wrap_future(loading)

    assert len(set(network.threads)) == 1
    assert threading.get_ident() not in network.threads


@pytest.mark.parametrize(
    ("rows", "row_seconds"),
    [([[[5], []]], 0.0081), ([[[5], []]] * 512, 2e-5), ([[[5] * (MOST_INLINE + 1), []]], 0.0)],
    ids=["one slow row", "many rows", "many feasigns"],
)
async def test_a_long_round_leaves_the_loop_to_others(rows: list[list[list[int]]], row_seconds: float) -> None:
    network = Witness(row_seconds)
    async with running() as it:
        it.add(1, network=network)
        it.batcher.pin(1)

        answers, _ = await it.ask(*rows)

    assert answers == [105.0 * len(row[0]) for row in rows]
    assert len(network.threads) == 1
    assert threading.get_ident() not in network.threads


async def test_long_rounds_short_ones_and_what_else_paddles_thread_does_are_never_at_once() -> None:
    network = Witness(0.001)
    async with running(shared_rows=8) as it:
        it.add(1, network=network)
        it.batcher.pin(1)
        for number in range(40):
            other = [it.paddle.submit(network.predict, np.zeros((1, 1), np.float32))] if number % 4 == 0 else []
            asked = [it.ask(*[[[key], []]] * rows) for key, rows in ((5, 1), (6, 9 + number % 3), (7, 2))]

            assert [set(answer) for answer, _ in await asyncio.gather(*asked)] == [{105.0}, {106.0}, {107.0}]
            await asyncio.gather(*(asyncio.wrap_future(each) for each in other))

    assert len(set(network.threads)) == 2


async def test_a_round_ends_at_the_version_it_began_with() -> None:
    async with running() as it:
        old = it.add(1)
        it.batcher.pin(1)
        it.table.gate.clear()
        first = it.ask([[5], []])
        await until(lambda: len(it.table.asked) == 1)
        it.add(2)
        it.batcher.pin(2)
        it.batcher.keep({2})
        second = it.ask([[5], []])
        it.table.gate.set()

        answers = await first, await second
        await until(lambda: old.closed)

    assert answers == (([105.0], 1), ([205.0], 2))
    assert set(it.batcher.versions) == {2}


async def test_a_round_at_a_version_that_cube_no_longer_holds_is_repeated_at_live() -> None:
    async with running(live=2, max_rows=2) as it:
        it.add(1)
        it.add(2)
        it.batcher.pin(1)
        it.table.held = {2}

        small = await it.ask([[5], [6]])
        large = await it.ask(*[[[key], []] for key in range(1, 6)])

    assert small == ([411.0], 2)
    assert large == ([201.0, 202.0, 203.0, 204.0, 205.0], 2)
    assert it.counters.totals["retried_batches"] == 2


@pytest.mark.parametrize("live", [None, 1])
async def test_a_round_that_cube_does_not_hold_is_repeated_at_most_once_and_then_refused(live: int | None) -> None:
    async with running(live=live) as it:
        it.add(1)
        it.batcher.pin(1)
        it.table.held = set()

        outcome = (await asyncio.gather(it.ask([[5], []]), return_exceptions=True))[0]

    if live:
        assert isinstance(outcome, VersionNotHeld)
    else:
        assert isinstance(outcome, RequestError)
        assert (outcome.status, "is not checked here yet; ask again" in outcome.sentence) == (503, True)
    assert len(it.table.asked) == (2 if live else 1)


async def test_a_version_with_other_slots_reads_the_request_again() -> None:
    async with running() as it:
        it.add(1)
        it.batcher.pin(1)
        it.table.gate.clear()
        first = it.ask([[5], [6]])
        await until(lambda: len(it.table.asked) == 1)
        second = it.ask([[5], [6]])
        it.add(2, SlotList(("0",)))
        it.batcher.pin(2)
        it.table.gate.set()

        answers = await first, await second

    assert answers == (([211.0], 1), ([205.0], 2))


async def test_an_unreachable_cube_fails_its_round_and_the_next_is_answered() -> None:
    async with running() as it:
        it.add(1)
        it.batcher.pin(1)
        it.table.down = True
        [failed] = await asyncio.gather(it.ask([[5], []]), return_exceptions=True)
        it.table.down = False

        answer = await it.ask([[5], []])

    assert isinstance(failed, CubeUnavailable)
    assert answer == ([105.0], 1)


async def test_a_round_after_one_that_raised_is_answered() -> None:
    async with running() as it:
        network = it.add(1)
        it.batcher.pin(1)
        network.closed = True
        [failed] = await asyncio.gather(it.ask([[5], []]), return_exceptions=True)
        network.closed = False

        answer = await it.ask([[5], []])

    assert isinstance(failed, AssertionError)
    assert answer == ([105.0], 1)


async def test_a_check_that_waits_for_cube_holds_back_no_prediction() -> None:
    async with running() as it:
        it.add(1)
        it.batcher.pin(1)
        it.add(2)
        it.table.gate.clear()
        it.table.behind = lambda version, _: version == 2
        check = asyncio.create_task(it.batcher.predict_at(2, SAMPLES))
        await until(lambda: bool(it.table.asked))

        live = [await it.ask([[6], []]), await it.ask([[7], []])]
        assert not check.done()
        it.table.gate.set()
        checked = await check

    assert live == [([106.0], 1), ([107.0], 1)]
    assert checked.tolist() == [205.0]


async def test_predictions_that_wait_for_cube_hold_back_no_check() -> None:
    async with running(max_rows=1) as it:
        it.add(1)
        it.batcher.pin(1)
        it.add(2)
        it.table.gate.clear()
        it.table.behind = lambda version, _: version == 1
        live = [it.ask([[key], []]) for key in range(6, 70)]
        await until(lambda: bool(it.table.asked))

        checked = await it.batcher.predict_at(2, SAMPLES)
        assert not any(each.done() for each in live)
        it.table.gate.set()
        answers = await asyncio.gather(*live)

    assert checked.tolist() == [205.0]
    assert answers == [([100.0 + key], 1) for key in range(6, 70)]


async def test_a_version_that_is_checked_is_kept_until_it_has_answered() -> None:
    async with running() as it:
        it.add(1)
        it.batcher.pin(1)
        candidate = it.add(2)
        it.table.gate.clear()
        check = asyncio.create_task(it.batcher.predict_at(2, SAMPLES))
        await until(lambda: bool(it.table.asked))
        it.batcher.keep({1})
        assert it.batcher.in_use() == {1, 2}
        it.table.gate.set()

        checked = await check
        await until(lambda: candidate.closed)

    assert checked.tolist() == [205.0]
    assert set(it.batcher.versions) == {1}


@pytest.mark.parametrize(("what", "failure"), [("held", VersionNotHeld), ("down", CubeUnavailable)])
async def test_a_check_gets_the_error_of_cube_and_is_not_repeated_at_live(what: str, failure: type[Exception]) -> None:
    async with running(live=1) as it:
        it.add(1)
        it.batcher.pin(1)
        it.add(2)
        it.table.held, it.table.down = {1}, what == "down"

        with pytest.raises(failure):
            await it.batcher.predict_at(2, SAMPLES)

    assert it.table.asked == [(2, [5])]


async def test_a_silent_holder_delays_only_the_requests_that_need_it() -> None:
    async with running() as it:
        it.add(1)
        it.batcher.pin(1)
        it.table.gate.clear()
        it.table.behind = lambda _, keys: 5 in keys
        waiting = it.ask([[5], []])
        await until(lambda: bool(it.table.asked))

        others = [await it.ask([[6], []]), await it.ask([[7], []])]
        assert not waiting.done()
        it.table.gate.set()
        answer = await waiting

    assert others == [([106.0], 1), ([107.0], 1)]
    assert answer == ([105.0], 1)


async def test_a_round_that_waits_long_ends_at_the_version_it_began_with() -> None:
    async with running() as it:
        old = it.add(1)
        it.add(2)
        it.batcher.pin(1)
        it.table.gate.clear()
        it.table.behind = lambda version, _: version == 1
        waiting = it.ask([[5], []])
        await until(lambda: bool(it.table.asked))
        it.batcher.pin(2)
        it.batcher.keep({2})

        after = await it.ask([[5], []])
        assert not old.closed
        it.table.gate.set()
        answer = await waiting
        await until(lambda: old.closed)

    assert (answer, after) == (([105.0], 1), ([205.0], 2))


async def test_a_request_at_another_version_does_not_wait_for_the_release_document_of_an_earlier_one() -> None:
    document = asyncio.Event()

    async def newest_live() -> int:
        await document.wait()
        return 2

    async with running(newest_live=newest_live) as it:
        it.add(1)
        it.add(2)
        it.batcher.pin(1)
        it.table.held = {2}
        waiting = it.ask([[5], []])
        await until(lambda: bool(it.table.asked))
        it.batcher.pin(2)

        after = await it.ask([[6], []])
        assert not waiting.done()
        document.set()
        answer = await waiting

    assert (answer, after) == (([205.0], 2), ([206.0], 2))


async def test_frontends_are_polled_for_more_while_a_round_waits_long() -> None:
    class HttpFrontend:
        """Has a question when it is asked again, and tells nobody."""

        def __init__(self) -> None:
            self.takes = 0
            self.answer: asyncio.Future[tuple[list[float], int]] | None = None

        def poll(self) -> None:
            self.takes += 1
            if it.table.asked and self.answer is None and self.takes > 4:
                self.answer = it.ask([[6], []])

    async with running() as it:
        it.add(1)
        it.batcher.pin(1)
        it.table.gate.clear()
        it.table.behind = lambda _, keys: 5 in keys
        door = HttpFrontend()
        it.batcher.add_source(door.poll)
        waiting = it.ask([[5], []])
        await until(lambda: door.answer is not None)
        assert door.answer is not None

        assert await door.answer == ([106.0], 1)
        assert not waiting.done()
        it.table.gate.set()
        assert await waiting == ([105.0], 1)


async def test_rounds_that_wait_long_are_computed_one_at_a_time() -> None:
    network = Witness()
    async with running() as it:
        it.add(1, network=network)
        it.batcher.pin(1)
        it.table.gate.clear()
        asked = []
        # Some on the loop, others on Paddle's thread.
        for key in range(5, 9):
            asked.append(it.ask([[key] * (MOST_INLINE + key % 2), []]))
            await until(lambda: len(it.table.asked) == len(asked))
        loading = it.paddle.submit(network.predict, np.zeros((1, 1), np.float32))
        it.table.gate.set()

        answers = await asyncio.gather(*asked)
        await asyncio.wrap_future(loading)

    assert [version for _, version in answers] == [1] * 4
    assert len(network.threads) == 5


async def test_before_the_first_version_a_refusal_has_the_stage() -> None:
    async with running() as it:
        it.batcher.stage = "training hour 1 of 4"

        with pytest.raises(RequestError, match="no version is live yet: training hour 1 of 4") as refused:
            it.batcher.current()

    assert refused.value.status == 503


async def test_a_request_refused_before_its_lookup_failed_is_answered_once() -> None:
    async with running(live=2) as it:
        it.add(1, SlotList(("0", "1", "2")))
        it.add(2)
        it.batcher.pin(1)
        it.table.held = {2}
        outcomes: list[Any] = []

        def refuse(_schema: Schema) -> Instances:
            raise RequestError(409, "not for this list")

        it.batcher.submit(
            refuse, instances_of([[[1], [2]]], 2), Schema(SLOTS), lambda outcome, _: outcomes.append(outcome)
        )
        other = it.ask([[5], [6], [7]])

        assert await other == ([5 + 6 + 400.0], 2)
        assert [type(each) for each in outcomes] == [RequestError]


class NoNumberOf7(Sum):
    def predict(self, pooled: Floats, _numbers: Floats | None = None, /) -> Floats:
        found = super().predict(pooled)
        return np.where(found % 100 == 7, np.float32(np.nan), found)


@pytest.mark.parametrize("rows", [1, 5])
async def test_a_request_whose_answer_is_no_number_is_refused_by_its_instance_and_others_of_its_batch_are_answered(
    rows: int,
) -> None:
    """In a batch and in parts."""
    async with running(max_rows=2) as it:
        it.add(1, network=NoNumberOf7())
        it.batcher.pin(1)
        good, bad = it.ask(*[[[5], []]] * rows), it.ask(*[[[5], []]] * (rows - 1), [[7], []])
        with pytest.raises(NoProbability, match=rf"instances\[{rows - 1}\]: the probability by version 1 is no number"):
            await bad

        assert await good == ([105.0] * rows, 1)

    assert it.counters.totals["rows"] == 2 * rows - 1
    assert it.counters.totals["predicted_millionths"] == 105_000_000 * (2 * rows - 1)
