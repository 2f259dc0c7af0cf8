"""The frames of serving's binary door, little-endian; every length is checked before it is used.

    hello    "ECTP", protocol u16, slots u16, max rows u32, max feasigns u32      16 bytes, the client's first, then ours
    request  length u32, kind u16, flags u16, rows u32, n u32, id u64, slots u32, list u32,
             rows x slots x count (u16; u32 with flag 1), n x feasign u64
             length = 28 + rows * slots * (2 or 4) + 8n; the counts add up to n
    reply    length u32, status u16, flags u16, n u32, id u64, version u64, body;   length = 24 + the bytes of the body

Hello and the head of a reply are those of `frames.wire`. Rows are instances; counts and feasigns stand by row, then by slot in the order
of the slot list. `list` is `slot_list_check` of the list that the client means: a model with another list refuses the
request instead of reading it wrongly. Kind 1 asks for probabilities: the body of status 0 is n = rows x f32. Kind 2
(rows, n, slots and list are 0) asks for the slot list: n is the number of slots, the body their names, one a line.
Every other status has n = 0 and a sentence in UTF-8 as its body. Answers come in any order; the id says whose they are.

In a hello, 0 means unknown: a server without a version has no slots yet, and a client says nothing of itself.
A request's counts are u16 unless one of them needs more.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from elastic_ctr.features.slots import SlotList
from elastic_ctr.frames.wire import (
    DRAINING,
    HEAD_BYTES,
    LENGTH_BYTES,
    Head,
    WireError,
    pack_head,
    pack_hello,
    unpack_hello,
)

MAGIC = b"ECTP"
PROTOCOL = 1
REQUEST_HEAD = 32
WIDE_COUNTS = 1  # a request's flag: counts are u32
MAX_SENTENCE = 400  # bytes of a refusal

_REQUEST = struct.Struct("<IHHIIQII")
_U32_END = 1 << 32

Keys = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


class Kind(IntEnum):
    PREDICT = 1
    SLOTS = 2


class Status(IntEnum):
    OK = 0
    UNAVAILABLE = 1  # no version is live yet, or too much waits: ask again later
    OTHER_SLOTS = 2  # the model's slot list is not the request's: ask for it
    BAD_REQUEST = 3
    TOO_LARGE = 4
    FAILED = 5


class Hello(NamedTuple):
    """What each side says first; protocol tells which frames follow."""

    slots: int = 0
    max_rows: int = 0
    max_feasigns: int = 0
    protocol: int = PROTOCOL

    def pack(self) -> bytes:
        return pack_hello(MAGIC, self.protocol, self.slots, self.max_rows, self.max_feasigns)

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview) -> Hello:
        """Raises WireError, see `frames.wire`; the protocol is the caller's to judge."""
        protocol, slots, max_rows, max_feasigns = unpack_hello(data, MAGIC, "serving's binary port")
        return cls(slots, max_rows, max_feasigns, protocol)


class RequestHead(NamedTuple):
    """The 32 bytes in front of a request, as they stand."""

    length: int
    kind: int
    flags: int
    rows: int
    n: int
    id: int
    slots: int
    list: int

    @classmethod
    def peek(cls, data: bytes | bytearray | memoryview, offset: int = 0) -> RequestHead:
        return cls(*_REQUEST.unpack_from(data, offset))

    @property
    def frame_bytes(self) -> int:
        return LENGTH_BYTES + self.length

    @property
    def count_bytes(self) -> int:
        return 4 if self.flags & WIDE_COUNTS else 2

    @property
    def due_bytes(self) -> int:
        """What the frame has when its numbers agree."""
        return REQUEST_HEAD + self.rows * self.slots * self.count_bytes + 8 * self.n


class Request(NamedTuple):
    """A decoded prediction request: `counts` i64 [rows * slots], `feasigns` u64 [n]; both are copies."""

    head: RequestHead
    counts: Counts
    feasigns: Keys


def slot_list_check(slots: SlotList) -> int:
    """CRC-32 of the slot.conf that gives the list: names and their order."""
    return zlib.crc32(slots.text().encode("ascii"))


