"""The log of a Delta table, read from its files: the library of Delta does not give the files with new rows of a commit.

A commit is a JSON file of actions in `_delta_log`, named for its version. A checkpoint is one Parquet file, or several, with all actions
that count as of its version; writers may then delete the commits before it.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Annotated, TypeAlias
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, BeforeValidator, Field, JsonValue

from elastic_ctr.formats.readers.partitions import partition_values
from elastic_ctr.sources.tables.table_log import TableCommit, TableRefused, absent, commits_gone, made_anew
from elastic_ctr.store.backends.backend import NotInStore
from elastic_ctr.store.backends.source import Source

_LOG = "_delta_log"
_NAME = re.compile(r"(\d{20})(?:\.json|\.checkpoint(?:\.\d{10}\.(\d{10}))?\.parquet)")
# Features that change nothing for a reader of whole files, or that are looked for below.
_FEATURES = {
    *("columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview"),
    *("v2Checkpoint", "vacuumProtocolCheck"),
}
# Maps of Parquet are lists of pairs.
_Texts: TypeAlias = Annotated[dict[str, str | None], BeforeValidator(lambda given: dict(given or {}))]


class _File(BaseModel):
    path: str
    size: int | None = None
    time: int | None = Field(None, alias="modificationTime")
    changes_data: bool | None = Field(None, alias="dataChange")
    partition: _Texts = Field({}, alias="partitionValues")
    deleted_rows: JsonValue = Field(None, alias="deletionVector")

    @property
    def refused(self) -> str:
        """Why the rows of the file are not those that the table has of it, "" if they are."""
        if urlsplit(self.path).scheme:
            return f"its file {self.path} is another table's, of which it is a shallow clone"
        if self.deleted_rows:
            return f"its file {self.path} has deleted rows in it (a deletion vector)"
        # Trainers read the columns of partitions from the names of folders, which Spark and delta-rs write.
        if {name: each or "" for name, each in self.partition.items()} != partition_values(unquote(self.path)):
            return f"the folders of its file {self.path} do not name the values of its partition"
        return ""


class _Commit(BaseModel):
    at: int = Field(0, alias="timestamp")
    in_commit_at: int = Field(0, alias="inCommitTimestamp")
    operation: str = ""


class _Metadata(BaseModel):
    configuration: _Texts = {}


class _Protocol(BaseModel):
    features: tuple[str, ...] | None = Field(None, alias="readerFeatures")


class _Action(BaseModel):
    add: _File | None = None
    remove: _File | None = None
    commit: _Commit | None = Field(None, alias="commitInfo")
    metadata: _Metadata | None = Field(None, alias="metaData")
    protocol: _Protocol | None = None
    sidecar: JsonValue = None

    @property
    def refused(self) -> str:
        """Why the files of the table are not its rows from here on, "" if they are."""
        if self.metadata and self.metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
            return "its columns have other names in its files (delta.columnMapping.mode)"
        if self.sidecar:
            return "its checkpoint has files beside it (sidecars), which are not read"
        unknown = {*((self.protocol and self.protocol.features) or ())} - _FEATURES
        return f"it needs {', '.join(sorted(unknown))} of readers" if unknown else ""


class DeltaLog:
    """The log of the Delta table that is the root of a source. Paths of files are relative to it."""

    def __init__(self, url: str, source: Source) -> None:
        self.url = url
        self._source = source

    def newest(self) -> str:
        return str(max(self._files()[0]))

    def mark(self, commit: str) -> str:
        try:
            with self._source.open(f"{_LOG}/{int(commit):020d}.json") as raw:
                return hashlib.sha256(raw.read()).hexdigest()
        except NotInStore:
            return ""

    def since(self, commit: str, mark: str = "") -> Iterator[TableCommit]:
        (commits, _), known = self._files(), int(commit)
        last, now = max(commits), self.mark(commit) if mark else ""
        if last < known or (now and now != mark):
            raise made_anew(self.url, commit)
        for version in range(known + 1, last + 1):
            if version not in commits:
                raise commits_gone(self.url, commit, str(min(each for each in commits if each > version) - 1))
            yield self._commit(version, commits[version])

    def whole(self, commit: str) -> TableCommit:
        (commits, checkpoints), version = self._files(), int(commit)
        begun = max((each for each in checkpoints if each <= version), default=-1)
        if missing := {*range(begun + 1, version + 1), version} - commits.keys():
            raise TableRefused(
                f"version {version} of {self.url} cannot be put together: commit {min(missing)} is gone, and no checkpoint of one or more "
                "Parquet files stands for it; begin with data.start latest"
            )
        actions = [action for name in checkpoints.get(begun, ()) for action in self._checkpoint(name)]
        for each in range(begun + 1, version + 1):
            # Within one commit, a file may be removed and added again with other rows deleted.
            actions += sorted(self._actions(commits[each]), key=lambda action: action.remove is None)
        live: dict[str, _File] = {}
        for action in actions:
            if action.remove is not None:
                live.pop(action.remove.path, None)
            elif action.add is not None:
                live[action.add.path] = action.add
        # The last of each kind counts, but no table goes back to columns under their own names.
        at = self._commit(version, commits[version]).at
        return _commit_of(version, at, "as a whole", actions, live.values())

    def may_follow(self, commit: str, after: str) -> bool:
        return int(commit) > int(after)

    def _files(self) -> tuple[dict[int, str], dict[int, list[str]]]:
        """Return the names of commits and of complete checkpoints, by version. Raises StoreError."""
        commits: dict[int, str] = {}
        checkpoints: dict[tuple[int, int], list[str]] = {}
        for name, _ in self._source.listing(_LOG).files:
            if (found := _NAME.fullmatch(name)) is None:
                continue
            version = int(found[1])
            if name.endswith(".json"):
                commits[version] = name
            else:
                checkpoints.setdefault((version, int(found[2] or 1)), []).append(name)
        if not commits:
            raise NotInStore(
                f"{self.url} has no {_LOG} with commits, so it is no Delta table: is data.source.url right?"
            )
        return commits, {version: names for (version, parts), names in checkpoints.items() if len(names) == parts}

    def _actions(self, name: str) -> list[_Action]:
        with self._source.open(f"{_LOG}/{name}") as raw:
            return [_Action.model_validate_json(line) for line in raw if line.strip()]

    def _checkpoint(self, name: str) -> Iterator[_Action]:
        try:
            import pyarrow as pa
            from pyarrow.parquet import ParquetFile
        except ModuleNotFoundError as missing:
            raise absent(self.url, missing.name) from missing
        with self._source.open(f"{_LOG}/{name}") as raw:
            # Without statistics of columns, which have most of the bytes.
            columns = [f"add.{each.alias or field}" for field, each in _File.model_fields.items()]
            columns += ["metaData.configuration", "protocol.readerFeatures", "sidecar.path"]
            for batch in ParquetFile(pa.PythonFile(raw, "r")).iter_batches(columns=columns):
                yield from map(_Action.model_validate, batch.to_pylist())

    def _commit(self, version: int, name: str) -> TableCommit:
        actions = self._actions(name)
        # A file that is only written anew, as by a compaction, has dataChange false.
        removed = {each.remove.path for each in actions if each.remove is not None and each.remove.changes_data}
        added = [each.add for each in actions if each.add is not None and each.add.changes_data]
        said = next((each.commit for each in actions if each.commit is not None), _Commit())
        at = said.in_commit_at or said.at or max((each.time or 0 for each in added), default=0)
        # A file of before with a deletion vector is not new: it has fewer rows than before.
        new = [each for each in added if each.path not in removed]
        # RESTORE adds files of before again, which were deleted meanwhile.
        removes = bool(removed) or said.operation == "RESTORE"
        return _commit_of(version, at // 1000, said.operation, actions, new, removes=removes)


def _commit_of(
    version: int,
    at: int,
    operation: str,
    actions: Iterable[_Action],
    added: Collection[_File],
    *,
    removes: bool = False,
) -> TableCommit:
    files = {unquote(each.path): each.size or 0 for each in added}
    reasons = [*(each.refused for each in actions), *(each.refused for each in added)]
    return TableCommit(str(version), at, operation, files, removes, next(filter(None, reasons), ""))
