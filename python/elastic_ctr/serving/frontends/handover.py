"""Handing connections over from the native HTTP frontend to the fallback frontend."""

from __future__ import annotations

import asyncio
import logging
import socket
import time

from elastic_ctr.machine_code import sockets
from elastic_ctr.serving.frontends import connections
from elastic_ctr.serving.frontends.connections import Buffers
from elastic_ctr.serving.frontends.fallback_http import HttpFrontend

log = logging.getLogger(__name__)


class Handover:
    """Moves connections with their input to the fallback frontend for good."""

    def __init__(self, fallback: HttpFrontend) -> None:
        self._fallback = fallback
        # Descriptors that move to the fallback frontend, and the serial numbers of their connections.
        self._leaving: dict[int, int] = {}
        self._moving: set[asyncio.Task[None]] = set()

    def begin(self, buffers: Buffers, descriptor: int) -> None:
        """Move the connection as soon as no reply is due."""
        row = buffers.sockets.connections[descriptor]
        row[connections.HANDING_OVER] = 1
        connections.set_pending_input(buffers, row, 0)
        connections.update_interest(buffers, descriptor, int(time.monotonic() * 1000))
        self._leaving[descriptor] = int(row[connections.SERIAL])

    def move_idle(self, buffers: Buffers) -> None:
        """Move the connections to which no reply is due."""
        for descriptor, serial in list(self._leaving.items()):
            row = buffers.sockets.connections[descriptor]
            if row[connections.SERIAL] != serial:
                del self._leaving[descriptor]
            elif row[connections.IN_FLIGHT] == 0 and row[sockets.OUT_END] == row[sockets.OUT_AT]:
                del self._leaving[descriptor]
                data = input_of(buffers, descriptor, buffers.sockets.input_bytes)
                connections.detach(buffers, descriptor)
                self.move(socket.socket(fileno=descriptor), data)

    def move(self, peer: socket.socket, data: bytes) -> None:
        """Move a connection that the native frontend no longer has."""

        async def adopt() -> None:
            try:
                await self._fallback.adopt_connection(peer, data)
            except OSError as gone:
                log.debug("a connection ended while it was moved: %s", gone)
                peer.close()

        task = asyncio.get_running_loop().create_task(adopt())
        self._moving.add(task)
        task.add_done_callback(self._moving.discard)

    async def wait(self) -> None:
        """Return once the fallback frontend has all connections that were moved."""
        while self._moving:
            await asyncio.wait(self._moving)


def input_of(buffers: Buffers, descriptor: int, most: int) -> bytes:
    """Return the first bytes of a connection's input."""
    own = buffers.sockets
    begin = descriptor * own.input_bytes
    return bytes(own.inputs[begin : begin + min(int(own.connections[descriptor, sockets.INPUT]), most)])
