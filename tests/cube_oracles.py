"""What cube must answer, in plain numpy and Python: the definition that the machine code is tested against."""

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.cube import wire
from elastic_ctr.cube.dictionary import hashing
from elastic_ctr.cube.dictionary.format import DictionaryPart, Flags, Values
from elastic_ctr.cube.dictionary.hashing import EMPTY_KEY, Keys
from elastic_ctr.cube.dictionary.table import VersionTable
from elastic_ctr.cube.frames import HEAD_BYTES, HELLO_BYTES, LENGTH_BYTES, Head, WireError
from elastic_ctr.cube.server.holdings import Holdings
from elastic_ctr.cube.wire import Hello, Kind, Status
from elastic_ctr.features.keys import PADDING_KEY


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
    sub_parts = hashing.high_product(mixed, head.sub_parts).astype(np.int64)
    hashed = hashing.seeded(mixed, part.sub_parts[sub_parts, 0])
    buckets = hashing.bucket_of(hashed, head.buckets).astype(np.int64) + sub_parts * head.buckets
    slots = hashing.slot_of(hashed, part.pilots[buckets].astype(np.uint64), head.slots).astype(np.int64)
    slots += sub_parts * head.slots
    found = (part.keys[slots] == keys) & (keys != np.uint64(EMPTY_KEY))
    deleted = part.deleted(slots[found])
    values[at[found]] = np.where(deleted[:, None], np.float32(0), part.values[slots[found]])
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
        length, kind, _, n, request, version = Head.peek(stream, at)
        whole = wire.request_bytes(n)
        if length + LENGTH_BYTES != whole:
            # Where this frame ends is not certain: nothing after it can be trusted.
            return said + wire.pack_refusal(Status.BAD_REQUEST, request, version)
        table = holdings.tables.get(version)
        if kind == Kind.KEEP_ALIVE and n == 0:
            said += wire.pack_refusal(Status.VERSION_NOT_HELD if table is None else Status.OK, request, version)
        elif kind != Kind.LOOKUP or n > max_keys:
            said += wire.pack_refusal(Status.BAD_REQUEST, request, version)
        elif len(stream) - at < whole:
            break
        else:
            keys = np.frombuffer(stream, "<u8", n, at + HEAD_BYTES).astype(np.uint64)
            if table is None or table.not_held(keys) is not None:
                status = Status.VERSION_NOT_HELD if table is None else Status.PARTITION_NOT_HELD
                said += wire.pack_refusal(status, request, version)
            else:
                said += wire.pack_reply(request, version, *look_up(table, keys))
        at += whole
    return said
