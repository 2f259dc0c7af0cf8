"""A reader of cube without a server: it maps the parts from files of this machine."""

from collections.abc import Iterable, Mapping

from elastic_ctr.cube.client.connection import VersionNotHeld, as_keys
from elastic_ctr.cube.dictionary.format import Flags, Keys, Values
from elastic_ctr.cube.dictionary.table import Offsets, PartitionNotHeld, Paths, VersionTable


class LocalTable:
    """As `CubeClient`, from files. Lookups take microseconds and do not yield."""

    def __init__(self, dim: int, partitions: int) -> None:
        self.dim = dim
        self.partitions = partitions
        self._tables: dict[int, VersionTable] = {}

    def set_parts(self, versions: Mapping[int, Mapping[int, Paths]]) -> None:
        """Hold exactly these files: version to partition to paths. Those open already stay open.

        Raises DictionaryDamaged, PartsDoNotFit, OSError; then nothing has changed.
        """
        tables = {}
        for version, paths in versions.items():
            before = self._tables.get(version)
            if before is not None and {number: _paths_of(before, number) for number in before.parts} == dict(paths):
                tables[version] = before
            else:
                tables[version] = VersionTable.open(version, self.dim, self.partitions, paths)
        self._tables = tables

    async def lookup(self, version: int, keys: Keys) -> tuple[Values, Flags]:
        """As `CubeClient.lookup`. Raises VersionNotHeld."""
        keys = as_keys(keys)
        try:
            return self._table(version).lookup(keys)
        except PartitionNotHeld as absent:
            raise VersionNotHeld(version, str(absent)) from absent

    def lookup_pooled(self, version: int, keys: Keys, offsets: Offsets, out: Values | None = None) -> Values:
        """As `VersionTable.lookup_pooled`. Raises VersionNotHeld."""
        try:
            return self._table(version).lookup_pooled(as_keys(keys), offsets, out)
        except PartitionNotHeld as absent:
            raise VersionNotHeld(version, str(absent)) from absent

    async def keep_alive(self, versions: Iterable[int]) -> dict[int, set[str]]:
        """Nothing to do: these parts stay mapped."""
        return {version: set() for version in versions}

    async def close(self) -> None:
        self._tables = {}

    def _table(self, version: int) -> VersionTable:
        table = self._tables.get(version)
        if table is None:
            raise VersionNotHeld(version, "none of its parts are mapped here")
        return table


def _paths_of(table: VersionTable, partition: int) -> Paths:
    return Paths._make(None if part is None else part.path for part in table.parts[partition])
