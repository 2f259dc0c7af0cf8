"""Dictionary parts for tests, and what they should answer."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from elastic_ctr.cube.builder.part import PartIdentity, build_full, build_overlay
from elastic_ctr.cube.dictionary.format import Keys, Values
from elastic_ctr.cube.dictionary.table import Paths, VersionTable
from elastic_ctr.formats.value_kind import ValueKind

MAX_KEY = 2**64 - 1
SPECIAL_KEYS = (0, 1, 2**63 - 1, 2**63, 2**64 - 2, MAX_KEY)


def as_keys(keys: Sequence[int]) -> Keys:
    return np.array(list(keys), np.uint64)


def values_for(keys: Keys, dim: int, version: int = 1) -> Values:
    """Values that tell key, version and position apart; no two versions share one."""
    low = (keys % np.uint64(9973)).astype(np.float32)
    return (low[:, None] + np.float32(10_000 * version) + np.arange(dim, dtype=np.float32) / 16).astype(np.float32)


def of_partition(keys: Keys, partition: int, partitions: int) -> Keys:
    own: Keys = keys[keys % np.uint64(partitions) == partition]
    return own


def write_parts(
    folder: Path,
    keys: Keys,
    *,
    dim: int = 4,
    version: int = 1,
    partitions: int = 1,
    overlay_keys: Keys | None = None,
    deletions: Keys | None = None,
    overlay_version: int | None = None,
    only: Sequence[int] | None = None,
    values: ValueKind = "float32",
    recent_keys: Keys | None = None,
    recent_deletions: Keys | None = None,
) -> dict[int, Paths]:
    """Parts with values_for(keys, version); with overlay_keys an overlay with those of overlay_version on top, and with recent_keys a
    recent one with those of the version after that.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths: dict[int, Paths] = {}
    for partition in range(partitions) if only is None else only:
        own = of_partition(keys, partition, partitions)
        full = build_full(
            [(own, values_for(own, dim, version))],
            folder / f"part-{partition:05d}.dict",
            PartIdentity(version, partition, partitions, dim, values=values),
        )
        newer = version + 1 if overlay_version is None else overlay_version
        overlays = [
            build_overlay(
                [],
                [(above, values_for(above, dim, number))],
                folder / f"overlay-{number}-{partition:05d}.dict",
                PartIdentity(number, partition, partitions, dim, version, values),
                [] if gone is None else [of_partition(gone, partition, partitions)],
            ).path
            for number, changed, gone in ((newer, overlay_keys, deletions), (newer + 1, recent_keys, recent_deletions))
            if changed is not None
            for above in [of_partition(changed, partition, partitions)]
        ]
        paths[partition] = Paths.of(full.path, *overlays)
    return paths


def write_table(
    folder: Path, keys: Keys, *, dim: int = 4, version: int = 1, partitions: int = 1, values: ValueKind = "float32"
) -> VersionTable:
    paths = write_parts(folder, keys, dim=dim, version=version, partitions=partitions, values=values)
    return VersionTable.open(version, dim, partitions, paths)


def expected(keys: Keys, known: Mapping[int, Values], dim: int) -> tuple[Values, list[bool]]:
    """What an answer must be, key by key: known maps a key to its values."""
    rows = [known.get(int(key)) if key != 0 else None for key in keys]
    zeros = np.zeros(dim, np.float32)
    values = np.array([zeros if row is None else row for row in rows], np.float32).reshape(len(rows), dim)
    return values, [row is None and key != 0 for row, key in zip(rows, keys, strict=True)]
