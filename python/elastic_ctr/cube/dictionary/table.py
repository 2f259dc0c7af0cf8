"""The parts of one version as one table. A lookup of the padding key 0 returns zeros and no flag, of a missing key zeros and
its flag; a key of a partition without a part is an error.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.cube.dictionary.format import EMPTY_KEY, MAX_DIM, DictionaryPart, Flags, Keys, Values, stride_for
from elastic_ctr.formats.keys import PADDING_KEY, partitions_of
from elastic_ctr.formats.value_kind import ValueKind

Offsets = NDArray[np.int64]

_SCRATCH = 18 * 64  # SCRATCH of the kernel, which only a machine with numba can import


class PartsDoNotFit(ValueError):
    """Parts cannot form one version; the text has the part and the reason."""


class PartitionNotHeld(LookupError):
    def __init__(self, version: int, partition: int) -> None:
        super().__init__(f"partition {partition} of version {version} is not held here; ask another holder")


class Parts(NamedTuple):
    """The parts of one partition: the recent overlay answers for its keys, the overlay for its other keys, the full part for the rest.
    An overlay may be one file of all partitions; a recent overlay lies only over another overlay.
    """

    full: DictionaryPart
    overlay: DictionaryPart | None = None
    recent: DictionaryPart | None = None


class Paths(NamedTuple):
    """The files of `Parts`."""

    full: Path
    overlay: Path | None = None
    recent: Path | None = None

    @classmethod
    def of(cls, full: Path, *overlays: Path) -> "Paths":
        """Take up to two overlays, the lowest first. Raises TypeError for more."""
        return cls(*(full, *overlays))

    def files(self) -> list[Path]:
        return [path for path in self if path is not None]

    def open(self, *, verify: bool = False) -> Parts:
        return self.parts(lambda path: DictionaryPart.open(path, verify=verify))

    def parts(self, opened: Callable[[Path], DictionaryPart]) -> Parts:
        """Return the parts that `opened` returns for each file."""
        return Parts(opened(self.full), *(None if path is None else opened(path) for path in self[1:]))


@lru_cache(maxsize=32)
def compiled_lookup(dim: int, stride: int, *, values: ValueKind = "float32") -> Callable[..., int]:
    """Return the compiled kernel. numba is imported here, which takes a second, because reading headers does not need it."""
    from elastic_ctr.cube.dictionary.kernel import SCRATCH, WIDTH, lookup_kernel

    kernel = lookup_kernel(dim, stride, values=values)
    nothing = np.zeros(0, np.uint64)
    kernel(
        np.zeros((1, WIDTH), np.uint64), np.uint64(0), 0, nothing, 0, np.zeros(0, np.uint8),
        np.zeros(0, np.int64), np.zeros(0, np.uint8), np.zeros(SCRATCH, np.uint64),
    )  # fmt: skip
    return kernel


# Placeholders for an absent part or filter, so that the kernel needs no branch for them.
_NO_PILOTS = np.zeros(1, np.uint16)
_NO_SUB_PARTS = np.zeros((1, 2), np.uint64)
_NO_RECORDS = np.full(MAX_DIM + 8, EMPTY_KEY, np.uint64)
_NO_PRESENCE = np.zeros(1, np.uint64)


def _table_rows(partitions: int, parts: Mapping[int, Parts]) -> NDArray[np.uint64]:
    """Return the kernel's table u64[partitions, WIDTH] of addresses and sizes. The parts must outlive it."""
    from elastic_ctr.cube.dictionary import kernel

    rows = np.zeros((partitions, kernel.WIDTH), np.uint64)
    for at in (0, kernel.OVERLAY, kernel.RECENT):
        rows[:, at + kernel.PILOTS] = _NO_PILOTS.ctypes.data
        rows[:, at + kernel.RECORDS] = _NO_RECORDS.ctypes.data
        rows[:, at + kernel.SUB_PARTS] = _NO_SUB_PARTS.ctypes.data
        rows[:, [at + kernel.SUB_PART_COUNT, at + kernel.SLOTS, at + kernel.BUCKETS]] = 1
    for at in (kernel.OVERLAY, kernel.RECENT):
        rows[:, at + kernel.PRESENCE] = _NO_PRESENCE.ctypes.data
    for partition, own in parts.items():
        row = rows[partition]
        for at, part in ((0, own.full), (kernel.OVERLAY, own.overlay), (kernel.RECENT, own.recent)):
            if part is None:
                continue
            row[at + kernel.PILOTS] = part.pilots.ctypes.data
            row[at + kernel.RECORDS] = part.records.ctypes.data
            row[at + kernel.SUB_PARTS] = part.sub_parts.ctypes.data
            row[at + kernel.SUB_PART_COUNT] = part.header.sub_parts
            row[at + kernel.SLOTS] = part.header.slots
            row[at + kernel.BUCKETS] = part.header.buckets
            row[at + kernel.EMPTY_KEY_AT] = part.stored_empty_key.ctypes.data if part.stored_empty_key.size else 0
            row[at + kernel.EMPTY_KEY_DELETED] = part.header.empty_key == "deleted"
            if part is not own.full:
                row[at + kernel.PRESENCE] = part.presence.ctypes.data
                row[at + kernel.PRESENCE_MASK] = part.header.presence_bits - 1
                row[at + kernel.TOMBSTONES] = part.tombstones.ctypes.data if part.tombstones.size else 0
    return rows


