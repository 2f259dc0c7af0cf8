"""How much may wait for its round, and what is larger than one."""

import asyncio

import pytest

from elastic_ctr.cube.client.reader import CubeUnavailable
from elastic_ctr.serving.batching.batcher import _DETACHED_BATCHES
from elastic_ctr.serving.request_error import RequestError
from serving.running import SAMPLES, running, until


async def test_a_request_larger_than_a_round_has_one_version_though_it_is_switched_meanwhile() -> None:
    async with running(max_rows=2) as it:
        it.add(1)
        it.add(2)
        it.batcher.pin(1)
        it.table.gate.clear()
        large = it.ask(*[[[key], []] for key in range(1, 6)])
        await until(lambda: len(it.table.asked) == 1)
        it.batcher.pin(2)
        it.batcher.keep({2})
        small = it.ask([[9], []])
        it.table.gate.set()

        answers = await large, await small
        await until(lambda: 1 not in it.batcher.versions)

    assert answers == (([101.0, 102.0, 103.0, 104.0, 105.0], 1), ([209.0], 2))
    # The small one did not wait for the whole of the large one.
    assert [version for version, _ in it.table.asked] == [1, 2, 1, 1]


async def test_a_large_request_does_not_wait_for_a_check() -> None:
    async with running(max_rows=2) as it:
        it.add(1)
        it.batcher.pin(1)
        it.add(2)
        it.table.gate.clear()
        it.table.behind = lambda version, _: version == 2
        check = asyncio.create_task(it.batcher.predict_at(2, SAMPLES))
        await until(lambda: bool(it.table.asked))

        large = await it.ask(*[[[key], []] for key in range(1, 6)])
        assert not check.done()
        it.table.gate.set()
        await check

    assert large == ([101.0, 102.0, 103.0, 104.0, 105.0], 1)


async def test_of_rounds_that_wait_for_cube_there_are_only_so_many() -> None:
    async with running(max_rows=1) as it:
        it.add(1)
        it.batcher.pin(1)
        it.table.gate.clear()
        asked = [it.ask([[key], []]) for key in range(5, 45)]
        await until(lambda: len(it.table.asked) >= _DETACHED_BATCHES)
        # Time in which more could begin, if more did.
        await asyncio.sleep(0.3)
        began = len(it.table.asked)
        it.table.gate.set()

        answers = await asyncio.gather(*asked)

    assert began <= _DETACHED_BATCHES + 1
    assert answers == [([100.0 + key], 1) for key in range(5, 45)]


async def test_requests_that_wait_for_cube_are_in_the_number_that_may_wait() -> None:
    async with running(max_rows=1) as it:
        it.add(1)
        it.batcher.pin(1)
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
        it.batcher.pin(1)
        it.table.gate.clear()
        first = it.ask([[5], []])
        await until(lambda: len(it.table.asked) == 1)
        rest = it.ask_until_refused()

        with pytest.raises(RequestError, match="64 instances are waiting already") as refused:
            it.ask([[5], []])
        assert refused.value.status == 503
        it.table.gate.set()
        answers = await asyncio.gather(first, *rest)

    assert len(answers) in {64, 65}
    assert {each for _, each in answers} == {1}


async def test_large_requests_wait_with_all_their_rows_until_they_are_answered() -> None:
    async with running(max_rows=2) as it:
        it.add(1)
        it.batcher.pin(1)
        it.table.gate.clear()
        large = [[[5], []]] * 50
        first = [it.ask(*large), it.ask(*large)]
        for begun in (0, 2):
            await until(lambda begun=begun: len(it.table.asked) == begun)  # type: ignore[misc]
            with pytest.raises(RequestError, match="instances are waiting already"):
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
        it.batcher.pin(1)
        it.table.gate.clear()
        # One row less than may wait, however many of them are in batches by now.
        asked = [it.ask(*[[[key], []]] * rows) for key, rows in ((5, 40), (6, 40), (7, 47))]
        await until(lambda: len(it.batcher._detached) == 3)
        asked.append(it.ask([[8], []]))
        with pytest.raises(RequestError, match="128 instances are waiting already"):
            it.ask(*[[[9], []]] * 3)
        it.table.gate.set()

        answers = await asyncio.gather(*asked)

    assert [len(answer) for answer, _ in answers] == [40, 40, 47, 1]


async def test_a_request_larger_than_all_that_may_wait_is_answered_when_it_is_alone_and_so_is_the_next() -> None:
    async with running(max_rows=1) as it:
        it.add(1)
        it.batcher.pin(1)
        larger = [[[5], []]] * 65

        answers = [await it.ask(*larger), await it.ask(*larger)]

    assert answers == [([105.0] * 65, 1)] * 2


async def test_a_large_request_that_is_cancelled_or_fails_waits_no_longer() -> None:
    async with running(max_rows=2) as it:
        it.add(1)
        it.batcher.pin(1)
        large = [[[5], []]] * 100
        it.ask(*large)
        [never_begun] = it.batcher._large
        never_begun.cancel()
        await asyncio.gather(never_begun, return_exceptions=True)
        it.table.gate.clear()
        it.ask(*large)
        await until(lambda: len(it.table.asked) == 1)
        [begun] = it.batcher._large
        begun.cancel()
        it.table.gate.set()
        await until(lambda: not it.batcher._under_way and not it.batcher._large)
        it.table.down = True
        [failed] = await asyncio.gather(it.ask(*large), return_exceptions=True)
        it.table.down = False

        answer = await it.ask(*large)

    assert isinstance(failed, CubeUnavailable)
    assert answer == ([105.0] * 100, 1)
