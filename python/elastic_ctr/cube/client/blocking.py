"""A blocking reader of cube for one thread: one socket per server, one request at a time."""

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from elastic_ctr.cube import wire
from elastic_ctr.cube.client.connection import CubeUnavailable, VersionNotHeld, as_keys
from elastic_ctr.cube.wire import HEAD_BYTES, HELLO_BYTES, Flags, Head, Hello, MessageKind, Status, Values, WireError
from elastic_ctr.formats.keys import Keys, partitions_of

if TYPE_CHECKING:
    from elastic_ctr.cube.client.busy_poll import Exchange

# The id of every request: a connection has one request at a time, and none after a request without an answer.
_REQUEST = 1


def _connected(address: str, timeout: float) -> socket.socket:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise CubeUnavailable(f"{address!r} is no address: write host:port")
    try:
        connected = socket.create_connection((host.strip("[]"), int(port)), timeout)
        # The kernel enforces the timeout: with Python's own, every read would call poll first.
        connected.settimeout(None)
        seconds, rest = divmod(timeout, 1)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connected.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(seconds), int(rest * 1e6)))
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as failed:
        raise CubeUnavailable(f"{address} does not answer as a cube-server: {failed}") from failed
    return connected


class _CubeServer:
    """One connection with one request at a time; it is replaced after a request without an answer."""

    def __init__(self, address: str, connect: Callable[[], socket.socket], *, busy_poll: bool) -> None:
        """Raises CubeUnavailable if no cube-server sends a hello."""
        self.address = address
        self._connect = connect
        self._busy_poll = busy_poll
        self._quick: Exchange | None
        self._meet()

    def _meet(self) -> None:
        self.hello = self._open()
        self._quick = None
        # A server without a dim has no parts, so the client sends it no request.
        if self._busy_poll and self.hello.dim:
            # Imported here, because loading numba takes a second or two.
            from elastic_ctr.cube.client.busy_poll import Exchange

            self._quick = Exchange(self.hello.dim, _REQUEST)

    def greet_again(self) -> None:
        """Connect anew, because the server may have parts now."""
        self.close()
        with contextlib.suppress(CubeUnavailable):
            self._meet()

    def _open(self) -> Hello:
        self.in_sync = False
        self._socket = self._connect()
        try:
            self._socket.sendall(Hello().pack())
            data = bytearray(HELLO_BYTES)
            self._receive(memoryview(data), 0, HELLO_BYTES)
            hello = Hello.unpack(data)
            hello.check_protocol()
        except (OSError, WireError) as failed:
            self._socket.close()
            raise CubeUnavailable(f"{self.address} does not answer as a cube-server: {failed}") from failed
        self.in_sync = True
        return hello

    def ask(self, version: int, keys: Keys) -> tuple[Values, Flags] | Status:
        """Return (values f32[n, dim], missing bool[n]), or the status of a refusal. Raises CubeUnavailable."""
        if not self.in_sync and (dim := self._open().dim) != self.hello.dim:
            self.in_sync = False
            self.close()
            raise CubeUnavailable(f"{self.address} has {dim} floats a key now, {self.hello.dim} before")
        # Until the answer is complete, the next bytes on this connection belong to it.
        self.in_sync = False
        try:
            answer = self._exchange(version, keys)
            self.in_sync = True
        except BlockingIOError as late:
            raise CubeUnavailable(f"{self.address} did not answer in time") from late
        except (OSError, WireError) as failed:
            raise CubeUnavailable(f"{self.address} failed: {failed}") from failed
        finally:
            if not self.in_sync:
                self._socket.close()
        return answer

    def _exchange(self, version: int, keys: Keys) -> tuple[Values, Flags] | Status:
        frame = np.empty(wire.reply_bytes(keys.size, self.hello.dim), np.uint8)
        if self._quick is None:
            self._socket.sendall(wire.pack_request(MessageKind.LOOKUP, _REQUEST, version, keys))
            return self._answer(version, keys, frame.data, 0)
        began = time.perf_counter()
        if answer := self._quick.ask(self._socket.fileno(), version, keys, frame):
            return answer
        if rest := self._quick.unsent:
            self._socket.sendall(rest)
        late = self._answer(version, keys, frame.data, self._quick.received)
        self._quick.answered(time.perf_counter() - began)
        return late

    def _answer(self, version: int, keys: Keys, frame: memoryview, got: int) -> tuple[Values, Flags] | Status:
        """Wait for the answer, of which the first `got` bytes are in frame already."""
        got = self._receive(frame, got, HEAD_BYTES)
        head = Head.unpack(frame)
        n = keys.size if head.code == Status.OK else 0
        due = wire.reply_bytes(n, self.hello.dim)
        if head.frame_bytes != due or head.n != n or got > due:
            raise WireError(f"a reply of {head.frame_bytes} bytes does not answer {keys.size} keys")
        self._receive(frame, got, due)
        reply = wire.unpack_reply(frame[:due], self.hello.dim)
        if (reply.id, reply.version) != (_REQUEST, version):
            raise WireError(f"it answers in version {reply.version}")
        return (reply.values, reply.missing) if reply.status == Status.OK else reply.status

    def _receive(self, frame: memoryview, got: int, due: int) -> int:
        """Read into frame until it has at least `due` bytes. Return how many it has."""
        while got < due:
            count = self._socket.recv_into(frame[got:])
            if not count:
                raise WireError("it hung up")
            got += count
        return got

    def close(self) -> None:
        self._socket.close()


