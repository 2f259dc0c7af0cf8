"""What a round trip costs before anything is looked up: two processes of Python that only exchange the bytes.

Both sleep until the other has answered, or stay busy_poll: then they ask again and again for `BUSY_POLL_SECONDS` before they sleep.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.processes import one_core
from elastic_ctr.cube.server.loop import BUSY_POLL_US

BUSY_POLL_SECONDS = BUSY_POLL_US / 1e6


def _serve(asked: int, answered: int, busy_poll: bool) -> None:
    """Answer every so many bytes with so many, on one connection."""
    answer = bytes(answered)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while _taken(connection, asked, busy_poll):
            connection.sendall(answer)


def _taken(connection: socket.socket, due: int, busy_poll: bool) -> bool:
    until = time.perf_counter() + (BUSY_POLL_SECONDS if busy_poll else 0)
    while due:
        try:
            got = len(connection.recv(due, socket.MSG_DONTWAIT if time.perf_counter() < until else 0))
        except BlockingIOError:
            os.sched_yield()
            continue
        if not got:
            return False
        due -= got
    return True


class Echo:
    """The asking side: blocking, one request at a time."""

    def __init__(self, port: int, asked: int, answered: int, *, busy_poll: bool) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request, self._answered, self._busy_poll = bytes(asked), answered, busy_poll

    def ask(self) -> None:
        self._socket.sendall(self._request)
        if not _taken(self._socket, self._answered, self._busy_poll):
            raise RuntimeError("the echo hung up")

    def close(self) -> None:
        self._socket.close()


@contextmanager
def echo(asked: int, answered: int, *, busy_poll: bool) -> Iterator[Echo]:
    command = [sys.executable, "-m", "bench.echo", str(asked), str(answered), str(int(busy_poll))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        caller = Echo(int(process.stdout.readline()), asked, answered, busy_poll=busy_poll)
        try:
            with one_core([process.pid]):
                yield caller
        finally:
            caller.close()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1")
