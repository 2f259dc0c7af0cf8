"""The ledger's file: its schema, its row of single values, and the reading and writing of rows."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from elastic_ctr.runtime.sqlite_file import SqliteFile, tables
from elastic_ctr.training.master.ledger.rows import Columns, Facts, PassRow, SaveRow, TaskRow

# The name of the file in the state folder of the master.
LEDGER = "ledger.db"
T = TypeVar("T", bound=PassRow | TaskRow | SaveRow)
R = TypeVar("R")
_SCHEMA = """
create table if not exists facts (id integer primary key check (id = 1), value text not null);
create table if not exists passes (
  ordinal integer primary key, id text not null unique, splits text not null, event_time_max integer not null,
  ends_day integer not null, state text not null default 'waiting', epoch integer not null default 0,
  reason text not null default '', auc_before real, auc real, training_at real, trained_at real, done_at real,
  version integer, seconds text not null default '{}');
create index if not exists passes_not_done on passes (ordinal) where state != 'done';
create table if not exists files (pass integer not null, path text not null, bytes integer not null,
  primary key (pass, path));
create table if not exists tasks (
  id text primary key, pass integer not null, path text not null, start integer not null, stop integer not null,
  state text not null, failures integer not null default 0, lost_leases integer not null default 0,
  attempt text not null default '', trainer integer,
  lease_ends real not null default 0, leased_at real, running integer not null default 0,
  checked integer not null default 0,
  records integer not null default 0, shows integer not null default 0, clicks integer not null default 0,
  ignored integer not null default 0, padding integer not null default 0, trained integer not null default 0,
  repeated integer not null default 0, positives blob, negatives blob, error text not null default '');
create index if not exists tasks_by_pass on tasks (pass, state);
create table if not exists refusals (task text not null, pass integer not null, reason text not null,
  lines integer not null, examples text not null, primary key (task, reason));
create index if not exists refusals_by_pass on refusals (pass);
create table if not exists sample_lines (task text primary key, pass integer not null, data blob not null);
create index if not exists sample_lines_by_pass on sample_lines (pass);
create table if not exists saves (
  pass integer primary key, generation integer not null, steps text not null, kind text, version integer,
  checkpoint text, began_at real not null, stage text not null, saved blob, written blob);
create table if not exists versions (
  id integer primary key, kind text not null, base integer not null, parent integer, pass integer not null,
  state text not null, keys integer not null, at real not null, reason text not null default '');
create table if not exists checkpoints (
  name text primary key, pass integer not null, follows integer, base integer, at real not null, mid text,
  damaged text);
create table if not exists logs (checkpoint text primary key, stands_on text not null);
create table if not exists kept (
  checkpoint text not null, task text not null, state text not null, trained integer not null, repeated integer not null,
  positives blob, negatives blob, primary key (checkpoint, task));
create table if not exists collected (task text primary key, pass integer not null, records integer not null, data blob not null);
create index if not exists collected_by_pass on collected (pass);
create table if not exists collected_series (task text not null, place integer not null, pass integer not null, data blob not null,
  primary key (task, place));
create index if not exists collected_series_by_pass on collected_series (pass);
create table if not exists learning (pass integer primary key, document text not null);
create table if not exists groups (task text primary key, pass integer not null, slot text not null, data blob not null);
create index if not exists groups_by_pass on groups (pass);
create table if not exists held_out (task text primary key, pass integer not null, records integer not null);
create index if not exists held_out_by_pass on held_out (pass);
create table if not exists qualities (pass integer not null, moment text not null, document text not null,
  primary key (pass, moment));
create table if not exists table_rows (pass integer primary key, document text not null);
create table if not exists touched (task text primary key, pass integer not null, data blob not null, counts blob not null);
create index if not exists touched_by_pass on touched (pass);
create table if not exists left_out (pass integer not null, path text not null, offset integer not null, reason text not null,
  task text not null, primary key (pass, path, offset));
create table if not exists further (task text not null, place integer not null, pass integer not null, path text not null,
  start integer not null, stop integer not null, primary key (task, place));
create index if not exists further_by_pass on further (pass);
create table if not exists refused_files (task text not null, pass integer not null, path text not null, lines integer not null,
  primary key (task, path));
create index if not exists refused_files_by_pass on refused_files (pass);
create table if not exists drifts (pass integer primary key, columns text not null);
create table if not exists recoveries (
  id integer primary key autoincrement, role text not null, reason text not null, at real not null, seconds real,
  rolled_back integer not null default 0);
