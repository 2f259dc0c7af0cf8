"""A Unix socket that answers as Paddle's server does, in brpc's own protocol, and counts its calls."""

import socket
import struct
import threading
from contextlib import suppress
from pathlib import Path

from elastic_ctr.training.control import baidu_std_pb2 as frames
from elastic_ctr.training.control.server_sockets import socket_name

NO_METHOD = 1002


def exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        piece = connection.recv(count - len(found))
        if not piece:
            raise ConnectionError
        found += piece
    return found


def frame(body: bytes, code: int = 0) -> bytes:
    meta = frames.RpcMeta(response=frames.ResponseMeta(error_code=code), correlation_id=1).SerializeToString()
    return struct.pack(">4sII", b"PRPC", len(meta) + len(body), len(meta)) + meta + body


class PaddleSocket:
    """Answers `answer` to a call of the service, and as Paddle does to one of a method that it has not."""

    def __init__(self, folder: Path, index: int = 0) -> None:
        self.path = folder / socket_name(index)
        self.code = NO_METHOD
        self.failures = 0
        self.called = 0
        self.answer = b""
        self.requests: list[frames.PsRequest] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        magic, size, meta_size = struct.unpack(">4sII", exactly(connection, 12))
        assert magic == b"PRPC"
        content = exactly(connection, size)
        self.called += 1
        if self.failures:
            self.failures -= 1
            return
        if frames.RpcMeta.FromString(content[:meta_size]).request.method_name == "service":
            self.requests.append(frames.PsRequest.FromString(content[meta_size:]))
            connection.sendall(self.answer)
        else:
            connection.sendall(frame(b"", self.code))

    def end(self) -> None:
        if self._thread.is_alive():
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self.path.unlink()
            self._thread.join()