class BlockingCubeClient:
    """Sends keys to the servers at these addresses in turn until every key has an answer, and remembers each partition's holder."""

    def __init__(self, addresses: Sequence[str], *, timeout_seconds: float = 5.0, busy_poll: bool = True) -> None:
        """`busy_poll`: poll a moment for each answer, in machine code. Loading that code takes a second or two, too long
        for a single lookup. Raises CubeUnavailable if no server answers.
        """
        self._timeout_seconds = timeout_seconds
        self._busy_poll = busy_poll
        self._servers: list[_CubeServer] = []
        self._absent = list(addresses)
        failures = self._greet()
        if not self._servers:
            raise CubeUnavailable("; ".join(failures) or "no address of a cube-server was given")
        # Version -> for each partition the index of the server that last answered it, -1: unknown.
        self._holders: dict[int, NDArray[np.int64]] = {}

    def _greet(self) -> list[str]:
        """Connect again to servers that did not answer or had no parts before. Return the failures."""
        failures = []
        for address in list(self._absent):
            try:
                connect = partial(_connected, address, self._timeout_seconds)
                self._servers.append(_CubeServer(address, connect, busy_poll=self._busy_poll))
                self._absent.remove(address)
            except CubeUnavailable as failed:  # noqa: PERF203 - the others may answer
                failures.append(str(failed))
        for server in self._servers:
            if server.hello.dim == 0:
                server.greet_again()
        self.dim = max((server.hello.dim for server in self._servers), default=0)
        self.partitions = max((server.hello.partitions for server in self._servers), default=0)
        return failures

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for server in self._servers:
            server.close()

    def lookup(self, version: int, keys: Keys) -> tuple[Values, Flags]:
        """Keys u64[n] to (values f32[n, dim], missing bool[n]). Raises VersionNotHeld, CubeUnavailable."""
        keys = as_keys(keys)
        try:
            return self._lookup(version, keys)
        except (VersionNotHeld, CubeUnavailable):
            if not self._absent and all(server.hello.dim for server in self._servers):
                raise
            self._greet()
            return self._lookup(version, keys)

    def _lookup(self, version: int, keys: Keys) -> tuple[Values, Flags]:
        if self.dim == 0:
            raise VersionNotHeld(version, "the servers asked hold nothing yet")
        if len(self._servers) == 1:
            answer = self._whole(self._servers[0], version, keys)
            if isinstance(answer, str):
                raise VersionNotHeld(version, answer)
            return answer
        # One request to each server that last answered some of the partitions; then a search for each other partition.
        values = np.empty((keys.size, self.dim), np.float32)
        missing = np.empty(keys.size, np.bool_)
        numbers = partitions_of(keys, self.partitions)
        holders = self._holders.setdefault(version, np.full(self.partitions, -1, np.int64))
        chosen = holders[numbers.astype(np.int64)]
        failed: dict[int, str] = {}
        for number in np.unique(chosen[chosen >= 0]).tolist():
            at = np.flatnonzero(chosen == number)
            answer = self._from(number, version, keys[at], failed)
            if isinstance(answer, str):
                holders[holders == number] = -1
                chosen[at] = -1
            else:
                values[at], missing[at] = answer
        for partition in np.unique(numbers[chosen < 0]):
            at = np.flatnonzero(numbers == partition)
            holders[int(partition)], (values[at], missing[at]) = self._search(version, keys[at], failed)
        return values, missing

    def _search(self, version: int, keys: Keys, failed: dict[int, str]) -> tuple[int, tuple[Values, Flags]]:
        """Return the index and the answer of the first server that answers these keys, which are of one partition."""
        refusals = []
        # A server whose last request failed is tried last, because it may cost a timeout.
        for number in sorted(range(len(self._servers)), key=lambda each: not self._servers[each].in_sync):
            answer = self._from(number, version, keys, failed)
            if not isinstance(answer, str):
                return number, answer
            refusals.append(answer)
        if failed:
            raise CubeUnavailable(f"no server that answers holds version {version}: {'; '.join(refusals)}")
        raise VersionNotHeld(version, "; ".join(refusals))

    def _from(self, number: int, version: int, keys: Keys, failed: dict[int, str]) -> tuple[Values, Flags] | str:
        """Return the answer of this server to all keys, or a reason. A server that failed in this lookup gets no second request."""
        if number not in failed:
            try:
                return self._whole(self._servers[number], version, keys)
            except CubeUnavailable as unavailable:
                failed[number] = str(unavailable)
        return failed[number]

    def _whole(self, server: _CubeServer, version: int, keys: Keys) -> tuple[Values, Flags] | str:
        """Return the answer of this server to all keys, or a reason. Raises CubeUnavailable."""
        if server.hello.dim != self.dim:
            return f"{server.address} held nothing when asked"
        answers = []
        for start in range(0, keys.size or 1, max(1, server.hello.max_keys)):
            answer = server.ask(version, keys[start : start + server.hello.max_keys])
            if isinstance(answer, Status):
                return f"{server.address} answered {answer.name.lower().replace('_', ' ')}"
            answers.append(answer)
        if len(answers) == 1:
            return answers[0]
        return np.concatenate([values for values, _ in answers]), np.concatenate([missing for _, missing in answers])
