"""Waiting for an event, or for a time."""

import asyncio


async def happened(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event came within the time.

    `asyncio.wait_for` before Python 3.12 swallows a cancellation that arrives together with the event: a loop around it
    then never ends, and whoever gathers its task waits for ever.
    """
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiting}, timeout=seconds)
    finally:
        waiting.cancel()
    return event.is_set()
