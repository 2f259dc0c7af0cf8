import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from elastic_ctr.cube.client.reader import CubeUnavailable, VersionNotHeld
from elastic_ctr.features.keys import Keys
from elastic_ctr.features.slots import SlotList
from elastic_ctr.runtime.lent_thread import LentThread
from elastic_ctr.serving.counters import Counters
from elastic_ctr.serving.instances import Instances, instances_of
from elastic_ctr.serving.pooling import NUMPY_POOLING, Floats
from elastic_ctr.serving.refusal import Refusal
from elastic_ctr.serving.rounds import _HELD_UP_ROUNDS, ModelVersion, Rounds

SLOTS = SlotList(("0", "1"))
SAMPLES = instances_of([[[5], []]], 2)


class Table:
    """A cube in memory: a key's value is the key plus a hundred times the version.

    `gate` holds back lookups, those `behind` it.
    """

    def __init__(self) -> None:
        self.held = {1, 2}
        self.asked: list[tuple[int, list[int]]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.behind: Callable[[int, list[int]], bool] = lambda _version, _keys: True
        self.down = False

    async def lookup(self, version: int, keys: Keys, /) -> tuple[Floats, npt.NDArray[np.bool_]]:
        self.asked.append((version, keys.tolist()))
        if self.behind(version, keys.tolist()):
            await self.gate.wait()
        if self.down:
            raise CubeUnavailable("nobody answers")
        if version not in self.held:
            raise VersionNotHeld(version, "the test has taken it")
        return (keys.astype(np.float32) + 100 * version).reshape(-1, 1), np.zeros(len(keys), np.bool_)


class Sum:
    """A network whose answer is the sum of its inputs."""

    row_seconds = 0.0
    closed = False

    def predict(self, pooled: Floats, /) -> Floats:
        assert not self.closed
        answer: Floats = pooled.sum(axis=1)
        return answer

    def close(self) -> None:
        self.closed = True


class Witness(Sum):
    """A network that knows which threads computed it, and that never two did at once."""

    def __init__(self, row_seconds: float = 0.0) -> None:
        self.row_seconds = row_seconds
        self.threads: list[int] = []
        self._computing = threading.Lock()

    def predict(self, pooled: Floats, /) -> Floats:
        assert self._computing.acquire(blocking=False)
        self.threads.append(threading.get_ident())
        time.sleep(0.002)
        answer = super().predict(pooled)
        self._computing.release()
        return answer


class Running:
    def __init__(self, rounds: Rounds, table: Table, counters: Counters, paddle: LentThread) -> None:
        self.rounds = rounds
        self.paddle = paddle
        self.table = table
        self.counters = counters

    def add(self, version: int, slots: SlotList = SLOTS, network: Sum | None = None) -> Sum:
        network = network or Sum()
        self.rounds.add(ModelVersion(version, slots, None, 1, 0, network, self.table))
        return network

    def ask(self, *rows: list[list[int]]) -> "asyncio.Future[tuple[list[float], int]]":
        """Answers and their version, later."""
        answered: asyncio.Future[tuple[list[float], int]] = asyncio.get_running_loop().create_future()

        def done(outcome: Floats | Exception, version: int) -> None:
            if isinstance(outcome, Exception):
                answered.set_exception(outcome)
            else:
                answered.set_result((outcome.tolist(), version))

        def parse(slots: SlotList) -> Instances:
            return instances_of([row[: len(slots)] for row in rows], len(slots))

        self.rounds.ask(parse, parse(SLOTS), SLOTS, done)
        return answered

    def ask_until_refused(self) -> "list[asyncio.Future[tuple[list[float], int]]]":
        """One row at a time."""
        asked = []
        with suppress(Refusal):
            while True:
                asked.append(self.ask([[5], []]))
        return asked


Live = Callable[[], Any]


@asynccontextmanager
async def running(
    live: int | None = None, newest_live: Callable[[], Awaitable[int | None]] | None = None, **what: Any
) -> AsyncIterator[Running]:
    async def known_live() -> int | None:
        return live

    table, counters = Table(), Counters()
    with LentThread("paddle") as paddle:
        rounds = Rounds(paddle, newest_live or known_live, counters, **what)
        task = asyncio.create_task(rounds.run())
        try:
            yield Running(rounds, table, counters, paddle)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def test_what_arrives_while_a_round_runs_is_the_next_round_with_each_key_once() -> None:
    async with running() as it:
        it.add(1)
        it.rounds.pin(1)
        it.table.gate.clear()
        first = it.ask([[5], []])
        await until(lambda: len(it.table.asked) == 1)
        rest = [it.ask([[5, 5], [6]]), it.ask([[7], [0]], [[6], []])]
        it.table.gate.set()

        answers = [await first, *[await each for each in rest]]

    assert it.table.asked == [(1, [5]), (1, [5, 6, 7])]
    assert answers == [([105.0], 1), ([316.0], 1), ([107.0, 106.0], 1)]
    assert it.counters.totals["rounds"] == 2


@pytest.mark.parametrize(("rows", "row_seconds"), [(1, 0.0), (1, 0.0079), (512, 1e-5)])
async def test_a_short_round_is_computed_by_the_loop_while_paddles_thread_is_idle(
    rows: int, row_seconds: float
) -> None:
    network = Witness(row_seconds)
    async with running() as it:
        it.add(1, network=network)
        it.rounds.pin(1)

        await it.ask(*[[[5], []]] * rows)

    assert network.threads == [threading.get_ident()]


async def test_a_round_waits_for_paddles_thread_while_that_has_something_to_do() -> None:
    network, loaded = Witness(), threading.Event()
    async with running() as it:
        it.add(1, network=network)
        it.rounds.pin(1)
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
    [([[[5], []]], 0.0081), ([[[5], []]] * 512, 2e-5), ([[[5] * (NUMPY_POOLING.most_inline + 1), []]], 0.0)],
    ids=["one slow row", "many rows", "many feasigns"],
)
async def test_a_long_round_leaves_the_loop_to_others(rows: list[list[list[int]]], row_seconds: float) -> None:
    network = Witness(row_seconds)
    async with running() as it:
        it.add(1, network=network)
        it.rounds.pin(1)

        answers, _ = await it.ask(*rows)

    assert answers == [105.0 * len(row[0]) for row in rows]
    assert len(network.threads) == 1
    assert threading.get_ident() not in network.threads


