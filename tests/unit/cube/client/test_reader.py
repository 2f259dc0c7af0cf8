"""The reader's client against lookup loops of this process."""

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
    client_of,
    client_of_two,
    favour,
    greet,
    impostor,
    once_available,
    prefer,
    request,
    right_reply,
    table_of,
    until,
)
from cube.parts import as_keys, values_for
from cube.running import Running
from elastic_ctr.cube import wire
from elastic_ctr.cube.client.connection import FIRST_PAUSE
from elastic_ctr.cube.client.reader import CubeClient, CubeUnavailable, VersionNotHeld
from elastic_ctr.cube.server import counters
from elastic_ctr.cube.server.choice import make_loop
from elastic_ctr.cube.wire import Kind, Status


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes every question and answers none."""
    await greet(reader, writer)
    while await reader.read(1 << 16):
        pass


def planned() -> list[asyncio.TimerHandle]:
    loop = asyncio.get_running_loop()
    return [timer for timer in loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]


async def test_keys_come_from_the_holders_of_their_partitions(start: Callable[[], Running], tmp_path: Path) -> None:
    even, odd = start(), start()
    even.hold(table_of(tmp_path / "even", only=[0, 2, 4]))
    odd.hold(table_of(tmp_path / "odd", only=[1, 3, 5]))

    async with client_of() as client:
        client.set_holders({1: {address(even): [0, 2, 4], address(odd): [1, 3, 5]}}, set())
        keys = np.random.default_rng(1).permutation(np.concatenate([KEYS, as_keys([0, 0, 7000, 2**64 - 1])]))
        values, missing = await client.lookup(1, keys)

    known = (keys > 0) & (keys <= KEYS[-1])
    assert (missing == (~known & (keys > 0))).all()
    assert values.tobytes() == np.where(known[:, None], values_for(keys, DIM), np.float32(0)).tobytes()


async def test_concurrent_lookups_share_frames(start: Callable[[], Running], tmp_path: Path) -> None:
    server = start()
    server.hold(table_of(tmp_path))

    async with client_of() as client:
        client.set_holders({1: {address(server): ALL}}, set())
        await client.lookup(1, KEYS[:1])
        before = client.refresh_stats().frames
        answers = await asyncio.gather(*(client.lookup(1, KEYS[at : at + 5]) for at in range(100)))

        assert client.refresh_stats().frames - before == 1
    for at, (values, missing) in enumerate(answers):
        assert values.tobytes() == values_for(KEYS[at : at + 5], DIM).tobytes()
        assert not missing.any()


async def test_a_lookup_larger_than_a_frame_is_cut(tmp_path: Path) -> None:
    server = Running(make_loop(counters.private(), 100, 1000))
    server.hold(table_of(tmp_path))
    keys = np.resize(KEYS, 1001)

    async with client_of() as client:
        client.set_holders({1: {address(server): ALL}}, set())
        many = await asyncio.gather(*(client.lookup(1, keys[start:]) for start in (0, 1, 950)))

    server.stop()
    for start_at, (values, _) in zip((0, 1, 950), many, strict=True):
        assert values.tobytes() == values_for(keys[start_at:], DIM).tobytes()


async def test_no_keys_and_padding_alone_are_answered(start: Callable[[], Running], tmp_path: Path) -> None:
    server = start()
    server.hold(table_of(tmp_path))

    async with client_of() as client:
        client.set_holders({1: {address(server): ALL}})
        for keys in (as_keys([]), as_keys([0, 0])):
            values, missing = await client.lookup(1, keys)
            assert values.shape == (keys.size, DIM)
            assert not values.any()
            assert not missing.any()


async def test_a_version_that_nobody_holds_is_not_held(start: Callable[[], Running], tmp_path: Path) -> None:
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
        assert client.stats.not_held == 3
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


async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes every question and holds nothing."""
    await greet(reader, writer)
    while True:
        head, _ = await request(reader)
        writer.write(wire.pack_refusal(Status.VERSION_NOT_HELD, head.id, head.version))


