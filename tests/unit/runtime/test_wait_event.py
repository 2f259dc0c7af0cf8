import asyncio

from elastic_ctr.runtime.lifecycle import wait_event


async def test_an_event_that_comes_is_told() -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_soon(event.set)

    assert await wait_event(event, 10)


async def test_an_event_that_does_not_come_is_not_waited_for_longer() -> None:
    assert not await wait_event(asyncio.Event(), 0.01)


async def test_a_cancellation_that_comes_with_the_event_ends_the_loop() -> None:
    event = asyncio.Event()
    rounds = 0

    async def loop() -> None:
        nonlocal rounds
        while True:
            event.clear()
            rounds += 1
            await wait_event(event, 10)

    task = asyncio.create_task(loop())
    await asyncio.sleep(0.01)
    event.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=5)

    assert task in done
    assert task.cancelled()
