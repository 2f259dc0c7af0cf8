"""A peer of the lookup port that says exactly what a test wants said, and reads no more than that."""

import socket
from types import TracebackType

import numpy as np
from typing_extensions import Self

from elastic_ctr.cube import wire
from elastic_ctr.cube.dictionary.format import Keys
from elastic_ctr.cube.wire import AFTER_LENGTH, HEAD_BYTES, HELLO_BYTES, Head, Hello, LookupReply, MessageKind


class HungUp(ConnectionError):
    """The server closed the connection."""


class Peer:
    """A blocking socket; greets unless told not to."""

    def __init__(self, port: int, *, greet: bool = True, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(30)
        self.hello = Hello()
        try:
            self.socket.connect(("127.0.0.1", port))
            if greet:
                self.send(Hello().pack())
                self.hello = Hello.unpack(self.receive(HELLO_BYTES))
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                chunk = self.socket.recv(count - len(data))
            except ConnectionError as reset:
                raise HungUp from reset
            if not chunk:
                raise HungUp
            data += chunk
        return bytes(data)

    def request(self, version: int, keys: Keys, *, number: int = 1, kind: MessageKind = MessageKind.LOOKUP) -> None:
        self.send(wire.pack_request(kind, number, version, keys))

    def reply(self, dim: int) -> LookupReply:
        head = self.receive(HEAD_BYTES)
        return wire.unpack_reply(head + self.receive(Head.unpack(head).length - AFTER_LENGTH), dim)

    def ask(self, version: int, keys: Keys, dim: int) -> LookupReply:
        self.request(version, keys)
        return self.reply(dim)

    def keep_alive(self, version: int) -> LookupReply:
        self.request(version, np.zeros(0, np.uint64), kind=MessageKind.KEEP_ALIVE)
        return self.reply(1)

    def rest(self) -> bytes:
        """Everything until the server hangs up."""
        data = bytearray()
        try:
            while chunk := self.socket.recv(1 << 16):
                data += chunk
        except ConnectionError:
            pass
        return bytes(data)
