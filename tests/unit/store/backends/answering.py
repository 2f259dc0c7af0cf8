"""A real HTTP server that answers as a test says: for what no well-behaved server does."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Asked(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]


class Answer(NamedTuple):
    """`length` is told instead of the true one; the connection is closed after the body."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}
    length: int | None = None


class Server(NamedTuple):
    address: str
    asked: list[Asked]


@contextmanager
def answering(answer: Callable[[Asked], Answer]) -> Iterator[Server]:
    asked: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            length = int(self.headers.get("content-length", 0))
            self.rfile.read(length)
            request = Asked(self.command, self.path, {key.lower(): value for key, value in self.headers.items()})
            asked.append(request)
            given = answer(request)
            self.send_response(given.status)
            for key, value in given.headers.items():
                self.send_header(key, value)
            if given.length is None or given.length >= 0:
                self.send_header("content-length", str(len(given.body) if given.length is None else given.length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(given.body)

        do_GET = do_HEAD = do_PUT = do_MOVE = do_DELETE = _any

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield Server(f"127.0.0.1:{server.server_address[1]}", asked)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
