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
    address,
    client_of,
    frames_of,
    impostor,
    once_available,
    silent,
    table_of,
    until,
)
from cube.parts import as_keys, values_for
from cube.running import Running
from elastic_ctr.cube.client.reader import CubeClient, CubeUnavailable, VersionNotHeld
from elastic_ctr.cube.server import lookup_counters as counters
from elastic_ctr.cube.server.loop import LookupLoop
from elastic_ctr.cube.wire import MessageKind
from ports import free_port


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
        before = frames_of(client)
        answers = await asyncio.gather(*(client.lookup(1, KEYS[at : at + 5]) for at in range(100)))

        assert frames_of(client) - before == 1
    for at, (values, missing) in enumerate(answers):
        assert values.tobytes() == values_for(KEYS[at : at + 5], DIM).tobytes()
        assert not missing.any()


async def test_a_lookup_larger_than_a_frame_is_cut(tmp_path: Path) -> None:
    server = Running(LookupLoop(counters.private(), 100, 1000))
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


async def test_a_lookup_without_a_holder_that_answers_is_unavailable_and_names_the_address() -> None:
    async with client_of(partitions=PARTITIONS, retries=1, timeout_ms=2000) as client:
        client.set_holders({1: {"127.0.0.1:1": ALL}})

        with pytest.raises(CubeUnavailable, match=r"127\.0\.0\.1:1 cannot connect.*is the cube running"):
            await client.lookup(1, KEYS)


async def test_a_server_that_comes_back_is_found_again(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    server = Running(LookupLoop(counters.private(), 1000, 1000))
    server.hold(table)

    async with client_of(retries=3) as client:
        client.set_holders({1: {address(server): ALL}})
        await client.lookup(1, KEYS)
        server.stop()
        with pytest.raises(CubeUnavailable):
            await client.lookup(1, KEYS)
        back = Running(LookupLoop(counters.private(), 1000, 1000), port=server.port)
        back.hold(table)
        values = await once_available(client)

    back.stop()
    assert values.tobytes() == values_for(KEYS, DIM).tobytes()


async def test_a_holder_that_is_away_for_a_moment_costs_no_lookup(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    server = Running(LookupLoop(counters.private(), 1000, 1000))
    server.hold(table)

    async with client_of(deadline_ms=60_000) as client:
        client.set_holders({1: {address(server): ALL}})
        await client.lookup(1, KEYS)
        server.stop()
        asked = asyncio.create_task(client.lookup(1, KEYS))
        while client.stats.retried < 4:
            await asyncio.sleep(0.01)
        back = Running(LookupLoop(counters.private(), 1000, 1000), port=server.port)
        back.hold(table)
        values, _ = await asked

    back.stop()
    assert values.tobytes() == values_for(KEYS, DIM).tobytes()


async def test_a_lookup_goes_to_a_holder_that_is_named_while_it_waits(
    start: Callable[[], Running], tmp_path: Path
) -> None:
    there = start()
    there.hold(table_of(tmp_path))

    async with client_of(deadline_ms=60_000, partitions=PARTITIONS) as client:
        client.set_holders({1: {"127.0.0.1:1": ALL}})
        asked = asyncio.create_task(client.lookup(1, KEYS))
        while client.stats.retried < 4:
            await asyncio.sleep(0.01)
        client.set_holders({1: {address(there): ALL}})
        values, _ = await asked

    assert values.tobytes() == values_for(KEYS, DIM).tobytes()


async def test_a_partition_without_a_named_holder_is_looked_up_where_it_was(
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


async def test_a_holder_that_has_long_failed_is_waited_for_once_it_is_named_anew(
    start: Callable[[], Running], tmp_path: Path
) -> None:
    table = table_of(tmp_path)
    port = free_port()
    other = start()
    other.hold(table)

    async with client_of(deadline_ms=60_000, partitions=PARTITIONS) as client:
        client.set_holders({1: {f"127.0.0.1:{port}": ALL, address(other): ALL}})
        client._failing_since[f"127.0.0.1:{port}"] = asyncio.get_running_loop().time() - 100
        client.set_holders({1: {address(other): ALL}})
        client.set_holders({1: {f"127.0.0.1:{port}": ALL}})
        asked = asyncio.create_task(client.lookup(1, KEYS))
        await until(lambda: client.stats.retried >= 4 or asked.done())
        back = Running(LookupLoop(counters.private(), 1000, 1000), port=port)
        back.hold(table)
        values, _ = await asked

    back.stop()
    assert values.tobytes() == values_for(KEYS, DIM).tobytes()


async def test_a_holder_that_has_long_failed_is_not_waited_for() -> None:
    async with client_of(deadline_ms=300, partitions=PARTITIONS) as client:
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
        client = CubeClient(DIM, partitions=PARTITIONS)
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


async def test_a_server_that_had_loaded_nothing_when_it_greeted_gets_lookups(
    start: Callable[[], Running], tmp_path: Path
) -> None:
    server = start()

    async with client_of() as client:
        client.set_holders({1: {address(server): ALL}})
        with pytest.raises(VersionNotHeld, match="answered version not held"):
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


async def test_a_holder_that_was_away_is_connected_to_again_before_it_gets_lookups() -> None:
    server = Running(LookupLoop(counters.private(), 1000, 1000))

    async with client_of(partitions=PARTITIONS) as client:
        client.set_holders({1: {address(server): ALL}})
        connection = client._connection(address(server))
        await until(lambda: connection.greeted)
        server.stop()
        # Lost, and tried in vain.
        await until(lambda: connection._failures >= 2)
        back = Running(LookupLoop(counters.private(), 1000, 1000), port=server.port)

        await until(lambda: connection.greeted)

    back.stop()


async def test_a_holder_that_was_long_away_is_looked_for_every_second_or_so() -> None:
    async with client_of() as client:
        connection = client._connection("127.0.0.1:1")
        for _ in range(20):
            connection._down("is away")

        away = connection._down_until - asyncio.get_running_loop().time()

    assert 0 < away <= 1.5


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
        await until(lambda: frames_of(client) == 1)
        await client.close()

        with pytest.raises(CubeUnavailable, match="the client was closed"):
            await asked
        assert await client.keep_alive([1]) == {1: set()}

    assert connections == 1


async def test_a_holder_is_connected_to_before_it_gets_lookups(start: Callable[[], Running], tmp_path: Path) -> None:
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


async def test_a_closed_client_refuses_lookups(start: Callable[[], Running], tmp_path: Path) -> None:
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
    assert (MessageKind.LOOKUP, MessageKind.KEEP_ALIVE) == (1, 2)
