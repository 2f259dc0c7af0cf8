"""Dictionary parts from records: the same input gives the same bytes.

Each function writes to a temporary folder beside the target and renames the file, so that a part is whole or absent.
Files are not synced, because an interrupted build is repeated.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import xxhash

from elastic_ctr.cube.builder.external_sort import ExternalSorter, Sorted, SortedBlock, fill, mark, sub_part_bounds
from elastic_ctr.cube.builder.quantise import stored_rows
from elastic_ctr.cube.dictionary import perfect_hash
from elastic_ctr.cube.dictionary.format import (
    MAX_DIM,
    DictionaryPart,
    FileSection,
    Keys,
    Kind,
    PartHeader,
    Values,
    lay_out,
    presence_bits_for,
    stride_for,
)
from elastic_ctr.features.quantiser import value_bytes
from elastic_ctr.formats.keys import partitions_of
from elastic_ctr.formats.value_kind import ValueKind
from elastic_ctr.store.versions.manifest import digest_of

MEMORY_BYTES = 512 << 20


class PartFile(NamedTuple):
    """A finished part: path, length, SHA-256 in hexadecimal, number of records."""

    path: Path
    bytes: int
    sha256: str
    records: int


class PartIdentity(NamedTuple):
    """Version, partition and shape of a part. `base` is the version of the full part below an overlay, 0 if unknown; `values` is
    the format in which values are stored.
    """

    version: int
    partition: int
    partitions: int
    dim: int
    base: int = 0
    values: ValueKind = "float32"


def build_full(
    blocks: Iterable[tuple[Keys, Values]], out: Path, identity: PartIdentity, memory_bytes: int = MEMORY_BYTES
) -> PartFile:
    """Build a full part from blocks of keys u64[n] and values f32[n, dim]; the last record of a repeated key wins.

    Memory is bounded by about memory_bytes; beyond it records are spilled to files in the temporary folder. Raises
    ValueError for a key of another partition or a block of another dim.
    """
    return _build("full", identity, _present(blocks, identity), out, memory_bytes)


def build_overlay(
    parents: Sequence[Path],
    delta_blocks: Iterable[tuple[Keys, Values]],
    out: Path,
    identity: PartIdentity,
    deletions: Iterable[Keys] = (),
    memory_bytes: int = MEMORY_BYTES,
) -> PartFile:
    """Build an overlay from the parent's overlays, the lowest first, the delta, and deletions (tombstones); later records win.

    Raises ValueError when an overlay of the parent is of another partition, dim or base, and DictionaryDamaged.
    """
    before = [_stored(_overlay_of_parent(each, identity), identity) for each in parents]
    blocks = chain(*before, _present(delta_blocks, identity), _gone(deletions, identity))
    return _build("overlay", identity, blocks, out, memory_bytes)


def _overlay_of_parent(path: Path, identity: PartIdentity) -> DictionaryPart:
    part = _trusted_overlay(path, identity)
    if identity.base and part.header.base not in {0, identity.base}:
        raise ValueError(
            f"{path} lies over version {part.header.base}, the new overlay over {identity.base}; "
            "build it from the deltas since that base"
        )
    return part


def merge_full(full: Path, overlay: Path | None, out: Path, version: int, memory_bytes: int = MEMORY_BYTES) -> PartFile:
    """Merge a full part and its overlay into a full part with the same answers.

    Raises ValueError if the two do not belong together, and DictionaryDamaged.
    """
    below = DictionaryPart.open(full).header
    identity = PartIdentity(version, below.partition, below.partitions, below.dim, values=below.values)
    blocks: Iterator[SortedBlock] = (SortedBlock(*block) for block in _trusted(full, "full", identity).stored_blocks())
    if overlay is not None:
        above = _trusted_overlay(overlay, identity)
        if above.header.base not in {0, below.version}:
            raise ValueError(f"{overlay} lies over version {above.header.base}, not over {below.version} of {full}")
        blocks = chain(blocks, _stored(above, identity))
    return _build("full", identity, blocks, out, memory_bytes)


def _present(blocks: Iterable[tuple[Keys, Values]], identity: PartIdentity) -> Iterator[SortedBlock]:
    """Quantise values. No other function does: records from a part are copied as they are stored."""
    for keys, values in blocks:
        if keys.dtype != np.uint64 or values.dtype != np.float32 or values.shape != (keys.size, identity.dim):
            raise ValueError(
                f"a block has keys {keys.dtype}{keys.shape} and values {values.dtype}{values.shape}; "
                f"keys must be uint64[n] and values float32[n, {identity.dim}]"
            )
        yield SortedBlock(keys, stored_rows(values, identity.values), np.zeros(keys.size, np.bool_))


def _gone(deletions: Iterable[Keys], identity: PartIdentity) -> Iterator[SortedBlock]:
    size = value_bytes(identity.dim, identity.values)
    for keys in deletions:
        yield SortedBlock(keys, np.zeros((keys.size, size), np.uint8), np.ones(keys.size, np.bool_))


def _trusted_overlay(path: Path, identity: PartIdentity) -> DictionaryPart:
    """Open an overlay of this partition, or of all partitions in one file."""
    if DictionaryPart.open(path).header.partitions == 1:
        identity = identity._replace(partition=0, partitions=1)
    return _trusted(path, "overlay", identity)


def _stored(part: DictionaryPart, identity: PartIdentity) -> Iterator[SortedBlock]:
    """Yield the records of a part that belong to this partition."""
    for block in map(SortedBlock._make, part.stored_blocks()):
        if part.header.partitions == identity.partitions:
            yield block
        else:
            mine = partitions_of(block.keys, identity.partitions) == identity.partition
            yield SortedBlock(*(column[mine] for column in block))


def _trusted(path: Path, kind: Kind, identity: PartIdentity) -> DictionaryPart:
    part = DictionaryPart.open(path)
    head = part.header
    if head.kind != kind:
        raise ValueError(f"{path} is a part of kind {head.kind}; kind {kind} is needed here")
    if (head.partition, head.partitions, head.dim) != (identity.partition, identity.partitions, identity.dim):
        raise ValueError(
            f"{path} is partition {head.partition} of {head.partitions} with dim {head.dim}; "
            f"partition {identity.partition} of {identity.partitions} with dim {identity.dim} is needed"
        )
    if head.values != identity.values:
        raise ValueError(
            f"{path} has its values as {head.values}, and {identity.values} is needed; build it from the published files anew"
        )
    part.verify()
    return part


def _checked(blocks: Iterable[SortedBlock], identity: PartIdentity) -> Iterator[SortedBlock]:
    for block in blocks:
        strange = block.keys[partitions_of(block.keys, identity.partitions) != identity.partition]
        if strange.size:
            raise ValueError(
                f"key {strange[0]} belongs to partition {int(strange[0]) % identity.partitions} of "
                f"{identity.partitions}, not to {identity.partition}; was the model saved with another shard_num?"
            )
        yield block


def _build(kind: Kind, identity: PartIdentity, blocks: Iterable[SortedBlock], out: Path, memory_bytes: int) -> PartFile:
    if not 1 <= identity.dim <= MAX_DIM:
        raise ValueError(f"dim {identity.dim} is outside 1 to {MAX_DIM}")
    if not 0 <= identity.partition < identity.partitions:
        raise ValueError(f"partition {identity.partition} is not one of {identity.partitions}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=out.parent) as folder:
        stored = value_bytes(identity.dim, identity.values)
        runs = ExternalSorter(stored, Path(folder), memory_bytes, keep_deleted=kind == "overlay")
        runs.collect(_checked(blocks, identity))
        temporary = Path(folder) / out.name
        with temporary.open("w+b") as stream:
            header = _write(stream, kind, identity, runs)
        sha256 = digest_of(temporary)[1]
        temporary.replace(out)
    return PartFile(out, header.file_bytes, sha256, header.keys)


def _pieces(groups: Iterable[Sorted], sub_parts: int) -> Iterator[Sorted]:
    """Cut the groups of a build into its sub-parts; a sub-part may begin in one group and end in another."""
    carried: list[Sorted] = []
    done = 0
    for group in groups:
        bounds = sub_part_bounds(group.mixed, sub_parts)
        # All sub-parts but the last seen are complete: later groups have larger hashes.
        last = max(done, int(np.searchsorted(bounds[:-1], group.mixed.size)) - 1)
        for number in range(done, last):
            yield _joined([*carried, _cut(group, bounds[number], bounds[number + 1])])
            carried = []
        done = last
        carried.append(_cut(group, bounds[done], group.mixed.size))
    yield _joined(carried)
    for _ in range(done + 1, sub_parts):
        yield _cut(carried[0], 0, 0)


def _cut(records: Sorted, start: int, end: int) -> Sorted:
    return records._replace(mixed=records.mixed[start:end], origin=records.origin[start:end])


def _joined(pieces: list[Sorted]) -> Sorted:
    pieces = [piece for piece in pieces if piece.mixed.size] or pieces[:1]
    if len(pieces) == 1:
        return pieces[0]
    mixed = np.concatenate([piece.mixed for piece in pieces])
    values = np.ascontiguousarray(np.concatenate([piece.values[piece.origin] for piece in pieces]))
    deleted = np.concatenate([piece.deleted[piece.origin] for piece in pieces])
    return Sorted(mixed, np.arange(mixed.size, dtype=np.uint32), values, deleted)


def _write(stream: BinaryIO, kind: Kind, identity: PartIdentity, runs: ExternalSorter) -> PartHeader:
    sub_parts = perfect_hash.sub_parts_for(runs.keys)
    counts = np.zeros(sub_parts, np.int64)
    for mixed in runs.hashes():
        counts += np.diff(sub_part_bounds(mixed, sub_parts))
    fullest = int(counts.max())
    slots, buckets = perfect_hash.slots_for(fullest), perfect_hash.buckets_for(fullest)
    stride = stride_for(identity.dim, identity.values)
    presence = np.zeros(presence_bits_for(runs.keys) // 64 if kind == "overlay" else 0, np.uint64)
    tombstones = np.zeros(sub_parts * slots if kind == "overlay" else 0, np.bool_)
    seeds = np.zeros(sub_parts, np.uint64)
    pilots = np.zeros((sub_parts, buckets), np.uint16)
    shape: dict[str, Any] = {
        "sub_parts": sub_parts, "slots": slots, "buckets": buckets, "stride": stride,
        "presence_bits": presence.size * 64, "tombstones": runs.deletions,
    }  # fmt: skip
    places, length = lay_out(**shape)
    os.ftruncate(stream.fileno(), length)
    stream.seek(places["records"][0])
    records = xxhash.xxh3_64()
    rows = np.empty((slots, stride), np.uint8)
    for number, piece in enumerate(_pieces(runs.groups(), sub_parts)):
        seeds[number], pilots[number], at = perfect_hash.place(piece.mixed, slots, buckets)
        fill(rows, piece.mixed, piece.origin, piece.values, piece.deleted, at)
        records.update(rows.data)
        stream.write(rows.data)
        if kind == "overlay":
            mark(presence, piece.mixed)
            tombstones[at + np.int64(number * slots)] = piece.deleted[piece.origin]
    bodies = {
        "sub_parts": np.stack([seeds, counts.astype(np.uint64)], axis=1).tobytes(),
        "pilots": pilots.tobytes(),
        "presence": presence.tobytes(),
        "tombstones": np.packbits(tombstones, bitorder="little").tobytes() if runs.deletions else b"",
    }
    sections = {name: FileSection(*places[name], xxhash.xxh3_64_intdigest(body)) for name, body in bodies.items()}
    sections["records"] = FileSection(*places["records"], records.intdigest())
    for name, body in bodies.items():
        stream.seek(places[name][0])
        stream.write(body)
    values, gone = runs.empty_key if runs.empty_key is not None else (None, False)
    header = PartHeader(
        kind=kind, keys=runs.keys + (values is not None), file_bytes=length,
        empty_key="absent" if values is None else "deleted" if gone else "present",
        empty_key_values=b"" if values is None or gone else values.tobytes(), sections=sections,
        **identity._asdict(), **shape,
    )  # fmt: skip
    stream.seek(0)
    stream.write(header.pack())
    return header
