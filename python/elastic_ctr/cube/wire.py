"""The frames between a reader and a cube-server, little-endian; every length is checked before it is used.

    hello    "ECTR", protocol u16, dim u16, partitions u32, max n u32           16 bytes, the reader's first, then the server's
    head     length u32, code u16, flags u16, n u32, id u64, version u64        28 bytes; the code is a kind or a status
    request  a head, n x key u64                                                           length = 24 + 8n
    reply    a head, n x dim f32, miss bits, least bit first; n is 0 unless the status is 0 and the request had keys
             length = 24 + 4 * dim * n + ceil(n / 8)

`length` counts the bytes after itself. In a hello, 0 means unknown: a server without parts has no dim yet.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.formats.keys import Keys

Values = NDArray[np.float32]
Flags = NDArray[np.bool_]

MAGIC = b"ECTR"
PROTOCOL = 1
HELLO_BYTES = 16
LENGTH_BYTES = 4
HEAD_BYTES = 28
AFTER_LENGTH = HEAD_BYTES - LENGTH_BYTES
DRAINING = 1  # a reply's flag: the server is draining, so the next request should go to another one

_HELLO = struct.Struct("<4sHHII")
_HEAD = struct.Struct("<IHHIQQ")
_MAX_N = (0xFFFF_FFFF - AFTER_LENGTH) // 8


class WireError(ValueError):
    """Bytes are no frame: further bytes of their connection cannot be trusted."""


class MessageKind(IntEnum):
    LOOKUP = 1
    KEEP_ALIVE = 2


class Status(IntEnum):
    OK = 0
    VERSION_NOT_HELD = 1
    PARTITION_NOT_HELD = 2
    BAD_REQUEST = 3
    BUSY = 4


_STATUSES = tuple(Status)


class Hello(NamedTuple):
    """The first bytes of each side; `protocol` is the version of the frames that follow."""

    dim: int = 0
    partitions: int = 0
    max_keys: int = 0
    protocol: int = PROTOCOL

    def pack(self) -> bytes:
        return _HELLO.pack(MAGIC, self.protocol, self.dim, self.partitions, self.max_keys)

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview) -> Hello:
        """Raises WireError if these are not the 16 bytes of a hello; the caller checks the protocol."""
        if len(data) != HELLO_BYTES:
            raise WireError(f"a hello has {HELLO_BYTES} bytes, not {len(data)}")
        magic, protocol, dim, partitions, max_keys = _HELLO.unpack(data)
        if magic != MAGIC:
            raise WireError(f"a hello starts with {MAGIC!r}, not with {magic!r}; is this the cube's port?")
        return cls(dim, partitions, max_keys, protocol)

    def check_protocol(self) -> None:
        """Raises WireError if the other side's frames have another version."""
        if self.protocol != PROTOCOL:
            raise WireError(f"it speaks protocol {self.protocol}, this client {PROTOCOL}")


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

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview, offset: int = 0) -> Head:
        """Raises WireError if bytes are missing, or if the length is below that of a head."""
        if len(data) - offset < HEAD_BYTES:
            raise WireError(f"a frame has at least {HEAD_BYTES} bytes, not {len(data) - offset}")
        head = cls(*_HEAD.unpack_from(data, offset))
        if head.length < AFTER_LENGTH:
            raise WireError(f"a frame's length is at least {AFTER_LENGTH}, not {head.length}")
        return head


def pack_head(body: int, code: int, flags: int, n: int, request: int, version: int) -> bytes:
    """Return the head of a frame whose body has `body` bytes."""
    return _HEAD.pack(AFTER_LENGTH + body, code, flags, n, request, version)


class LookupReply(NamedTuple):
    """A decoded reply; values f32[n, dim] are a view of its frame, missing bool[n] are not."""

    status: Status
    draining: bool
    id: int
    version: int
    values: Values
    missing: Flags


def request_bytes(n: int) -> int:
    return HEAD_BYTES + 8 * n


def reply_bytes(n: int, dim: int) -> int:
    return HEAD_BYTES + 4 * dim * n + (n + 7) // 8


def pack_request(kind: MessageKind, request: int, version: int, keys: Keys) -> bytes:
    """Return the frame of a lookup of keys u64[n], or of a keep-alive without keys."""
    if keys.dtype != np.uint64 or keys.ndim != 1 or keys.size > _MAX_N:
        raise ValueError(f"keys are {keys.dtype}{keys.shape}; uint64[n] is needed")
    head = pack_head(8 * keys.size, kind, 0, keys.size, request, version)
    return head + keys.astype("<u8", copy=False).tobytes()


def unpack_reply(frame: bytes | memoryview, dim: int) -> LookupReply:
    """Decode one whole reply, whose frame must not change afterwards. Raises WireError unless its lengths agree to the
    byte and its unused miss bits are 0.
    """
    head = Head.unpack(frame)
    n = head.n
    if head.code >= len(_STATUSES):
        raise WireError(f"a reply has status {head.code}, which is none")
    if head.code != Status.OK and n:
        raise WireError(f"a refusal carries {n} values")
    if len(frame) != head.frame_bytes or len(frame) != reply_bytes(n, dim):
        raise WireError(f"a reply of {n} values of dim {dim} has {reply_bytes(n, dim)} bytes, not {head.frame_bytes}")
    at = HEAD_BYTES + 4 * dim * n
    if n % 8 and frame[-1] >> n % 8:
        raise WireError("a reply marks keys as missing that it does not have")
    values: Values = np.ndarray((n, dim), "<f4", frame, HEAD_BYTES)
    missing: Flags
    # Mostly no key is missing, and skipping the unpacking saves much of the time of a small reply.
    if int.from_bytes(frame[at:], "little"):
        missing = np.unpackbits(np.frombuffer(frame, np.uint8, offset=at), count=n, bitorder="little").view(np.bool_)
    else:
        missing = np.zeros(n, np.bool_)
    values = values.astype(np.float32, copy=False)
    return LookupReply(_STATUSES[head.code], bool(head.flags & DRAINING), head.id, head.version, values, missing)
