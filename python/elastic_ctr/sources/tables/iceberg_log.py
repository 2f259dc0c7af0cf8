"""The log of an Iceberg table: its snapshots from the catalog by pyiceberg, which reads manifests through the source's own client."""

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.catalog import load_catalog, rest
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, InputStream, OutputFile
from pyiceberg.manifest import FileFormat, ManifestContent, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.typedef import Properties
from requests import PreparedRequest, Response, Session

from elastic_ctr.config.data import DataSource
from elastic_ctr.sources.tables.table_log import TableCommit, TableRefused, commits_gone, made_anew
from elastic_ctr.store.backends import NotInStore, StoreError, StoreUnavailable, open_source
from elastic_ctr.store.backends.source import Source

_SOURCE = "elastic-ctr.source"
_TIMEOUT_SECONDS = 30.0


class _TimedSession(Session):
    def send(self, request: PreparedRequest, **given: Any) -> Response:
        return super().send(request, **{**given, "timeout": given.get("timeout") or _TIMEOUT_SECONDS})


# pyiceberg would wait for a silent catalog for ever, and the master with it, which also looks after pservers meanwhile.
setattr(rest, "Session", _TimedSession)  # noqa: B010 (a name that mypy lets no other class have)


class IcebergLog:
    """The snapshots of the table's main branch. Paths of files are whole addresses."""

    def __init__(self, at: DataSource) -> None:
        self.url = at.url
        name, properties, self._name = _catalog_of(at.url)
        own = {PY_IO_IMPL: f"{__name__}.{SourceIO.__name__}", _SOURCE: at.model_dump_json(by_alias=True)}
        self._io = SourceIO(own)
        # Loaded with the first look, because a catalog may be away when the master starts.
        self._catalog = lru_cache(maxsize=1)(partial(load_catalog, name, **properties, **own))

    def newest(self) -> str:
        chain = self._chain(self._table())
        return str(chain[-1].snapshot_id) if chain else ""

    def mark(self, commit: str) -> str:
        table = self._table()
        known = next((each for each in table.snapshots() if str(each.snapshot_id) == commit), None)
        return f"{table.metadata.table_uuid} {(known and known.sequence_number) or 0}"

    def since(self, commit: str, mark: str = "") -> Iterator[TableCommit]:
        table = self._table()
        chain, (uuid, _, number) = self._chain(table), mark.partition(" ")
        if uuid not in {"", str(table.metadata.table_uuid)}:
            raise made_anew(self.url, commit)
        ids = _ids(chain)
        # Some that expire snapshots take the parent from the oldest kept one. The next number shows that none is between.
        if commit not in ids and chain and int(number or 0) and chain[0].sequence_number == int(number) + 1:
            ids[0] = commit
        if commit not in ids:
            raise commits_gone(self.url, commit, next(filter(None, ids), ""))
        yield from (self._rows(each, of_all=False) for each in chain[ids.index(commit) :])

    def whole(self, commit: str) -> TableCommit:
        found = next((each for each in self._table().snapshots() if str(each.snapshot_id) == commit), None)
        if found is None:
            raise TableRefused(f"{self.url} has no snapshot {commit}; give one that it keeps")
        return self._rows(found, of_all=True)

    def may_follow(self, commit: str, after: str) -> bool:
        ids = _ids(self._chain(self._table()))
        return commit in ids and (after not in ids or ids.index(commit) > ids.index(after))

    def _table(self) -> Table:
        try:
            return self._catalog().load_table(self._name)
        except NoSuchTableError as absent:
            raise NotInStore(
                f"the catalog of {self.url} has no table {self._name}; is data.source.url right?"
            ) from absent
        except StoreError:
            raise
        except Exception as failed:
            raise StoreUnavailable(f"the catalog of {self.url} does not give the table: {failed}") from failed

    def _chain(self, table: Table) -> list[Snapshot]:
        """Return the kept snapshots that led to the present one, the oldest first; [] if nothing was written yet."""
        found, present = [], table.current_snapshot()
        while present is not None:
            found.append(present)
            parent = present.parent_snapshot_id
            present = None if parent is None else table.snapshot_by_id(parent)
        return found[::-1]

    def _rows(self, snapshot: Snapshot, *, of_all: bool) -> TableCommit:
        files: dict[str, int] = {}
        removes, refused, deletes = False, "", 0
        operation = None if snapshot.summary is None else snapshot.summary.operation
        # `replace` writes rows again that the table has.
        manifests = [] if operation == Operation.REPLACE and not of_all else snapshot.manifests(self._io)
        for manifest in manifests:
            if not (of_all or manifest.added_snapshot_id == snapshot.snapshot_id):
                continue
            for entry in manifest.fetch_manifest_entry(self._io, discard_deleted=of_all):
                if not of_all and (
                    entry.snapshot_id != snapshot.snapshot_id or entry.status == ManifestEntryStatus.EXISTING
                ):
                    continue
                if manifest.content == ManifestContent.DELETES:
                    deletes += 1
                elif entry.status == ManifestEntryStatus.DELETED:
                    removes = True
                else:
                    files[entry.data_file.file_path] = entry.data_file.file_size_in_bytes
                    if entry.data_file.file_format != FileFormat.PARQUET:
                        refused = (
                            f"its file {entry.data_file.file_path} is {entry.data_file.file_format.value}, not Parquet"
                        )
        if of_all and deletes:
            refused = f"{deletes} files of deletes take rows out of its data files"
        at = snapshot.timestamp_ms // 1000
        word = "" if operation is None else operation.value
        return TableCommit(str(snapshot.snapshot_id), at, word, files, removes or (deletes > 0 and not of_all), refused)


def _ids(chain: list[Snapshot]) -> list[str]:
    """Return the ids of snapshots behind that of the first one's parent, which may have expired; it is "" for the table's beginning."""
    before = chain[0].parent_snapshot_id if chain else None
    return ["" if before is None else str(before), *(str(each.snapshot_id) for each in chain)]


def _catalog_of(url: str) -> tuple[str, dict[str, str], str]:
    """Return the name of pyiceberg's catalog, what is not in its configuration, and the table with its namespace."""
    parts = urlsplit(url)
    path, _, table = parts.path.rpartition("/")
    if parts.scheme == "iceberg":
        return parts.netloc, {}, table
    scheme = "https" if parts.port in {None, 443} else "http"
    return "rest", {"type": "rest", "uri": f"{scheme}://{parts.netloc}{path}"}, table


class SourceIO(FileIO):
    """Read-only. pyiceberg makes it of the properties of a catalog, where the settings of the source are."""

    def __init__(self, properties: Properties) -> None:
        super().__init__(properties)
        self._source = open_source(DataSource.model_validate_json(properties[_SOURCE]))

    def new_input(self, location: str) -> InputFile:
        return _SourceFile(self._source, location)

    def new_output(self, location: str) -> OutputFile:
        raise NotImplementedError(f"{location}: the source is only read")

    def delete(self, location: str | InputFile | OutputFile) -> None:
        raise NotImplementedError(f"{location}: the source is only read")


class _SourceFile(InputFile):
    def __init__(self, source: Source, location: str) -> None:
        super().__init__(location)
        self._source = source

    def __len__(self) -> int:
        return self._source.size(self.location)

    def exists(self) -> bool:
        return self._source.exists(self.location)

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002 (pyiceberg's own signature)
        return self._source.open(self.location)
