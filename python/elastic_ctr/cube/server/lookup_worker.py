"""A worker process of cube-server: one lookup loop, with orders from its parent over a socket. `python -m` starts it.

Orders and answers are JSON lines, see `runtime.process_pool`. The worker ends when its parent does.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from elastic_ctr.cube.dictionary.format import DictionaryDamaged
from elastic_ctr.cube.dictionary.table import PartsDoNotFit
from elastic_ctr.cube.server import lookup_counters as counters
from elastic_ctr.cube.server.holdings import Assignments, Holdings
from elastic_ctr.runtime.child_process import die_with_parent
from elastic_ctr.runtime.lifecycle import bind, raise_fd_limit
from elastic_ctr.runtime.logging import configure_from_environment
from elastic_ctr.runtime.process_pool import CANNOT_WORK

if TYPE_CHECKING:
    from elastic_ctr.cube.server.loop import LookupLoop

_log = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
_BACKLOG = 1024
_OTHER_FILES = 128


def execute_command(loop: LookupLoop, order: dict[str, Any]) -> dict[str, Any]:
    """Carry out one order and return the answer. A refused order has changed nothing."""
    try:
        if order["do"] == "hold":
            holdings = loop.holdings.changed(Assignments.from_json(order, loop.holdings.assigned))
            loop.replace(holdings, draining=bool(order["draining"]))
        elif order["do"] == "listen":
            listener = bind(order["host"], order["port"], share=True)
            listener.listen(_BACKLOG)
            loop.listen(listener)
            loop.start()
    except (DictionaryDamaged, PartsDoNotFit, OSError) as refused:
        return {"error": str(refused)}
    except Exception as failed:  # noqa: BLE001 (the parent is told, and the log)
        # This worker continues, because its replacement would get the same order.
        _log.exception("an order cannot be carried out")
        return {"error": f"{type(failed).__name__}: {failed}"}
    return {"ok": True}


class CommandLoop:
    """Executes orders until the parent closes the socket. Every BEAT_SECONDS it reports that lookups are answered, or
    that an order is under way.
    """

    def __init__(self, loop: LookupLoop, orders: Iterable[bytes], answers: IO[bytes]) -> None:
        self._loop = loop
        self._orders = orders
        self._answers = answers
        self._executing = threading.Lock()
        self._saying = threading.Lock()
        self._over = threading.Event()
        self._busy = False

    def run(self) -> None:
        # The heartbeat has a thread of its own, because loading may take minutes.
        beating = threading.Thread(target=self._beat, name="beats")
        beating.start()
        try:
            for line in self._orders:
                with self._executing:
                    self._busy = True
                    # Report busy before the order begins: on a slow disk, reading files blocks the interpreter for long.
                    self._say()
                    order = json.loads(line)
                    answer = execute_command(self._loop, order)
                self._say({"id": order["id"], **answer})
        finally:
            self._over.set()
            beating.join()

    def _beat(self) -> None:
        # After a lost parent the thread that reads orders ends the process.
        with suppress(BrokenPipeError, ConnectionResetError):
            while True:
                # The beat goes through the lookup thread, unless an order is doing so.
                if self._executing.acquire(blocking=False):
                    try:
                        self._loop.replace(self._loop.holdings, draining=self._loop.draining)
                    finally:
                        self._executing.release()
                self._say()
                if self._over.wait(BEAT_SECONDS):
                    return

    def _say(self, answer: dict[str, Any] | None = None) -> None:
        """Write the answer to an order, which ends it, or a heartbeat."""
        with self._saying:
            # Under the lock, or a heartbeat after the answer could still have the flag `busy`.
            self._busy = self._busy and answer is None
            line = {**(answer or {"event": "alive"}), "busy": self._busy}
            self._answers.write(json.dumps(line).encode() + b"\n")
            self._answers.flush()


def _exit_on_thread_failure(failed: threading.ExceptHookArgs) -> None:
    """End the process if one of its threads fails: it would answer nothing, and its parent starts another."""
    name = "?" if failed.thread is None else failed.thread.name
    trace = (failed.exc_type, failed.exc_value or failed.exc_type(), failed.exc_traceback)
    _log.critical("the thread %s has failed; this worker ends", name, exc_info=trace)
    logging.shutdown()
    os._exit(1)


def _make_loop(row: counters.Counts, max_keys: int, busy_poll_us: int) -> LookupLoop:
    """Raises SystemExit, after a sentence in the log, on a machine that cannot compile."""
    try:
        # The import already compiles some functions, so it may fail as well.
        from elastic_ctr.cube.server.loop import MAX_CONNECTIONS, LookupLoop
        from elastic_ctr.machine_code.compiled import anew_if_stale

        # The descriptor limit bounds the connections: without a free descriptor, accepting would spin.
        files = raise_fd_limit(MAX_CONNECTIONS + _OTHER_FILES)
        connections = max(1, min(MAX_CONNECTIONS, files - _OTHER_FILES))
        return anew_if_stale(lambda: LookupLoop(row, max_keys, connections, busy_poll_us))
    except Exception:  # noqa: BLE001 - whatever the compiler says, nothing else answers lookups
        _log.critical("lookups cannot be compiled here: install numba and LLVM for this machine", exc_info=True)
        raise SystemExit(CANNOT_WORK) from None


def main() -> None:
    parser = argparse.ArgumentParser(prog="cube-server worker")
    for name in ("parent", "control", "counters", "workers", "index", "max-keys", "busy-poll-us"):
        parser.add_argument(f"--{name}", type=int, required=True)
    given = parser.parse_args()
    die_with_parent(given.parent)
    # Ctrl-C reaches the whole terminal; the parent ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    configure_from_environment(f"cube-server-{given.index}")
    threading.excepthook = _exit_on_thread_failure
    row = counters.attach(given.counters, given.workers)[given.index]
    row[[counters.CONNECTIONS, counters.IN_FLIGHT]] = 0
    loop = _make_loop(row, given.max_keys, given.busy_poll_us)
    loop.replace(Holdings(), draining=False)
    with (
        socket.socket(fileno=given.control) as control,
        control.makefile("rb") as orders,
        control.makefile("wb") as answers,
        suppress(BrokenPipeError, ConnectionResetError),  # the parent is gone
    ):
        CommandLoop(loop, orders, answers).run()
    loop.stop()


if __name__ == "__main__":
    main()