def kind_of_values(parts: Mapping[int, Parts]) -> ValueKind:
    """Return the format of values that all parts of a version have, as the lookup is compiled for one; float32 without parts."""
    return next((own.full.header.values for own in parts.values()), "float32")


def check_fit(partitions: int, dim: int, parts: Mapping[int, Parts]) -> None:
    """Raises PartsDoNotFit when a part is of another partition, dim, kind or base than it is given as, or has other kinds of values."""
    for partition, own in parts.items():
        if own.recent is not None and own.overlay is None:
            raise PartsDoNotFit(f"{own.recent.path} is given as a recent overlay, and there is no overlay below it")
        for part, kind in ((own.full, "full"), (own.overlay, "overlay"), (own.recent, "overlay")):
            if part is None:
                continue
            head = part.header
            if head.kind != kind:
                raise PartsDoNotFit(f"{part.path} is a part of kind {head.kind}, given as {kind}")
            of_all = kind == "overlay" and (head.partition, head.partitions) == (0, 1)
            if (head.partition, head.partitions) != (partition, partitions) and not of_all:
                raise PartsDoNotFit(
                    f"{part.path} is partition {head.partition} of {head.partitions}, given as {partition} of {partitions}"
                )
            stride = stride_for(dim, head.values)
            if head.dim != dim or head.stride != stride:
                raise PartsDoNotFit(
                    f"{part.path} has dim {head.dim} and stride {head.stride}, not dim {dim} and stride {stride}"
                )
            if head.values != kind_of_values(parts):
                raise PartsDoNotFit(
                    f"{part.path} has its values as {head.values}, other parts of the version as {kind_of_values(parts)}; build "
                    "the version anew"
                )
            if kind == "overlay" and head.base not in {0, own.full.header.version}:
                raise PartsDoNotFit(
                    f"{part.path} lies over version {head.base}, {own.full.path} is of version {own.full.header.version}"
                )


class VersionTable:
    """The mapped parts of one version. Immutable; lookups may run in any number of threads."""

    def __init__(self, version: int, dim: int, partitions: int, parts: Mapping[int, Parts]) -> None:
        """Raises PartsDoNotFit when a part is of another partition, dim, kind or base than it is given as."""
        if partitions < 1 or not 1 <= dim <= MAX_DIM:
            raise PartsDoNotFit(f"dim {dim} over {partitions} partitions is no table")
        if strange := [number for number in parts if not 0 <= number < partitions]:
            raise PartsDoNotFit(f"partition {strange[0]} is not one of {partitions}")
        check_fit(partitions, dim, parts)
        self.version = version
        self.dim = dim
        self.partitions = partitions
        self.parts = dict(parts)
        self.overlays = max((len([part for part in own[1:] if part is not None]) for own in parts.values()), default=0)
        """How many lie over its full parts, at most."""
        self.complete = len(parts) == partitions
        self.held = np.zeros(partitions, np.bool_)
        self.held[list(parts)] = True
        self.reciprocal = np.uint64(0xFFFF_FFFF_FFFF_FFFF // partitions)
        self.values = kind_of_values(parts)
        self._copy = compiled_lookup(dim, stride_for(dim, self.values), values=self.values)
        self.rows = _table_rows(partitions, parts)

    @classmethod
    def open(
        cls, version: int, dim: int, partitions: int, paths: Mapping[int, Paths], *, verify: bool = False
    ) -> "VersionTable":
        """Map the parts of a version. Raises DictionaryDamaged, PartsDoNotFit, OSError."""
        return cls(version, dim, partitions, {number: path.open(verify=verify) for number, path in paths.items()})

    def not_held(self, keys: Keys) -> int | None:
        """Return the partition of the first key that has no part here, or None."""
        if self.complete:
            return None
        numbers = partitions_of(keys, self.partitions)
        absent = ~self.held[numbers.astype(np.int64)] & (keys != np.uint64(PADDING_KEY))
        return int(numbers[np.argmax(absent)]) if absent.any() else None

    def lookup(self, keys: Keys) -> tuple[Values, Flags]:
        """Keys u64[n] to (values f32[n, dim], missing bool[n]). Raises PartitionNotHeld."""
        keys = self._checked(keys)
        values = np.empty((keys.size, self.dim), np.float32)
        missing = np.empty(keys.size, np.uint8)
        places = np.arange(0, keys.size * 4 * self.dim, 4 * self.dim, dtype=np.int64)
        out, scratch = values.reshape(-1).view(np.uint8), np.empty(_SCRATCH, np.uint64)
        self._copy(self.rows, self.reciprocal, self.overlays, keys, keys.size, out, places, missing, scratch)
        return values, missing.view(np.bool_)

    def _checked(self, keys: Keys) -> Keys:
        keys = np.ascontiguousarray(keys)
        if keys.dtype != np.uint64 or keys.ndim != 1:
            raise ValueError(f"keys are {keys.dtype}{keys.shape}; uint64[n] is needed")
        if (partition := self.not_held(keys)) is not None:
            raise PartitionNotHeld(self.version, partition)
        return keys
