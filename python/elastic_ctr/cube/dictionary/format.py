"""The dictionary part: one immutable, memory-mapped file per partition and version. Own format, little-endian.

    header        4096 bytes, fields in `_FIXED`, five sections (offset, length, xxh3), the record of the all-ones key,
                  xxh3 of the bytes before it in the last 8
    sub-parts     per sub-part: seed u64, keys u64
    pilots        u16[sub-parts x buckets]
    presence      overlay only: bitmap of a power of two bits, at least 64 per key, bit = mix(key) & (bits - 1)
    tombstones    overlay with deletions only: one bit per slot
    records       [key u64 | stored values | padding] every `stride` bytes; an empty slot has the all-ones key

The header names the format of a key's values (`features.quantiser`): float32, float16, or int8 with a scale.

A full part answers for every key of its partition; an overlay answers for the keys it has, the full part below it for
the rest. The slot of a key is defined by `mix`, the constants here and `kernel`: a change of those is a new format
version. Bytes between sections are zero. The same records in any order give the same bytes.
"""

import errno
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import xxhash
from numpy.typing import NDArray

from elastic_ctr.features import quantiser
from elastic_ctr.features.quantiser import Stored, value_bytes
from elastic_ctr.formats import keys as key_rules
from elastic_ctr.formats.value_kind import VALUE_KINDS, ValueKind

Kind = Literal["full", "overlay"]
Keys = key_rules.Keys
Values = quantiser.Values
Flags = NDArray[np.bool_]

EMPTY_KEY = 0xFFFF_FFFF_FFFF_FFFF  # marks an empty slot; a real record of that key is in the header

MIX_1 = 0x9E37_79B9_7F4A_7C15
MIX_2 = 0xBF58_476D_1CE4_E5B9
PILOT_STEP = 0x517C_C1B7_2722_0A95
SEED_STEP = 0xD6E8_FEB8_6659_FD93

MAGIC = b"ECTRDICT"
FORMAT_VERSION = 1
HEADER_BYTES = 4096
MAX_DIM = 900  # bounded because the header has the values of the all-ones key
SUB_PART_BYTES = 16
PRESENCE_BITS_PER_KEY = 64

# Parts of the first releases have the code 1, float32.
VALUE_CODES: dict[ValueKind, int] = {kind: code for code, kind in enumerate(VALUE_KINDS, 1)}
_VALUE_KINDS = {code: kind for kind, code in VALUE_CODES.items()}
_KINDS: dict[int, Kind] = {1: "full", 2: "overlay"}
_EMPTY_KEY_STATES = ("absent", "present", "deleted")

# magic, format, header bytes, dim, kind of values, stride, kind, version, base, partition, partitions, keys, sub-parts,
# slots, buckets, state of the all-ones key, presence bits, tombstones, file bytes
_FIXED = struct.Struct("<8s6I2Q2IQ4I3Q")
_SECTION = struct.Struct("<3Q")
_SECTIONS = ("sub_parts", "pilots", "presence", "tombstones", "records")
_EMPTY_KEY_VALUES = 256
_CHECKSUM_AT = HEADER_BYTES - 8
_CHUNK = 16 << 20
_POPULATE_READ = 22  # MADV_POPULATE_READ of Linux; `mmap` has no name for it


def mix(keys: Keys) -> Keys:
    """Map keys u64[n] by a bijection that spreads neighbouring keys apart."""
    x = keys ^ (keys >> np.uint64(32))
    x = x * np.uint64(MIX_1)
    x ^= x >> np.uint64(29)
    x *= np.uint64(MIX_2)
    return cast("Keys", x ^ (x >> np.uint64(32)))