async def test_a_holder_that_failed_is_asked_again_although_another_holds_nothing() -> None:
    asked = 0

    async def busy_at_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await greet(reader, writer)
        while True:
            head, keys = await request(reader)
            asked += 1
            busy = wire.pack_refusal(Status.BUSY, head.id, head.version)
            writer.write(busy if asked == 1 else right_reply(head, keys))

    async with impostor(refuse) as empty, impostor(busy_at_first) as full, client_of(partitions=PARTITIONS) as client:
        client.set_holders({1: {empty: ALL, full: ALL}})
        prefer(client, [empty, full])
        values, _ = await client.lookup(1, KEYS)

        assert client._connection(empty).frames == 1
    assert values.tobytes() == values_for(KEYS, DIM).tobytes()
    assert asked == 2


async def test_what_all_holders_say_they_do_not_hold_is_not_waited_for() -> None:
    settings = {"retries": 9, "patience_ms": PATIENT, "partitions": PARTITIONS}
    async with impostor(refuse) as one, impostor(refuse) as other, client_of(**settings) as client:
        client.set_holders({1: {one: ALL, other: ALL}})

        with pytest.raises(VersionNotHeld, match=r"answered version not held; .* answered version not held"):
            await client.lookup(1, KEYS)

        assert [client._connection(address).frames for address in (one, other)] == [1, 1]


async def test_who_holds_nothing_is_no_reason_to_wait_for_a_holder_that_has_long_failed() -> None:
    async with impostor(refuse) as empty, client_of(patience_ms=PATIENT, partitions=PARTITIONS) as client:
        client.set_holders({1: {empty: ALL, "127.0.0.1:1": ALL}})
        prefer(client, [empty, "127.0.0.1:1"])
        client._failing_since["127.0.0.1:1"] = asyncio.get_running_loop().time() - PATIENT

        with pytest.raises(VersionNotHeld):
            await client.lookup(1, KEYS)

    assert client.stats.retried == 2


async def test_in_place_of_one_that_holds_nothing_nobody_is_asked_twice_at_a_time() -> None:
    hedged, release = asyncio.Event(), asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        head, keys = await request(reader)
        hedged.set()
        await release.wait()
        writer.write(right_reply(head, keys))
        await reader.read()

    async def refuse_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        head, _ = await request(reader)
        await hedged.wait()
        writer.write(wire.pack_refusal(Status.VERSION_NOT_HELD, head.id, head.version))
        await reader.read()

    settings = {"hedge_ms": 1, "partitions": PARTITIONS}
    async with impostor(refuse_late) as empty, impostor(late) as full, client_of(**settings) as client:
        client.set_holders({1: {empty: ALL, full: ALL}})
        prefer(client, [empty, full])
        await until(lambda: client._connection(empty).greeted and client._connection(full).greeted)
        asked = asyncio.create_task(client.lookup(1, KEYS))
        await hedged.wait()
        await until(lambda: client._connection(empty).idle)
        asyncio.get_running_loop().call_later(0.05, release.set)
        values, _ = await asked

        assert client._connection(full).frames == 1
    assert values.tobytes() == values_for(KEYS, DIM).tobytes()


