"""The parts of a frame that all requests and replies of cube have, little-endian; every length is checked before it is used.

    hello    magic 4 bytes, protocol u16, then u16, u32, u32         16 bytes, the client's first, then the server's
    head     length u32, code u16, flags u16, n u32, id u64, version u64              28 bytes, in front of a body

`length` counts the bytes after itself; the code is a request's kind or a reply's status. What the numbers of a hello
mean, and what stands in a body, is said by `cube.wire`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

HELLO_BYTES = 16
LENGTH_BYTES = 4
HEAD_BYTES = 28
AFTER_LENGTH = HEAD_BYTES - LENGTH_BYTES
DRAINING = 1  # a reply's flag: the server is going, ask another one from now on

_HELLO = struct.Struct("<4sHHII")
_HEAD = struct.Struct("<IHHIQQ")


class WireError(ValueError):
    """Bytes that are no frame: the connection they came on cannot be trusted any more."""


def pack_hello(magic: bytes, protocol: int, *numbers: int) -> bytes:
    """`numbers` are a u16 and two u32."""
    return _HELLO.pack(magic, protocol, *numbers)


def unpack_hello(data: bytes | bytearray | memoryview, magic: bytes, port: str) -> tuple[int, int, int, int]:
    """(protocol, u16, u32, u32). The protocol is the caller's to judge; `port` says whose hello it should be.

    Raises WireError when these are not the 16 bytes of a hello.
    """
    if len(data) != HELLO_BYTES:
        raise WireError(f"a hello has {HELLO_BYTES} bytes, not {len(data)}")
    theirs, *numbers = _HELLO.unpack(data)
    if theirs != magic:
        raise WireError(f"a hello starts with {magic!r}, not with {theirs!r}; is this {port}?")
    protocol, first, second, third = numbers
    return protocol, first, second, third


def check_protocol(theirs: int, ours: int) -> None:
    """Of a server's hello. Raises WireError: its frames would be read wrongly."""
    if theirs != ours:
        raise WireError(f"it speaks protocol {theirs}, this client {ours}")


class Head(NamedTuple):
    """The 28 bytes in front of a body."""

    length: int
    code: int
    flags: int
    n: int
    id: int
    version: int

    @property
    def frame_bytes(self) -> int:
        return LENGTH_BYTES + self.length

    @property
    def body_bytes(self) -> int:
        """Negative when the length is less than a head has."""
        return self.length - AFTER_LENGTH

    @classmethod
    def peek(cls, data: bytes | bytearray | memoryview, offset: int = 0) -> Head:
        """The fields as they stand, nothing checked but that they are there."""
        return cls(*_HEAD.unpack_from(data, offset))

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview, offset: int = 0) -> Head:
        """Raises WireError when they are not all there, or the length is less than a head has."""
        if len(data) - offset < HEAD_BYTES:
            raise WireError(f"a frame has at least {HEAD_BYTES} bytes, not {len(data) - offset}")
        head = cls(*_HEAD.unpack_from(data, offset))
        if head.length < AFTER_LENGTH:
            raise WireError(f"a frame's length is at least {AFTER_LENGTH}, not {head.length}")
        return head


def pack_head(body: int, code: int, flags: int, n: int, request: int, version: int) -> bytes:
    """The head in front of so many bytes."""
    return _HEAD.pack(AFTER_LENGTH + body, code, flags, n, request, version)
