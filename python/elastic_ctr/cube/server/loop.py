"""The thread that answers lookups: what is common to the compiled loop and the one in Python.

The loop owns its sockets and answers rounds; whoever owns the loop replaces what it holds between two rounds, so a
reply is always made from one state of things, and waits until the new state is in force.
"""

import os
import select
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from elastic_ctr.cube.server.counters import Counts
from elastic_ctr.cube.server.holdings import Holdings

MAX_CONNECTIONS = 1024
# Longer than a peer that was woken itself takes to ask again.
AWAKE_US = 100


class LookupLoop(ABC):
    """One thread, one listener, many connections. Use: listen, start, replace as often as needed, stop."""

    name: str

    def __init__(self, counts: Counts, max_keys: int) -> None:
        self.counts = counts
        self.max_keys = max_keys
        self.holdings = Holdings()
        self.draining = False
        self.listener: socket.socket | None = None
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.epoll = select.epoll()
        self.epoll.register(self.wake, select.EPOLLIN)
        self._errands: list[tuple[Callable[[], None], threading.Event]] = []
        self._lock = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="lookups", daemon=True)

    @abstractmethod
    def serve(self) -> None:
        """Answer lookups until the wake descriptor is readable."""

    @abstractmethod
    def prepare(self, holdings: Holdings, *, draining: bool) -> Callable[[], None]:
        """Do what takes time in the caller's thread; the returned errand, run between two rounds, puts it in force."""

    @abstractmethod
    def hang_up(self) -> None:
        """Close every connection; the loop has ended."""

    def listen(self, listener: socket.socket) -> None:
        """Accept connections from this listening socket; before start."""
        listener.setblocking(False)
        self.listener = listener
        self.epoll.register(listener.fileno(), select.EPOLLIN)

    def start(self) -> None:
        self._thread.start()

    def replace(self, holdings: Holdings, *, draining: bool) -> None:
        """Answer from these holdings; returns when no reply will be made from the former ones any more."""
        self._between_rounds(self.prepare(holdings, draining=draining))

    def stop(self) -> None:
        self._stopping = True
        if self._thread.is_alive():
            self._between_rounds(lambda: None)
            self._thread.join()
        self.hang_up()
        self.epoll.close()
        os.close(self.wake)

    def _between_rounds(self, errand: Callable[[], None]) -> None:
        if self._thread.ident is None:
            # Not started yet: there are no rounds to come between.
            errand()
            return
        done = threading.Event()
        with self._lock:
            self._errands.append((errand, done))
        os.write(self.wake, (1).to_bytes(8, "little"))
        while not done.wait(1):
            if not self._thread.is_alive():
                raise RuntimeError("the lookup loop has ended; see the log above for why")

    def _run(self) -> None:
        while not self._stopping:
            self.serve()
            try:
                os.read(self.wake, 8)
            except BlockingIOError:
                pass  # two wakes may be read as one
            with self._lock:
                errands, self._errands = self._errands, []
            for errand, done in errands:
                errand()
                done.set()
