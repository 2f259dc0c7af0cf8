"""A line between a client and a real server that is cut, or loses an answer, as often as a test says."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Fault:
    """What goes wrong on a connection; `times` connections meet it."""

    up_after: int | None = None
    """Cut when so many bytes have come from the client."""
    down_after: int | None = None
    """Cut when so many bytes have come from the server."""
    lost_answer_to: bytes = b""
    """Cut when the server answers a request with these words in its head: it was done, and nobody hears of it."""
    times: int = 1


class BadLine:
    """Listens on `port`; `fault` may be set at any time and is met by connections made after that."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.fault: Fault | None = None
        self.cuts = 0
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
            except OSError:
                return
            self._open |= {client, server}
            line = _Line(self, client, server)
            for pump in (line.up, line.down):
                self._threads.append(threading.Thread(target=pump))
                self._threads[-1].start()

    def take(self, name: str) -> Fault | None:
        """The fault, if it is of this kind and has not been met often enough."""
        fault = self.fault
        if fault is None or not getattr(fault, name) or fault.times <= 0:
            return None
        return fault

    def cut(self, fault: Fault, *ends: socket.socket) -> None:
        fault.times -= 1
        self.cuts += 1
        close(*ends)
        for end in ends:
            end.close()  # whoever goes on sending is told at once

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        close(*self._open)
        for thread in self._threads:
            thread.join(timeout=10)
        for each in self._open:
            each.close()


class _Line:
    def __init__(self, line: BadLine, client: socket.socket, server: socket.socket) -> None:
        self._line = line
        self._client = client
        self._server = server
        self._lost: Fault | None = None

    def up(self) -> None:
        count = 0
        for data in blocks(self._client):
            count += len(data)
            losing = self._line.take("lost_answer_to")
            if losing is not None and losing.lost_answer_to in data[:1024]:
                self._lost = losing
            fault = self._line.take("up_after")
            if fault is not None and fault.up_after is not None and count >= fault.up_after:
                self._line.cut(fault, self._client, self._server)
                return
            send(self._server, data)
        close(self._server)

    def down(self) -> None:
        count = 0
        for data in blocks(self._server):
            count += len(data)
            if self._lost is not None:
                self._line.cut(self._lost, self._client, self._server)
                return
            fault = self._line.take("down_after")
            if fault is not None and fault.down_after is not None and count >= fault.down_after:
                self._line.cut(fault, self._client, self._server)
                return
            send(self._client, data)
        close(self._client)


def blocks(end: socket.socket) -> Iterator[bytes]:
    with contextlib.suppress(OSError):
        while data := end.recv(1 << 16):
            yield data


def send(end: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        end.sendall(data)


def close(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def bad_line(host: str, port: int) -> Iterator[BadLine]:
    line = BadLine((host, port))
    try:
        yield line
    finally:
        line.end()