async def test_long_rounds_short_ones_and_what_else_paddles_thread_does_are_never_at_once() -> None:
    network = Witness(0.001)
    async with running(shared_rows=8) as it:
        it.add(1, network=network)
        it.rounds.pin(1)
        for number in range(40):
            other = [it.paddle.submit(network.predict, np.zeros((1, 1), np.float32))] if number % 4 == 0 else []
            asked = [it.ask(*[[[key], []]] * rows) for key, rows in ((5, 1), (6, 9 + number % 3), (7, 2))]

            assert [set(answer) for answer, _ in await asyncio.gather(*asked)] == [{105.0}, {106.0}, {107.0}]
            await asyncio.gather(*(asyncio.wrap_future(each) for each in other))

    assert len(set(network.threads)) == 2


async def test_a_round_ends_at_the_version_it_began_with() -> None:
    async with running() as it:
        old = it.add(1)
        it.rounds.pin(1)
        it.table.gate.clear()
        first = it.ask([[5], []])
        await until(lambda: len(it.table.asked) == 1)
        it.add(2)
        it.rounds.pin(2)
        it.rounds.keep({2})
        second = it.ask([[5], []])
        it.table.gate.set()

        answers = await first, await second
        await until(lambda: old.closed)

    assert answers == (([105.0], 1), ([205.0], 2))
    assert set(it.rounds.versions) == {2}


async def test_a_request_larger_than_a_round_has_one_version_though_it_is_switched_meanwhile() -> None:
    async with running(max_rows=2) as it:
        it.add(1)
        it.add(2)
        it.rounds.pin(1)
        it.table.gate.clear()
        large = it.ask(*[[[key], []] for key in range(1, 6)])
        await until(lambda: len(it.table.asked) == 1)
        it.rounds.pin(2)
        it.rounds.keep({2})
        small = it.ask([[9], []])
        it.table.gate.set()

        answers = await large, await small
        await until(lambda: 1 not in it.rounds.versions)

    assert answers == (([101.0, 102.0, 103.0, 104.0, 105.0], 1), ([209.0], 2))
    # The small one did not wait for the whole of the large one.
    assert [version for version, _ in it.table.asked] == [1, 2, 1, 1]


