"""The thread that answers lookups: it runs `event_loop.serve_loop` on its buffers and tables, which are replaced between rounds.

A reply is always made from one state of the tables, and `replace` returns once the new state is in force.
"""

import os
import select
import socket
import threading
import time
from collections.abc import Callable

import numpy as np

from elastic_ctr.cube.dictionary import kernel
from elastic_ctr.cube.dictionary.format import VALUE_CODES
from elastic_ctr.cube.server import event_loop
from elastic_ctr.cube.server.holdings import Holdings
from elastic_ctr.cube.server.lookup_counters import CONNECTIONS, Counts
from elastic_ctr.cube.wire import DRAINING, HELLO_BYTES, reply_bytes, request_bytes
from elastic_ctr.machine_code import sockets
from elastic_ctr.machine_code.sockets import HELLO, OTHER_DESCRIPTORS, OUT_AT, OUT_END, STATE

_SLACK = 64 << 10  # bytes for small requests after a large one
_ROUND_BYTES = 4 << 20
# Longer than a client takes from waking up to its next request.
BUSY_POLL_US = 100
MAX_CONNECTIONS = 1024
_USUAL_DIM = 9  # the loop is compiled for it until the first parts have another dim


class LookupLoop:
    """One thread, one listener, many connections. Use: listen, start, replace as often as needed, stop.

    The constructor compiles the machine code unless it is cached.
    """

    def __init__(
        self,
        counts: Counts,
        max_keys: int,
        max_connections: int = MAX_CONNECTIONS,
        busy_poll_us: int = BUSY_POLL_US,
        *,
        piece_bytes: int = event_loop.PIECE_BYTES,
    ) -> None:
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
        self._piece_bytes = piece_bytes
        self._descriptors = max_connections + OTHER_DESCRIPTORS
        self._busy_poll_us = busy_poll_us
        self._dim = _USUAL_DIM
        self._serve = event_loop.serve_loop(self._dim)
        self._buffers = self._new_buffers(self._dim, self._descriptors)
        self._tables = _tables(self.holdings, self._dim, draining=False)
        self.try_out(self._serve, self._dim)

    def serve(self) -> None:
        """Answer lookups until the wake descriptor is readable."""
        self._hang_up_on_the_ungreeted()
        self._serve(self._buffers, self._tables, self.counts)

    def listen(self, listener: socket.socket) -> None:
        """Accept connections from this listening socket; before start."""
        listener.setblocking(False)
        self.listener = listener
        self.epoll.register(listener.fileno(), select.EPOLLIN)
        own = self._buffers.sockets._replace(listener=listener.fileno())
        self._buffers = self._buffers._replace(sockets=own)

    def start(self) -> None:
        self._thread.start()

    def replace(self, holdings: Holdings, *, draining: bool) -> None:
        """Answer from these holdings; return when no further reply comes from the former ones."""
        # The caller's thread prepares the tables; only the exchange itself runs between two rounds.
        dim = holdings.dim or self._dim
        serve = event_loop.serve_loop(dim, holdings.values)
        tables = _tables(holdings, dim, draining=draining)
        if serve is not self._serve:
            self.try_out(serve, dim)

        def put_in_force() -> None:
            if dim != self._dim:
                self._resize(dim)
            self._serve, self._tables = serve, tables
            self.holdings, self.draining = holdings, draining

        self._run_on_loop(put_in_force)

    def stop(self) -> None:
        self._stopping = True
        if self._thread.is_alive():
            self._run_on_loop(lambda: None)
            self._thread.join()
        for descriptor in sockets.open_descriptors(self._buffers.sockets):
            os.close(descriptor)
        self._buffers.sockets.connections[:] = 0
        self.epoll.close()
        os.close(self.wake)

    def _run_on_loop(self, errand: Callable[[], None]) -> None:
        if self._thread.ident is None:
            # The thread has not started, so no round is under way.
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

    def _hang_up_on_the_ungreeted(self) -> None:
        """Close connections that sent no hello in time; the worker's heartbeat wakes the loop for this every second."""
        connections = self._buffers.sockets.connections
        too_old = time.monotonic_ns() - int(event_loop.HELLO_SECONDS * 1e9)
        for descriptor in np.flatnonzero(
            (connections[:, STATE] == HELLO) & (connections[:, event_loop.USED_AT] < too_old)
        ):
            os.close(descriptor)
            connections[descriptor] = 0
            self.counts[CONNECTIONS] -= 1

    def try_out(self, serve: Callable[..., None], dim: int) -> None:
        """Compile before the first request, by a round that returns at once because its wake descriptor is readable."""
        # Separate sockets, because the thread may be serving on the others.
        with select.epoll() as epoll:
            wake = os.eventfd(1)
            epoll.register(wake, select.EPOLLIN)
            buffers = self._new_buffers(dim, 1)
            buffers = buffers._replace(sockets=buffers.sockets._replace(epoll=epoll.fileno()), wake=wake)
            serve(buffers, _tables(Holdings(), dim, draining=False), np.zeros_like(self.counts))
            os.close(wake)

    def _new_buffers(self, dim: int, descriptors: int) -> event_loop.LookupBuffers:
        n = self.max_keys
        own = sockets.new_sockets(
            descriptors,
            event_loop.CONNECTION_WIDTH,
            request_bytes(n) + HELLO_BYTES + _SLACK,
            reply_bytes(n, dim) + HELLO_BYTES + _SLACK,
            self.epoll.fileno(),
        )
        round_keys = n + 4 * event_loop.FLUSH_KEYS
        return event_loop.LookupBuffers(
            sockets=own,
            round=np.zeros(4, np.int64),
            replies=sockets.reserve(own.output_bytes + _ROUND_BYTES),
            lookups=np.zeros((event_loop.MAX_LOOKUPS, event_loop.LOOKUP_WIDTH), np.int64),
            sends=np.zeros((event_loop.MAX_LOOKUPS, 3), np.int64),
            keys=np.zeros(round_keys, np.uint64),
            places=np.zeros(round_keys, np.int64),
            missing=np.zeros(round_keys, np.uint8),
            scratch=np.zeros(kernel.SCRATCH, np.uint64),
            max_keys=n,
            piece_keys=max(1, self._piece_bytes // (4 * dim)),
            busy_poll_ns=1000 * self._busy_poll_us,
            wake=self.wake,
        )

    def _resize(self, dim: int) -> None:
        """Replace the output buffers for another dim, and keep the output that waits."""
        old, new = self._buffers.sockets, self._new_buffers(dim, self._descriptors)
        waiting = old.connections[:, OUT_END] - old.connections[:, OUT_AT]
        size = max(new.sockets.output_bytes, sockets.pages(int(waiting.max())))
        outputs = sockets.reserve(self._descriptors * size)
        for descriptor in map(int, np.flatnonzero(waiting)):
            start = descriptor * old.output_bytes + int(old.connections[descriptor, OUT_AT])
            length = int(waiting[descriptor])
            outputs[descriptor * size : descriptor * size + length] = old.outputs[start : start + length]
            old.connections[descriptor, [OUT_AT, OUT_END]] = 0, length
        self._buffers = new._replace(sockets=old._replace(outputs=outputs, output_bytes=size))
        self._dim = dim


def _tables(holdings: Holdings, dim: int, *, draining: bool) -> event_loop.Tables:
    tables = list(holdings.tables.values())
    partitions = holdings.partitions or 1
    # The newest version first, because it gets the most lookups.
    tables.sort(key=lambda table: -table.version)
    return event_loop.Tables(
        size=len(tables),
        versions=np.array([table.version for table in tables] or [0], np.uint64),
        places=np.array([holdings.places[table.version] for table in tables] or [0], np.int64),
        rows=np.stack([table.rows for table in tables]) if tables else np.zeros((1, 1, kernel.WIDTH), np.uint64),
        overlays=np.array([table.overlays for table in tables] or [0], np.int64),
        values=np.array([VALUE_CODES[table.values] for table in tables] or [VALUE_CODES["float32"]], np.int64),
        complete=np.array([table.complete for table in tables] or [False]),
        held=np.stack([table.held for table in tables] or [np.zeros(1, np.bool_)]),
        reciprocal=np.uint64(0xFFFF_FFFF_FFFF_FFFF // partitions),
        dim=dim,
        partitions=partitions,
        draining=DRAINING if draining else 0,
    )
