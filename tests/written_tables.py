"""Tables that their own libraries write: Delta by deltalake, Iceberg by pyiceberg with a catalog in SQLite."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _FastAppendFiles, _OverwriteFiles
from pyiceberg.typedef import Record
from pyiceberg.utils.config import Config

from elastic_ctr.config.data import DataSource
from elastic_ctr.store.backends import open_source

SCHEMA = pa.schema([("id", pa.int64()), ("click", pa.int64()), ("tag", pa.string())])


def rows(ids: Iterable[int]) -> pa.Table:
    found = [{"id": number, "click": int(number % 3 == 0), "tag": f"t{number % 7}"} for number in ids]
    return pa.Table.from_pylist(found, SCHEMA)


class WrittenTable(Protocol):
    """A table of clicks with a column `id`, at the address `url`."""

    url: str

    def append(self, *ids: int) -> str:
        """In one commit, whose id is returned."""

    def compact(self) -> None:
        """Write all rows into one file again."""

    def delete(self, where: str) -> str: ...

    def expire(self) -> None:
        """Forget all commits but the last."""

    def remake(self) -> None:
        """Another table at the same address, with as many commits."""


class WrittenDelta:
    def __init__(self, folder: Path, _: pytest.MonkeyPatch) -> None:
        self.folder = folder / "delta"
        self.url = f"delta+file://{self.folder}"
        self.append()

    def append(self, *ids: int) -> str:
        write_deltalake(self.folder, rows(ids), mode="append")
        return self.newest()

    def newest(self) -> str:
        return str(self.table.version())

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.folder)

    def compact(self) -> None:
        self.table.optimize.compact()

    def delete(self, where: str) -> str:
        self.table.delete(where)
        return self.newest()

    def expire(self) -> None:
        self.table.create_checkpoint()
        for commit in sorted((self.folder / "_delta_log").glob("*.json"))[:-1]:
            commit.unlink()

    def remake(self) -> None:
        commits = self.table.version()
        for file in sorted(self.folder.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        for _ in range(commits + 1):
            self.append()


class WrittenIceberg:
    name = "db.clicks"

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        place = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        for key, value in {"type": "sql", **place}.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{key.upper()}", value)
        # pyiceberg reads the environment once in a process.
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
        self.url = f"iceberg://lake/{self.name}"
        self.begin(SqlCatalog("lake", **place))

    def begin(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.catalog.create_namespace("db")
        self.catalog.create_table(self.name, SCHEMA)

    @property
    def table(self) -> Any:
        return self.catalog.load_table(self.name)

    def newest(self) -> str:
        return str(self.table.current_snapshot().snapshot_id)

    def append(self, *ids: int) -> str:
        self.table.append(rows(ids))
        return self.newest()

    def compact(self) -> None:
        table = self.table
        old, now = [each.file for each in table.scan().plan_files()], table.scan().to_arrow()
        with table.transaction() as writing, _Rewrite(Operation.OVERWRITE, writing, table.io) as rewrite:
            for file in old:
                rewrite.delete_data_file(file)
            for file in _dataframe_to_data_files(table.metadata, now, table.io):
                rewrite.append_data_file(file)

    def delete(self, where: str) -> str:
        self.table.delete(where)
        return self.newest()

    def expire(self) -> None:
        ids = [each.snapshot_id for each in self.table.snapshots()][:-1]
        self.table.maintenance.expire_snapshots().by_ids(ids).commit()

    def remake(self) -> None:
        commits = len(self.table.snapshots())
        self.catalog.drop_table(self.name)
        self.catalog.create_table(self.name, SCHEMA)
        for number in range(commits + 1):
            self.append(number)

    def delete_by_position(self) -> str:
        """Delete a row by a file of positions, as Flink and Trino do; pyiceberg writes none."""
        table = self.table
        file = DataFile.from_args(
            content=DataFileContent.POSITION_DELETES,
            file_path=f"{table.location()}/data/deletes.parquet",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=1,
            file_size_in_bytes=1,
        )
        file.spec_id = table.metadata.default_spec_id
        with table.transaction() as writing, _RowDelta(Operation.APPEND, writing, table.io) as deletes:
            deletes.append_data_file(file)
        return self.newest()


class _DeletesWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _RowDelta(_FastAppendFiles):
    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        schema = self._transaction.table_metadata.schema()
        return _DeletesWriter(spec, schema, self.new_manifest_output(), self._snapshot_id, "deflate")


class _Rewrite(_OverwriteFiles):
    """A compaction, as Spark's rewrite_data_files commits it; pyiceberg writes no `replace` of its own."""

    def _summary(self, *given: Any) -> Summary:
        return Summary(Operation.REPLACE, **super()._summary(*given).additional_properties)


KINDS: dict[str, Callable[[Path, pytest.MonkeyPatch], WrittenTable]] = {
    "delta": WrittenDelta,
    "iceberg": WrittenIceberg,
}


def ids_in(url: str, files: Iterable[str]) -> Counter[int]:
    """The ids of the rows in files, as a trainer opens them."""
    source, found = open_source(DataSource(url=url)), Counter[int]()
    for path in files:
        with source.open(path) as raw:
            found.update(pq.read_table(pa.PythonFile(raw, "r"), columns=["id"])["id"].to_pylist())
    return found
