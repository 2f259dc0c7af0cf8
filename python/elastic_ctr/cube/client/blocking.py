"""A plain blocking reader of cube, for the command line: one socket per server, one request at a time."""

import socket
from collections.abc import Sequence
from types import TracebackType

import numpy as np
from typing_extensions import Self

from elastic_ctr.cube import wire
from elastic_ctr.cube.client.connection import as_keys
from elastic_ctr.cube.client.errors import CubeUnavailable, VersionNotHeld
from elastic_ctr.cube.dictionary.format import Flags, Values
from elastic_ctr.cube.dictionary.hashing import Keys
from elastic_ctr.cube.wire import Head, Hello, Kind, Status, WireError


class _Server:
    def __init__(self, address: str, timeout: float) -> None:
        self.address = address
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise CubeUnavailable(f"{address!r} is no address: write host:port")
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout)
            self.hello = self._greet()
        except (OSError, WireError) as failed:
            raise CubeUnavailable(f"{address} does not answer as a cube-server: {failed}") from failed

    def ask(self, version: int, keys: Keys) -> wire.Reply:
        """Raises CubeUnavailable."""
        try:
            return self._exchange(version, keys)
        except (OSError, WireError) as failed:
            raise CubeUnavailable(f"{self.address} failed: {failed}") from failed

    def _greet(self) -> Hello:
        self._socket.sendall(Hello().pack())
        hello = Hello.unpack(self._receive(wire.HELLO_BYTES))
        if hello.protocol != wire.PROTOCOL:
            raise WireError(f"it speaks protocol {hello.protocol}, this program {wire.PROTOCOL}")
        return hello

    def _exchange(self, version: int, keys: Keys) -> wire.Reply:
        self._socket.sendall(wire.pack_request(Kind.LOOKUP, 1, version, keys))
        start = self._receive(wire.HEADER_BYTES)
        head = Head.unpack(start)
        n = keys.size if head.code == Status.OK else 0
        if head.frame_bytes != wire.reply_bytes(n, self.hello.dim) or head.n != n:
            raise WireError(f"a reply of {head.frame_bytes} bytes does not answer {keys.size} keys")
        reply = wire.unpack_reply(start + self._receive(head.frame_bytes - len(start)), self.hello.dim)
        if (reply.id, reply.version) != (1, version):
            raise WireError(f"it answers in version {reply.version}")
        return reply

    def _receive(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            chunk = self._socket.recv(count - len(data))
            if not chunk:
                raise WireError("it hung up")
            data += chunk
        return bytes(data)

    def close(self) -> None:
        self._socket.close()


class BlockingCubeClient:
    """Asks the servers at these addresses in turn until every key has an answer."""

    def __init__(self, addresses: Sequence[str], *, timeout_seconds: float = 5.0) -> None:
        """Raises CubeUnavailable when none of them answers."""
        self._servers: list[_Server] = []
        failures: list[str] = []
        for address in addresses:
            try:
                self._servers.append(_Server(address, timeout_seconds))
            except CubeUnavailable as failed:  # noqa: PERF203 - the others may answer
                failures.append(str(failed))
        if not self._servers:
            raise CubeUnavailable("; ".join(failures) or "no address of a cube-server was given")
        self.dim = max(server.hello.dim for server in self._servers)
        self.partitions = max(server.hello.partitions for server in self._servers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for server in self._servers:
            server.close()

    def lookup(self, version: int, keys: Keys) -> tuple[Values, Flags]:
        """Keys u64[n] to (values f32[n, dim], missing bool[n]). Raises VersionNotHeld, CubeUnavailable."""
        keys = as_keys(keys)
        if self.dim == 0:
            raise VersionNotHeld(version, "the servers asked hold nothing yet")
        values = np.zeros((keys.size, self.dim), np.float32)
        missing = np.zeros(keys.size, np.bool_)
        numbers = keys % np.uint64(self.partitions)
        for partition in np.unique(numbers):
            at = np.flatnonzero(numbers == partition)
            values[at], missing[at] = self._ask(version, keys[at])
        return values, missing

    def _ask(self, version: int, keys: Keys) -> tuple[Values, Flags]:
        """Keys of one partition, which a server holds whole or not at all."""
        refusals: list[str] = []
        for server in self._servers:
            if server.hello.dim != self.dim:
                refusals.append(f"{server.address} held nothing when asked")
                continue
            step = max(1, server.hello.max_keys)
            replies = [server.ask(version, keys[start : start + step]) for start in range(0, keys.size, step)]
            if all(reply.status == Status.OK for reply in replies):
                return (
                    np.concatenate([reply.values for reply in replies]),
                    np.concatenate([reply.missing for reply in replies]),
                )
            refusals.append(f"{server.address} answered {replies[-1].status.name.lower().replace('_', ' ')}")
        raise VersionNotHeld(version, "; ".join(refusals))
