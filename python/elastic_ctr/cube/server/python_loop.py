"""The lookup loop in plain Python: the same rounds and refusals as `rounds`, for where numba is not.

It has a thread and an epoll of its own, as the compiled loop has. Serving's door in plain Python lives on the event
loop of its worker, which calls it when something came: of the way to read sockets the two share nothing.
"""

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from select import EPOLLIN, EPOLLOUT

import numpy as np

from elastic_ctr.cube import wire
from elastic_ctr.cube.dictionary.hashing import Keys
from elastic_ctr.cube.frames import HEAD_BYTES, HELLO_BYTES, LENGTH_BYTES, Head, WireError
from elastic_ctr.cube.server.counters import (
    ACCEPTED,
    BAD_REQUESTS,
    BYTES_IN,
    BYTES_OUT,
    CONNECTIONS,
    IN_FLIGHT,
    KEEP_ALIVES,
    KEYS,
    MISSING,
    NOT_HELD,
    REQUESTS,
    VERSIONS_AT,
    Counts,
)
from elastic_ctr.cube.server.holdings import Holdings
from elastic_ctr.cube.server.loop import LookupLoop
from elastic_ctr.cube.wire import Hello, Kind, Status

_READ = 256 << 10
_OUTPUT_LIMIT = 1 << 20  # of replies to one connection in one round; the rest waits for the next


@dataclass
class _Lookup:
    version: int
    request: int
    keys: Keys


@dataclass
class _Peer:
    socket: socket.socket
    input: bytearray = field(default_factory=bytearray)
    output: bytearray = field(default_factory=bytearray)
    skip: int = 0
    greeted: bool = False
    closing: bool = False
    replies: list[bytes | _Lookup] = field(default_factory=list)
    unfinished: bool = False