async def test_a_round_that_cube_holds_no_longer_is_asked_again_at_live() -> None:
    async with running(live=2, max_rows=2) as it:
        it.add(1)
        it.add(2)
        it.rounds.pin(1)
        it.table.held = {2}

        small = await it.ask([[5], [6]])
        large = await it.ask(*[[[key], []] for key in range(1, 6)])

    assert small == ([411.0], 2)
    assert large == ([201.0, 202.0, 203.0, 204.0, 205.0], 2)
    assert it.counters.totals["repeated_rounds"] == 2


@pytest.mark.parametrize("live", [None, 1])
async def test_it_is_asked_again_once_and_then_refused_with_503(live: int | None) -> None:
    async with running(live=live) as it:
        it.add(1)
        it.rounds.pin(1)
        it.table.held = set()

        outcome = (await asyncio.gather(it.ask([[5], []]), return_exceptions=True))[0]

    assert isinstance(outcome, VersionNotHeld if live else Refusal)
    assert len(it.table.asked) == (2 if live else 1)


async def test_a_version_with_other_slots_reads_the_request_again() -> None:
    async with running() as it:
        it.add(1)
        it.rounds.pin(1)
        it.table.gate.clear()
        first = it.ask([[5], [6]])
        await until(lambda: len(it.table.asked) == 1)
        second = it.ask([[5], [6]])
        it.add(2, SlotList(("0",)))
        it.rounds.pin(2)
        it.table.gate.set()

        answers = await first, await second

    assert answers == (([211.0], 1), ([205.0], 2))


async def test_an_unreachable_cube_fails_its_round_and_the_next_is_answered() -> None:
    async with running() as it:
        it.add(1)
        it.rounds.pin(1)
        it.table.down = True
        [failed] = await asyncio.gather(it.ask([[5], []]), return_exceptions=True)
        it.table.down = False

        answer = await it.ask([[5], []])

    assert isinstance(failed, CubeUnavailable)
    assert answer == ([105.0], 1)


async def test_whatever_a_round_raises_the_next_one_is_answered() -> None:
    async with running() as it:
        network = it.add(1)
        it.rounds.pin(1)
        network.closed = True
        [failed] = await asyncio.gather(it.ask([[5], []]), return_exceptions=True)
        network.closed = False

        answer = await it.ask([[5], []])

    assert isinstance(failed, AssertionError)
    assert answer == ([105.0], 1)


async def test_a_check_that_waits_for_cube_holds_back_no_prediction() -> None:
    async with running() as it:
        it.add(1)
        it.rounds.pin(1)
        it.add(2)
        it.table.gate.clear()
        it.table.behind = lambda version, _: version == 2
        check = asyncio.create_task(it.rounds.answer_at(2, SAMPLES))
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
        it.rounds.pin(1)
        it.add(2)
        it.table.gate.clear()
        it.table.behind = lambda version, _: version == 1
        live = [it.ask([[key], []]) for key in range(6, 70)]
        await until(lambda: bool(it.table.asked))

        checked = await it.rounds.answer_at(2, SAMPLES)
        assert not any(each.done() for each in live)
        it.table.gate.set()
        answers = await asyncio.gather(*live)

    assert checked.tolist() == [205.0]
    assert answers == [([100.0 + key], 1) for key in range(6, 70)]


async def test_a_large_request_does_not_wait_for_a_check() -> None:
    async with running(max_rows=2) as it:
        it.add(1)
        it.rounds.pin(1)
        it.add(2)
        it.table.gate.clear()
        it.table.behind = lambda version, _: version == 2
        check = asyncio.create_task(it.rounds.answer_at(2, SAMPLES))
        await until(lambda: bool(it.table.asked))

        large = await it.ask(*[[[key], []] for key in range(1, 6)])
        assert not check.done()
        it.table.gate.set()
        await check

    assert large == ([101.0, 102.0, 103.0, 104.0, 105.0], 1)


async def test_a_version_that_is_checked_is_kept_until_it_has_answered() -> None:
    async with running() as it:
        it.add(1)
        it.rounds.pin(1)
        candidate = it.add(2)
        it.table.gate.clear()
        check = asyncio.create_task(it.rounds.answer_at(2, SAMPLES))
        await until(lambda: bool(it.table.asked))
        it.rounds.keep({1})
        assert it.rounds.in_use() == {1, 2}
        it.table.gate.set()

        checked = await check
        await until(lambda: candidate.closed)

    assert checked.tolist() == [205.0]
    assert set(it.rounds.versions) == {1}


