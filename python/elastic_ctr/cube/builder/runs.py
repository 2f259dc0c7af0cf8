"""Bringing records together: any number of blocks in, distinct keys in the order of their hash out, later wins.

What fits the memory limit is sorted there; more is spilled to group files by the first byte of the hash, and each group
is sorted by itself. The order of what comes out does not depend on which way was taken.
"""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from elastic_ctr.cube.dictionary import hashing
from elastic_ctr.cube.dictionary.format import Flags, Values
from elastic_ctr.cube.dictionary.hashing import EMPTY_KEY, Keys

GROUPS = 256


class Block(NamedTuple):
    """Records: keys u64[n], values f32[n, dim], deleted bool[n] (the values of a deleted key mean nothing)."""

    keys: Keys
    values: Values
    deleted: Flags


class Sorted(NamedTuple):
    """Distinct records in ascending order of mixed = mix(key)."""

    mixed: Keys
    values: Values
    deleted: Flags


def latest(blocks: list[Block]) -> Sorted:
    """Order by hash; of equal keys the last one given stays."""
    keys = np.concatenate([block.keys for block in blocks])
    mixed = hashing.mix(keys)
    order = np.argsort(mixed)
    sorted_hashes = mixed[order]
    first = np.ones(order.size, np.bool_)
    first[1:] = sorted_hashes[1:] != sorted_hashes[:-1]
    starts = np.flatnonzero(first)
    if starts.size != order.size:
        # The sort is not stable: among equal keys the largest position was given last.
        order = np.maximum.reduceat(order, starts)
    values = np.concatenate([block.values for block in blocks])[order]
    deleted = np.concatenate([block.deleted for block in blocks])[order]
    return Sorted(mixed[order], values, deleted)


def unmix(mixed: Keys) -> Keys:
    """The key of a hash: mix is a bijection, so groups need not store both."""
    x = mixed ^ (mixed >> np.uint64(32))
    x *= np.uint64(pow(hashing.MIX_2, -1, 1 << 64))
    x ^= (x >> np.uint64(29)) ^ (x >> np.uint64(58))
    x *= np.uint64(pow(hashing.MIX_1, -1, 1 << 64))
    restored: Keys = x ^ (x >> np.uint64(32))
    return restored


class Runs:
    """The distinct records of a build. A context: leaving it removes the group files."""

    def __init__(self, dim: int, folder: Path, memory_bytes: int, *, keep_deleted: bool) -> None:
        self._dim = dim
        # The record, its copy in order, the hash, the order and the flags live at the same time.
        self._limit = max(1, memory_bytes // (2 * (8 + 4 * dim) + 34))
        self._keep_deleted = keep_deleted
        self._held: list[Block] = []
        self._held_keys = 0
        self._folder = folder
        self._spill: tempfile.TemporaryDirectory[str] | None = None
        self._row = np.dtype([("key", "<u8"), ("values", "<f4", (dim,)), ("deleted", "?")])
        self._memory: Sorted | None = None
        self._groups: list[int] = []
        self.keys = 0
        self.empty_key: tuple[Values, bool] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._spill is not None:
            self._spill.cleanup()

    def collect(self, blocks: Iterable[Block]) -> None:
        """Take all blocks, the later winning, and settle what remains. Raises ValueError for a wrong shape."""
        for block in blocks:
            self._check(block)
            self._held.append(block)
            self._held_keys += block.keys.size
            if self._held_keys > self._limit:
                self._spill_held()
        if self._spill is None:
            self._memory = self._settle(self._held) if self._held else self._nothing()
            self._held = []
            self.keys = self._memory.mixed.size
            return
        self._spill_held()
        self._groups = [group for group in range(GROUPS) if self._group_file(group).exists()]
        for group in self._groups:
            settled = self._settle([self._read(group)])
            self._group_file(group).unlink()
            settled.mixed.tofile(self._settled_file(group, "mixed"))
            settled.values.tofile(self._settled_file(group, "values"))
            settled.deleted.tofile(self._settled_file(group, "deleted"))
            self.keys += settled.mixed.size

    def hashes(self) -> Iterator[Keys]:
        """The hashes alone, in order, for counting."""
        if self._memory is not None:
            yield self._memory.mixed
            return
        for group in self._groups:
            yield np.fromfile(self._settled_file(group, "mixed"), np.uint64)

    def groups(self) -> Iterator[Sorted]:
        """All distinct records but the all-ones key, in order of their hash."""
        if self._memory is not None:
            yield self._memory
            return
        for group in self._groups:
            yield Sorted(
                np.fromfile(self._settled_file(group, "mixed"), np.uint64),
                np.fromfile(self._settled_file(group, "values"), np.float32).reshape(-1, self._dim),
                np.fromfile(self._settled_file(group, "deleted"), np.bool_),
            )

    def _check(self, block: Block) -> None:
        keys, values, deleted = block
        if keys.dtype != np.uint64 or values.dtype != np.float32 or values.shape != (keys.size, self._dim):
            raise ValueError(
                f"a block has keys {keys.dtype}{keys.shape} and values {values.dtype}{values.shape}; "
                f"keys must be uint64[n] and values float32[n, {self._dim}]"
            )
        if deleted.shape != keys.shape:
            raise ValueError(f"a block has {keys.size} keys and {deleted.size} deletion flags")

    def _nothing(self) -> Sorted:
        return Sorted(np.zeros(0, np.uint64), np.zeros((0, self._dim), np.float32), np.zeros(0, np.bool_))

    def _settle(self, blocks: list[Block]) -> Sorted:
        settled = latest(blocks)
        everywhere_empty = settled.mixed == hashing.mix(np.full(1, EMPTY_KEY, np.uint64))[0]
        drop = everywhere_empty if self._keep_deleted else everywhere_empty | settled.deleted
        if everywhere_empty.any():
            [at] = np.flatnonzero(everywhere_empty)
            if self._keep_deleted or not settled.deleted[at]:
                self.empty_key = (settled.values[at].copy(), bool(settled.deleted[at]))
        if not drop.any():
            return settled
        return Sorted(settled.mixed[~drop], settled.values[~drop], settled.deleted[~drop])

    def _group_file(self, group: int) -> Path:
        assert self._spill is not None
        return Path(self._spill.name) / f"{group:03d}.rows"

    def _settled_file(self, group: int, what: str) -> Path:
        assert self._spill is not None
        return Path(self._spill.name) / f"{group:03d}.{what}"

    def _spill_held(self) -> None:
        if not self._held:
            return
        if self._spill is None:
            self._spill = tempfile.TemporaryDirectory(prefix=".build-", dir=self._folder)
        for keys, values, deleted in self._held:
            rows: NDArray[np.void] = np.empty(keys.size, self._row)
            rows["key"], rows["values"], rows["deleted"] = keys, values, deleted
            group = (hashing.mix(keys) >> np.uint64(56)).astype(np.uint8)
            order = np.argsort(group, kind="stable")
            bounds = np.searchsorted(group[order], np.arange(GROUPS + 1))
            rows = rows[order]
            for number in range(GROUPS):
                if bounds[number + 1] > bounds[number]:
                    with self._group_file(number).open("ab") as out:
                        out.write(rows[bounds[number] : bounds[number + 1]].tobytes())
        self._held, self._held_keys = [], 0

    def _read(self, group: int) -> Block:
        rows = np.fromfile(self._group_file(group), self._row)
        return Block(
            np.ascontiguousarray(rows["key"]),
            np.ascontiguousarray(rows["values"]).reshape(-1, self._dim),
            np.ascontiguousarray(rows["deleted"]),
        )
