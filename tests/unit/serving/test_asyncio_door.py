"""A door that says back what it hears, and what it has in common with the real ones."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from elastic_ctr.serving.asyncio_door import AsyncioDoor, Peer


class Echo(Peer):
    deadline: float | None = None

    def data_received(self, data: bytes) -> None:
        if data == b"late":
            self.deadline = self._loop.time() - 1
        elif data == b"stop reading":
            self._read(False)
        else:
            self._transport.write(data)

    def take_leave(self) -> None:
        self._transport.write(b"bye")


class EchoDoor(AsyncioDoor):
    def _new_peer(self) -> Peer:
        return Echo(self)


@asynccontextmanager
async def talking() -> AsyncIterator[tuple[EchoDoor, asyncio.StreamReader, asyncio.StreamWriter]]:
    door = EchoDoor(shortest_seconds=0.01)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        await door.listen(listener)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            yield door, reader, writer
        finally:
            await door.stop(0)
            writer.close()


async def test_who_is_connected_is_known_until_they_leave() -> None:
    async with talking() as (door, reader, writer):
        writer.write(b"here")
        assert await reader.readexactly(4) == b"here"
        assert len(door.connections) == 1

        writer.close()
        while door.connections:
            await asyncio.sleep(0.001)


async def test_whose_time_is_over_is_cut() -> None:
    async with talking() as (door, reader, writer):
        writer.write(b"late")

        try:
            said = await reader.read()
        except ConnectionResetError:
            said = b""

        assert said == b""
        assert not door.connections


async def test_a_stopping_door_waits_for_those_who_have_something_to_say_and_no_longer_than_the_grace() -> None:
    async with talking() as (door, reader, writer):
        writer.write(b"here")
        await reader.readexactly(4)

        stopping = asyncio.create_task(door.stop(60))
        assert await reader.readexactly(3) == b"bye"
        assert not stopping.done()
        writer.close()
        await stopping

        assert not door.connections


async def test_who_stays_beyond_the_grace_is_cut() -> None:
    async with talking() as (door, reader, writer):
        writer.write(b"here")
        await reader.readexactly(4)

        await door.stop(0)

        assert await reader.readexactly(3) == b"bye"
        try:
            rest = await reader.read()
        except ConnectionResetError:
            rest = b""
        assert rest == b""


async def test_a_peer_that_is_not_read_is_heard_later() -> None:
    async with talking() as (door, reader, writer):
        writer.write(b"stop reading")
        while not any(not each._reading for each in door.connections):
            await asyncio.sleep(0.001)
        [peer] = door.connections
        writer.write(b"later")

        peer._read(True)

        assert await reader.readexactly(5) == b"later"
