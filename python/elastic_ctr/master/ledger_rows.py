"""The tables of the ledger, and what one row of each says.

States of a pass: waiting -> checking -> checked -> training -> evaluating -> saving -> done, or stopped with a reason. A task's state
is about its pass's present round: todo, leased, done, or parked. What a round found stays in the task's columns.

A checkpoint is of all passes up to its own, or was made in `mid` pass: then it says in which round, and `kept` what of each task.
"""

import json
import zlib
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

Histogram = npt.NDArray[np.float64]

SCHEMA = """
create table if not exists facts (key text primary key, value text not null);
create table if not exists passes (
  ordinal integer primary key, id text not null unique, splits text not null, event_time_max integer not null,
  ends_day integer not null, state text not null, epoch integer not null default 0, reason text not null default '',
  auc_before real, auc real, trained_at real, done_at real, version integer);
create table if not exists files (pass integer not null, path text not null, bytes integer not null,
  primary key (pass, path));
create table if not exists tasks (
  id text primary key, pass integer not null, path text not null, start integer not null, stop integer not null,
  state text not null, attempts integer not null default 0, losses integer not null default 0,
  attempt text not null default '', trainer integer,
  lease_ends real, leased_at real, running integer not null default 0, checked integer not null default 0,
  records integer not null default 0, shows integer not null default 0, clicks integer not null default 0,
  ignored integer not null default 0, padding integer not null default 0, trained integer not null default 0,
  repeated integer not null default 0, positives blob, negatives blob, error text not null default '');
create index if not exists tasks_by_pass on tasks (pass, state);
create table if not exists refusals (task text not null, pass integer not null, reason text not null,
  lines integer not null, examples text not null, primary key (task, reason));
create table if not exists samples (task text not null, pass integer not null, position integer not null,
  line text not null, show integer not null, click integer not null, primary key (task, position));
create index if not exists refusals_by_pass on refusals (pass);
create index if not exists samples_by_pass on samples (pass);
create table if not exists saves (
  pass integer primary key, generation integer not null, stage text not null, steps text not null, kind text,
  version integer, checkpoint text, result blob, jobs text not null default '{}', began_at real not null);
create table if not exists versions (
  id integer primary key, kind text not null, base integer not null, parent integer, pass integer not null,
  state text not null, keys integer not null, at real not null, reason text not null default '');
create table if not exists checkpoints (
  name text primary key, pass integer not null, follows integer, base integer, at real not null, mid text,
  damaged text);
create table if not exists kept (
  checkpoint text not null, task text not null, state text not null, trained integer not null, repeated integer not null,
  positives blob, negatives blob, primary key (checkpoint, task));
create table if not exists recoveries (
  id integer primary key autoincrement, role text not null, reason text not null, at real not null, seconds real,
  rolled_back integer not null default 0);
"""

ADDED = (
    ("tasks", "losses", "integer not null default 0"),
    ("checkpoints", "mid", "text"),
    ("checkpoints", "damaged", "text"),
)
"""Columns (table, name, type) that a ledger of an older master lacks."""


@dataclass(frozen=True)
class PassRow:
    """One pass as the ledger has it."""

    COLUMNS: ClassVar[str] = (
        "ordinal, id, splits, event_time_max, ends_day, state, epoch, reason, auc_before, auc, trained_at, done_at, version"
    )

    ordinal: int
    id: str
    splits: tuple[str, ...]
    event_time_max: int
    ends_day: bool
    state: str
    epoch: int
    reason: str
    auc_before: float | None
    auc: float | None
    trained_at: float | None
    done_at: float | None
    version: int | None

    @staticmethod
    def of(row: tuple[Any, ...]) -> "PassRow":
        """A row of COLUMNS."""
        ordinal, name, splits, event_time_max, ends_day, *rest = row
        return PassRow(ordinal, name, tuple(json.loads(splits)), event_time_max, bool(ends_day), *rest)


@dataclass(frozen=True)
class TaskRow:
    """One task as the ledger has it, without its histograms. attempts, losses: in a row, in its pass's present round.

    leased_at: since when its trainer is at it; None while that works on another one and has leased this one ahead.
    """

    COLUMNS: ClassVar[str] = (
        "id, pass, path, start, stop, state, attempts, losses, attempt, trainer, coalesce(lease_ends, 0),"
        " leased_at, running, records, trained"
    )

    id: str
    ordinal: int
    path: str
    start: int
    stop: int
    state: str
    attempts: int
    losses: int
    attempt: str
    trainer: int | None
    lease_ends: float
    leased_at: float | None
    running: bool
    records: int
    trained: int

    @staticmethod
    def of(row: tuple[Any, ...]) -> "TaskRow":
        """A row of COLUMNS."""
        *before, running, records, trained = row
        return TaskRow(*[*before, bool(running), records, trained])


@dataclass(frozen=True)
class SaveRow:
    """What is being saved after a pass. stage: ordered -> begun -> saved -> written -> exported -> scored -> done."""

    COLUMNS: ClassVar[str] = "pass, generation, stage, steps, kind, version, checkpoint, result, jobs, began_at"

    ordinal: int
    generation: int
    stage: str
    steps: tuple[str, ...]
    kind: str | None
    version: int | None
    checkpoint: str | None
    result: bytes | None
    jobs: dict[str, str]
    began_at: float

    @staticmethod
    def of(row: tuple[Any, ...]) -> "SaveRow":
        """A row of COLUMNS."""
        ordinal, generation, stage, steps, *middle, jobs, began_at = row
        return SaveRow(ordinal, generation, stage, tuple(json.loads(steps)), *[*middle, json.loads(jobs), began_at])


def packed(histogram: Histogram) -> bytes:
    """As it stands in a column: little-endian f64, deflated; most buckets are empty."""
    return zlib.compress(np.ascontiguousarray(histogram, "<f8").tobytes(), 1)


def unpacked(blob: bytes) -> Histogram:
    return np.frombuffer(zlib.decompress(blob), "<f8").astype(np.float64)
