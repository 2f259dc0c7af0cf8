"""Runs `rounds` in a thread: its buffers, the tables it reads, and their replacement between two rounds."""

import mmap
import os
import select
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.cube.dictionary import kernel
from elastic_ctr.cube.dictionary.format import stride_for
from elastic_ctr.cube.server import rounds, sockets
from elastic_ctr.cube.server.counters import Counts
from elastic_ctr.cube.server.holdings import Holdings
from elastic_ctr.cube.server.loop import LookupLoop
from elastic_ctr.cube.wire import DRAINING, HELLO_BYTES, reply_bytes, request_bytes

_PAGE = 4096
_SLACK = 64 << 10  # small requests behind a large one
_ROUND_BYTES = 4 << 20
_OTHER_DESCRIPTORS = 64
_USUAL_DIM = 9  # until the first parts say otherwise


def _pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _reserve(size: int) -> NDArray[np.uint8]:
    """Zeros that take memory only where they are touched, and address space otherwise."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    return np.frombuffer(mmap.mmap(-1, size, flags=flags), np.uint8)


class CompiledLoop(LookupLoop):
    name = "numba"

    def __init__(self, counts: Counts, max_keys: int, max_connections: int) -> None:
        super().__init__(counts, max_keys)
        # Connections are found by their descriptor, and some descriptors are other things.
        self._descriptors = max_connections + _OTHER_DESCRIPTORS
        self._dim = _USUAL_DIM
        self._serve = rounds.serve_loop(self._dim, stride_for(self._dim))
        self._buffers = self._new_buffers(self._dim)
        self._tables = _tables(self.holdings, self._dim, draining=False)
        self.try_out(self._serve, self._dim)

    def serve(self) -> None:
        buffers = self._buffers
        if self.listener is not None and buffers.listener != self.listener.fileno():
            buffers = self._buffers = buffers._replace(listener=self.listener.fileno())
        self._serve(buffers, self._tables, self.counts)

    def prepare(self, holdings: Holdings, *, draining: bool) -> Callable[[], None]:
        dim = holdings.dim or self._dim
        serve = rounds.serve_loop(dim, stride_for(dim))
        tables = _tables(holdings, dim, draining=draining)
        if dim != self._dim:
            self.try_out(serve, dim)

        def put_in_force() -> None:
            if dim != self._dim:
                self._resize(dim)
            self._serve, self._tables = serve, tables
            self.holdings, self.draining = holdings, draining

        return put_in_force

    def hang_up(self) -> None:
        for descriptor in np.flatnonzero(self._buffers.connections[:, sockets.STATE] != sockets.CLOSED):
            os.close(int(descriptor))
        self._buffers.connections[:] = 0

    def try_out(self, serve: Callable[..., None], dim: int) -> None:
        """Compile now, not under the first request: a round that finds itself woken returns at once."""
        # Sockets of its own: the thread may be serving on the others.
        with select.epoll() as epoll:
            wake = os.eventfd(1)
            epoll.register(wake, select.EPOLLIN)
            buffers = self._new_buffers(dim, descriptors=1)._replace(epoll=epoll.fileno(), wake=wake)
            serve(buffers, _tables(Holdings(), dim, draining=False), np.zeros_like(self.counts))
            os.close(wake)

    def _new_buffers(self, dim: int, descriptors: int | None = None) -> sockets.Buffers:
        n = self.max_keys
        descriptors = self._descriptors if descriptors is None else descriptors
        input_bytes = _pages(request_bytes(n) + HELLO_BYTES + _SLACK)
        output_bytes = _pages(reply_bytes(n, dim) + HELLO_BYTES + _SLACK)
        round_keys = n + 4 * rounds.FLUSH_KEYS
        return sockets.Buffers(
            connections=np.zeros((descriptors, sockets.CONNECTION_WIDTH), np.int64),
            inputs=_reserve(descriptors * input_bytes),
            outputs=_reserve(descriptors * output_bytes),
            round=np.zeros(4, np.int64),
            replies=_reserve(output_bytes + _ROUND_BYTES),
            lookups=np.zeros((sockets.MAX_LOOKUPS, 4), np.int64),
            sends=np.zeros((sockets.MAX_LOOKUPS, 3), np.int64),
            keys=np.zeros(round_keys, np.uint64),
            places=np.zeros(round_keys, np.int64),
            missing=np.zeros(round_keys, np.uint8),
            scratch=np.zeros(kernel.SCRATCH, np.uint64),
            events=np.zeros(sockets.EVENTS * sockets.EVENT_BYTES, np.uint8),
            one_event=np.zeros(sockets.EVENT_BYTES, np.uint8),
            one=np.ones(1, np.int32),
            input_bytes=input_bytes,
            output_bytes=output_bytes,
            max_keys=n,
            epoll=self.epoll.fileno(),
            listener=-1,
            wake=self.wake,
        )

    def _resize(self, dim: int) -> None:
        """Another dim needs other output buffers; what waits in the old ones is still owed."""
        old = self._buffers
        new = self._new_buffers(dim)._replace(connections=old.connections, inputs=old.inputs, listener=old.listener)
        waiting = old.connections[:, sockets.OUT_END] - old.connections[:, sockets.OUT_AT]
        size = max(new.output_bytes, _pages(int(waiting.max())))
        new = new._replace(output_bytes=size, outputs=_reserve(self._descriptors * size))
        for descriptor in np.flatnonzero(waiting):
            start = int(descriptor) * old.output_bytes + int(old.connections[descriptor, sockets.OUT_AT])
            length = int(waiting[descriptor])
            new.outputs[int(descriptor) * size : int(descriptor) * size + length] = old.outputs[start : start + length]
            old.connections[descriptor, [sockets.OUT_AT, sockets.OUT_END]] = 0, length
        self._buffers, self._dim = new, dim


def _tables(holdings: Holdings, dim: int, *, draining: bool) -> rounds.Tables:
    tables = list(holdings.tables.values())
    partitions = holdings.partitions or 1
    # The newest first: it is asked most.
    tables.sort(key=lambda table: -table.version)
    rows = [table.rows for table in tables if table.rows is not None]
    assert len(rows) == len(tables), "tables made for numpy cannot be read by the compiled loop"
    return rounds.Tables(
        size=len(tables),
        versions=np.array([table.version for table in tables] or [0], np.uint64),
        places=np.array([holdings.places[table.version] for table in tables] or [0], np.int64),
        rows=np.stack(rows) if rows else np.zeros((1, 1, kernel.WIDTH), np.uint64),
        overlaid=np.array([table.overlaid for table in tables] or [False]),
        complete=np.array([table.complete for table in tables] or [False]),
        held=np.stack([table.held for table in tables] or [np.zeros(1, np.bool_)]),
        reciprocal=np.uint64(0xFFFF_FFFF_FFFF_FFFF // partitions),
        dim=dim,
        partitions=partitions,
        draining=DRAINING if draining else 0,
    )
