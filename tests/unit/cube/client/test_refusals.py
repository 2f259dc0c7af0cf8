"""Holders that do not hold what they are asked for, or are busy."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cube.client.readers import (
    ALL,
    DIM,
    KEYS,
    PARTITIONS,
    PATIENT,
    address,
    answering,
    answering_once,
    client_of,
    frames_of,
    greet,
    impostor,
    planned,
    prefer,
    refuse,
    refused,
    request,
    right_reply,
    silent,
    table_of,
    until,
)
from cube.parts import values_for
from cube.running import Running
from elastic_ctr.cube.client.reader import VersionNotHeld
from elastic_ctr.cube.dictionary.format import Keys
from elastic_ctr.cube.server import lookup_counters as counters
from elastic_ctr.cube.server.loop import LookupLoop
from elastic_ctr.cube.wire import Head, Status


async def test_a_version_without_a_holder_is_not_held(start: Callable[[], Running], tmp_path: Path) -> None:
    server = start()
    server.hold(table_of(tmp_path))

    async with client_of() as client:
        client.set_holders({1: {address(server): ALL}, 2: {address(server): ALL}, 3: {address(server): [0]}})
        with pytest.raises(VersionNotHeld, match="version 9 is not held: no holder"):
            await client.lookup(9, KEYS)
        with pytest.raises(VersionNotHeld, match="answered version not held"):
            await client.lookup(2, KEYS)
        with pytest.raises(VersionNotHeld, match="no holder of its partition 1 is known"):
            await client.lookup(3, KEYS)
        assert not (await client.lookup(1, KEYS))[1].any()


async def test_a_holder_that_lost_a_partition_is_replaced_by_another(
    start: Callable[[], Running], tmp_path: Path
) -> None:
    poor, rich = start(), start()
    poor.hold(table_of(tmp_path / "poor", only=[0]))
    rich.hold(table_of(tmp_path / "rich"))

    async with client_of() as client:
        client.set_holders({1: {address(poor): ALL, address(rich): ALL}})
        prefer(client, [address(poor), address(rich)])
        values, _ = await client.lookup(1, KEYS)

    assert values.tobytes() == values_for(KEYS, DIM).tobytes()
    assert client.stats.retried == 1


async def test_a_holder_that_failed_is_tried_again_although_another_holds_nothing() -> None:
    def busy_at_first(number: int, head: Head, keys: Keys) -> bytes:
        return refused(head, Status.BUSY) if number == 1 else right_reply(head, keys)

    busy = answering(busy_at_first)
    async with impostor(refuse) as empty, impostor(busy) as full, client_of(partitions=PARTITIONS) as client:
        client.set_holders({1: {empty: ALL, full: ALL}})
        prefer(client, [empty, full])
        values, _ = await client.lookup(1, KEYS)

        assert [client._connection(each).frames for each in (empty, full)] == [1, 2]
    assert values.tobytes() == values_for(KEYS, DIM).tobytes()


async def test_a_lookup_of_a_version_that_all_holders_answer_as_not_held_is_not_repeated() -> None:
    settings = {"retries": 9, "deadline_ms": PATIENT, "partitions": PARTITIONS}
    async with impostor(refuse) as one, impostor(refuse) as other, client_of(**settings) as client:
        client.set_holders({1: {one: ALL, other: ALL}})

        with pytest.raises(VersionNotHeld, match=r"answered version not held; .* answered version not held"):
            await client.lookup(1, KEYS)

        assert [client._connection(address).frames for address in (one, other)] == [1, 1]


@pytest.mark.parametrize("answered", ["never", "long ago"])
async def test_a_holder_that_did_not_answer_lately_is_tried_once_where_another_holds_nothing(answered: str) -> None:
    settings = {"deadline_ms": 2000, "partitions": PARTITIONS}
    async with impostor(refuse) as empty, client_of(**settings) as client:
        client.set_holders({1: {empty: ALL, "127.0.0.1:1": ALL}})
        prefer(client, [empty, "127.0.0.1:1"])
        if answered == "long ago":
            client._connection("127.0.0.1:1").answered_at = asyncio.get_running_loop().time() - PATIENT

        with pytest.raises(VersionNotHeld, match=r"answered version not held; .* cannot connect"):
            await client.lookup(1, KEYS)

    assert client.stats.retried == 1


async def test_a_holder_that_only_greets_gets_one_request_where_another_holds_nothing() -> None:
    settings = {"timeout_ms": 500, "deadline_ms": 2000, "partitions": PARTITIONS}
    async with impostor(refuse) as empty, impostor(silent) as mute, client_of(**settings) as client:
        client.set_holders({1: {empty: ALL, mute: ALL}})
        prefer(client, [mute, empty])
        await until(lambda: client._connection(empty).greeted and client._connection(mute).greeted)

        with pytest.raises(VersionNotHeld, match=r"no reply within 500 ms; .* answered version not held"):
            await client.lookup(1, KEYS)

        assert client._connection(mute).frames == 1


async def test_a_holder_that_answered_a_moment_ago_is_waited_for_although_another_holds_nothing(
    tmp_path: Path,
) -> None:
    table = table_of(tmp_path)
    server = Running(LookupLoop(counters.private(), 1000, 1000))
    server.hold(table)

    async with impostor(refuse) as empty, client_of(deadline_ms=60_000) as client:
        client.set_holders({1: {empty: ALL, address(server): ALL}})
        prefer(client, [empty, address(server)])
        # All that a holder is asked while readers like another better.
        assert address(server) in (await client.keep_alive([1]))[1]
        server.stop()
        asked = asyncio.create_task(client.lookup(1, KEYS))
        await until(lambda: client.stats.retried >= 4 or asked.done())
        back = Running(LookupLoop(counters.private(), 1000, 1000), port=server.port)
        back.hold(table)
        values, _ = await asked

    back.stop()
    assert values.tobytes() == values_for(KEYS, DIM).tobytes()


async def test_a_refused_lookup_is_not_sent_again_to_a_holder_that_has_it_already() -> None:
    hedged, release = asyncio.Event(), asyncio.Event()

    async def refuse_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        head, _ = await request(reader)
        await hedged.wait()
        writer.write(refused(head, Status.VERSION_NOT_HELD))
        await reader.read()

    settings = {"hedge_ms": 1, "partitions": PARTITIONS}
    async with (
        impostor(refuse_late) as empty,
        impostor(answering_once(release, hedged)) as full,
        client_of(**settings) as client,
    ):
        client.set_holders({1: {empty: ALL, full: ALL}})
        prefer(client, [empty, full])
        await until(lambda: client._connection(empty).greeted and client._connection(full).greeted)
        asked = asyncio.create_task(client.lookup(1, KEYS))
        await hedged.wait()
        await until(lambda: not client._connection(empty)._attempts())
        asyncio.get_running_loop().call_later(0.05, release.set)
        values, _ = await asked

        assert client._connection(full).frames == 1
    assert values.tobytes() == values_for(KEYS, DIM).tobytes()


async def test_a_hedge_is_not_sent_to_a_holder_that_has_the_lookup_already() -> None:
    release = asyncio.Event()

    settings = {"hedge_ms": PATIENT // 2, "partitions": PARTITIONS}
    async with impostor(refuse) as empty, impostor(answering_once(release)) as full, client_of(**settings) as client:
        client.set_holders({1: {empty: ALL, full: ALL}})
        prefer(client, [empty, full])
        await until(lambda: client._connection(empty).greeted and client._connection(full).greeted)
        asked = asyncio.create_task(client.lookup(1, KEYS))
        await until(lambda: client._connection(full).frames == 1)
        hedge = min(planned(), key=asyncio.TimerHandle.when)
        hedge._run()
        hedge.cancel()
        release.set()
        values, _ = await asked

        assert client._connection(full).frames == 1
    assert values.tobytes() == values_for(KEYS, DIM).tobytes()
    assert client.stats.hedged == 0


async def test_a_refusal_of_one_question_is_none_of_those_that_shared_its_frame(
    start: Callable[[], Running], tmp_path: Path
) -> None:
    poor, rich = start(), start()
    poor.hold(table_of(tmp_path / "poor", only=[0, 1]))
    rich.hold(table_of(tmp_path / "rich", only=[2]))
    ours, others = (KEYS[KEYS % np.uint64(PARTITIONS) == number] for number in (0, 2))

    async with client_of() as client:
        # It had the third partition a moment ago.
        client.set_holders({1: {address(poor): [0, 1, 2], address(rich): [2]}})
        prefer(client, [address(poor), address(rich)])
        await client.keep_alive([1])
        asked = [client.lookup(1, keys) for keys in (ours, others, ours[:7])]
        answers = await asyncio.gather(*asked)

    for (values, _), keys in zip(answers, (ours, others, ours[:7]), strict=True):
        assert values.tobytes() == values_for(keys, DIM).tobytes()
    assert client.stats.retried == 1


async def test_one_refusal_answers_all_lookups_of_a_version_that_is_not_held(
    start: Callable[[], Running], tmp_path: Path
) -> None:
    server = start()
    server.hold(table_of(tmp_path))

    async with client_of() as client:
        client.set_holders({2: {address(server): ALL}})
        await client.keep_alive([2])
        before = frames_of(client)
        answers = await asyncio.gather(*(client.lookup(2, KEYS[:9]) for _ in range(10)), return_exceptions=True)

        assert all(isinstance(answer, VersionNotHeld) for answer in answers)
        # Asked alone, none of them would hear anything else.
        assert frames_of(client) - before == 1


async def test_a_busy_holder_is_replaced_by_another(start: Callable[[], Running], tmp_path: Path) -> None:
    server = start()
    server.hold(table_of(tmp_path))

    busy = answering(lambda _, head, __: refused(head, Status.BUSY))
    async with impostor(busy) as crowded, client_of(partitions=PARTITIONS) as client:
        client.set_holders({1: {crowded: ALL, address(server): ALL}})
        prefer(client, [crowded, address(server)])
        values, _ = await client.lookup(1, KEYS)

    assert values.tobytes() == values_for(KEYS, DIM).tobytes()


async def test_no_attempt_is_waited_for_longer_than_patience_however_often_a_holder_was_busy() -> None:
    third = asyncio.Event()

    def busy_twice(number: int, head: Head, _: Keys) -> bytes:
        if number < 3:
            return refused(head, Status.BUSY)
        third.set()
        return b""

    settings = {"timeout_ms": 10_000, "retries": 0, "deadline_ms": 15_000, "partitions": PARTITIONS}
    async with impostor(answering(busy_twice)) as crowded, client_of(**settings) as client:
        client.set_holders({1: {crowded: ALL}})
        lookup = asyncio.create_task(client.lookup(1, KEYS))
        await third.wait()

        assert 0 < max(timer.when() for timer in planned()) - asyncio.get_running_loop().time() <= 15
        lookup.cancel()
