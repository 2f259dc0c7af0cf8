"""Our cube-server beside Redis: the same keys, the same values, the same load generator, in turn.

    python -m bench.cube [--quick] [--only "300 keys"] [--keys 10000000]

The table is built once and kept in build/bench. Redis answers MGET of raw 8-byte keys and keeps nothing on disk. A request's
keys are all known; every answer of a first round is compared byte by byte before anything is timed.
"""

import argparse
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import numpy as np

from bench import table as tables
from bench.cube_load import our_load
from bench.echo import echo
from bench.loadgen import RESP, Expected, Load
from bench.method import (
    FOLDER,
    Comparison,
    Plan,
    Results,
    Row,
    Sample,
    Side,
    arguments,
    compare,
    huge_bytes,
    median_rate,
    plan_of,
    rate,
    resident_bytes,
    show,
    summary,
    timed,
)
from bench.processes import Server, ask, cube_server, one_core, redis_server
from bench.switching import switch_rows
from bench.table import VERSION, Made
from elastic_ctr.cube import wire
from elastic_ctr.cube.client.blocking import BlockingCubeClient
from elastic_ctr.cube.dictionary.format import Keys, Values

DISTRIBUTIONS = ("uniform", "zipf")
TAIL = "p99 ÷ Redis p99, 300 keys, 64 connections"
PACED_TAIL = "p99 at half of Redis's rate ÷ Redis p99, 300 keys, 64 connections"
MEMORY = "memory per key ÷ Redis"
WHOLE_MEMORY = "memory of whole processes ÷ Redis"
_KEYS_OF_REQUESTS = 4_000_000  # so many keys are encoded in advance, more than a cache holds


@dataclass(frozen=True)
class Shape:
    """How requests come; goals for uniform and zipf."""

    name: str
    n: int
    connections: int
    pipeline: int
    goals: tuple[float, float]
    per_cpu: bool = False
    note: str = ""


SHAPES = (
    Shape("13,312 keys", 13_312, 8, 1, (25, 16)),
    Shape("100,000 keys", 100_000, 4, 1, (25, 16)),
    Shape("300 keys, 64 connections", 300, 64, 1, (18, 10)),
    Shape("30 keys, pipelined", 30, 8, 64, (12, 6), per_cpu=True),
    Shape("30 keys, one in flight, 64 connections", 30, 64, 1, (6.5, 3.5), note="the floor is the kernel's TCP path"),
)


def redis_load(port: int, keys: Keys, dim: int, connections: int, pipeline: int = 1) -> Load:
    n = keys.shape[1]
    expected = Expected(RESP, *tables.resp_reply(n, dim))
    return Load(port, [tables.resp_mget(row) for row in keys], expected, connections, pipeline, work=n)


@contextmanager
def pair(ours: Load, our_server: Server, theirs: Load, their_server: Server) -> Iterator[tuple[Side, Side]]:
    try:
        yield Side("ours", ours.run, our_server.pids), Side("theirs", theirs.run, their_server.pids)
    finally:
        ours.close()
        theirs.close()


