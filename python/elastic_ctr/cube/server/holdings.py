"""The loaded parts of a server: a set of (version, partition), all of one dim and number of partitions. Immutable.

The parent has `Assignments`, which name files; a worker has `Holdings`, the same files opened.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from elastic_ctr.cube.dictionary.format import DictionaryPart
from elastic_ctr.cube.dictionary.table import Paths, VersionTable
from elastic_ctr.cube.server.lookup_counters import MAX_VERSIONS
from elastic_ctr.formats.value_kind import ValueKind


class DoesNotFit(ValueError):
    """A part cannot be loaded beside the loaded ones; the text has the reason and the way out."""


@dataclass(frozen=True)
class Assignment:
    """The files of one version; place is its column among the counters."""

    dim: int
    partitions: int
    place: int
    parts: dict[int, Paths]

    @cached_property
    def files(self) -> frozenset[Path]:
        return frozenset(path for paths in self.parts.values() for path in paths.files())


_VERSIONS = TypeAdapter(dict[int, Assignment])


@dataclass(frozen=True)
class Assignments:
    versions: Mapping[int, Assignment] = field(default_factory=dict)

    def by_version(self) -> dict[int, list[int]]:
        return {version: sorted(own.parts) for version, own in sorted(self.versions.items())}

    def loaded(self, version: int, dim: int, partitions: int, parts: Mapping[int, Paths]) -> "Assignments":
        """Return these with parts added, which replace earlier ones of the same partitions. Raises DoesNotFit."""
        for other, theirs in self.versions.items():
            if (theirs.dim, theirs.partitions) != (dim, partitions):
                raise DoesNotFit(
                    f"version {version} has dim {dim} over {partitions} partitions, version {other} that is held has "
                    f"dim {theirs.dim} over {theirs.partitions}; unload {other} first"
                )
        own = self.versions.get(version)
        if own is not None:
            return self._with(version, replace(own, parts={**own.parts, **parts}))
        taken = {theirs.place for theirs in self.versions.values()}
        place = next((number for number in range(MAX_VERSIONS) if number not in taken), None)
        if place is None:
            raise DoesNotFit(f"{MAX_VERSIONS} versions are held already; unload some before version {version}")
        return self._with(version, Assignment(dim, partitions, place, dict(parts)))

    def unloaded(self, version: int, partitions: Iterable[int] | None = None) -> "Assignments":
        """Return these without partitions of the version (None: all of them); partitions that are not loaded are ignored."""
        own = self.versions.get(version)
        if own is None:
            return self
        gone = set(own.parts if partitions is None else partitions)
        rest = {number: paths for number, paths in own.parts.items() if number not in gone}
        if rest:
            return self._with(version, replace(own, parts=rest))
        return Assignments({other: theirs for other, theirs in self.versions.items() if other != version})

    @cached_property
    def files(self) -> frozenset[Path]:
        return frozenset().union(*(own.files for own in self.versions.values()))

    def partitions_of(self, files: Collection[Path]) -> dict[int, list[int]]:
        """Return by version the partitions that one of these files answers for."""
        found = {
            version: [number for number, paths in own.parts.items() if not set(files).isdisjoint(paths.files())]
            for version, own in self.versions.items()
        }
        return {version: numbers for version, numbers in found.items() if numbers}

    def without(self, files: Collection[Path]) -> "Assignments":
        """Return these without the partitions that one of the files answers for."""
        rest = self
        for version, numbers in self.partitions_of(files).items():
            rest = rest.unloaded(version, numbers)
        return rest

    def adds_to(self, before: "Assignments") -> bool:
        """True if a file is assigned that was not assigned before."""

        def adds(own: Assignment, known: Assignment | None) -> bool:
            # A stream has dozens of versions that do not change, so compare identity first.
            return known is not own and (known is None or not own.parts.items() <= known.parts.items())

        return any(adds(own, before.versions.get(version)) for version, own in self.versions.items())

    def to_json(self, before: "Assignments") -> dict[str, Any]:
        """Encode for a worker that has `before`: the versions that differ, and the numbers of those that are the same."""
        kept = [version for version, own in self.versions.items() if before.versions.get(version) is own]
        others = {version: own for version, own in self.versions.items() if version not in set(kept)}
        return {"versions": _VERSIONS.dump_python(others, mode="json"), "kept": kept}

    @classmethod
    def from_json(cls, document: Mapping[str, Any], before: "Assignments") -> "Assignments":
        """Raises KeyError for a kept version that `before` lacks."""
        kept = {version: before.versions[version] for version in document["kept"]}
        return cls({**kept, **_VERSIONS.validate_python(document["versions"])})

    def _with(self, version: int, own: Assignment) -> "Assignments":
        return Assignments({**self.versions, version: own})


@dataclass(frozen=True)
class Holdings:
    """Open tables by version, and the column of each version among the counters."""

    tables: Mapping[int, VersionTable] = field(default_factory=dict)
    places: Mapping[int, int] = field(default_factory=dict)
    assigned: Assignments = field(default_factory=Assignments)

    @property
    def dim(self) -> int:
        """The values of a key; 0 while no version is loaded."""
        return next((table.dim for table in self.tables.values()), 0)

    @property
    def values(self) -> ValueKind | None:
        """The format of values in all versions, None if they differ; float32 while no version is loaded."""
        kinds = {table.values for table in self.tables.values()} or {"float32"}
        return kinds.pop() if len(kinds) == 1 else None

    @property
    def partitions(self) -> int:
        """The number of partitions; 0 while no version is loaded."""
        return next((table.partitions for table in self.tables.values()), 0)

    @classmethod
    def of(cls, *tables: VersionTable) -> "Holdings":
        return cls({table.version: table for table in tables}, {table.version: at for at, table in enumerate(tables)})

    def changed(self, assigned: Assignments) -> "Holdings":
        """Return the holdings of the assigned parts, after opening and verifying the files that are not open yet.

        Raises DictionaryDamaged, PartsDoNotFit, OSError.
        """
        mapped = {
            part.path: part for table in self.tables.values() for pair in table.parts.values() for part in pair if part
        }

        def opened(path: Path) -> DictionaryPart:
            if path not in mapped:
                mapped[path] = DictionaryPart.open(path, verify=True)
            return mapped[path]

        def table(version: int, own: Assignment) -> VersionTable:
            if self.assigned.versions.get(version) == own:
                return self.tables[version]
            parts = {number: paths.parts(opened) for number, paths in own.parts.items()}
            return VersionTable(version, own.dim, own.partitions, parts)

        tables = {version: table(version, own) for version, own in assigned.versions.items()}
        return Holdings(tables, {version: own.place for version, own in assigned.versions.items()}, assigned)