class DictionaryDamaged(ValueError):
    """A dictionary part cannot be trusted."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"dictionary part {path} is damaged: {reason}; fetch or build it again")


class FileSection(NamedTuple):
    offset: int
    length: int
    checksum: int


@dataclass(frozen=True)
class PartHeader:
    """The fields of the header. `keys` counts the all-ones key and the tombstones too.

    `base` is the version of the full part that an overlay was made for, or 0 if its builder did not know it.
    """

    kind: Kind
    dim: int
    stride: int
    version: int
    base: int
    partition: int
    partitions: int
    keys: int
    sub_parts: int
    slots: int
    buckets: int
    presence_bits: int
    tombstones: int
    file_bytes: int
    empty_key: Literal["absent", "present", "deleted"]
    empty_key_values: bytes
    sections: dict[str, FileSection]
    values: ValueKind = "float32"

    def pack(self) -> bytes:
        kind, state = 1 if self.kind == "full" else 2, _EMPTY_KEY_STATES.index(self.empty_key)
        head = bytearray(HEADER_BYTES)
        _FIXED.pack_into(
            head, 0, MAGIC, FORMAT_VERSION, HEADER_BYTES, self.dim, VALUE_CODES[self.values], self.stride, kind,
            self.version, self.base, self.partition, self.partitions, self.keys, self.sub_parts, self.slots,
            self.buckets, state, self.presence_bits, self.tombstones, self.file_bytes,
        )  # fmt: skip
        for number, name in enumerate(_SECTIONS):
            _SECTION.pack_into(head, _FIXED.size + number * _SECTION.size, *self.sections[name])
        head[_EMPTY_KEY_VALUES : _EMPTY_KEY_VALUES + len(self.empty_key_values)] = self.empty_key_values
        struct.pack_into("<Q", head, _CHECKSUM_AT, xxhash.xxh3_64_intdigest(bytes(head[:_CHECKSUM_AT])))
        return bytes(head)


def stride_for(dim: int, values: ValueKind = "float32") -> int:
    """Return the bytes from record to record: key and values, rounded up. Keys of float32 records are aligned; quantised records are
    only padded to even addresses, because the lookup uses the low bit of an address.
    """
    alignment = _alignment(values)
    return -(-(8 + value_bytes(dim, values)) // alignment) * alignment


def _alignment(values: ValueKind) -> int:
    return 8 if values == "float32" else 2


def presence_bits_for(keys: int) -> int:
    return PRESENCE_BITS_PER_KEY << (max(keys, 1) - 1).bit_length()


def lay_out(
    sub_parts: int, slots: int, buckets: int, stride: int, presence_bits: int, tombstones: int
) -> tuple[dict[str, tuple[int, int]], int]:
    """Return offsets and lengths of the sections, and the length of the file. Only this function defines their order."""
    lengths = {
        "sub_parts": sub_parts * SUB_PART_BYTES,
        "pilots": 2 * sub_parts * buckets,
        "presence": presence_bits // 8,
        "tombstones": -(-sub_parts * slots // 8) if tombstones else 0,
        "records": sub_parts * slots * stride,
    }
    at = HEADER_BYTES
    places: dict[str, tuple[int, int]] = {}
    for name, length in lengths.items():
        alignment = 64
        if name == "records":
            # Records of 32 MiB or more start on a huge page (2 MiB), because the padding is small then; others on a page of 4 KiB.
            alignment = 2 << 20 if length >= 32 << 20 else 4096
        at = -(-at // alignment) * alignment
        places[name] = (at, length)
        at += length
    return places, at


def read_header(data: bytes, path: Path, file_bytes: int) -> PartHeader:
    """Parse the header and check everything that does not need the rest of the file. Raises DictionaryDamaged."""

    def refuse(reason: str) -> DictionaryDamaged:
        return DictionaryDamaged(path, reason)

    if data[:8] != MAGIC:
        raise refuse("it does not start as a dictionary part")
    fields = _FIXED.unpack_from(data)
    _, form, header_bytes, dim, code, stride, kind, version, base, partition, partitions = fields[:11]
    keys, sub_parts, slots, buckets, state, presence_bits, tombstones, length = fields[11:]
    if form != FORMAT_VERSION or header_bytes != HEADER_BYTES:
        raise refuse(f"format version {form} is not {FORMAT_VERSION}, the one this program reads")
    if struct.unpack_from("<Q", data, _CHECKSUM_AT)[0] != xxhash.xxh3_64_intdigest(data[:_CHECKSUM_AT]):
        raise refuse("the checksum of the header does not match")
    if not 1 <= dim <= MAX_DIM or code not in _VALUE_KINDS:
        raise refuse(
            f"dim {dim} or kind of values {code} is unknown: this program reads dims to {MAX_DIM} of {_known_values()}"
        )
    values = _VALUE_KINDS[code]
    if stride < stride_for(dim, values) or stride % _alignment(values):
        raise refuse(f"a stride of {stride} bytes does not hold records of dim {dim} as {values}")
    if kind not in _KINDS or state >= len(_EMPTY_KEY_STATES):
        raise refuse(f"kind {kind} or all-ones state {state} is unknown")
    if not partition < partitions:
        raise refuse(f"partition {partition} is not one of {partitions}")
    if min(sub_parts, slots, buckets) < 1 or keys > sub_parts * slots + 1:
        raise refuse(f"{keys} keys do not fit {sub_parts} sub-parts of {slots} slots")
    full, empty_key = _KINDS[kind] == "full", cast("Any", _EMPTY_KEY_STATES[state])
    if full and (presence_bits or tombstones or base or empty_key == "deleted"):
        raise refuse("a full part has no presence filter, no tombstones and no base")
    if not full and (presence_bits < 64 or presence_bits & (presence_bits - 1)):
        raise refuse(f"a presence filter of {presence_bits} bits is not a power of two")
    if length != file_bytes:
        raise refuse(f"it has {file_bytes} bytes, its header says {length}")
    places, end = lay_out(sub_parts, slots, buckets, stride, presence_bits, tombstones)
    sections = {
        name: FileSection(*_SECTION.unpack_from(data, _FIXED.size + number * _SECTION.size))
        for number, name in enumerate(_SECTIONS)
    }
    if end != length or any(sections[name][:2] != places[name] for name in _SECTIONS):
        raise refuse("its sections do not fit its length")
    return PartHeader(
        kind=_KINDS[kind], dim=dim, stride=stride, version=version, base=base, partition=partition,
        partitions=partitions, keys=keys, sub_parts=sub_parts, slots=slots, buckets=buckets,
        presence_bits=presence_bits, tombstones=tombstones, file_bytes=length, empty_key=empty_key,
        empty_key_values=_empty_key_values(data, value_bytes(dim, values)) if empty_key == "present" else b"",
        sections=sections, values=values,
    )  # fmt: skip


def _known_values() -> str:
    return ", ".join(f"{kind} ({code})" for kind, code in VALUE_CODES.items())


def _empty_key_values(head: bytes, size: int) -> bytes:
    return head[_EMPTY_KEY_VALUES : _EMPTY_KEY_VALUES + size]


class DictionaryPart:
    """A mapped part. Its arrays are views of the file; the mapping lives as long as they do."""

    def __init__(self, path: Path, header: PartHeader, mapped: mmap.mmap, inode: int) -> None:
        self.path = path
        self.inode = inode
        self.header = header
        self._mapped = mapped
        self._data: NDArray[np.uint8] = np.frombuffer(mapped, np.uint8)
        self.sub_parts = self._section("sub_parts", np.uint64).reshape(-1, 2)
        self.pilots = self._section("pilots", np.uint16)
        self.presence = self._section("presence", np.uint64)
        self.tombstones = self._section("tombstones", np.uint8)
        self.records = self._section("records", np.uint8)
        rows = self.records.reshape(header.sub_parts * header.slots, header.stride)
        self.keys: Keys = rows[:, :8].view(np.uint64)[:, 0]
        self.stored: Stored = rows[:, 8 : 8 + value_bytes(header.dim, header.values)]
        self.stored_empty_key: Stored = np.frombuffer(header.empty_key_values, np.uint8)

    def _section(self, name: str, dtype: Any) -> NDArray[Any]:
        offset, length, _ = self.header.sections[name]
        return cast("NDArray[Any]", self._data[offset : offset + length].view(dtype))

    @classmethod
    def open(cls, path: Path | str, *, verify: bool = False) -> "DictionaryPart":
        """Map a part and check its header; the time taken does not depend on its size.

        verify also checks every byte, which reads the whole file into memory: no lookup waits for the disk. Raises
        DictionaryDamaged, and OSError when the file cannot be opened or read.
        """
        path = Path(path)
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            if size < HEADER_BYTES:
                raise DictionaryDamaged(path, f"{size} bytes are less than a header")
            inode = os.fstat(stream.fileno()).st_ino
            mapped = mmap.mmap(stream.fileno(), size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        # Before the first read, because the kernel reads into small pages until it has this advice.
        try:
            mapped.madvise(mmap.MADV_HUGEPAGE)
        except (AttributeError, OSError):
            pass  # without huge pages for files, only speed is lost
        _read_in(mapped, path, 0, HEADER_BYTES)
        part = cls(path, read_header(mapped[:HEADER_BYTES], path, size), mapped, inode)
        if verify:
            part.verify()
        return part

    def verify(self, on_bytes: Callable[[int], None] = lambda _: None) -> None:
        """Read every mapped byte: header, checksums, padding, sub-part counts. Raises DictionaryDamaged, OSError.

        on_bytes is called after each piece with its size; it may wait, or raise to end the check.
        """
        _read_in(self._mapped, self.path, 0, HEADER_BYTES)
        if read_header(self._mapped[:HEADER_BYTES], self.path, len(self._mapped)) != self.header:
            raise DictionaryDamaged(self.path, "its header has changed since it was mapped")
        at = HEADER_BYTES
        for name in _SECTIONS:
            offset, length, checksum = self.header.sections[name]
            _read_in(self._mapped, self.path, at, offset)
            if self._data[at:offset].any():
                raise DictionaryDamaged(self.path, f"there are bytes before its {name} that belong to nothing")
            digest = xxhash.xxh3_64()
            for start in range(offset, offset + length, _CHUNK):
                end = min(start + _CHUNK, offset + length)
                _read_in(self._mapped, self.path, start, end)
                digest.update(self._data[start:end].data)
                on_bytes(end - start)
            if digest.intdigest() != checksum:
                raise DictionaryDamaged(self.path, f"the checksum of its {name} does not match")
            at = offset + length
        counted = int(self.sub_parts[:, 1].sum()) + (self.header.empty_key != "absent")
        if counted != self.header.keys:
            raise DictionaryDamaged(self.path, f"its sub-parts have {counted} keys, its header {self.header.keys}")

    def read_in(self) -> None:
        """Read the whole file into the page cache. Raises OSError when a page cannot be read.

        Called before several processes map the part: if they read a file at the same time, the kernel gives up huge pages.
        """
        _read_in(self._mapped, self.path, 0, len(self._mapped))
        self.release()

    def release(self) -> None:
        """Release the pages of this mapping: they stay in the page cache, but no longer count as this process's memory."""
        self._mapped.madvise(mmap.MADV_DONTNEED)

    @property
    def empty_key_values(self) -> Values:
        """Return the values f32[dim] of the all-ones key; f32[0] if it has none."""
        if self.header.empty_key != "present":
            return np.zeros(0, np.float32)
        return quantiser.decode(self.stored_empty_key.reshape(1, -1), self.header.dim, self.header.values).reshape(-1)

    def deleted(self, slots: NDArray[np.int64]) -> Flags:
        """Return bool[n], true for slots with a tombstone."""
        if self.tombstones.size == 0:
            return np.zeros(slots.shape, np.bool_)
        return cast("Flags", (self.tombstones[slots >> 3] >> (slots & 7).astype(np.uint8)) & 1 != 0)

    def blocks(self) -> Iterator[tuple[Keys, Values, Flags]]:
        """Yield all records, a sub-part at a time: keys u64[n], values f32[n, dim], deleted bool[n]."""
        for keys, stored, deleted in self.stored_blocks():
            yield keys, quantiser.decode(stored, self.header.dim, self.header.values), deleted

    def stored_blocks(self) -> Iterator[tuple[Keys, Stored, Flags]]:
        """As `blocks`, with the values as they are stored: u8[n, value_bytes]."""
        for start in range(0, self.keys.size, self.header.slots):
            used = np.flatnonzero(self.keys[start : start + self.header.slots] != EMPTY_KEY) + start
            yield np.ascontiguousarray(self.keys[used]), np.ascontiguousarray(self.stored[used]), self.deleted(used)
        if self.header.empty_key != "absent":
            gone = self.header.empty_key == "deleted"
            stored = np.zeros(self.stored.shape[1], np.uint8) if gone else self.stored_empty_key
            yield np.full(1, EMPTY_KEY, np.uint64), stored.reshape(1, -1).copy(), np.full(1, gone)