class Redis:
    """A blocking caller of Redis by raw sockets: only to compare answers."""

    def __init__(self, port: int) -> None:
        self._file = socket.create_connection(("127.0.0.1", port)).makefile("rwb")

    def values(self, keys: Keys, dim: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        self._file.write(tables.resp_mget(keys))
        self._file.flush()
        begins, rest = tables.resp_reply(keys.size, dim)
        data = self._file.read(len(begins) + rest)
        assert data.startswith(begins), data[:40]
        rows = np.frombuffer(data, np.uint8, offset=len(b"*%d\r\n" % keys.size)).reshape(keys.size, -1)
        at = len(b"$%d\r\n" % (4 * dim))
        return np.ascontiguousarray(rows[:, at : at + 4 * dim]).view(np.float32)

    def close(self) -> None:
        self._file.close()


def assert_equal(table: Made, cube: Server, redis: Server) -> None:
    """The first requests of every shape, answered by both and by the table itself."""
    client = Redis(redis.port)
    with BlockingCubeClient([f"127.0.0.1:{cube.port}"]) as ours:
        for shape in SHAPES:
            for distribution in DISTRIBUTIONS:
                for keys in tables.asked(table, distribution, 2, shape.n):
                    values, missing = ours.lookup(VERSION, keys)
                    truth = table.truth(keys)
                    assert not missing.any()
                    assert values.tobytes() == truth.tobytes(), "our answer differs from the table"
                    assert client.values(keys, table.dim).tobytes() == truth.tobytes(), "Redis's answer differs"
    client.close()


def measure_shapes(table: Made, cube: Server, redis: Server, plan: Plan, results: Results) -> None:
    for shape in SHAPES:
        for distribution, goal in zip(DISTRIBUTIONS, shape.goals, strict=True):
            name = f"cube ÷ Redis, {shape.name}, {distribution}"
            has_tail = shape.n == 300 and distribution == "uniform"
            wants_tail, wants_paced = (has_tail and plan.wants(tail) for tail in (TAIL, PACED_TAIL))
            if not (plan.wants(name) or wants_tail or wants_paced):
                continue
            keys = tables.asked(table, distribution, max(16, _KEYS_OF_REQUESTS // shape.n), shape.n)
            ours = our_load(cube.port, keys, shape.connections, shape.pipeline)
            theirs = redis_load(redis.port, keys, table.dim, shape.connections, shape.pipeline)
            with pair(ours, cube, theirs, redis) as (a, b):
                compared = compare(name, a, b, plan)
                if plan.wants(name):
                    row = compared.row(goal, per_cpu_when_client_bound=shape.per_cpu, note=shape.note)
                    results.put(row, compared.details())
                if wants_tail:
                    results.put(_tail(TAIL, compared, 0.1, "closed loop"), compared.details())
                if wants_paced:
                    half = median_rate(compared.theirs) / shape.n / 2
                    ours.rate = theirs.rate = half
                    # Fewer requests, so longer: a p99 of many.
                    paced = compare(PACED_TAIL, a, b, replace(plan, seconds=4 * plan.seconds))
                    told = f"{half:,.0f} requests a second for both"
                    results.put(_tail(PACED_TAIL, paced, None, told), paced.details())


def measure_huge(table: Made, cube: Server, plan: Plan, results: Results) -> None:
    """What is told beside the goals: Redis in huge pages, as ours is."""
    names = {f"cube ÷ Redis in huge pages, {shape.name}, uniform": shape for shape in (SHAPES[0], SHAPES[2])}
    if not any(map(plan.wants, names)):
        return
    with redis_server(FOLDER / "logs" / "redis-huge.log", huge=True) as redis:
        tables.fill_redis(table, redis.port)
        in_huge = huge_bytes(redis.pid) / resident_bytes(redis.pid)
        with one_core([*cube.pids(), *redis.pids()]):
            for name, shape in names.items():
                if not plan.wants(name):
                    continue
                keys = tables.asked(table, "uniform", _KEYS_OF_REQUESTS // shape.n, shape.n)
                ours = our_load(cube.port, keys, shape.connections)
                theirs = redis_load(redis.port, keys, table.dim, shape.connections)
                with pair(ours, cube, theirs, redis) as (a, b):
                    compared = compare(name, a, b, plan)
                    note = f"disable-thp no, MALLOC_CONF=thp:always: {in_huge:.0%} of its memory"
                    results.put(compared.row(None, note=note), compared.details())


def _tail(name: str, compared: Comparison, goal: float | None, told: str) -> Row:
    def said(samples: list[Sample]) -> str:
        p50 = statistics.median(sample.p50 for sample in samples) * 1000
        return f"{p50:.2f}/{statistics.median(sample.p99 for sample in samples) * 1000:.2f}"

    note = f"{told}; p50/p99 {said(compared.ours)} ms to {said(compared.theirs)} ms"
    return summary(name, compared.p99_ratios(), goal, bound="at most", note=note)


def measure_callers(table: Made, cube: Server, redis: Server, plan: Plan, results: Results) -> None:
    """A blocking caller in Python: our client, the parts in its own process, and redis-py with hiredis and numpy."""
    from bench.rivals.redis_caller import RedisCaller, uses_hiredis

    theirs = RedisCaller(redis.port, table.dim)
    mapped = tables.opened(table.folder, table.dim, VERSION)
    with BlockingCubeClient([f"127.0.0.1:{cube.port}"]) as ours:
        ways: list[tuple[str, Callable[[Keys], Values], tuple[float, float] | None, Server | None]] = [
            ("round trip of a Python caller", lambda keys: ours.lookup(VERSION, keys)[0], (14.0, 25.0), cube),
            ("a Python caller with the parts mapped", lambda keys: mapped.lookup(keys)[0], None, None),
        ]
        for what, lookup, goals, server in ways:
            for n, goal in zip((30, 13_312), goals or (None, None), strict=True):
                name = f"{what} ÷ redis-py with hiredis, {n:,} keys"
                if not plan.wants(name):
                    continue
                keys = tables.asked(table, "uniform", max(50, 1_000_000 // n), n)
                assert lookup(keys[0]).tobytes() == theirs.lookup(keys[0]).tobytes()
                a = Side("ours", _caller(lookup, keys), server.pids if server else tuple)
                compared = compare(name, a, Side("theirs", _caller(theirs.lookup, keys), redis.pids), plan)
                # The caller is part of what is measured.
                row = summary(
                    name, compared.ratios(), goal,
                    note=f"{statistics.median(map(rate, compared.ours)) / 1e6:.2f} M keys/s to "
                    f"{statistics.median(map(rate, compared.theirs)) / 1e6:.2f}; hiredis {uses_hiredis()}"
                    f"{'' if server else '; no socket: as an embedded reader does'}",
                )  # fmt: skip
                results.put(row, compared.details())
        for polling in (False, True):
            told = "stays awake" if polling else "sleeps"
            name = f"round trip of a Python caller ÷ an echo that {told}, 30 keys"
            if not plan.wants(name):
                continue
            keys = tables.asked(table, "uniform", 30_000, 30)
            with echo(wire.request_bytes(30), wire.reply_bytes(30, table.dim), busy_poll=polling) as floor:
                a = Side("ours", _caller(lambda row: ours.lookup(VERSION, row), keys), cube.pids)
                b = Side("echo", _caller(lambda _: floor.ask(), keys))
                compared = compare(name, a, b, plan)
            ours_us, floor_us = (30e6 / median_rate(samples) for samples in (compared.ours, compared.theirs))
            note = f"two processes of Python, the same bytes: {floor_us:.1f} µs a round trip, ours {ours_us:.1f}"
            results.put(summary(name, compared.ratios(), None, note=note), compared.details())
    theirs.close()


def _caller(lookup: Callable[[Keys], object], keys: Keys) -> Callable[[float], Sample]:
    import time

    rows = list(keys)

    def run(seconds: float) -> Sample:
        taken = []
        cpu, began = time.thread_time(), time.perf_counter()
        last = began
        number = 0
        while last - began < seconds:
            lookup(rows[number % len(rows)])
            number += 1
            now = time.perf_counter()
            taken.append(now - last)
            last = now
        p50, p99 = np.percentile(taken, [50, 99])
        return Sample(number * keys.shape[1], last - began, time.thread_time() - cpu, float(p50), float(p99))

    return run


def measure_processes(table: Made, cube: Server, plan: Plan, results: Results) -> None:
    name = "two processes ÷ one, 13,312 keys: keys per server CPU second"
    if not plan.wants(name):
        return
    keys = tables.asked(table, "uniform", _KEYS_OF_REQUESTS // 13_312, 13_312)
    with cube_server(FOLDER / "logs" / "cube-2.log", workers=2) as two:
        ask(two.admin, "/load", table.load_order())
        both, one = our_load(two.port, keys, 16), our_load(cube.port, keys, 16)
        with pair(both, two, one, cube) as (a, b):
            compared = compare(name, a, b, plan)
            wall = statistics.median(compared.ratios())
            note = f"plain {wall:.2f}, both on the cores that the client uses too"
            results.put(summary(name, compared.ratios_per_cpu(), 0.9, note=note), compared.details())


def memory_rows(keys: int, ours: tuple[int, int], theirs: tuple[int, int]) -> Iterator[Row]:
    """From (resident bytes before, after) it was filled."""
    grown, their_growth = ours[1] - ours[0], theirs[1] - theirs[0]
    note = f"{grown / keys:.1f} to {their_growth / keys:.1f} bytes a key by growth"
    yield summary(MEMORY, [grown / their_growth], 0.4, note=note, bound="at most")
    note = f"{ours[1] / 1e6:,.0f} to {theirs[1] / 1e6:,.0f} MB, Python and its packages included"
    yield summary(WHOLE_MEMORY, [ours[1] / theirs[1]], None, note=note, bound="at most")


def settled_bytes(pid: int, seconds: float = 30.0) -> int:
    """RSS once it has not changed for two seconds: Redis goes on moving its hash table after it was filled."""
    until = time.monotonic() + seconds
    seen = [resident_bytes(pid)]
    while time.monotonic() < until and (len(seen) < 5 or max(seen[-5:]) - min(seen[-5:]) > seen[-1] // 1000):
        time.sleep(0.5)
        seen.append(resident_bytes(pid))
    return seen[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser)
    parser.add_argument("--keys", type=int, default=tables.KEYS)
    given = parser.parse_args()
    plan, results = plan_of(given), Results(given.results, quick=given.quick or given.keys != tables.KEYS)
    logs = FOLDER / "logs"
    with timed("bench.cube"), ExitStack() as stack:
        table = tables.made(given.keys)
        redis = stack.enter_context(redis_server(logs / "redis.log"))
        cube = stack.enter_context(cube_server(logs / "cube.log"))
        before = sum(map(resident_bytes, cube.pids())), resident_bytes(redis.pid)
        with timed("filling Redis"):
            tables.fill_redis(table, redis.port)
        with timed("loading ours"):
            ask(cube.admin, "/load", table.load_order())
        assert_equal(table, cube, redis)
        after = sum(map(resident_bytes, cube.pids())), settled_bytes(redis.pid)
        for row in memory_rows(table.keys.size, (before[0], after[0]), (before[1], after[1])):
            if plan.wants(row.name):
                results.put(row)
        with one_core([*cube.pids(), *redis.pids()]):
            measure_shapes(table, cube, redis, plan, results)
            measure_callers(table, cube, redis, plan, results)
        measure_processes(table, cube, plan, results)
        measure_huge(table, cube, plan, results)
    switch_rows(table, plan, results)
    show(results.read())


if __name__ == "__main__":
    main()
