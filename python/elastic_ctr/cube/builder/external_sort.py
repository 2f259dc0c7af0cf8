"""External sort of records by hash: any number of blocks in, the last record of each key out.

Blocks that fit the memory limit are sorted there. Larger inputs are spilled to group files by the first byte of the hash, and
each group is sorted by itself; the order of the output is the same. Hashes are spread evenly, so one counting pass nearly sorts
them. Values are rows of bytes here, as a part stores them. They are copied by address: callers pass C-contiguous arrays of the
documented shapes, and values with contiguous rows.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.cube.dictionary.format import EMPTY_KEY, MIX_1, MIX_2, Flags, Keys
from elastic_ctr.cube.dictionary.format import mix as mix_array
from elastic_ctr.cube.dictionary.kernel import mix
from elastic_ctr.features.quantiser import Stored
from elastic_ctr.machine_code.compiled import compiled, compiled_making_arrays
from elastic_ctr.machine_code.intrinsics import copy_bytes, prefetch, store_u32, store_u64, zero_bytes

Origins = NDArray[np.uint32]

_CROWD = 64  # hashes in one place of the counting pass: more come from chosen keys, or from a key that repeats


def by_hash(keys: Keys) -> tuple[Keys, Origins]:
    """Return (mixed u64[m] ascending, origin u32[m]): each distinct key's hash and last position. n must be below 2^32."""
    mixed, origin = np.empty(keys.size, np.uint64), np.empty(keys.size, np.uint32)
    bits = max(1, int(keys.size).bit_length() - 1)
    if not _nearly_sort(keys, np.uint64(64 - bits), np.zeros(1 << bits, np.uint32), mixed, origin):
        hashed = mix_array(keys)
        order = np.argsort(hashed, kind="stable")
        mixed[:], origin[:] = hashed[order], order
    distinct = _settle(mixed, origin)
    return mixed[:distinct], origin[:distinct]


@compiled
def _nearly_sort(keys: Any, shift: Any, ends: Any, mixed: Any, origin: Any) -> Any:
    """Scatter the hashes by their upper bits, stably. Return False if too many fall into one place."""
    for i in range(keys.size):
        ends[mix(keys[i]) >> shift] += np.uint32(1)
    at = np.uint32(0)
    for place in range(ends.size):
        count = ends[place]
        if count > _CROWD:
            return False
        ends[place] = at
        at += count
    for i in range(keys.size):
        hashed = mix(keys[i])
        place = hashed >> shift
        mixed[ends[place]], origin[ends[place]] = hashed, i
        ends[place] += np.uint32(1)
    return True


@compiled
def _settle(mixed: Any, origin: Any) -> Any:
    """Finish nearly sorted hashes by insertion sort, and keep the last of equal ones. Return the number kept."""
    for i in range(1, mixed.size):
        hashed, given = mixed[i], origin[i]
        place = i
        while place > 0 and mixed[place - 1] > hashed:
            mixed[place], origin[place] = mixed[place - 1], origin[place - 1]
            place -= 1
        mixed[place], origin[place] = hashed, given
    kept = 0
    for i in range(mixed.size):
        if i + 1 < mixed.size and mixed[i + 1] == mixed[i]:
            continue
        mixed[kept], origin[kept] = mixed[i], origin[i]
        kept += 1
    return kept


_UNMIX_1 = np.uint64(pow(MIX_1, -1, 1 << 64))
_UNMIX_2 = np.uint64(pow(MIX_2, -1, 1 << 64))
_29, _32, _58 = (np.uint64(number) for number in (29, 32, 58))


@compiled
def key_of(mixed: Any) -> Any:
    """The inverse of `mix`."""
    x = mixed ^ (mixed >> _32)
    x *= _UNMIX_2
    x ^= (x >> _29) ^ (x >> _58)
    x *= _UNMIX_1
    return x ^ (x >> _32)


