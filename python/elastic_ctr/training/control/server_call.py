"""Calls to Paddle's server over its Unix socket, in brpc's own protocol (baidu_std): a ping, and the number of rows.

A frame is `PRPC`, the bytes after this header and those of the meta (u32, big-endian), the meta, the message. A trainer in
another pod calls the socket of its forwarder, which passes on only this protocol.
"""

import os
import socket
import struct
from contextlib import closing
from pathlib import Path

from google.protobuf.message import DecodeError

from elastic_ctr.training.control import baidu_std_pb2 as frames

MAGIC = b"PRPC"
_HEADER = struct.Struct(">4sII")
_SERVICE = "paddle.distributed.PsService"
# The most bytes of an answer. Answers to these calls are short, and a length from the socket is not trusted.
_MOST_BYTES = 1 << 16
# brpc's ENOMETHOD: the server works, but has no such method.
_NO_METHOD = 1002
# `PS_PRINT_TABLE_STAT` of Paddle's `sendrecv.proto`. The answer has the rows, and the rows with a vector in memory (i64, little-endian).
_TABLE_STAT = 20
_ROWS = struct.Struct("<qq")
_PING_SECONDS = 2.0
_ROWS_SECONDS = 60.0


class PserverUnreachable(OSError):
    """No Paddle server answers at a socket."""


def ping(path: Path) -> None:
    """Return when the server at the Unix socket `path` has answered. Raises OSError.

    The call names a method that the server lacks. The server's own workers read, dispatch and refuse it, and log nothing.
    """
    with closing(connect(path, _PING_SECONDS)) as connection:
        ping_over(connection)


def ping_over(connection: socket.socket) -> None:
    """Like `ping`, over an open connection to the server. Raises OSError."""
    code, _ = _call(connection, "ping", frames.PsRequest())
    if code != _NO_METHOD:
        raise PserverUnreachable(f"the server answers with error {code}")


def rows_at(path: Path, table: int) -> int:
    """Return the rows of a sparse table at the server at the Unix socket `path`. Raises OSError, ValueError.

    Paddle's client prints the sum over all servers; this is the same call to one server.
    """
    request = frames.PsRequest(cmd_id=_TABLE_STAT, table_id=table, client_id=0)
    with closing(connect(path, _ROWS_SECONDS)) as connection:
        code, body = _call(connection, "service", request)
    try:
        answer = frames.PsResponse.FromString(body)
    except DecodeError as failed:
        raise ValueError(f"the server counts its rows in {len(body)} bytes that are no answer") from failed
    if code or answer.err_code:
        raise ValueError(f"the server does not count its rows: error {code or answer.err_code} {answer.err_msg[:200]}")
    if len(answer.data) != _ROWS.size:
        raise ValueError(f"the server counts its rows in {len(answer.data)} bytes instead of {_ROWS.size}")
    rows: int = _ROWS.unpack(answer.data)[0]
    return rows


def _call(connection: socket.socket, method: str, request: frames.PsRequest) -> tuple[int, bytes]:
    """Return the error code and the message of the answer. Raises OSError."""
    meta = frames.RpcMeta(request=frames.RequestMeta(service_name=_SERVICE, method_name=method), correlation_id=1)
    head, body = meta.SerializeToString(), request.SerializeToString()
    connection.sendall(_HEADER.pack(MAGIC, len(head) + len(body), len(head)) + head + body)
    magic, size, meta_size = _HEADER.unpack(_exactly(connection, _HEADER.size))
    if magic != MAGIC or meta_size > size or size > _MOST_BYTES:
        raise PserverUnreachable("the server does not speak baidu_std")
    answer = _exactly(connection, size)
    try:
        found = frames.RpcMeta.FromString(answer[:meta_size])
    except DecodeError as failed:
        raise PserverUnreachable("the server does not speak baidu_std") from failed
    return found.response.error_code, answer[meta_size:]


def connect(path: Path, timeout: float) -> socket.socket:
    """Return a connection to a Unix socket, whose path may exceed the limit of 108 bytes. Raises OSError."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.connect(f"/proc/self/fd/{folder}/{path.name}")
    except OSError:
        connection.close()
        raise
    finally:
        os.close(folder)
    return connection


def _exactly(connection: socket.socket, count: int) -> bytes:
    """Return exactly `count` bytes. Raises OSError."""
    found = bytearray()
    while len(found) < count:
        piece = connection.recv(count - len(found))
        if not piece:
            raise PserverUnreachable("the connection was closed before the answer")
        found += piece
    return bytes(found)