class PythonLoop(LookupLoop):
    name = "numpy"

    def __init__(self, counts: Counts, max_keys: int, max_connections: int) -> None:
        super().__init__(counts, max_keys)
        self._max_connections = max_connections
        self._peers: dict[int, _Peer] = {}

    def prepare(self, holdings: Holdings, *, draining: bool) -> Callable[[], None]:
        def put_in_force() -> None:
            self.holdings, self.draining = holdings, draining

        return put_in_force

    def hang_up(self) -> None:
        for peer in self._peers.values():
            peer.socket.close()
        self._peers.clear()

    def serve(self) -> None:
        woken = False
        while not woken:
            unfinished = [peer for peer in self._peers.values() if peer.unfinished and not peer.output]
            for peer in unfinished:
                self._take_requests(peer)
            for descriptor, _ in self.epoll.poll(0 if unfinished else -1):
                if descriptor == self.wake:
                    woken = True
                elif self.listener is not None and descriptor == self.listener.fileno():
                    self._accept(self.listener)
                elif (peer := self._peers[descriptor]).output:
                    self._send(peer)
                elif self._read(peer):
                    self._take_requests(peer)
            self._answer_round()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            if len(self._peers) >= self._max_connections:
                accepted.close()
                continue
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[accepted.fileno()] = _Peer(accepted)
            self.epoll.register(accepted.fileno(), EPOLLIN)
            self.counts[CONNECTIONS] += 1
            self.counts[ACCEPTED] += 1

    def _close(self, peer: _Peer) -> None:
        del self._peers[peer.socket.fileno()]
        peer.socket.close()
        self.counts[CONNECTIONS] -= 1

    def _read(self, peer: _Peer) -> bool:
        try:
            data = peer.socket.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            self._close(peer)
            return False
        self.counts[BYTES_IN] += len(data)
        peer.input += data
        return True

    def _take_requests(self, peer: _Peer) -> None:
        """Move whole requests from the input to the round; input never grows past one request and one read."""
        at = 0
        promised = 0
        peer.unfinished = False
        while not peer.closing:
            skipped = min(peer.skip, len(peer.input) - at)
            peer.skip -= skipped
            at += skipped
            if peer.skip or len(peer.input) - at < (HEAD_BYTES if peer.greeted else HELLO_BYTES):
                break
            if promised > _OUTPUT_LIMIT:
                peer.unfinished = True
                break
            if not peer.greeted:
                at += self._greet(peer, at)
                continue
            taken, reply_bytes = self._take_one(peer, at)
            if taken == 0:
                break
            at += taken
            promised += reply_bytes
        del peer.input[: len(peer.input) if peer.closing else at]

    def _greet(self, peer: _Peer, at: int) -> int:
        ours = Hello(self.holdings.dim, self.holdings.partitions, self.max_keys)
        peer.replies.append(ours.pack())
        peer.greeted = True
        try:
            peer.closing = Hello.unpack(bytes(peer.input[at : at + HELLO_BYTES])).protocol != wire.PROTOCOL
        except WireError:
            peer.closing = True
        return HELLO_BYTES

    def _take_one(self, peer: _Peer, at: int) -> tuple[int, int]:
        """(bytes taken, bytes that the reply will have); (0, 0) when the request is not whole yet."""
        length, kind, _, n, request, version = Head.peek(peer.input, at)
        head_bytes = HEAD_BYTES

        def refuse(status: Status) -> None:
            peer.replies.append(wire.pack_refusal(status, request, version, draining=self.draining))

        if length + LENGTH_BYTES != wire.request_bytes(n):
            # Where this frame ends is not certain: nothing after it can be trusted.
            self.counts[BAD_REQUESTS] += 1
            refuse(Status.BAD_REQUEST)
            peer.closing = True
            return head_bytes, head_bytes
        if kind == Kind.KEEP_ALIVE and n == 0:
            self.counts[KEEP_ALIVES] += 1
            self._named(version)
            refuse(Status.OK if version in self.holdings.tables else Status.VERSION_NOT_HELD)
            return head_bytes, head_bytes
        if kind != Kind.LOOKUP or n > self.max_keys:
            self.counts[BAD_REQUESTS] += 1
            refuse(Status.BAD_REQUEST)
            peer.skip = 8 * n
            return head_bytes, head_bytes
        whole = wire.request_bytes(n)
        if len(peer.input) - at < whole:
            return 0, 0
        keys = np.frombuffer(bytes(peer.input[at + head_bytes : at + whole]), "<u8").astype(np.uint64)
        self.counts[REQUESTS] += 1
        self.counts[KEYS] += n
        self._named(version)
        table = self.holdings.tables.get(version)
        if table is None or table.not_held(keys) is not None:
            self.counts[NOT_HELD] += 1
            refuse(Status.VERSION_NOT_HELD if table is None else Status.PARTITION_NOT_HELD)
            return whole, head_bytes
        peer.replies.append(_Lookup(version, request, keys))
        return whole, wire.reply_bytes(n, table.dim)

    def _named(self, version: int) -> None:
        if version in self.holdings.places:
            self.counts[VERSIONS_AT + self.holdings.places[version]] += 1

    def _answer_round(self) -> None:
        peers = [peer for peer in self._peers.values() if peer.replies]
        lookups = [reply for peer in peers for reply in peer.replies if isinstance(reply, _Lookup)]
        self.counts[IN_FLIGHT] = len(lookups)
        answers: dict[int, bytes] = {}
        for version in {lookup.version for lookup in lookups}:
            same = [lookup for lookup in lookups if lookup.version == version]
            values, missing = self.holdings.tables[version].lookup(np.concatenate([lookup.keys for lookup in same]))
            self.counts[MISSING] += int(missing.sum())
            start = 0
            for lookup in same:
                end = start + lookup.keys.size
                answers[id(lookup)] = wire.pack_reply(
                    lookup.request, version, values[start:end], missing[start:end], draining=self.draining
                )
                start = end
        for peer in peers:
            for reply in peer.replies:
                peer.output += answers[id(reply)] if isinstance(reply, _Lookup) else reply
            peer.replies.clear()
            self._send(peer, registered=EPOLLIN)
        self.counts[IN_FLIGHT] = 0

    def _send(self, peer: _Peer, registered: int = EPOLLOUT) -> None:
        try:
            sent = peer.socket.send(peer.output)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._close(peer)
            return
        self.counts[BYTES_OUT] += sent
        del peer.output[:sent]
        if peer.output:
            wanted = EPOLLOUT
        elif peer.closing:
            self._close(peer)
            return
        else:
            wanted = EPOLLIN
            # What had been read before the output stopped is not announced again.
            peer.unfinished = peer.unfinished or bool(peer.input)
        if wanted != registered:
            self.epoll.modify(peer.socket.fileno(), wanted)
