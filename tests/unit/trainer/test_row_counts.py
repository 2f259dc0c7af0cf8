import base64
import http.client
import json
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from elastic_ctr.trainer.row_counts import rows_at
from ports import free_port


@contextmanager
def answering(status: int, body: bytes) -> Iterator[tuple[str, list[Any]]]:
    """A server with one answer; its address, and what it was asked."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def counted(data: bytes, code: int = 0) -> bytes:
    return json.dumps({"err_code": code, "err_msg": "", "data": base64.b64encode(data).decode()}).encode()


def test_a_server_is_asked_for_the_rows_of_one_table() -> None:
    with answering(200, counted(struct.pack("<qq", 5_000_000_000, 7))) as (endpoint, asked):
        assert rows_at(endpoint, 3) == 5_000_000_000

    assert asked == [("/PsService/service", {"cmd_id": 20, "table_id": 3, "client_id": 0})]


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (200, counted(b"", -1), "does not count"),
        (500, b"internal", "does not count"),
        (200, b"[]", "does not count"),
        (200, b"not JSON", "Expecting value"),
        (200, counted(b"1234567"), "7 bytes instead of 16"),
        (200, b'{"err_code": 0, "data": "?"}', "base64"),
        (200, b'{"err_code": 0}', "0 bytes instead of 16"),
    ],
)
def test_an_answer_without_a_count_is_refused(status: int, body: bytes, why: str) -> None:
    with answering(status, body) as (endpoint, _), pytest.raises(ValueError, match=why):
        rows_at(endpoint, 0)


def test_a_server_that_is_gone_or_speaks_otherwise_is_an_error_of_the_connection() -> None:
    with pytest.raises((OSError, http.client.HTTPException)):
        rows_at(f"127.0.0.1:{free_port()}", 0)
