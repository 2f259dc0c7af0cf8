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
from typing_extensions import Self

from elastic_ctr.cube.builder.hash_sort import Origins, by_hash
from elastic_ctr.cube.builder.rows import scatter
from elastic_ctr.cube.dictionary import hashing
from elastic_ctr.cube.dictionary.format import Flags, Values
from elastic_ctr.cube.dictionary.hashing import EMPTY_KEY, Keys

GROUPS = 256
SPILLED_KEYS = 1 << 19
_ROW_EXTRA = 3  # of a spilled row, in u32: the key before the values, whether it is deleted behind them
_EMPTY_MIXED = hashing.mix(np.full(1, EMPTY_KEY, np.uint64))[0]


class Block(NamedTuple):
    """Records: keys u64[n], values f32[n, dim], deleted bool[n] (the values of a deleted key mean nothing)."""

    keys: Keys
    values: Values
    deleted: Flags


class Sorted(NamedTuple):
    """Distinct records in ascending order of mixed = mix(key): that of mixed[i] is values[origin[i]], deleted[origin[i]]."""

    mixed: Keys
    origin: Origins
    values: Values
    deleted: Flags


class Runs:
    """The distinct records of a build. A context: leaving it removes the group files."""

    def __init__(self, dim: int, folder: Path, memory_bytes: int, *, keep_deleted: bool) -> None:
        self._dim = dim
        # The record, its copy in one piece, the hash, the order and the flags live at the same time.
        self._limit = max(1, memory_bytes // (2 * (8 + 4 * dim) + 34))
        self._keep_deleted = keep_deleted
        self._held: list[Block] = []
        self._held_keys = 0
        self._folder = folder
        self._spill: tempfile.TemporaryDirectory[str] | None = None
        self._memory: Sorted | None = None
        self._groups: list[int] = []
        self.keys = 0
        self.deletions = 0
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
            # Rows are copied by address, so they lie one behind the other.
            self._held.append(Block(*map(np.ascontiguousarray, block)))
            self._held_keys += block.keys.size
            if self._held_keys > self._limit:
                self._spill_held()
        if self._spill is None:
            whole = _joined(self._held, self._dim)
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
        """All distinct records but the all-ones key, in order of their hash. Once: what was read is removed."""
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

    def _check(self, block: Block) -> None:
        keys, values, deleted = block
        if keys.dtype != np.uint64 or values.dtype != np.float32 or values.shape != (keys.size, self._dim):
            raise ValueError(
                f"a block has keys {keys.dtype}{keys.shape} and values {values.dtype}{values.shape}; "
                f"keys must be uint64[n] and values float32[n, {self._dim}]"
            )
        if deleted.shape != keys.shape:
            raise ValueError(f"a block has {keys.size} keys and {deleted.size} deletion flags")

    def _settled(self, block: Block) -> tuple[Keys, Origins]:
        """Of each key the last record, as hash and place, without the all-ones key and what is not to be kept."""
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
        assert self._spill is not None
        return Path(self._spill.name) / f"{group:03d}.{what}"

    def _spill_held(self) -> None:
        if self._spill is None:
            self._spill = tempfile.TemporaryDirectory(prefix=".build-", dir=self._folder)
            # From now on all goes to the files: there is no use in holding much.
            self._limit = min(self._limit, SPILLED_KEYS)
        for keys, values, deleted in self._held:
            rows = np.empty((keys.size, self._dim + _ROW_EXTRA), np.uint32)
            ends = np.zeros(GROUPS, np.int64)
            scatter(keys, values, deleted, rows, ends)
            start = 0
            for group, end in enumerate(ends.tolist()):
                if end > start:
                    with self._file(group, "rows").open("ab", buffering=0) as out:
                        out.write(rows[start:end].data)
                start = end
        self._held, self._held_keys = [], 0

    def _read(self, group: int) -> Block:
        rows = np.fromfile(self._file(group, "rows"), np.uint32).reshape(-1, self._dim + _ROW_EXTRA)
        keys = np.ascontiguousarray(rows[:, :2]).view(np.uint64).reshape(-1)
        return Block(keys, rows[:, 2:-1].view(np.float32), rows[:, -1] != 0)


def _joined(blocks: list[Block], dim: int) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    nothing = Block(np.zeros(0, np.uint64), np.zeros((0, dim), np.float32), np.zeros(0, np.bool_))
    keys, values, deleted = zip(*(blocks or [nothing]), strict=True)
    return Block(np.concatenate(keys), np.concatenate(values), np.concatenate(deleted))