def _read_in(mapped: mmap.mmap, path: Path, start: int, end: int) -> None:
    """Map the pages of those bytes now. Raises OSError if one cannot be read; before Linux 5.14 that kills the process."""
    start -= start % mmap.PAGESIZE
    # In chunks, so that other threads can run in between.
    for at in range(start, end, _CHUNK):
        size = min(_CHUNK, end - at)
        try:
            mapped.madvise(_POPULATE_READ, at, size)
        except OSError as refused:
            if refused.errno not in {errno.EINVAL, errno.ENOSYS}:
                raise OSError(refused.errno, refused.strerror, str(path)) from refused
            np.frombuffer(mapped, np.uint8, size, at)[:: mmap.PAGESIZE].max()


def describe(path: Path | str) -> dict[str, object]:
    """Return the facts that `elastic-ctr dict stat` prints. Raises DictionaryDamaged if the file is not whole."""
    part = DictionaryPart.open(path)
    part.verify()
    head = part.header
    return {
        "path": str(path),
        "kind": head.kind,
        "version": head.version,
        "base": head.base or None,
        "partition": head.partition,
        "partitions": head.partitions,
        "dim": head.dim,
        "values": head.values,
        "stride": head.stride,
        "keys": head.keys,
        "tombstones": head.tombstones + (head.empty_key == "deleted"),
        "subParts": head.sub_parts,
        "slots": head.sub_parts * head.slots,
        "load": round(head.keys / (head.sub_parts * head.slots), 4),
        "bytes": head.file_bytes,
        "bytesPerKey": round(head.file_bytes / head.keys, 2) if head.keys else None,
        "checksums": "ok",
    }