def pack_request(request: int, feasigns: Keys, counts: npt.NDArray[np.integer[Any]], check: int) -> bytes:
    """Feasigns u64[n] and counts [rows, slots]. Raises ValueError when they do not fit together."""
    if feasigns.dtype != np.uint64 or feasigns.ndim != 1 or counts.ndim != 2 or counts.dtype.kind not in "iu":
        raise ValueError(
            f"feasigns are {feasigns.dtype}{list(feasigns.shape)} and counts {counts.dtype}{list(counts.shape)}; "
            "uint64[n] and whole numbers [rows, slots] are needed"
        )
    low, high = (int(counts.min()), int(counts.max())) if counts.size else (0, 0)
    if low < 0 or high >= _U32_END or int(counts.sum()) != feasigns.size:
        raise ValueError(f"the counts do not add up to the {feasigns.size} feasigns, or one of them is negative")
    wide = high > 0xFFFF
    rows, slots = counts.shape
    size = REQUEST_HEAD + counts.size * (4 if wide else 2) + 8 * feasigns.size
    if size - LENGTH_BYTES >= _U32_END:
        raise ValueError(f"the request has {size} bytes, more than a frame can say; send several")
    head = _REQUEST.pack(
        size - LENGTH_BYTES, Kind.PREDICT, WIDE_COUNTS if wide else 0, rows, feasigns.size, request, slots, check
    )
    return head + counts.astype("<u4" if wide else "<u2").tobytes() + feasigns.astype("<u8", copy=False).tobytes()


def pack_slots_request(request: int) -> bytes:
    return _REQUEST.pack(REQUEST_HEAD - LENGTH_BYTES, Kind.SLOTS, 0, 0, 0, request, 0, 0)


def unpack_request(frame: bytes | bytearray | memoryview) -> Request:
    """One whole request. Raises WireError unless its lengths agree to the byte and its counts add up."""
    if len(frame) < REQUEST_HEAD:
        raise WireError(f"a request has at least {REQUEST_HEAD} bytes, not {len(frame)}")
    head = RequestHead.peek(frame)
    if head.due_bytes != head.frame_bytes or len(frame) != head.frame_bytes:
        raise WireError(
            f"a request of {head.rows} rows, {head.slots} slots and {head.n} feasigns has length "
            f"{head.due_bytes - LENGTH_BYTES}, not {head.length}"
        )
    size = head.rows * head.slots
    counts = np.frombuffer(frame, f"<u{head.count_bytes}", count=size, offset=REQUEST_HEAD).astype(np.int64)
    feasigns = np.frombuffer(frame, "<u8", offset=REQUEST_HEAD + size * head.count_bytes).astype(np.uint64)
    if int(counts.sum()) != head.n:
        raise WireError(f"the counts add up to {int(counts.sum())}, and there are {head.n} feasigns")
    return Request(head, counts, feasigns)


def pack_reply(request: int, version: int, probabilities: Floats, *, draining: bool = False) -> bytes:
    """The answer to a prediction: f32 [rows]."""
    body = probabilities.astype("<f4", copy=False).tobytes()
    return _reply(Status.OK, len(probabilities), request, version, body, draining=draining)


def pack_slots(request: int, version: int, slots: SlotList, *, draining: bool = False) -> bytes:
    return _reply(Status.OK, len(slots), request, version, slots.text().encode("ascii"), draining=draining)


def pack_refusal(status: Status, request: int, sentence: str, *, draining: bool = False) -> bytes:
    """Every status but OK; what a sentence has above 400 bytes is cut."""
    body = sentence.encode("utf-8", "replace")[:MAX_SENTENCE].decode("utf-8", "ignore").encode()
    return _reply(status, 0, request, 0, body, draining=draining)


def unpack_reply(frame: bytes | bytearray | memoryview) -> tuple[Head, bytes]:
    """One whole reply and its body. Raises WireError unless its length agrees and its status is known."""
    head = Head.unpack(frame)
    if len(frame) != head.frame_bytes:
        raise WireError(f"a reply of length {head.length} has {head.frame_bytes} bytes, not {len(frame)}")
    if head.code > max(Status):
        raise WireError(f"a reply has status {head.code}, which is none")
    if head.code != Status.OK and head.n:
        raise WireError(f"a refusal carries {head.n} values")
    return head, bytes(frame[HEAD_BYTES:])


def _reply(status: Status, n: int, request: int, version: int, body: bytes, *, draining: bool) -> bytes:
    return pack_head(len(body), status, DRAINING if draining else 0, n, request, version) + body
