"""How many rows a server process has, asked of the server itself.

Paddle's client adds the servers' answers up and prints the sum. brpc answers the same call over HTTP, by server.
"""

import base64
import http.client
import json
import struct
from contextlib import closing

_SERVICE = "/PsService/service"
# `PS_PRINT_TABLE_STAT` of Paddle's `sendrecv.proto`. The answer: rows, rows with a vector in memory; i64, little-endian.
_TABLE_STAT = 20
_ANSWER = struct.Struct("<qq")
_TIMEOUT_SECONDS = 60.0
_MOST_BYTES = 1 << 16


def rows_at(endpoint: str, table: int) -> int:
    """Rows of a sparse table at the server at `host:port`. Raises OSError, HTTPException, ValueError."""
    host, _, port = endpoint.rpartition(":")
    with closing(http.client.HTTPConnection(host, int(port), timeout=_TIMEOUT_SECONDS)) as connection:
        request = {"cmd_id": _TABLE_STAT, "table_id": table, "client_id": 0}
        connection.request("POST", _SERVICE, json.dumps(request), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return _rows_in(response.read(_MOST_BYTES), response.status)


def _rows_in(answer: bytes, status: int) -> int:
    found = json.loads(answer) if status == http.HTTPStatus.OK else None
    if not isinstance(found, dict) or found.get("err_code") != 0:
        raise ValueError(f"the server does not count its rows: {status} {answer[:200]!r}")
    data = base64.b64decode(str(found.get("data", "")), validate=True)
    if len(data) != _ANSWER.size:
        raise ValueError(f"the server counts its rows in {len(data)} bytes instead of {_ANSWER.size}")
    rows: int = _ANSWER.unpack(data)[0]
    return rows
