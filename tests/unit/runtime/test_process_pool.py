"""Worker processes that take orders over a socket, and how long their parent bears with them."""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.runtime import process_pool
from elastic_ctr.runtime.process_pool import HUNG_SECONDS, LONG_SECONDS, LOOK_SECONDS, SILENT_SECONDS, Child, Watchdog

_MODULE = """
import argparse, json, os, socket
parser = argparse.ArgumentParser()
for name in ("parent", "control", "text", "pipe", "answer"):
    parser.add_argument(f"--{name}")
given = parser.parse_args()
if given.pipe:
    os.write(int(given.pipe), b"inherited")
control = socket.socket(fileno=int(given.control))
control.sendall(json.dumps([vars(given), os.getppid()]).encode() + b"\\n")
while order := control.recv(100):
    control.sendall(order if not given.answer else bytes(int(given.answer)) + b"\\n")
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "takes_orders.py").write_text(_MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


async def _told(started: Child) -> Any:
    return json.loads(await started.reader.readline())


async def _ended(started: Child) -> int:
    started.writer.close()
    return await asyncio.to_thread(started.process.wait, 10)


def test_a_child_is_told_its_arguments_and_its_parent_and_takes_orders_until_its_socket_ends() -> None:
    async def scenario() -> None:
        started = await process_pool.start("takes_orders", {"text": "a b;c"})
        given, parent = await _told(started)
        assert (given["text"], given["parent"], parent) == ("a b;c", str(os.getpid()), os.getpid())
        started.writer.write(b"an order\n")
        assert await started.reader.readline() == b"an order\n"
        assert await _ended(started) == 0

    asyncio.run(scenario())


def test_a_child_has_the_descriptors_that_it_is_given() -> None:
    heard, told = os.pipe()

    async def scenario() -> None:
        started = await process_pool.start("takes_orders", {"pipe": told}, descriptors=[told])
        await _told(started)
        assert await _ended(started) == 0

    asyncio.run(scenario())
    os.close(told)
    with os.fdopen(heard, "rb") as pipe:
        assert pipe.read() == b"inherited"


@pytest.mark.parametrize(("limit", "read"), [(200_000, True), (50_000, False)])
def test_a_child_writes_lines_of_up_to_the_limit(limit: int, read: bool) -> None:
    async def scenario() -> None:
        started = await process_pool.start("takes_orders", {"answer": 100_000}, line_limit=limit)
        await _told(started)
        started.writer.write(b"a long line, please\n")
        if read:
            assert len(await started.reader.readline()) == 100_001
        else:
            with pytest.raises(ValueError, match="limit"):
                await started.reader.readline()
        await _ended(started)

    asyncio.run(scenario())


def test_where_no_process_is_to_be_had_no_descriptor_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def scarce(*_: Any, **__: Any) -> Any:
        raise OSError("no process")

    async def scenario() -> None:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(10):
            with pytest.raises(OSError, match="no process"):
                await process_pool.start("takes_orders", {})
        assert len(list(Path("/proc/self/fd").iterdir())) == before

    monkeypatch.setattr(subprocess, "Popen", scarce)
    asyncio.run(scenario())


def _ticks(watchdog: Watchdog, seconds: float) -> list[str]:
    """What is said in so many seconds of looking on."""
    said = (watchdog.tick() for _ in range(int(seconds / LOOK_SECONDS)))
    return [wrong for wrong in said if wrong is not None]


@pytest.fixture
def watchdog() -> Watchdog:
    """Of a worker that has begun and has nothing long to do."""
    watchdog = Watchdog(order_seconds=2 * LONG_SECONDS)
    watchdog.heard()
    watchdog.busy = False
    return watchdog


def test_a_worker_that_says_something_now_and_then_is_left_alone(watchdog: Watchdog) -> None:
    for _ in range(10):
        assert _ticks(watchdog, HUNG_SECONDS - LOOK_SECONDS) == []
        watchdog.heard()


def test_a_worker_that_hangs_is_given_up_once_and_long_before_that_is_silent(watchdog: Watchdog) -> None:
    silent = [watchdog.silent]
    said = _ticks(watchdog, SILENT_SECONDS)
    silent.append(watchdog.silent)

    assert (silent, said) == ([False, True], [])
    assert _ticks(watchdog, 10 * HUNG_SECONDS) == [f"has said nothing for {HUNG_SECONDS:.0f} s"]


def test_a_worker_that_is_heard_again_is_silent_no_more(watchdog: Watchdog) -> None:
    _ticks(watchdog, SILENT_SECONDS)

    watchdog.heard()

    assert not watchdog.silent


def test_a_worker_at_something_long_may_say_nothing_for_long_before_it_is_given_up(watchdog: Watchdog) -> None:
    watchdog.busy = True

    assert _ticks(watchdog, LONG_SECONDS - LOOK_SECONDS) == []
    assert not watchdog.silent
    assert _ticks(watchdog, LOOK_SECONDS) == [f"has said nothing for {LONG_SECONDS:.0f} s"]


def test_a_worker_that_has_just_been_started_is_at_something_long() -> None:
    assert _ticks(Watchdog(), LONG_SECONDS - LOOK_SECONDS) == []


def test_a_worker_that_talks_and_owes_an_answer_for_too_long_is_given_up(watchdog: Watchdog) -> None:
    watchdog.ordered(1)
    watchdog.ordered(2)
    watchdog.answered(1)
    said = []
    for _ in range(int(3 * LONG_SECONDS / LOOK_SECONDS)):
        watchdog.heard()
        said += _ticks(watchdog, LOOK_SECONDS)

    assert said == [f"has owed an answer for {2 * LONG_SECONDS:.0f} s"]