@pytest.mark.parametrize(("what", "failure"), [("held", VersionNotHeld), ("down", CubeUnavailable)])
async def test_a_check_is_told_what_cube_says_and_is_not_asked_again_at_live(
    what: str, failure: type[Exception]
) -> None:
    async with running(live=1) as it:
        it.add(1)
        it.rounds.pin(1)
        it.add(2)
        it.table.held, it.table.down = {1}, what == "down"

        with pytest.raises(failure):
            await it.rounds.answer_at(2, SAMPLES)

    assert it.table.asked == [(2, [5])]


async def test_a_silent_holder_keeps_only_those_waiting_who_need_it() -> None:
    async with running() as it:
        it.add(1)
        it.rounds.pin(1)
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
        it.rounds.pin(1)
        it.table.gate.clear()
        it.table.behind = lambda version, _: version == 1
        waiting = it.ask([[5], []])
        await until(lambda: bool(it.table.asked))
        it.rounds.pin(2)
        it.rounds.keep({2})

        after = await it.ask([[5], []])
        assert not old.closed
        it.table.gate.set()
        answer = await waiting
        await until(lambda: old.closed)

    assert (answer, after) == (([105.0], 1), ([205.0], 2))


async def test_who_is_answered_by_another_version_does_not_wait_for_the_document_that_one_waits_for() -> None:
    document = asyncio.Event()

    async def newest_live() -> int:
        await document.wait()
        return 2

    async with running(newest_live=newest_live) as it:
        it.add(1)
        it.add(2)
        it.rounds.pin(1)
        it.table.held = {2}
        waiting = it.ask([[5], []])
        await until(lambda: bool(it.table.asked))
        it.rounds.pin(2)

        after = await it.ask([[6], []])
        assert not waiting.done()
        document.set()
        answer = await waiting

    assert (answer, after) == (([205.0], 2), ([206.0], 2))


async def test_doors_are_asked_for_more_while_a_round_waits_long() -> None:
    class Door:
        """Has a question when it is asked again, and tells nobody."""

        def __init__(self) -> None:
            self.takes = 0
            self.answer: asyncio.Future[tuple[list[float], int]] | None = None

        def take(self) -> None:
            self.takes += 1
            if it.table.asked and self.answer is None and self.takes > 4:
                self.answer = it.ask([[6], []])

    async with running() as it:
        it.add(1)
        it.rounds.pin(1)
        it.table.gate.clear()
        it.table.behind = lambda _, keys: 5 in keys
        door = Door()
        it.rounds.draw_from(door)
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
        it.rounds.pin(1)
        it.table.gate.clear()
        asked = []
        # Some on the loop, others on Paddle's thread.
        for key in range(5, 9):
            asked.append(it.ask([[key] * (NUMPY_POOLING.most_inline + key % 2), []]))
            await until(lambda: len(it.table.asked) == len(asked))
        loading = it.paddle.submit(network.predict, np.zeros((1, 1), np.float32))
        it.table.gate.set()

        answers = await asyncio.gather(*asked)
        await asyncio.wrap_future(loading)

    assert [version for _, version in answers] == [1] * 4
    assert len(network.threads) == 5


async def test_of_rounds_that_wait_for_cube_there_are_only_so_many() -> None:
    async with running(max_rows=1) as it:
        it.add(1)
        it.rounds.pin(1)
        it.table.gate.clear()
        asked = [it.ask([[key], []]) for key in range(5, 45)]
        await until(lambda: len(it.table.asked) >= _HELD_UP_ROUNDS)
        # Time in which more could begin, if more did.
        await asyncio.sleep(0.3)
        began = len(it.table.asked)
        it.table.gate.set()

        answers = await asyncio.gather(*asked)

    assert began <= _HELD_UP_ROUNDS + 1
    assert answers == [([100.0 + key], 1) for key in range(5, 45)]


async def test_what_waits_for_cube_is_in_the_number_that_may_wait() -> None:
    async with running(max_rows=1) as it:
        it.add(1)
        it.rounds.pin(1)
        it.table.gate.clear()
        waiting = it.ask_until_refused()
        await until(lambda: len(it.table.asked) > 8)
        more = it.ask_until_refused()
        it.table.gate.set()
        answers = await asyncio.gather(*waiting, *more)

    assert len(waiting) == 64
    # In the place of those that are under way and not held up yet.
    assert len(more) <= 2
    assert {each for _, each in answers} == {1}


