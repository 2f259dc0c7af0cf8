"""What a worker says by itself: that it lives, as long as it does."""

import io
import queue
import threading
import time
from collections.abc import Iterator

import pytest

from cube.running import Running, until
from elastic_ctr.cube.server import counters, worker
from elastic_ctr.cube.server.python_loop import PythonLoop
from elastic_ctr.cube.server.worker import Obedience

BEAT = b'{"event": "alive"}\n'
ORDER = b'{"do": "hold", "versions": {}, "draining": false}\n'


class Said(io.BytesIO):
    def beats(self) -> int:
        return self.getvalue().count(BEAT)

    def beats_on(self) -> None:
        seen = self.beats()
        until(lambda: self.beats() > seen + 2)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[PythonLoop]:
    monkeypatch.setattr(worker, "BEAT_SECONDS", 0.01)
    running = Running(PythonLoop(counters.private(), 100, 10))
    yield running.loop  # type: ignore[misc]
    running.stop()


class Parent:
    """Orders come when the test says so, until it hangs up."""

    def __init__(self, loop: PythonLoop) -> None:
        self.said = Said()
        self._orders: queue.Queue[bytes] = queue.Queue()
        self._obeying = threading.Thread(target=Obedience(loop, iter(self._orders.get, b""), self.said).run)
        self._obeying.start()

    def order(self) -> None:
        self._orders.put(ORDER)

    def hang_up(self) -> None:
        self._orders.put(b"")
        self._obeying.join()


def test_a_worker_says_that_it_lives_until_the_parent_hangs_up(loop: PythonLoop) -> None:
    parent = Parent(loop)
    parent.said.beats_on()
    parent.order()
    until(lambda: b'{"ok": true, "path": "numpy"}\n' in parent.said.getvalue())
    parent.said.beats_on()

    parent.hang_up()

    assert "beats" not in {thread.name for thread in threading.enumerate()}


def test_a_worker_that_loads_for_long_says_that_it_lives(loop: PythonLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, over = threading.Event(), threading.Event()

    def slow(*_: object) -> dict[str, object]:
        begun.set()
        over.wait()
        return {"ok": True}

    monkeypatch.setattr(worker, "obey", slow)
    parent = Parent(loop)
    parent.order()
    begun.wait()

    parent.said.beats_on()

    over.set()
    parent.hang_up()


def test_a_worker_whose_lookups_are_answered_no_more_does_not_say_that_it_lives(loop: PythonLoop) -> None:
    parent = Parent(loop)
    parent.said.beats_on()
    stuck, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        stuck.set()
        go_on.wait()

    hanging = threading.Thread(target=loop._between_rounds, args=(hang,))
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