async def test_a_hedge_is_put_to_nobody_who_is_being_asked() -> None:
    release = asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        head, keys = await request(reader)
        await release.wait()
        writer.write(right_reply(head, keys))
        await reader.read()

    settings = {"hedge_ms": PATIENT // 2, "partitions": PARTITIONS}
    async with impostor(refuse) as empty, impostor(late) as full, client_of(**settings) as client:
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


async def test_a_version_that_is_not_held_is_said_once_to_all_who_asked_for_it(
    start: Callable[[], Running], tmp_path: Path
) -> None:
    server = start()
    server.hold(table_of(tmp_path))

    async with client_of() as client:
        client.set_holders({2: {address(server): ALL}})
        await client.keep_alive([2])
        before = client.refresh_stats().frames
        answers = await asyncio.gather(*(client.lookup(2, KEYS[:9]) for _ in range(10)), return_exceptions=True)

        assert all(isinstance(answer, VersionNotHeld) for answer in answers)
        # Asked alone, none of them would hear anything else.
        assert client.refresh_stats().frames - before == 1


async def test_a_holder_that_is_gone_is_replaced_by_another(start: Callable[[], Running], tmp_path: Path) -> None:
    leaving, staying = start(), start()
    for server in (leaving, staying):
        server.hold(table_of(tmp_path / str(server.port)))

    async with client_of() as client:
        client.set_holders({1: {address(leaving): ALL, address(staying): ALL}})
        await client.keep_alive([1])
        leaving.loop.stop()
        leaving.listener.close()
        for _ in range(5):
            values, _ = await client.lookup(1, KEYS)
            assert values.tobytes() == values_for(KEYS, DIM).tobytes()
        leaving.stop = lambda: None  # type: ignore[method-assign]


async def test_nobody_there_is_unavailable_and_says_who_was_asked() -> None:
    async with client_of(partitions=PARTITIONS, retries=1, timeout_ms=2000) as client:
        client.set_holders({1: {"127.0.0.1:1": ALL}})

        with pytest.raises(CubeUnavailable, match=r"127\.0\.0\.1:1 cannot connect.*is the cube running"):
            await client.lookup(1, KEYS)


async def test_a_server_that_comes_back_is_found_again(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    server = Running(make_loop(counters.private(), 1000, 1000))
    server.hold(table)

    async with client_of(retries=3) as client:
        client.set_holders({1: {address(server): ALL}})
        await client.lookup(1, KEYS)
        server.stop()
        with pytest.raises(CubeUnavailable):
            await client.lookup(1, KEYS)
        back = Running(make_loop(counters.private(), 1000, 1000), port=server.port)
        back.hold(table)
        values = await once_available(client)

    back.stop()
    assert values.tobytes() == values_for(KEYS, DIM).tobytes()


async def test_a_holder_that_is_away_for_a_moment_costs_no_lookup(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    server = Running(make_loop(counters.private(), 1000, 1000))
    server.hold(table)

    async with client_of(patience_ms=60_000) as client:
        client.set_holders({1: {address(server): ALL}})
        await client.lookup(1, KEYS)
        server.stop()
        asked = asyncio.create_task(client.lookup(1, KEYS))
        while client.stats.retried < 4:
            await asyncio.sleep(0.01)
        back = Running(make_loop(counters.private(), 1000, 1000), port=server.port)
        back.hold(table)
        values, _ = await asked

    back.stop()
    assert values.tobytes() == values_for(KEYS, DIM).tobytes()


async def test_a_lookup_goes_to_whoever_is_named_while_it_waits(start: Callable[[], Running], tmp_path: Path) -> None:
    there = start()
    there.hold(table_of(tmp_path))

    async with client_of(patience_ms=60_000, partitions=PARTITIONS) as client:
        client.set_holders({1: {"127.0.0.1:1": ALL}})
        asked = asyncio.create_task(client.lookup(1, KEYS))
        while client.stats.retried < 4:
            await asyncio.sleep(0.01)
        client.set_holders({1: {address(there): ALL}})
        values, _ = await asked

    assert values.tobytes() == values_for(KEYS, DIM).tobytes()


async def test_a_partition_that_nobody_is_named_for_is_asked_where_it_was(
    start: Callable[[], Running], tmp_path: Path
) -> None:
    busy = start()
    busy.hold(table_of(tmp_path))

    async with client_of(partitions=PARTITIONS) as client:
        client.set_holders({1: {address(busy): ALL}})
        await client.lookup(1, KEYS)
        client.set_holders({1: {}})
        await client.lookup(1, KEYS)
        # As it is heard of by and by after transfer has lost its state.
        client.set_holders({1: {address(busy): ALL[:1]}})
        values, _ = await client.lookup(1, KEYS)
        client.set_holders({})
        with pytest.raises(VersionNotHeld):
            await client.lookup(1, KEYS)

    assert values.tobytes() == values_for(KEYS, DIM).tobytes()


async def test_a_holder_that_has_long_failed_is_not_waited_for() -> None:
    async with client_of(patience_ms=300, partitions=PARTITIONS) as client:
        client.set_holders({1: {"127.0.0.1:1": ALL}})
        with pytest.raises(CubeUnavailable):
            await client.lookup(1, KEYS)
        before = client.stats.retried

        with pytest.raises(CubeUnavailable):
            await client.lookup(1, KEYS)

    assert client.stats.retried - before == 2


@pytest.mark.parametrize("replicas", [3, 5])
async def test_readers_spread_evenly_over_replicas_and_each_stays_with_one(replicas: int) -> None:
    addresses = tuple(f"cube-s0-{number}.cube:8600" for number in range(replicas))
    readers = 6000
    first = dict.fromkeys(addresses, 0)
    for _ in range(readers):
        client = CubeClient(DIM)
        favourite = client._ordered(addresses)[0]
        first[favourite] += 1
        assert client._ordered(addresses[::-1])[0] == favourite

    assert all(abs(count / readers - 1 / replicas) < 0.04 for count in first.values()), first


async def test_draining_holders_come_last(start: Callable[[], Running], tmp_path: Path) -> None:
    said, seen, staying = start(), start(), start()
    for server in (said, seen, staying):
        server.hold(table_of(tmp_path / str(server.port)), draining=server is seen)

    async with client_of() as client:
        client.set_holders({1: {address(server): ALL for server in (said, seen, staying)}}, {address(said)})
        await client.keep_alive([1])
        for _ in range(10):
            await client.lookup(1, KEYS)

    assert [int(server.loop.counts[counters.REQUESTS]) for server in (said, seen, staying)] == [0, 0, 10]


async def test_draining_holders_answer_when_they_are_alone(start: Callable[[], Running], tmp_path: Path) -> None:
    server = start()
    server.hold(table_of(tmp_path), draining=True)

    async with client_of() as client:
        client.set_holders({1: {address(server): ALL}}, {address(server)})
        for _ in range(3):
            assert not (await client.lookup(1, KEYS))[1].any()


async def test_a_keep_alive_reaches_every_holder(start: Callable[[], Running], tmp_path: Path) -> None:
    first, second = start(), start()
    first.hold(table_of(tmp_path / "first"))

    async with client_of() as client:
        client.set_holders({1: {address(first): ALL, address(second): ALL}})
        confirmed = await client.keep_alive([1, 5])

    assert confirmed == {1: {address(first)}, 5: set()}
    assert first.loop.counts[counters.KEEP_ALIVES] == second.loop.counts[counters.KEEP_ALIVES] == 1


async def test_the_number_of_partitions_is_learned_once_a_server_has_one(
    start: Callable[[], Running], tmp_path: Path
) -> None:
    server = start()

    async with client_of() as client:
        client.set_holders({1: {address(server): ALL}})
        with pytest.raises(VersionNotHeld, match="hold nothing yet"):
            await client.lookup(1, KEYS)
        server.hold(table_of(tmp_path))
        values, _ = await client.lookup(1, KEYS)

    assert values.tobytes() == values_for(KEYS, DIM).tobytes()


async def test_readers_go_on_while_holders_change(start: Callable[[], Running], tmp_path: Path) -> None:
    servers = [start() for _ in range(3)]
    for server in servers:
        server.hold(table_of(tmp_path / str(server.port)), table_of(tmp_path / f"{server.port}-2", version=2))
    over = asyncio.Event()

    async def read(client: CubeClient, version: int) -> int:
        answered = 0
        while not over.is_set():
            values, _ = await client.lookup(version, KEYS)
            assert values.tobytes() == values_for(KEYS, DIM, version).tobytes()
            answered += 1
        return answered

    async with client_of() as client:
        holders = [{address(server): ALL for server in chosen} for chosen in (servers, servers[:1], servers[1:])]
        client.set_holders({1: holders[0], 2: holders[0]})
        readers = [asyncio.create_task(read(client, version)) for version in (1, 2, 1, 2)]
        for turn in range(200):
            client.set_holders({1: holders[turn % 3], 2: holders[-turn % 3]})
            await asyncio.sleep(0.001)
        over.set()
        assert min(await asyncio.gather(*readers)) > 0


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
        assert client._connection(mute).idle


async def test_a_holder_that_is_asked_no_more_is_still_dropped_for_what_it_owes(
    start: Callable[[], Running], tmp_path: Path
) -> None:
    server = start()
    server.hold(table_of(tmp_path))
    late = asyncio.Event()

    async def owing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        head, keys = await request(reader)
        await late.wait()
        writer.write(right_reply(head, keys))
        await reader.read()

    async with client_of_two(owing, server, timeout_ms=300) as (client, debtor):
        prefer(client, [debtor, address(server)])
        for _ in range(2):
            await client.lookup(1, KEYS)
        await until(lambda: client.stats.timeouts == 2)
        # What was waited for when it became suspected: the other question is still owed.
        late.set()

        await until(lambda: client._connection(debtor).drops > 0)
        assert client._connection(debtor).idle


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
        await until(lambda: client._connection(stalling).idle)

        assert client.refresh_stats().dropped_connections == 0
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


async def test_a_holder_that_was_away_is_connected_to_again_before_it_is_asked() -> None:
    server = Running(make_loop(counters.private(), 1000, 1000))

    async with client_of(partitions=PARTITIONS) as client:
        client.set_holders({1: {address(server): ALL}})
        connection = client._connection(address(server))
        await until(lambda: connection.greeted)
        server.stop()
        # Lost, and tried in vain.
        await until(lambda: connection._pause >= 4 * FIRST_PAUSE)
        back = Running(make_loop(counters.private(), 1000, 1000), port=server.port)

        await until(lambda: connection.greeted)

    back.stop()


async def test_a_holder_that_was_long_away_is_looked_for_every_second_or_so() -> None:
    async with client_of() as client:
        connection = client._connection("127.0.0.1:1")
        for _ in range(20):
            connection._down("is away")

        away = connection._down_until - asyncio.get_running_loop().time()

    assert 0 < away <= 1.5


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
        assert connection._pause <= 2 * FIRST_PAUSE
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

    settings = {"timeout_ms": 50, "patience_ms": PATIENT, "partitions": PARTITIONS}
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

    settings = {"timeout_ms": 50, "patience_ms": PATIENT, "partitions": PARTITIONS}
    async with impostor(slow) as alone, client_of(**settings) as client:
        client.set_holders({1: {alone: ALL}})
        await until(lambda: client._connection(alone).greeted)
        before = client.refresh_stats().dropped_connections
        asked = []
        for at in range(10):
            asked.append(asyncio.create_task(client.lookup(1, KEYS[at : at + 5])))
            await asyncio.sleep(0.05)
        answers = await asyncio.gather(*asked)

        assert client.refresh_stats().dropped_connections == before
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

    settings = {"timeout_ms": 300, "patience_ms": 6000, "partitions": PARTITIONS}
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
        await until(lambda: client.refresh_stats().frames == 1)
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

    settings = {"timeout_ms": 500, "patience_ms": 100, "partitions": PARTITIONS}
    async with impostor(owing) as debtor, client_of(**settings) as client:
        client.set_holders({1: {debtor: ALL}})
        asked = asyncio.create_task(client.lookup(1, KEYS))
        await until(lambda: client.refresh_stats().frames == 1)
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
        await until(lambda: client.refresh_stats().frames == 1)
        client.set_holders({})
        before = len(planned())
        for _ in range(10):
            client.set_holders({})

        assert len(planned()) == before
        await client.close()
        assert not planned()
        with pytest.raises(CubeUnavailable):
            await asked


async def test_a_lookup_under_way_ends_with_its_client() -> None:
    connections = 0

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if connections == 1:
            await silent(reader, writer)

    async with impostor(counted) as mute, client_of(partitions=PARTITIONS) as client:
        client.set_holders({1: {mute: ALL}})
        asked = asyncio.create_task(client.lookup(1, KEYS))
        await until(lambda: client.refresh_stats().frames == 1)
        await client.close()

        with pytest.raises(CubeUnavailable, match="the client was closed"):
            await asked
        assert await client.keep_alive([1]) == {1: set()}

    assert connections == 1


async def test_a_holder_is_connected_to_before_it_is_asked(start: Callable[[], Running], tmp_path: Path) -> None:
    server = start()
    server.hold(table_of(tmp_path))
    met = asyncio.Event()

    async def slow_to_greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.set()
        await reader.read()

    async with impostor(slow_to_greet) as new, client_of(partitions=PARTITIONS) as client:
        client.set_holders({1: {address(server): ALL}})
        await client.lookup(1, KEYS)
        client.set_holders({1: {address(server): ALL, new: ALL}})
        await met.wait()

        # Whoever this client likes better: the one that can be asked at once is asked.
        values, _ = await client.lookup(1, KEYS)

    assert values.tobytes() == values_for(KEYS, DIM).tobytes()
    assert client.stats.timeouts == client.stats.retried == 0


async def test_a_holder_that_drains_is_no_hedge(start: Callable[[], Running], tmp_path: Path) -> None:
    going = start()
    going.hold(table_of(tmp_path))
    release = asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        head, keys = await request(reader)
        await release.wait()
        writer.write(right_reply(head, keys))
        await reader.read()

    async with impostor(late) as slow, client_of(hedge_ms=1, partitions=PARTITIONS) as client:
        client.set_holders({1: {slow: ALL, address(going): ALL}}, {address(going)})
        asyncio.get_running_loop().call_later(0.1, release.set)
        values, _ = await client.lookup(1, KEYS)
        frames = client.refresh_stats().frames

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


async def test_a_busy_holder_is_replaced_by_another(start: Callable[[], Running], tmp_path: Path) -> None:
    server = start()
    server.hold(table_of(tmp_path))

    async def busy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        while True:
            head, _ = await request(reader)
            writer.write(wire.pack_refusal(Status.BUSY, head.id, head.version))

    async with impostor(busy) as crowded, client_of(partitions=PARTITIONS) as client:
        client.set_holders({1: {crowded: ALL, address(server): ALL}})
        prefer(client, [crowded, address(server)])
        values, _ = await client.lookup(1, KEYS)

    assert values.tobytes() == values_for(KEYS, DIM).tobytes()


async def test_no_attempt_is_waited_for_longer_than_patience_however_often_a_holder_was_busy() -> None:
    asked = 0

    async def busy_twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await greet(reader, writer)
        while True:
            head, _ = await request(reader)
            asked += 1
            if asked <= 2:
                writer.write(wire.pack_refusal(Status.BUSY, head.id, head.version))

    settings = {"timeout_ms": 10_000, "retries": 0, "patience_ms": 15_000, "partitions": PARTITIONS}
    async with impostor(busy_twice) as crowded, client_of(**settings) as client:
        client.set_holders({1: {crowded: ALL}})
        lookup = asyncio.create_task(client.lookup(1, KEYS))
        await until(lambda: asked == 3)

        assert 0 < max(timer.when() for timer in planned()) - asyncio.get_running_loop().time() <= 15
        lookup.cancel()


async def test_a_lookup_that_is_cancelled_leaves_the_others_alone(start: Callable[[], Running], tmp_path: Path) -> None:
    server = start()
    server.hold(table_of(tmp_path))

    async with client_of() as client:
        client.set_holders({1: {address(server): ALL}})
        lookups = [asyncio.create_task(client.lookup(1, KEYS)) for _ in range(10)]
        await asyncio.sleep(0)
        for lookup in lookups[::2]:
            lookup.cancel()
        outcomes = await asyncio.gather(*lookups, return_exceptions=True)

    assert [isinstance(outcome, asyncio.CancelledError) for outcome in outcomes] == [True, False] * 5


async def test_a_closed_client_says_so(start: Callable[[], Running], tmp_path: Path) -> None:
    server = start()
    server.hold(table_of(tmp_path))
    async with client_of() as client:
        client.set_holders({1: {address(server): ALL}})
        await client.lookup(1, KEYS)

    with pytest.raises(CubeUnavailable, match="closed"):
        await client.lookup(1, KEYS)


async def test_keys_of_another_type_are_refused() -> None:
    async with client_of() as client:
        with pytest.raises(ValueError, match="uint64"):
            await client.lookup(1, np.array([1, 2]))


def test_a_request_kind_has_its_documented_number() -> None:
    assert (Kind.LOOKUP, Kind.KEEP_ALIVE) == (1, 2)
