"""Holders that answer late or never: waited for, hedged, dropped, left."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from cube.client.readers import (
    ALL,
    DIM,
    KEYS,
    PARTITIONS,
    PATIENT,
    address,
    answering_once,
    client_of,
    client_of_two,
    drops_of,
    favour,
    frames_of,
    greet,
    impostor,
    planned,
    prefer,
    request,
    right_reply,
    silent,
    table_of,
    until,
)
from cube.parts import values_for
from cube.running import Running
from elastic_ctr.cube.client.reader import CubeUnavailable


async def test_a_slow_holder_is_hedged_by_another(start: Callable[[], Running], tmp_path: Path) -> None:
    server = start()
    server.hold(table_of(tmp_path))
    asked = asyncio.Event()

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        await request(reader)
        asked.set()
        await reader.read()

    async with impostor(never) as slow, client_of(hedge_ms=1, partitions=PARTITIONS) as client:
        client.set_holders({1: {slow: ALL, address(server): ALL}})
        prefer(client, [slow, address(server)])
        # Or its question would be given up before it is sent.
        await until(lambda: client._connection(slow).greeted)
        values, _ = await client.lookup(1, KEYS)
        await asked.wait()

    assert values.tobytes() == values_for(KEYS, DIM).tobytes()
    assert client.stats.hedged == 1


async def test_a_holder_that_falls_silent_comes_last_although_hedges_outrun_it(
    start: Callable[[], Running], tmp_path: Path
) -> None:
    server = start()
    server.hold(table_of(tmp_path))

    async with client_of_two(silent, server, timeout_ms=200, retries=20) as (client, mute):
        favour(client, mute, address(server))
        values, _ = await client.lookup(1, KEYS)
        assert client.stats.hedged == 1

        await until(lambda: client._ordered((mute, address(server)))[0] == address(server))

    assert values.tobytes() == values_for(KEYS, DIM).tobytes()


async def test_a_holder_that_stays_silent_is_dropped_although_hedges_outrun_it(
    start: Callable[[], Running], tmp_path: Path
) -> None:
    server = start()
    server.hold(table_of(tmp_path))

    async with client_of_two(silent, server, timeout_ms=200, retries=20) as (client, mute):
        prefer(client, [mute, address(server)])
        for _ in range(3):
            await client.lookup(1, KEYS)

        await until(lambda: client._connection(mute).drops > 0)
        assert not client._connection(mute)._attempts()


async def test_a_holder_that_is_asked_no_more_is_still_dropped_for_what_it_owes(
    start: Callable[[], Running], tmp_path: Path
) -> None:
    server = start()
    server.hold(table_of(tmp_path))
    late = asyncio.Event()

    async with client_of_two(answering_once(late), server, timeout_ms=300) as (client, debtor):
        prefer(client, [debtor, address(server)])
        for _ in range(2):
            await client.lookup(1, KEYS)
        await until(lambda: client.stats.timeouts == 2)
        # What was waited for when it became suspected: the other question is still owed.
        late.set()

        await until(lambda: client._connection(debtor).drops > 0)
        assert not client._connection(debtor)._attempts()


async def test_a_stall_that_many_questions_share_costs_a_holder_no_more_than_a_moment_of_suspicion(
    start: Callable[[], Running], tmp_path: Path
) -> None:
    server = start()
    server.hold(table_of(tmp_path))
    over = asyncio.Event()

    async def stalled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        while True:
            head, keys = await request(reader)
            await over.wait()
            writer.write(right_reply(head, keys))

    async with client_of_two(stalled, server, timeout_ms=500) as (client, stalling):
        favour(client, stalling, address(server))
        for _ in range(3):
            await client.lookup(1, KEYS)
        await until(lambda: client.stats.timeouts == 3)
        over.set()
        await until(lambda: not client._connection(stalling)._attempts())

        assert drops_of(client) == 0
        await until(lambda: client._ordered((stalling, address(server)))[0] == stalling)


async def test_a_holder_dropped_for_its_silence_is_used_again_once_it_is_well(
    start: Callable[[], Running], tmp_path: Path
) -> None:
    server = start()
    server.hold(table_of(tmp_path))
    connections = 0

    async def silent_at_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if connections == 1:
            await silent(reader, writer)
        await greet(reader, writer)
        await reader.read()

    async with client_of_two(silent_at_first, server, timeout_ms=100) as (client, mute):
        favour(client, mute, address(server))
        await client.lookup(1, KEYS)
        await until(lambda: client._connection(mute).drops == 1)

        await until(lambda: client._ordered((mute, address(server)))[0] == mute)

    assert not planned()


async def test_a_connection_that_is_never_greeted_is_given_up_for_another_although_nobody_asks() -> None:
    connections = 0

    async def hung_at_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if connections > 3:
            await greet(reader, writer)
        await reader.read()

    async with impostor(hung_at_first) as shared, client_of(timeout_ms=50, partitions=PARTITIONS) as client:
        client.set_holders({1: {shared: ALL}})
        connection = client._connection(shared)
        await until(lambda: connection.drops >= 3)

        # What did not greet is no reason to leave the address alone.
        assert connection._failures <= 1
        await until(lambda: connection.greeted)
        assert not planned()


async def test_a_holder_that_greets_slowly_is_let_in_now_and_then() -> None:
    connections = 0

    async def slow_to_greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await asyncio.sleep(0.5)
        await greet(reader, writer)
        await reader.read()

    settings = {"timeout_ms": 50, "deadline_ms": PATIENT, "partitions": PARTITIONS}
    async with impostor(slow_to_greet) as slow, client_of(**settings) as client:
        client.set_holders({1: {slow: ALL}})

        await until(lambda: client._connection(slow).greeted)

        assert connections > 1


async def test_a_slow_holder_that_is_alone_answers_however_often_it_is_asked() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        while True:
            head, keys = await request(reader)
            asyncio.get_running_loop().call_later(0.5, writer.write, right_reply(head, keys))

    settings = {"timeout_ms": 50, "deadline_ms": PATIENT, "partitions": PARTITIONS}
    async with impostor(slow) as alone, client_of(**settings) as client:
        client.set_holders({1: {alone: ALL}})
        await until(lambda: client._connection(alone).greeted)
        before = drops_of(client)
        asked = []
        for at in range(10):
            asked.append(asyncio.create_task(client.lookup(1, KEYS[at : at + 5])))
            await asyncio.sleep(0.05)
        answers = await asyncio.gather(*asked)

        assert drops_of(client) == before
    for at, (values, _) in enumerate(answers):
        assert values.tobytes() == values_for(KEYS[at : at + 5], DIM).tobytes()


async def test_a_holder_that_is_alone_and_falls_silent_is_connected_to_anew_in_time_to_answer() -> None:
    connections = 0

    async def silent_at_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if connections == 1:
            await silent(reader, writer)
        await greet(reader, writer)
        while True:
            writer.write(right_reply(*await request(reader)))

    settings = {"timeout_ms": 300, "deadline_ms": 6000, "partitions": PARTITIONS}
    async with impostor(silent_at_first) as alone, client_of(**settings) as client:
        client.set_holders({1: {alone: ALL}})
        values, _ = await client.lookup(1, KEYS)

    assert values.tobytes() == values_for(KEYS, DIM).tobytes()
    assert connections > 1


async def test_a_holder_is_not_dropped_for_a_greeting_that_an_earlier_connection_owed() -> None:
    connections = 0
    release = asyncio.Event()

    async def slow_to_greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if connections > 1:
            await release.wait()
            await greet(reader, writer)
        await reader.read()

    async with impostor(slow_to_greet) as slow, client_of(timeout_ms=500, partitions=PARTITIONS) as client:
        client.set_holders({1: {slow: ALL}})
        await until(lambda: connections == 2)
        before = client.stats.timeouts
        asked = asyncio.create_task(client.keep_alive([1]))
        await until(lambda: client.stats.timeouts > before)
        release.set()

        await until(lambda: client._connection(slow).greeted)
        assert client._connection(slow).drops == 1
        await asked


async def test_a_lookup_that_its_caller_gives_up_excuses_no_silence() -> None:
    async with impostor(silent) as mute, client_of(timeout_ms=500, partitions=PARTITIONS) as client:
        client.set_holders({1: {mute: ALL}})
        await until(lambda: client._connection(mute).greeted)
        lookups = [asyncio.create_task(client.lookup(1, KEYS[:9])) for _ in range(3)]
        await until(lambda: frames_of(client) == 1)
        for lookup in lookups:
            lookup.cancel()

        await until(lambda: client._connection(mute).drops > 0)


async def test_a_holder_that_answers_no_keep_alive_is_dropped() -> None:
    async with impostor(silent) as mute, client_of(timeout_ms=20, partitions=PARTITIONS) as client:
        client.set_holders({1: {mute: ALL}})
        await until(lambda: client._connection(mute).greeted)

        assert [await client.keep_alive([1]) for _ in range(3)] == [{1: set()}] * 3

        await until(lambda: client._connection(mute).drops > 0)


async def test_a_holder_that_is_no_holder_any_more_is_left_although_it_owes_an_answer() -> None:
    hung_up = asyncio.Event()

    async def owing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silent(reader, writer)
        hung_up.set()

    settings = {"timeout_ms": 500, "deadline_ms": 100, "partitions": PARTITIONS}
    async with impostor(owing) as debtor, client_of(**settings) as client:
        client.set_holders({1: {debtor: ALL}})
        asked = asyncio.create_task(client.lookup(1, KEYS))
        await until(lambda: frames_of(client) == 1)
        asked.cancel()
        client.set_holders({})
        assert client._leaving

        await until(hung_up.is_set)

        assert not client._leaving
        assert not planned()


async def test_a_holder_that_is_no_holder_any_more_may_answer_for_as_long_as_its_answer_is_waited_for() -> None:
    asked = 0
    third, release = asyncio.Event(), asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await greet(reader, writer)
        while True:
            head, keys = await request(reader)
            asked += 1
            if asked == 3:
                third.set()
                await release.wait()
                writer.write(right_reply(head, keys))

    # The third attempt has four times as long as the first, and there is no patience beyond it.
    async with impostor(late) as leaver, client_of(timeout_ms=600, partitions=PARTITIONS) as client:
        client.set_holders({1: {leaver: ALL}})
        lookup = asyncio.create_task(client.lookup(1, KEYS))
        await third.wait()
        client.set_holders({})
        asyncio.get_running_loop().call_later(0.9, release.set)

        values, _ = await lookup
        await until(lambda: not client._leaving)

    assert values.tobytes() == values_for(KEYS, DIM).tobytes()


async def test_however_often_holders_change_one_timer_sees_to_those_who_left() -> None:
    async with impostor(silent) as debtor, client_of(partitions=PARTITIONS, retries=0) as client:
        client.set_holders({1: {debtor: ALL}})
        asked = asyncio.create_task(client.lookup(1, KEYS))
        await until(lambda: frames_of(client) == 1)
        client.set_holders({})
        before = len(planned())
        for _ in range(10):
            client.set_holders({})

        assert len(planned()) == before
        await client.close()
        assert not planned()
        with pytest.raises(CubeUnavailable):
            await asked


async def test_a_holder_that_drains_is_no_hedge(start: Callable[[], Running], tmp_path: Path) -> None:
    going = start()
    going.hold(table_of(tmp_path))
    release = asyncio.Event()

    async with impostor(answering_once(release)) as slow, client_of(hedge_ms=1, partitions=PARTITIONS) as client:
        client.set_holders({1: {slow: ALL, address(going): ALL}}, {address(going)})
        asyncio.get_running_loop().call_later(0.1, release.set)
        values, _ = await client.lookup(1, KEYS)
        frames = frames_of(client)

    assert values.tobytes() == values_for(KEYS, DIM).tobytes()
    assert frames == 1
    assert client.stats.hedged == 0


async def test_a_hung_holder_is_given_up_for_another(start: Callable[[], Running], tmp_path: Path) -> None:
    server = start()
    server.hold(table_of(tmp_path))

    async def hung(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with impostor(hung) as silent, client_of(timeout_ms=500, partitions=PARTITIONS) as client:
        client.set_holders({1: {silent: ALL, address(server): ALL}})
        prefer(client, [silent, address(server)])
        values, _ = await client.lookup(1, KEYS)

    assert values.tobytes() == values_for(KEYS, DIM).tobytes()
    assert client.stats.timeouts == 1