def sub_part_bounds(mixed: Keys, sub_parts: int) -> NDArray[np.int64]:
    """Return i64[sub_parts + 1]: the start of each sub-part among ascending hashes, and the end of the last."""
    # The smallest hash whose high product with sub_parts is `number`.
    first = [-(-(number << 64) // sub_parts) for number in range(sub_parts)]
    begins = np.searchsorted(mixed, np.array(first, np.uint64))
    return cast("NDArray[np.int64]", np.append(begins, mixed.size))


_BLOCK = 64
_EMPTY = np.uint64(EMPTY_KEY)
_NONE = np.uint32(0xFFFF_FFFF)
_0, _1, _4, _6, _8, _56, _63 = (np.uint64(number) for number in (0, 1, 4, 6, 8, 56, 63))


@compiled_making_arrays
def fill(rows: Any, mixed: Any, origin: Any, values: Any, deleted: Any, places: Any) -> None:
    """Write the records section of one sub-part, one row of `stride` bytes per slot, over any former content.

    mixed u64[n], origin u32[n], values (m rows of one type) and deleted bool[m] are those of a `Sorted`, places u32[n] their
    slots. A deleted key gets zeros as its values, so that equal content gives equal bytes.
    """
    value_bytes = np.uint64(values.itemsize * values.shape[1])
    stride = np.uint64(rows.itemsize * rows.shape[1])
    given, given_step = np.uint64(values.ctypes.data), np.uint64(values.strides[0])
    row = np.uint64(rows.ctypes.data)
    # Rows are written in order, each once: scattered reads can be prefetched, scattered writes cannot.
    taker = np.full(rows.shape[0], _NONE, np.uint32)
    for i in range(places.size):
        taker[places[i]] = i
    keys, sources = np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.uint64)
    for start in range(0, rows.shape[0], _BLOCK):
        size = min(_BLOCK, rows.shape[0] - start)
        for i in range(size):
            keys[i], sources[i] = _EMPTY, _0
            record = taker[start + i]
            if record != _NONE:
                keys[i] = key_of(mixed[record])
                if not deleted[origin[record]]:
                    sources[i] = given + np.uint64(origin[record]) * given_step
                    prefetch(sources[i])
                    prefetch(sources[i] + value_bytes - _1)
        for i in range(size):
            if sources[i] == _0:
                zero_bytes(row + _8, stride - _8)
            else:
                # Zero the padding, if any; the values that follow overwrite zeros that are no padding.
                store_u64(row + stride - _8, _0)
                copy_bytes(row + _8, sources[i], value_bytes)
            store_u64(row, keys[i])
            row += stride


@compiled
def scatter(keys: Any, values: Any, deleted: Any, rows: Any, ends: Any) -> None:
    """Scatter records by the first byte of their hash into packed rows of key u64, values, deleted u32.

    values are n rows of one type, as are the rows; ends i64[256] end the groups. Rows of a group keep their order.
    """
    value_bytes, step = np.uint64(values.itemsize * values.shape[1]), np.uint64(rows.itemsize * rows.shape[1])
    source, source_step = np.uint64(values.ctypes.data), np.uint64(values.strides[0])
    first = np.uint64(rows.ctypes.data)
    for key in keys:
        ends[mix(key) >> _56] += 1
    at = 0
    for group in range(ends.size):
        count = ends[group]
        ends[group] = at
        at += count
    for i in range(keys.size):
        group = mix(keys[i]) >> _56
        row = first + np.uint64(ends[group]) * step
        ends[group] += 1
        store_u64(row, keys[i])
        copy_bytes(row + _8, source, value_bytes)
        store_u32(row + step - _4, np.uint32(deleted[i]))
        source += source_step


@compiled
def mark(presence: Any, mixed: Any) -> None:
    """Set the bits of these hashes in a presence filter u64[bits / 64]."""
    mask = np.uint64(presence.size * 64 - 1)
    for hashed in mixed:
        bit = hashed & mask
        presence[bit >> _6] |= _1 << (bit & _63)


GROUPS = 256
SPILLED_KEYS = 1 << 19
_KEY_BYTES, _DELETED_BYTES = 8, 4  # a spilled row has the key before the values, and the flag of a deletion after them
_EMPTY_MIXED = mix_array(np.full(1, EMPTY_KEY, np.uint64))[0]


class SortedBlock(NamedTuple):
    """Records: keys u64[n], values u8[n, value_bytes], deleted bool[n] (the values of a deleted key mean nothing)."""

    keys: Keys
    values: Stored
    deleted: Flags


class Sorted(NamedTuple):
    """Distinct records, ascending by mixed = mix(key): record i has values[origin[i]] and deleted[origin[i]]."""

    mixed: Keys
    origin: Origins
    values: Stored
    deleted: Flags


class ExternalSorter:
    """The distinct records of a build. The folder is its own, for the group files; the caller removes it."""

    def __init__(self, value_bytes: int, folder: Path, memory_bytes: int, *, keep_deleted: bool) -> None:
        self._value_bytes = value_bytes
        self._row_bytes = _KEY_BYTES + value_bytes + _DELETED_BYTES
        # The record, its contiguous copy, the hash, the order and the flags are in memory at the same time.
        self._limit = max(1, memory_bytes // (2 * (8 + value_bytes) + 34))
        self._keep_deleted = keep_deleted
        self._held: list[SortedBlock] = []
        self._held_keys = 0
        self._folder = folder
        self._spilled = False
        self._memory: Sorted | None = None
        self._groups: list[int] = []
        self.keys = 0
        self.deletions = 0
        self.empty_key: tuple[Stored, bool] | None = None

    def collect(self, blocks: Iterable[SortedBlock]) -> None:
        """Take all blocks, of which later ones win, and sort them in memory or by group file."""
        for block in blocks:
            # Rows are copied by address, so they must be contiguous.
            self._held.append(SortedBlock(*map(np.ascontiguousarray, block)))
            self._held_keys += block.keys.size
            if self._held_keys > self._limit:
                self._spill_held()
        if not self._spilled:
            whole = _joined(self._held, self._value_bytes)
            self._held = []
            self._memory = Sorted(*self._settled(whole), whole.values, whole.deleted)
            return
        self._spill_held()
        self._groups = [group for group in range(GROUPS) if self._file(group, "rows").exists()]
        for group in self._groups:
            mixed, origin = self._settled(self._read(group))
            mixed.tofile(self._file(group, "mixed"))
            origin.tofile(self._file(group, "origin"))

    def hashes(self) -> Iterator[Keys]:
        """The hashes alone, in order, for counting."""
        if self._memory is not None:
            yield self._memory.mixed
            return
        for group in self._groups:
            yield np.fromfile(self._file(group, "mixed"), np.uint64)

    def groups(self) -> Iterator[Sorted]:
        """Yield all distinct records but the all-ones key, in order of their hash, once: a file is removed after it was read."""
        if self._memory is not None:
            yield self._memory
            return
        for group in self._groups:
            block = self._read(group)
            mixed = np.fromfile(self._file(group, "mixed"), np.uint64)
            origin = np.fromfile(self._file(group, "origin"), np.uint32)
            for what in ("rows", "mixed", "origin"):
                self._file(group, what).unlink()
            yield Sorted(mixed, origin, block.values, block.deleted)

    def _settled(self, block: SortedBlock) -> tuple[Keys, Origins]:
        """Return (mixed, origin) of each key's last record, without the all-ones key and deletions that are not kept."""
        mixed, origin = by_hash(block.keys)
        at = int(np.searchsorted(mixed, _EMPTY_MIXED))
        if at < mixed.size and mixed[at] == _EMPTY_MIXED:
            gone = bool(block.deleted[origin[at]])
            if self._keep_deleted or not gone:
                self.empty_key = (block.values[origin[at]].copy(), gone)
            mixed, origin = np.delete(mixed, at), np.delete(origin, at)
        deleted = block.deleted[origin]
        if deleted.any() and not self._keep_deleted:
            mixed, origin = mixed[~deleted], origin[~deleted]
        self.keys += mixed.size
        self.deletions += int(deleted.sum()) if self._keep_deleted else 0
        return mixed, origin

    def _file(self, group: int, what: str) -> Path:
        return self._folder / f"{group:03d}.{what}"

    def _spill_held(self) -> None:
        self._spilled = True
        # From now on all records go to the files, so a large buffer has no use.
        self._limit = min(self._limit, SPILLED_KEYS)
        for keys, values, deleted in self._held:
            rows = np.empty((keys.size, self._row_bytes), np.uint8)
            ends = np.zeros(GROUPS, np.int64)
            scatter(keys, values, deleted, rows, ends)
            start = 0
            for group, end in enumerate(ends.tolist()):
                if end > start:
                    with self._file(group, "rows").open("ab", buffering=0) as out:
                        out.write(rows[start:end].data)
                start = end
        self._held, self._held_keys = [], 0

    def _read(self, group: int) -> SortedBlock:
        rows = np.fromfile(self._file(group, "rows"), np.uint8).reshape(-1, self._row_bytes)
        keys = np.ascontiguousarray(rows[:, :_KEY_BYTES]).view(np.uint64).reshape(-1)
        return SortedBlock(keys, rows[:, _KEY_BYTES:-_DELETED_BYTES], rows[:, -_DELETED_BYTES] != 0)


def _joined(blocks: list[SortedBlock], value_bytes: int) -> SortedBlock:
    if len(blocks) == 1:
        return blocks[0]
    nothing = SortedBlock(np.zeros(0, np.uint64), np.zeros((0, value_bytes), np.uint8), np.zeros(0, np.bool_))
    keys, values, deleted = zip(*(blocks or [nothing]), strict=True)
    # If each array has one row, numpy may concatenate them in column order; the rows must be contiguous.
    return SortedBlock(np.concatenate(keys), np.ascontiguousarray(np.concatenate(values)), np.concatenate(deleted))
