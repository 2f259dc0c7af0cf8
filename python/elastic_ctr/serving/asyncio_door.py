"""What the doors on asyncio have in common: who is connected, whose time is over, and how a door comes to its end.

The compiled door does the same over rows of numbers (`compiled_door`): its connections are no objects, and it looks at
thousands of them at once.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any, cast

from elastic_ctr.runtime.waiting import happened

_LONGEST_LOOK = 1.0


class Peer(asyncio.Protocol, ABC):
    """One connection of a door."""

    def __init__(self, door: AsyncioDoor) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._peers = door
        # Whether it reads what we write, and we what it writes.
        self._writable = True
        self._reading = True

    @property
    @abstractmethod
    def deadline(self) -> float | None:
        """Loop time at which it has had its time; None while it waits for us."""

    @abstractmethod
    def take_leave(self) -> None:
        """The door stops: close when all that was asked is answered."""

    def time_is_up(self) -> None:
        """The deadline is over."""
        self.abort()

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._peers.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._peers.left(self)

    def _read(self, wanted: bool) -> None:
        """Go on or stop reading."""
        if wanted != self._reading and not self._transport.is_closing():
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()


class AsyncioDoor(ABC):
    """The server's side of all connections."""

    def __init__(self, shortest_seconds: float) -> None:
        """`shortest_seconds` is the shortest time that a peer may have: deadlines are looked at twice as often."""
        self.connections: set[Peer] = set()
        self.stopping = False
        self._look_seconds = min(_LONGEST_LOOK, shortest_seconds / 2)
        self._server: asyncio.Server | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()

    @abstractmethod
    def _new_peer(self) -> Peer: ...

    async def listen(self, socket: Any) -> None:
        """Accept on a bound socket."""
        self._server = await asyncio.get_running_loop().create_server(self._new_peer, sock=socket, backlog=2048)
        self._look_from_now_on()

    def accept_no_more(self) -> None:
        """Those who are connected stay."""
        if self._server is not None:
            self._server.close()

    async def stop(self, grace_seconds: float) -> None:
        """Accept no more, answer what has been asked, close. What is not done after the grace is cut."""
        if not self.stopping:
            self.begin_to_stop()
        if self.connections:
            # It may have been empty before: others have been adopted since.
            self._emptied.clear()
            await happened(self._emptied, grace_seconds)
        for connection in list(self.connections):
            connection.abort()
        if self._looking is not None:
            self._looking.cancel()

    def begin_to_stop(self) -> None:
        """Accept no more, and let those go who are owed nothing."""
        self.stopping = True
        self.accept_no_more()
        for connection in list(self.connections):
            connection.take_leave()

    def left(self, connection: Peer) -> None:
        self.connections.discard(connection)
        if self.stopping and not self.connections:
            self._emptied.set()

    def _look_from_now_on(self) -> None:
        if self._looking is None:
            self._look()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self.connections):
            if connection.deadline is not None and connection.deadline < now:
                connection.time_is_up()
        self._looking = loop.call_later(self._look_seconds, self._look)
