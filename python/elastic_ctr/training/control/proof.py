"""Mutual proof of a shared secret at both ends of a connection between pods, without revealing it.

1. The listening side sends MAGIC and a nonce.
2. The connecting side sends MAGIC, a nonce, the life of the server that it wants, and an HMAC-SHA256 over all of these.
3. The listening side sends its own HMAC over the same, and the connection is open.

Each HMAC includes the name of its side, so that a proof cannot be reflected. A life names one process of a server, so a trainer that
was suspended over a recovery cannot reach the next process. With TLS the HMAC includes both certificates, so a man in the middle with
another certificate is refused.
"""

import hmac
import os
import secrets
import time
from collections.abc import Iterable
from typing import Protocol

MAGIC = b"ECTRPS1\n"
LIFE = 16
_NONCE = 32
_PROOF = 32
_HELLO = len(MAGIC) + _NONCE


class ProofRefused(Exception):
    """The peer did not prove a secret of this run, or wants another server process."""


class ProvenSocket(Protocol):
    """A plain or TLS socket."""

    def settimeout(self, value: float | None, /) -> None: ...

    def recv(self, size: int, /) -> bytes: ...

    def sendall(self, data: bytes, /) -> None: ...


def new_life() -> str:
    """Return a new name of a server process: 32 hexadecimal digits."""
    return secrets.token_hex(LIFE)


def prove_and_check(
    connection: ProvenSocket, known: Iterable[str], life: str, binding: bytes = b"", *, seconds: float
) -> None:
    """Run the listening side. `known`: the valid secrets. Raises ProofRefused, OSError."""
    ends = time.monotonic() + seconds
    hello = MAGIC + os.urandom(_NONCE)
    connection.sendall(hello)
    answer = _exactly(connection, _HELLO + LIFE + _PROOF, ends)
    said, proof = answer[:-_PROOF], answer[-_PROOF:]
    if not said.startswith(MAGIC):
        raise ProofRefused("it is no trainer of elastic-ctr")
    text = hello + said + binding
    # All secrets are compared, even after a match, in constant time.
    fitting = [each for each in known if hmac.compare_digest(_mac(each, b"trainer", text), proof)]
    if not fitting:
        raise ProofRefused("it did not prove a secret of this run")
    if not hmac.compare_digest(said[_HELLO:], bytes.fromhex(life)):
        raise ProofRefused("it means another process of this server")
    connection.sendall(_mac(fitting[0], b"pserver", text))


def check_and_prove(connection: ProvenSocket, secret: str, life: str, binding: bytes = b"", *, seconds: float) -> None:
    """Run the connecting side. Raises ProofRefused, OSError."""
    ends = time.monotonic() + seconds
    hello = _exactly(connection, _HELLO, ends)
    if not hello.startswith(MAGIC):
        raise ProofRefused("no pserver of elastic-ctr listens there")
    said = MAGIC + os.urandom(_NONCE) + bytes.fromhex(life)
    text = hello + said + binding
    connection.sendall(said + _mac(secret, b"trainer", text))
    if not hmac.compare_digest(_exactly(connection, _PROOF, ends), _mac(secret, b"pserver", text)):
        raise ProofRefused("the pserver did not prove a secret of this run")


def _mac(secret: str, side: bytes, text: bytes) -> bytes:
    return hmac.digest(secret.encode(), side + b"\0" + text, "sha256")


def _exactly(connection: ProvenSocket, count: int, ends: float) -> bytes:
    """Return exactly `count` bytes; later bytes belong to the conversation. Raises ProofRefused, OSError."""
    found = b""
    while len(found) < count:
        # The deadline is for the whole proof, so that a peer cannot extend it by sending single bytes.
        connection.settimeout(max(0.001, ends - time.monotonic()))
        piece = connection.recv(count - len(found))
        if not piece:
            raise ProofRefused("the peer closed the connection before the proof")
        found += piece
    return found
