"""The lookup port of a real cube-server, byte by byte, as a reader in another language would see it.

Nothing of the product's own codec is used here: the numbers are those of docs and design.
"""

import json
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest

from cube.running import PROCESS
from elastic_ctr.cube.builder.part import PartIdentity, build_full

DIM, PARTITIONS, VERSION = 3, 2, 1_598_000_000


def _ask_admin(port: int, path: str, body: object = None) -> int:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, timeout=280) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A server that holds keys 1 to 4 with values (key, key + 0.5, -key), and 2^64 - 1 with (7, 7, 7)."""
    folder = tmp_path_factory.mktemp("dictionaries")
    keys = np.array([1, 2, 3, 4, 2**64 - 1], np.uint64)
    values = np.array([[1, 1.5, -1], [2, 2.5, -2], [3, 3.5, -3], [4, 4.5, -4], [7, 7, 7]], np.float32)
    parts = {}
    for partition in range(PARTITIONS):
        own = keys % np.uint64(PARTITIONS) == partition
        part = build_full(
            [(keys[own], values[own])], folder / f"{partition}.dict",
            PartIdentity(VERSION, partition, PARTITIONS, DIM),
        )  # fmt: skip
        parts[partition] = [str(part.path)]
    process = subprocess.Popen([sys.executable, str(PROCESS), '{"max_keys": 1000}'], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lookups, admin = (int(number) for number in process.stdout.readline().split())
    while _ask_admin(admin, "/readyz") != 200:
        assert process.poll() is None
        time.sleep(0.02)
    body = {"version": VERSION, "dim": DIM, "partitions": PARTITIONS, "parts": parts}
    assert _ask_admin(admin, "/load", body) == 200
    yield lookups
    process.terminate()
    assert process.wait(30) == 0
    process.stdout.close()


@pytest.fixture
def peer(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        yield connection


def _receive(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = peer.recv(count - len(data))
        assert chunk, "the server hung up"
        data += chunk
    return data


def _greet(peer: socket.socket) -> None:
    peer.sendall(b"ECTR" + struct.pack("<HHII", 1, 0, 0, 0))
    assert _receive(peer, 16) == b"ECTR" + struct.pack("<HHII", 1, DIM, PARTITIONS, 1000)


def test_a_lookup_is_answered_to_the_byte(peer: socket.socket) -> None:
    _greet(peer)

    peer.sendall(struct.pack("<IHHIQQ5Q", 24 + 8 * 5, 1, 0, 5, 99, VERSION, 3, 0, 77, 2**64 - 1, 2))

    head = struct.pack("<IHHIQQ", 24 + 5 * DIM * 4 + 1, 0, 0, 5, 99, VERSION)
    values = struct.pack("<15f", 3, 3.5, -3, 0, 0, 0, 0, 0, 0, 7, 7, 7, 2, 2.5, -2)
    assert _receive(peer, 28 + 60 + 1) == head + values + b"\x04"


def test_miss_bits_start_with_the_least_and_take_a_byte_for_eight_keys(peer: socket.socket) -> None:
    _greet(peer)

    peer.sendall(struct.pack("<IHHIQQ9Q", 24 + 8 * 9, 1, 0, 9, 1, VERSION, 50, 1, 1, 1, 1, 1, 1, 51, 52))

    assert _receive(peer, 28 + 9 * DIM * 4 + 2)[-2:] == b"\x81\x01"


def test_refusals_carry_id_and_version_and_no_values(peer: socket.socket) -> None:
    _greet(peer)

    peer.sendall(struct.pack("<IHHIQQQ", 32, 1, 0, 1, 5, 12, 1))  # another version
    peer.sendall(struct.pack("<IHHIQQ", 24, 2, 0, 0, 6, VERSION))  # keep-alive of a held version
    peer.sendall(struct.pack("<IHHIQQ", 24, 2, 0, 0, 7, 12))  # keep-alive of another
    peer.sendall(struct.pack("<IHHIQQ", 24, 9, 0, 0, 8, VERSION))  # a kind that is none
    peer.sendall(struct.pack("<IHHIQQ", 24 + 8 * 1001, 1, 0, 1001, 9, VERSION) + bytes(8 * 1001))  # too many keys

    for status, number, version in ((1, 5, 12), (0, 6, VERSION), (1, 7, 12), (3, 8, VERSION), (3, 9, VERSION)):
        assert _receive(peer, 28) == struct.pack("<IHHIQQ", 24, status, 0, 0, number, version)


def test_an_unknown_protocol_is_answered_with_ours_and_closed(peer: socket.socket) -> None:
    peer.sendall(b"ECTR" + struct.pack("<HHII", 2, 0, 0, 0))

    assert _receive(peer, 16) == b"ECTR" + struct.pack("<HHII", 1, DIM, PARTITIONS, 1000)
    assert peer.recv(1) == b""
