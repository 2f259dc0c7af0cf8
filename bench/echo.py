"""What a round trip costs before anything is looked up: two processes of Python that only exchange the bytes.

Both sleep until the other has answered, or stay awake: then they ask again and again for `AWAKE_SECONDS` before they sleep.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.processes import one_core
from elastic_ctr.cube.server.loop import AWAKE_US

AWAKE_SECONDS = AWAKE_US / 1e6


def _serve(asked: int, answered: int, awake: bool) -> None:
    """Answer every so many bytes with so many, on one connection."""
    answer = bytes(answered)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while _taken(connection, asked, awake):
            connection.sendall(answer)


def _taken(connection: socket.socket, due: int, awake: bool) -> bool:
    until = time.perf_counter() + (AWAKE_SECONDS if awake else 0)
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

    def __init__(self, port: int, asked: int, answered: int, *, awake: bool) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request, self._answered, self._awake = bytes(asked), answered, awake

    def ask(self) -> None:
        self._socket.sendall(self._request)
        if not _taken(self._socket, self._answered, self._awake):
            raise RuntimeError("the echo hung up")

    def close(self) -> None:
        self._socket.close()


@contextmanager
def echo(asked: int, answered: int, *, awake: bool) -> Iterator[Echo]:
    command = [sys.executable, "-m", "bench.echo", str(asked), str(answered), str(int(awake))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        caller = Echo(int(process.stdout.readline()), asked, answered, awake=awake)
        try:
            with one_core([process.pid]):
                yield caller
        finally:
            caller.close()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1")
