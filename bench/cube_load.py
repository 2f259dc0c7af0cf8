"""What a cube-server is asked by the load generator."""

import socket

from bench.loadgen import FRAMES, Expected, Load
from bench.table import VERSION
from elastic_ctr.cube import wire
from elastic_ctr.cube.dictionary.format import Keys
from elastic_ctr.cube.wire import HELLO_BYTES, Hello, MessageKind


def greet(sock: socket.socket) -> None:
    """Exchange hellos with a cube-server."""
    sock.sendall(Hello().pack())
    data = b""
    while len(data) < HELLO_BYTES:
        data += sock.recv(HELLO_BYTES - len(data))
    Hello.unpack(data)


def requests_of(keys: Keys, version: int = VERSION) -> list[bytes]:
    return [wire.pack_request(MessageKind.LOOKUP, number, version, row) for number, row in enumerate(keys)]


def our_load(port: int, keys: Keys, connections: int, pipeline: int = 1, version: int = VERSION) -> Load:
    n = keys.shape[1]
    return Load(port, requests_of(keys, version), Expected(FRAMES), connections, pipeline, work=n, greet=greet)
