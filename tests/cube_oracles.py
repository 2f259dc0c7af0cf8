"""What cube must answer, in plain numpy and Python: the definition that the machine code is tested against."""

import struct
from typing import cast

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.cube import wire
from elastic_ctr.cube.builder.external_sort import key_of
from elastic_ctr.cube.dictionary import format as hashing
from elastic_ctr.cube.dictionary.format import EMPTY_KEY, DictionaryPart, Flags, Keys, Values
from elastic_ctr.cube.dictionary.table import VersionTable
from elastic_ctr.cube.server.holdings import Holdings
from elastic_ctr.cube.wire import HEAD_BYTES, HELLO_BYTES, LENGTH_BYTES, Head, Hello, MessageKind, Status, WireError
from elastic_ctr.features import quantiser
from elastic_ctr.formats.keys import PADDING_KEY


def look_up(table: VersionTable, keys: Keys) -> tuple[Values, Flags]:
    """As `VersionTable.lookup`."""
    values = np.zeros((keys.size, table.dim), np.float32)
    missing = np.ones(keys.size, np.bool_)
    numbers = keys % np.uint64(table.partitions)
    for partition, pair in table.parts.items():
        at = np.flatnonzero(numbers == partition)
        for part in pair:
            if part is not None:
                _find(part, keys[at], at, values, missing)
    padding = keys == np.uint64(PADDING_KEY)
    values[padding], missing[padding] = 0, False
    return values, missing


def _find(part: DictionaryPart, keys: Keys, at: NDArray[np.int64], values: Values, missing: Flags) -> None:
    """Write what the part says of these keys over what is there; at says where in values and missing."""
    head = part.header
    mixed = hashing.mix(keys)
    sub_parts = high_product(mixed, head.sub_parts).astype(np.int64)
    hashed = seeded(mixed, part.sub_parts[sub_parts, 0])
    buckets = bucket_of(hashed, head.buckets).astype(np.int64) + sub_parts * head.buckets
    slots = slot_of(hashed, part.pilots[buckets].astype(np.uint64), head.slots).astype(np.int64)
    slots += sub_parts * head.slots
    found = (part.keys[slots] == keys) & (keys != np.uint64(EMPTY_KEY))
    deleted = part.deleted(slots[found])
    values[at[found]] = np.where(
        deleted[:, None],
        np.float32(0),
        quantiser.decode(np.ascontiguousarray(part.stored[slots[found]]), part.header.dim, part.header.values),
    )
    missing[at[found]] = deleted
    if head.empty_key != "absent":
        marked = at[keys == np.uint64(EMPTY_KEY)]
        values[marked] = part.empty_key_values if head.empty_key == "present" else np.float32(0)
        missing[marked] = head.empty_key == "deleted"


def answers(holdings: Holdings, stream: bytes, max_keys: int) -> bytes:
    """All that a server says to a peer that sends the stream and no more."""
    if len(stream) < HELLO_BYTES:
        return b""
    said = Hello(holdings.dim, holdings.partitions, max_keys).pack()
    try:
        if Hello.unpack(stream[:HELLO_BYTES]).protocol != wire.PROTOCOL:
            return said
    except WireError:
        return said
    at = HELLO_BYTES
    while len(stream) - at >= HEAD_BYTES:
        length, kind, _, n, request, version = struct.unpack_from("<IHHIQQ", stream, at)
        whole = wire.request_bytes(n)
        if length + LENGTH_BYTES != whole:
            # Where this frame ends is not certain: nothing after it can be trusted.
            return said + pack_refusal(Status.BAD_REQUEST, request, version)
        table = holdings.tables.get(version)
        if kind == MessageKind.KEEP_ALIVE and n == 0:
            said += pack_refusal(Status.VERSION_NOT_HELD if table is None else Status.OK, request, version)
        elif kind != MessageKind.LOOKUP or n > max_keys:
            said += pack_refusal(Status.BAD_REQUEST, request, version)
        elif len(stream) - at < whole:
            break
        else:
            keys = np.frombuffer(stream, "<u8", n, at + HEAD_BYTES).astype(np.uint64)
            if table is None or table.not_held(keys) is not None:
                status = Status.VERSION_NOT_HELD if table is None else Status.PARTITION_NOT_HELD
                said += pack_refusal(status, request, version)
            else:
                said += pack_reply(request, version, *look_up(table, keys))
        at += whole
    return said


def unpack_request(frame: bytes | memoryview) -> tuple[Head, Keys]:
    """One whole request. Raises WireError unless its lengths agree to the byte."""
    head = Head.unpack(frame)
    if head.length != wire.AFTER_LENGTH + 8 * head.n or len(frame) != head.frame_bytes:
        raise WireError(f"a request of {head.n} keys has length {wire.AFTER_LENGTH + 8 * head.n}, not {head.length}")
    return head, cast("Keys", np.frombuffer(frame, "<u8", offset=HEAD_BYTES).astype(np.uint64))


def pack_refusal(status: Status, request: int, version: int, *, draining: bool = False) -> bytes:
    """A reply without values: every status but OK, and the answer to a keep-alive."""
    return wire.pack_head(0, status, wire.DRAINING if draining else 0, 0, request, version)


def pack_reply(request: int, version: int, values: Values, missing: Flags, *, draining: bool = False) -> bytes:
    """The answer to a lookup: values f32[n, dim], missing bool[n]."""
    n, dim = values.shape
    body = wire.reply_bytes(n, dim) - HEAD_BYTES
    head = wire.pack_head(body, Status.OK, wire.DRAINING if draining else 0, n, request, version)
    return head + values.astype("<f4", copy=False).tobytes() + np.packbits(missing, bitorder="little").tobytes()


_LOW = np.uint64(0xFFFF_FFFF)
_32 = np.uint64(32)


def high_product(values: Keys, factor: int) -> Keys:
    """The upper 64 bits of value * factor, for a factor below 2^32: spreads 64-bit values over `factor` places."""
    f = np.uint64(factor)
    return cast("Keys", ((values >> _32) * f + (((values & _LOW) * f) >> _32)) >> _32)


def seeded(mixed: Keys, seeds: Keys) -> Keys:
    """The second hash of a mixed key, under the seed of its sub-part."""
    return hashing.mix(mixed + seeds * np.uint64(hashing.SEED_STEP))


def bucket_of(hashed: Keys, buckets: int) -> Keys:
    """The bucket inside a sub-part, from the upper half of the second hash."""
    return cast("Keys", ((hashed >> _32) * np.uint64(buckets)) >> _32)


def slot_of(hashed: Keys, pilots: Keys, slots: int) -> Keys:
    """The slot inside a sub-part: the second hash, displaced by the pilot of its bucket."""
    x = hashed ^ (pilots * np.uint64(hashing.PILOT_STEP))
    x = x * np.uint64(hashing.MIX_1)
    x ^= x >> _32
    return cast("Keys", ((x & _LOW) * np.uint64(slots)) >> _32)


def unmix(mixed: Keys) -> Keys:
    """The keys of hashes: the mix is a bijection."""
    return np.array([key_of(each) for each in mixed], np.uint64)