async def test_more_than_can_wait_is_refused_at_once() -> None:
    async with running(max_rows=1) as it:
        it.add(1)
        it.rounds.pin(1)
        it.table.gate.clear()
        first = it.ask([[5], []])
        await until(lambda: len(it.table.asked) == 1)
        rest = it.ask_until_refused()

        with pytest.raises(Refusal, match="64 instances are waiting already"):
            it.ask([[5], []])
        it.table.gate.set()
        answers = await asyncio.gather(first, *rest)

    assert len(answers) in {64, 65}
    assert {each for _, each in answers} == {1}


async def test_large_requests_wait_with_all_their_rows_until_they_are_answered() -> None:
    async with running(max_rows=2) as it:
        it.add(1)
        it.rounds.pin(1)
        it.table.gate.clear()
        large = [[[5], []]] * 50
        first = [it.ask(*large), it.ask(*large)]
        for begun in (0, 2):
            await until(lambda begun=begun: len(it.table.asked) == begun)  # type: ignore[misc]
            with pytest.raises(Refusal, match="instances are waiting already"):
                it.ask(*large)
        # It is answered between their parts.
        small = it.ask([[6], []])
        it.table.gate.set()
        answers = await asyncio.gather(*first, small)
        again = list(await asyncio.gather(it.ask(*large), it.ask(*large)))

    assert answers == [([105.0] * 50, 1)] * 2 + [([106.0], 1)]
    assert again == [([105.0] * 50, 1)] * 2


async def test_parts_of_large_requests_are_not_counted_twice() -> None:
    async with running(max_rows=2) as it:
        it.add(1)
        it.rounds.pin(1)
        it.table.gate.clear()
        # One row less than may wait, however many of them are in rounds by now.
        asked = [it.ask(*[[[key], []]] * rows) for key, rows in ((5, 40), (6, 40), (7, 47))]
        await until(lambda: len(it.rounds._held_up) == 3)
        asked.append(it.ask([[8], []]))
        with pytest.raises(Refusal, match="128 instances are waiting already"):
            it.ask(*[[[9], []]] * 3)
        it.table.gate.set()

        answers = await asyncio.gather(*asked)

    assert [len(answer) for answer, _ in answers] == [40, 40, 47, 1]


async def test_a_request_larger_than_all_that_may_wait_is_answered_when_it_is_alone_and_so_is_the_next() -> None:
    async with running(max_rows=1) as it:
        it.add(1)
        it.rounds.pin(1)
        larger = [[[5], []]] * 65

        answers = [await it.ask(*larger), await it.ask(*larger)]

    assert answers == [([105.0] * 65, 1)] * 2


async def test_a_large_request_that_is_cancelled_or_fails_waits_no_longer() -> None:
    async with running(max_rows=2) as it:
        it.add(1)
        it.rounds.pin(1)
        large = [[[5], []]] * 100
        it.ask(*large)
        [never_begun] = it.rounds._large
        never_begun.cancel()
        await asyncio.gather(never_begun, return_exceptions=True)
        it.table.gate.clear()
        it.ask(*large)
        await until(lambda: len(it.table.asked) == 1)
        [begun] = it.rounds._large
        begun.cancel()
        it.table.gate.set()
        await until(lambda: not it.rounds._under_way and not it.rounds._large)
        it.table.down = True
        [failed] = await asyncio.gather(it.ask(*large), return_exceptions=True)
        it.table.down = False

        answer = await it.ask(*large)

    assert isinstance(failed, CubeUnavailable)
    assert answer == ([105.0] * 100, 1)


async def test_before_the_first_version_the_stage_is_told() -> None:
    async with running() as it:
        it.rounds.stage = "training hour 1 of 4"

        with pytest.raises(Refusal, match="no version is live yet: training hour 1 of 4"):
            it.rounds.current()


async def test_what_was_refused_before_the_lookup_failed_is_answered_once() -> None:
    async with running(live=2) as it:
        it.add(1, SlotList(("0", "1", "2")))
        it.add(2)
        it.rounds.pin(1)
        it.table.held = {2}
        outcomes: list[Any] = []

        def refuse(_slots: SlotList) -> Instances:
            raise Refusal(409, "not for this list")

        it.rounds.ask(refuse, instances_of([[[1], [2]]], 2), SLOTS, lambda outcome, _: outcomes.append(outcome))
        other = it.ask([[5], [6], [7]])

        assert await other == ([5 + 6 + 400.0], 2)
        assert [type(each) for each in outcomes] == [Refusal]
