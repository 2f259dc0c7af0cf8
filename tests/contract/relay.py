"""A proxy in front of a bucket, which loses what a test wants lost: requests, answers, or the process that sends."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

Fate = Literal["passed", "request lost", "answer lost"]


class Relay:
    """Counts the requests, and the bytes of their bodies (`up`) and of the answers' (`down`). `fate` decides by the number of a request, from 0 on; `sent` is called with the bytes of a body so far."""

    def __init__(self, to: int) -> None:
        self.to = to
        self.port = 0
        self.requests: list[str] = []
        self.up = self.down = 0
        self.fate: Callable[[int], Fate] = lambda _: "passed"
        self.sent: Callable[[int], None] = lambda _: None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def relay(to: int) -> Iterator[Relay]:
    """Relays to a port of this machine."""
    made = Relay(to)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body of an answer are two packets: without this the second one waits 40 ms for a receipt of the first.
        disable_nagle_algorithm = True

        def _any(self) -> None:
            number = len(made.requests)
            made.requests.append(f"{self.command} {self.path}")
            fate = made.fate(number)
            left, blocks = int(self.headers.get("content-length", 0)), []
            while left and (block := self.rfile.read(min(left, 1 << 18))):
                blocks.append(block)
                left -= len(block)
                made.sent(sum(map(len, blocks)))
            # A request that came in part is not handed on, as no server takes it.
            made.up += sum(map(len, blocks))
            if fate == "request lost" or left:
                self.close_connection = True
                return
            there = http.client.HTTPConnection("127.0.0.1", made.to, timeout=60)
            # The signature has the host that the client named.
            there.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for key, value in self.headers.items():
                there.putheader(key, value)
            there.endheaders(b"".join(blocks))
            answer = there.getresponse()
            body = answer.read()
            made.down += len(body)
            there.close()
            if fate == "answer lost":
                self.close_connection = True
                return
            self.send_response_only(answer.status, answer.reason)
            for key, value in answer.getheaders():
                if key.lower() not in {"transfer-encoding", "content-length", "connection"}:
                    self.send_header(key, value)
            length = answer.getheader("content-length") if self.command == "HEAD" else str(len(body))
            self.send_header("content-length", length or "0")
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _any

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
