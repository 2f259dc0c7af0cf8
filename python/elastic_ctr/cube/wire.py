"""The frames between a reader and a cube-server, little-endian; every length is checked before it is used.

    hello    "ECTR", protocol u16, dim u16, partitions u32, max n u32           16 bytes, the reader's first, then ours
    request  length u32, kind u16, flags u16, n u32, id u64, version u64, n x key u64             length = 24 + 8n
    reply    length u32, status u16, flags u16, n u32, id u64, version u64, n x dim f32, miss bits, least bit first
             length = 24 + 4 * dim * n + ceil(n / 8); n is 0 unless the status is 0 and keys were asked for

Head and hello are those of `frames`. In a hello, 0 means unknown: a server that holds nothing has no dim yet.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import NamedTuple, cast

import numpy as np

from elastic_ctr.cube.dictionary.format import Flags, Values
from elastic_ctr.cube.dictionary.hashing import Keys
from elastic_ctr.cube.frames import (
    AFTER_LENGTH,
    DRAINING,
    HEAD_BYTES,
    Head,
    WireError,
    pack_head,
    pack_hello,
    unpack_hello,
)

MAGIC = b"ECTR"
PROTOCOL = 1

_MAX_N = (0xFFFF_FFFF - AFTER_LENGTH) // 8
_NONE = np.zeros(0, np.bool_)


class Kind(IntEnum):
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
    """What each side says first; protocol tells which frames follow."""

    dim: int = 0
    partitions: int = 0
    max_keys: int = 0
    protocol: int = PROTOCOL

    def pack(self) -> bytes:
        return pack_hello(MAGIC, self.protocol, self.dim, self.partitions, self.max_keys)

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview) -> Hello:
        """Raises WireError, see `frames`; the protocol is the caller's to judge."""
        protocol, dim, partitions, max_keys = unpack_hello(data, MAGIC, "the cube's port")
        return cls(dim, partitions, max_keys, protocol)


class Reply(NamedTuple):
    """A decoded reply; values f32[n, dim] are a view of its frame, missing bool[n] are not."""

    status: Status
    draining: bool
    id: int
    version: int
    values: Values
    missing: Flags


def miss_bytes(n: int) -> int:
    return (n + 7) // 8


def request_bytes(n: int) -> int:
    return HEAD_BYTES + 8 * n


def reply_bytes(n: int, dim: int) -> int:
    return HEAD_BYTES + 4 * dim * n + miss_bytes(n)


def pack_request(kind: Kind, request: int, version: int, keys: Keys) -> bytes:
    """A lookup of keys u64[n], or a keep-alive without keys."""
    if keys.dtype != np.uint64 or keys.ndim != 1 or keys.size > _MAX_N:
        raise ValueError(f"keys are {keys.dtype}{keys.shape}; uint64[n] is needed")
    head = pack_head(8 * keys.size, kind, 0, keys.size, request, version)
    return head + keys.astype("<u8", copy=False).tobytes()


def unpack_request(frame: bytes | memoryview) -> tuple[Head, Keys]:
    """One whole request. Raises WireError unless its lengths agree to the byte."""
    head = Head.unpack(frame)
    if head.length != AFTER_LENGTH + 8 * head.n or len(frame) != head.frame_bytes:
        raise WireError(f"a request of {head.n} keys has length {AFTER_LENGTH + 8 * head.n}, not {head.length}")
    return head, cast("Keys", np.frombuffer(frame, "<u8", offset=HEAD_BYTES).astype(np.uint64))


def pack_refusal(status: Status, request: int, version: int, *, draining: bool = False) -> bytes:
    """A reply without values: every status but OK, and the answer to a keep-alive."""
    return pack_head(0, status, DRAINING if draining else 0, 0, request, version)


def pack_reply(request: int, version: int, values: Values, missing: Flags, *, draining: bool = False) -> bytes:
    """The answer to a lookup: values f32[n, dim], missing bool[n]."""
    n, dim = values.shape
    body = reply_bytes(n, dim) - HEAD_BYTES
    head = pack_head(body, Status.OK, DRAINING if draining else 0, n, request, version)
    return head + values.astype("<f4", copy=False).tobytes() + np.packbits(missing, bitorder="little").tobytes()


def unpack_reply(frame: bytes | memoryview, dim: int) -> Reply:
    """One whole reply; the frame is not to be changed after. Raises WireError unless its lengths agree to the byte and
    its unused miss bits are 0.
    """
    head = Head.unpack(frame)
    n = head.n
    if head.code >= len(_STATUSES):
        raise WireError(f"a reply has status {head.code}, which is none")
    if head.code != Status.OK and n:
        raise WireError(f"a refusal carries {n} values")
    if len(frame) != head.frame_bytes or len(frame) != reply_bytes(n, dim):
        raise WireError(f"a reply of {n} values of dim {dim} has {reply_bytes(n, dim)} bytes, not {head.frame_bytes}")
    if n == 0:
        return Reply(_STATUSES[head.code], bool(head.flags & DRAINING), head.id, head.version, _no_values(dim), _NONE)
    at = HEAD_BYTES + 4 * dim * n
    if n % 8 and frame[-1] >> n % 8:
        raise WireError("a reply marks keys as missing that it does not have")
    values: Values = np.frombuffer(frame, "<f4", n * dim, HEAD_BYTES).reshape(n, dim)
    missing: Flags
    # Mostly nothing is missing, and small replies are made of such small steps.
    if int.from_bytes(frame[at:], "little"):
        missing = np.unpackbits(np.frombuffer(frame, np.uint8, offset=at), count=n, bitorder="little").view(np.bool_)
    else:
        missing = np.zeros(n, np.bool_)
    return Reply(
        _STATUSES[head.code],
        bool(head.flags & DRAINING),
        head.id,
        head.version,
        values.astype(np.float32, copy=False),
        missing,
    )


@cache
def _no_values(dim: int) -> Values:
    return np.zeros((0, dim), np.float32)