"""

# The first schema has `if not exists`, because releases that wrote no schema number have its tables, or some of them.
MIGRATIONS = (tables(_SCHEMA),)
SCHEMA = len(MIGRATIONS)
# Tables whose rows of a pass are deleted when the pass is listed anew.
OF_PASS = (
    *("files", "tasks", "refusals", "sample_lines", "collected", "collected_series", "drifts"),
    *("learning", "held_out", "qualities", "table_rows", "touched", "left_out", "further", "refused_files"),
)

_READERS: dict[type, TypeAdapter[Any]] = {
    PassRow: TypeAdapter(list[PassRow]),
    TaskRow: TypeAdapter(list[TaskRow]),
    SaveRow: TypeAdapter(list[SaveRow]),
}


def _columns_of(kind: type) -> str:
    """Return the columns of a row class. The field `ordinal` is the column `pass`, except in the table of passes."""
    ordinal = "ordinal" if kind is PassRow else "pass as ordinal"
    return ", ".join(ordinal if field.name == "ordinal" else field.name for field in fields(kind))


_COLUMNS = {kind: _columns_of(kind) for kind in _READERS}


def not_written(failed: sqlite3.OperationalError) -> str:
    """Return the message for operators and callers while writes fail. The master keeps retrying."""
    return f"the ledger cannot be written ({failed}): make room where it is, or enlarge master.persistence.size; it is tried again"


class LedgerDamaged(ValueError):
    """The ledger's file is corrupt. The message has the way out."""


@contextmanager
def naming_damage(path: Path) -> Iterator[None]:
    """Raises LedgerDamaged if SQLite finds corrupt pages. An OperationalError, such as a full disk, passes through."""
    try:
        yield
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as failed:
        raise LedgerDamaged(
            f"the ledger {path} is damaged ({failed}), and training ends here; versions that are published go on answering. Put a copy of "
            f"it back, without {path.name}-wal and {path.name}-shm beside it; or begin another model, in an empty folder (--dir) or release"
        ) from failed


class LedgerFile(SqliteFile):
    """The file without the meaning of its tables."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, MIGRATIONS)
        self.db.row_factory = sqlite3.Row
        # Cache of the last row read of each class: its columns and the parsed object. It is looked up by the columns in the file, so a
        # rolled-back transaction invalidates it, too.
        self._last_read: dict[type, tuple[tuple[Any, ...], Any]] = {}

    @property
    def facts(self) -> Facts:
        row = self.one("select value from facts")
        return Facts() if row is None else self._read_once(Facts, tuple(row), lambda: Facts.model_validate_json(row[0]))

    def set_facts(self, **values: Any) -> None:
        facts = Facts.model_validate({**dict(self.facts), **values})
        self.do("insert or replace into facts values (1, ?)", facts.model_dump_json())

    def increment(self, name: str, by: int = 1) -> int:
        value = int(getattr(self.facts, name)) + by
        self.set_facts(**{name: value})
        return value

    def dicts(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        return [dict(row) for row in self.all(sql, *values)]

    def rows(self, kind: type[T], source: str, *values: Any) -> list[T]:
        """Return rows as objects of a class in `rows`; `source` is the SQL after `from`."""
        rows: list[T] = _READERS[kind].validate_python(self.dicts(f"select {_COLUMNS[kind]} from {source}", *values))
        return rows

    def row(self, kind: type[T], source: str, *values: Any) -> T | None:
        """Return the first such row, or None."""
        found = self.one(f"select {_COLUMNS[kind]} from {source} limit 1", *values)
        if found is None:
            return None
        columns = tuple(found)
        return self._read_once(kind, columns, lambda: _READERS[kind].validate_python([dict(found)])[0])

    def _read_once(self, kind: type[R], columns: tuple[Any, ...], parse: Callable[[], R]) -> R:
        known = self._last_read.get(kind)
        if known is None or known[0] != columns:
            self._last_read[kind] = known = columns, parse()
        read: R = known[1]
        return read

    def insert(self, table: str, row: Columns, verb: str = "replace") -> None:
        columns = ["pass" if name == "ordinal" and table != "passes" else name for name in row]
        self.do(f"{verb} into {table} ({', '.join(columns)}) values ({', '.join('?' * len(row))})", *row.values())

    def update(self, table: str, columns: Columns, where: str, *values: Any) -> None:
        sets = ", ".join(f"{column} = ?" for column in columns)
        self.do(f"update {table} set {sets} where {where}", *columns.values(), *values)
