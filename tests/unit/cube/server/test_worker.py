"""What a worker says by itself: that it lives, as long as it does."""

import io
import json
import queue
import threading
import time
from collections.abc import Iterator

import pytest

from cube.running import Running, until
from elastic_ctr.cube.server import lookup_counters as counters
from elastic_ctr.cube.server import lookup_worker as worker
from elastic_ctr.cube.server.holdings import Holdings
from elastic_ctr.cube.server.lookup_worker import CommandLoop
from elastic_ctr.cube.server.loop import LookupLoop

BEAT = b'{"event": "alive", '
ORDER = b'{"id": 7, "do": "hold", "versions": {}, "kept": [], "draining": false}\n'


class Said(io.BytesIO):
    def beats(self) -> int:
        return self.getvalue().count(BEAT)

    def beats_on(self) -> None:
        seen = self.beats()
        until(lambda: self.beats() > seen + 2)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[LookupLoop]:
    monkeypatch.setattr(worker, "BEAT_SECONDS", 0.01)
    running = Running(LookupLoop(counters.private(), 100, 10))
    yield running.loop
    running.stop()


class Parent:
    """Orders come when the test says so, until it hangs up."""

    def __init__(self, loop: LookupLoop) -> None:
        self.said = Said()
        self._orders: queue.Queue[bytes] = queue.Queue()
        self._executing = threading.Thread(target=CommandLoop(loop, iter(self._orders.get, b""), self.said).run)
        self._executing.start()

    def order(self) -> None:
        self._orders.put(ORDER)

    def hang_up(self) -> None:
        self._orders.put(b"")
        self._executing.join()


def test_a_worker_says_that_it_lives_until_the_parent_hangs_up(loop: LookupLoop) -> None:
    parent = Parent(loop)
    parent.said.beats_on()
    parent.order()
    until(lambda: b'{"id": 7, "ok": true, "busy": false}\n' in parent.said.getvalue())
    parent.said.beats_on()

    parent.hang_up()

    assert "beats" not in {thread.name for thread in threading.enumerate()}


def test_a_worker_that_loads_for_long_says_that_it_lives(loop: LookupLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, over = threading.Event(), threading.Event()

    def slow(*_: object) -> dict[str, object]:
        begun.set()
        over.wait()
        return {"ok": True}

    monkeypatch.setattr(worker, "execute_command", slow)
    parent = Parent(loop)
    parent.order()
    begun.wait()

    parent.said.beats_on()

    over.set()
    parent.hang_up()


def test_before_an_order_is_begun_it_is_said_that_one_is_and_until_it_is_over(
    loop: LookupLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    said_before: list[bytes] = []

    def slow(*_: object) -> dict[str, object]:
        said_before.append(parent.said.getvalue())
        parent.said.beats_on()
        return {"ok": True}

    monkeypatch.setattr(worker, "execute_command", slow)
    parent = Parent(loop)
    parent.said.beats_on()
    parent.order()
    until(lambda: b'"ok": true' in parent.said.getvalue())
    parent.said.beats_on()
    parent.hang_up()

    lines = [json.loads(line) for line in parent.said.getvalue().splitlines()]
    at_an_order = [line["busy"] for line in lines]
    begun = said_before[0].count(b"\n")
    answered = next(number for number, line in enumerate(lines) if "ok" in line)
    assert at_an_order[0] is False
    assert set(at_an_order[begun - 1 : answered]) == {True}
    assert set(at_an_order[answered:]) == {False}


def test_an_order_that_fails_in_an_unforeseen_way_is_answered_with_how(
    loop: LookupLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(Holdings, "changed", full)
    parent = Parent(loop)
    parent.order()

    until(lambda: b'"error": "MemoryError: no room"' in parent.said.getvalue())
    parent.hang_up()


def test_a_worker_whose_lookups_are_answered_no_more_does_not_say_that_it_lives(loop: LookupLoop) -> None:
    parent = Parent(loop)
    parent.said.beats_on()
    stuck, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        stuck.set()
        go_on.wait()

    hanging = threading.Thread(target=loop._run_on_loop, args=(hang,))
    hanging.start()
    stuck.wait()
    # One may have been on its way.
    until_one_more = parent.said.beats() + 1
    time.sleep(0.5)
    seen = parent.said.beats()
    go_on.set()
    hanging.join()

    parent.said.beats_on()

    assert seen <= until_one_more
    parent.hang_up()
