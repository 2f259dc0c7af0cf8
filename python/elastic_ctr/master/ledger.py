"""The master's durable state: one SQLite file in write-ahead mode, owned by one process.

States of a pass: waiting -> checking -> checked -> training -> evaluating -> saving -> done, or stopped with a reason. A task's
state is that of the present epoch of its pass: todo, leased, done, or parked.

A checkpoint holds all passes up to its own. One made in `mid` pass also names the epoch, and `kept` has the state of each task.
"""

import json
import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

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


_SUMS = {
    **{name: f"sum({name})" for name in ("records", "shows", "clicks", "ignored", "padding", "repeated")},
    "tasks": "count(*)",
    "done": "sum(state = 'done')",
    "trained": "sum(case when trained > 0 then records else 0 end)",
    "parked_tasks": "sum(state = 'parked')",
    "parked": "sum(case when state = 'parked' and trained = 0 then records else 0 end)",
}
_TOTALS = ("files", "records", "refused", "trained", "repeated")
_HISTOGRAMS = ("positives", "negatives")
# Columns of a task that change with its training.
_KEPT = "state, trained, repeated, positives, negatives"
_SUMS_OF_TASKS = ", ".join(f"coalesce({sql}, 0)" for sql in _SUMS.values())


def not_written(failed: sqlite3.OperationalError) -> str:
    """What an operator is told, and callers are; none of it is an end."""
    return f"the ledger cannot be written ({failed}): make room where it is, or enlarge master.persistence.size; it is tried again"


class Ledger:
    """The one owner of the file. Every public method is one transaction; callers hold the coordinator's lock."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = full")
        self._db.executescript(SCHEMA)
        self._depth = 0
        # A transaction has failed: what callers keep in memory may be ahead of the file. Theirs to take back.
        self.torn = False

    def close(self) -> None:
        self._db.close()

    # Nested `with ledger:` blocks are one transaction: all of it or nothing survives a crash.
    def __enter__(self) -> Self:
        if self._depth == 0:
            with self._tearing():
                self._db.execute("begin immediate")
        self._depth += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        if kind is None:
            with self._tearing():
                self._db.execute("commit")
            return
        self.torn = self.torn or issubclass(kind, sqlite3.OperationalError)
        self._go_back()

    @contextmanager
    def _tearing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError:
            self.torn = True
            self._go_back()
            raise

    def _go_back(self) -> None:
        # On a full disk SQLite may have gone back by itself.
        if self._db.in_transaction:
            self._db.execute("rollback")

    def _all(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._db.execute(sql, values).fetchall()

    def _one(self, sql: str, *values: Any) -> tuple[Any, ...] | None:
        found = self._db.execute(sql, values).fetchone()
        return None if found is None else tuple(found)

    def _do(self, sql: str, *values: Any) -> int:
        with self:
            return self._db.execute(sql, values).rowcount

    # -- facts -----------------------------------------------------------------------------------------------------

    def get(self, key: str, default: Any = None) -> Any:
        found = self._one("select value from facts where key = ?", key)
        return default if found is None else json.loads(found[0])

    def set_fact(self, key: str, value: Any) -> None:
        self._do("insert or replace into facts values (?, ?)", key, json.dumps(value))

    def increment(self, key: str, by: int = 1) -> int:
        value = int(self.get(key, 0)) + by
        self.set_fact(key, value)
        return value

    # -- passes ----------------------------------------------------------------------------------------------------

    def passes(self) -> list[PassRow]:
        return [PassRow.of(row) for row in self._all(f"select {PassRow.COLUMNS} from passes order by ordinal")]

    def current_pass(self) -> PassRow | None:
        """The first that is not done: passes are worked off in order."""
        row = self._one(f"select {PassRow.COLUMNS} from passes where state != 'done' order by ordinal limit 1")
        return None if row is None else PassRow.of(row)

    def add_pass(self, ordinal: int, name: str, splits: Sequence[str], event_time_max: int, *, ends_day: bool) -> None:
        self._do(
            "insert into passes (ordinal, id, splits, event_time_max, ends_day, state) values (?, ?, ?, ?, ?, 'waiting')",
            ordinal,
            name,
            json.dumps(list(splits)),
            event_time_max,
            int(ends_day),
        )

    def drop_pass(self, ordinal: int) -> None:
        """One that is waited for, with what was found in it should it have been stopped before."""
        with self._keeping_totals():
            self._db.execute("delete from passes where ordinal = ? and state = 'waiting'", (ordinal,))
            for table in ("files", "tasks", "refusals", "samples"):
                self._db.execute(f"delete from {table} where pass = ?", (ordinal,))

    def set_pass(self, ordinal: int, **columns: Any) -> None:
        sets = ", ".join(f"{column} = ?" for column in columns)
        self._do(f"update passes set {sets} where ordinal = ?", *columns.values(), ordinal)

    def fill_pass(self, ordinal: int, files: Mapping[str, int], tasks: Iterable[tuple[str, str, int, int]]) -> None:
        """The files found in a complete pass and the tasks they are cut into; ready to be checked."""
        with self._keeping_totals():
            self._db.execute("delete from files where pass = ?", (ordinal,))
            for table in ("tasks", "refusals", "samples"):
                self._db.execute(f"delete from {table} where pass = ?", (ordinal,))
            self._db.executemany("insert into files values (?, ?, ?)", [(ordinal, *each) for each in files.items()])
            self._db.executemany(
                "insert into tasks (id, pass, path, start, stop, state) values (?, ?, ?, ?, ?, 'todo')",
                [(name, ordinal, path, start, stop) for name, path, start, stop in tasks],
            )
            self.set_pass(ordinal, state="checking", epoch=0, reason="")

    def took(self, ordinal: int, seconds: Mapping[str, float]) -> None:
        """Seconds of each stage of a pass, for the status and the benches."""
        rounded = {name: round(taken, 3) for name, taken in seconds.items()}
        self.set_fact(f"seconds-{ordinal}", {**self.get(f"seconds-{ordinal}", {}), **rounded})

    def seconds_by_pass(self) -> dict[int, dict[str, float]]:
        rows = self._all("select key, value from facts where key >= 'seconds-' and key < 'seconds.'")
        return {int(key.removeprefix("seconds-")): json.loads(value) for key, value in rows}

    # -- tasks -----------------------------------------------------------------------------------------------------

    def tasks(self, ordinal: int, state: str | None = None) -> list[TaskRow]:
        where, values = ("", ()) if state is None else (" and state = ?", (state,))
        rows = self._all(f"select {TaskRow.COLUMNS} from tasks where pass = ?{where} order by rowid", ordinal, *values)
        return [TaskRow.of(row) for row in rows]

    def task_of_attempt(self, attempt: str) -> TaskRow | None:
        row = self._one(f"select {TaskRow.COLUMNS} from tasks where attempt = ? and state = 'leased'", attempt)
        return None if row is None else TaskRow.of(row)

    def leased(self) -> list[TaskRow]:
        return [TaskRow.of(row) for row in self._all(f"select {TaskRow.COLUMNS} from tasks where state = 'leased'")]

    def exclude_downtime(self, now: float, lease_seconds: float) -> None:
        """From when a trainer was last heard until now there was nobody whom it could tell that its task is done."""
        self._do(
            "update tasks set leased_at = leased_at + max(0, ? - (lease_ends - ?))"
            " where state = 'leased' and leased_at is not null",
            now,
            lease_seconds,
        )

    def lease(self, task: str, trainer: int, attempt: str, since: float | None, ends: float) -> None:
        """`since` None: it waits its turn, until `start_next_task`."""
        self._do(
            "update tasks set state = 'leased', trainer = ?, attempt = ?, leased_at = ?, lease_ends = ?, running = 0"
            " where id = ?",
            trainer,
            attempt,
            since,
            ends,
            task,
        )

    def start_next_task(self, trainer: int, now: float) -> None:
        """A trainer has ended a task: from now on it is at the one that it had leased ahead."""
        self._do(
            "update tasks set leased_at = ? where state = 'leased' and trainer = ? and leased_at is null", now, trainer
        )

    def renew(self, attempts: Iterable[str], running: str, now: float, ends: float) -> None:
        """The one that is running for the first time has begun now."""
        with self:
            for attempt in attempts:
                runs = int(attempt == running)
                self._db.execute(
                    "update tasks set lease_ends = ?, leased_at = case when ? > running then ? else leased_at end,"
                    " running = max(running, ?) where attempt = ? and state = 'leased'",
                    (ends, runs, now, runs, attempt),
                )

    def give_back(
        self, task: TaskRow, *, error: str, failed: bool, repeated: int, park_at: int, lost: bool = False
    ) -> bool:
        """A task that was not done goes to another trainer, or is parked: once it has `failed`, or has `lost` its
        trainer, `park_at` times in a row. Returns whether it was parked.
        """
        attempts, losses = task.attempts + int(failed), task.losses + int(lost)
        parked = (failed and attempts >= park_at) or (lost and losses >= park_at)
        self._do(
            "update tasks set state = ?, attempts = ?, losses = ?, error = ?, trainer = null, attempt = '', running = 0,"
            " repeated = repeated + ? where id = ?",
            "parked" if parked else "todo",
            attempts,
            losses,
            error,
            repeated,
            task.id,
        )
        return parked

    def checked(
        self,
        task: TaskRow,
        counts: Mapping[str, int],
        refused: Iterable[tuple[str, int, Sequence[str]]],
        samples: Iterable[tuple[str, int, int]],
        histograms: tuple[Histogram, Histogram],
    ) -> None:
        """Counts of lines by kind, refusals (reason, lines, examples), sample lines (line, show, click)."""
        with self:
            self._db.execute(
                "update tasks set state = 'done', checked = 1, attempts = 0, losses = 0, error = '', records = ?, shows = ?, clicks = ?,"
                " ignored = ?, padding = ?, positives = ?, negatives = ? where id = ?",
                (
                    *(counts[k] for k in ("records", "shows", "clicks", "ignored", "padding")),
                    *map(packed, histograms),
                    task.id,
                ),
            )
            self._db.execute("delete from refusals where task = ?", (task.id,))
            self._db.execute("delete from samples where task = ?", (task.id,))
            self._db.executemany(
                "insert into refusals values (?, ?, ?, ?, ?)",
                [(task.id, task.ordinal, reason, lines, json.dumps(list(each))) for reason, lines, each in refused],
            )
            self._db.executemany(
                "insert into samples values (?, ?, ?, ?, ?, ?)",
                [(task.id, task.ordinal, position, *sample) for position, sample in enumerate(samples)],
            )

    def trained(self, task: TaskRow, histograms: tuple[Histogram, Histogram], *, rounds: int = 1) -> None:
        """Done in a round of training, or with `rounds` 0 in one that only looks."""
        self._do(
            "update tasks set state = 'done', attempts = 0, losses = 0, error = '', trained = trained + ?, positives = ?, negatives = ?"
            " where id = ?",
            rounds,
            *map(packed, histograms),
            task.id,
        )

    def next_round(self, ordinal: int) -> None:
        """All tasks with records are to be done again; the others stay done."""
        self._do(
            "update tasks set state = case when records > 0 then 'todo' else 'done' end, attempts = 0, losses = 0"
            " where pass = ?",
            ordinal,
        )

    def histograms(self, ordinal: int) -> tuple[Histogram, Histogram] | None:
        """Sums over the tasks of a pass of what the last round found."""
        rows = self._all("select positives, negatives from tasks where pass = ? and records > 0", ordinal)
        if not rows or any(row[0] is None for row in rows):
            return None
        return (
            np.sum([unpacked(row[0]) for row in rows], axis=0),
            np.sum([unpacked(row[1]) for row in rows], axis=0),
        )

    def counts(self, ordinal: int | None = None) -> dict[str, int]:
        """files, lines' fates and tasks of one pass, or of all."""
        where, values = ("", ()) if ordinal is None else (" where pass = ?", (ordinal,))
        sums = self._one(f"select {_SUMS_OF_TASKS} from tasks{where}", *values)
        refused = self._one(f"select coalesce(sum(lines), 0) from refusals{where}", *values)
        files = self._one(f"select count(*) from files{where}", *values)
        if sums is None or refused is None or files is None:
            raise AssertionError("a sum is one row")
        return {**dict(zip(_SUMS, sums, strict=True)), "refused": refused[0], "files": files[0]}

    @contextmanager
    def _keeping_totals(self) -> Iterator[None]:
        """A transaction that takes back what was counted: `totals` keep it."""
        with self:
            before = self.counts()
            yield
            after = self.counts()
            for name in _TOTALS:
                if (less := before[name] - after[name]) > 0:
                    self.increment(f"taken_back_{name}", less)

    def totals(self) -> dict[str, int]:
        """What was ever counted, also in passes that were read or trained again: these numbers only grow."""
        counts = self.counts()
        return {name: counts[name] + int(self.get(f"taken_back_{name}", 0)) for name in _TOTALS}

    def counts_by_pass(self, first: int) -> Mapping[int, dict[str, int]]:
        """The same of each pass from `first` on, in as many queries as of one. A pass that found nothing has zeros."""
        found: defaultdict[int, dict[str, int]] = defaultdict(lambda: dict.fromkeys((*_SUMS, "refused", "files"), 0))
        where = "where pass >= ? group by pass"
        for ordinal, *sums in self._all(f"select pass, {_SUMS_OF_TASKS} from tasks {where}", first):
            found[ordinal].update(zip(_SUMS, sums, strict=True))
        for name, sums_of in (("refused", "sum(lines) from refusals"), ("files", "count(*) from files")):
            for ordinal, total in self._all(f"select pass, {sums_of} {where}", first):
                found[ordinal][name] = total
        return found

    def unpublished(self) -> int:
        """Records of the passes after the last one that made a version."""
        row = self._one(
            "select coalesce(sum(records), 0) from tasks"
            " where pass > (select coalesce(max(pass), 0) from versions where state = 'published')"
        )
        return int(row[0]) if row else 0

    def refusals(self, ordinal: int) -> dict[str, tuple[int, list[str]]]:
        """Reason -> (lines, first examples) of a pass."""
        found: dict[str, tuple[int, list[str]]] = {}
        for reason, lines, examples in self._all(
            "select reason, lines, examples from refusals where pass = ?", ordinal
        ):
            seen, first = found.get(reason, (0, []))
            found[reason] = (seen + lines, (first + json.loads(examples))[:3])
        return found

    def worst_file(self, ordinal: int) -> str:
        """The file of a pass with the most refused lines, as `path (lines)`; empty where none was refused."""
        row = self._one(
            "select path, sum(lines) from refusals join tasks on tasks.id = task where refusals.pass = ?"
            " group by path order by 2 desc, 1 limit 1",
            ordinal,
        )
        return "" if row is None else f"{row[0]} ({row[1]})"

    def samples(self, ordinal: int) -> list[list[tuple[str, int, int]]]:
        """Offered sample lines by task: (line without show and click, show, click)."""
        by_task: dict[str, list[tuple[str, int, int]]] = {}
        rows = self._all("select task, line, show, click from samples where pass = ? order by task, position", ordinal)
        for task, *sample in rows:
            by_task.setdefault(task, []).append((sample[0], sample[1], sample[2]))
        return list(by_task.values())

    def has_samples(self, last: int) -> bool:
        """Whether any pass up to this one has a sample line."""
        return self._one("select 1 from samples where pass <= ? limit 1", last) is not None

    def forget(self) -> None:
        """What nobody asks for again, or the file would grow with every record ever seen.

        Of passes that are done: histograms, and what their saves were made of. Sample lines of all passes that no recovery
        comes back to, but for the last of these that has any: those after it may be without. A checkpoint in mid pass may be
        passed by: where there is no other, a recovery may come back to the start.
        """
        with self:
            slim = ", ".join(row[1] for row in self._all("pragma table_info(tasks)") if row[1] not in _HISTOGRAMS)
            # Not updated but put in anew: SQLite joins pages that have become empty only where rows are deleted.
            self._db.execute(
                f"replace into tasks ({slim}) select {slim} from tasks where positives is not null"
                " and pass in (select ordinal from passes where state = 'done') order by rowid"
            )
            self._db.execute("update saves set result = null, jobs = '{}' where stage = 'done' and result is not null")
            self._db.execute(
                "delete from samples where pass <"
                " (select max(pass) from samples where pass <= "
                " (select case when sum(mid is null) > 0 then min(pass) end from checkpoints))"
            )

    # -- saves, versions, checkpoints ------------------------------------------------------------------------------

    def save_of(self, ordinal: int) -> SaveRow | None:
        row = self._one(
            f"select {SaveRow.COLUMNS} from saves where pass = ?",
            ordinal,
        )
        return None if row is None else SaveRow.of(row)

    def begin_save(self, save: SaveRow) -> None:
        """The intent stands before the first step: steps change the table and are never repeated."""
        self._do(
            "insert or replace into saves (pass, generation, stage, steps, kind, version, checkpoint, began_at)"
            " values (?, ?, ?, ?, ?, ?, ?, ?)",
            save.ordinal,
            save.generation,
            save.stage,
            json.dumps(list(save.steps)),
            save.kind,
            save.version,
            save.checkpoint,
            save.began_at,
        )

    def set_save(self, ordinal: int, **columns: Any) -> None:
        sets = ", ".join(f"{column} = ?" for column in columns)
        self._do(f"update saves set {sets} where pass = ?", *columns.values(), ordinal)

    def drop_saves(self, after: int) -> None:
        self._do("delete from saves where pass >= ?", after)

    def add_version(
        self,
        version: int,
        kind: str,
        base: int,
        parent: int | None,
        ordinal: int,
        state: str,
        keys: int,
        at: float,
        reason: str = "",
    ) -> None:
        self._do(
            "insert or replace into versions values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            version,
            kind,
            base,
            parent,
            ordinal,
            state,
            keys,
            at,
            reason,
        )

    def abandon_versions(self, after: int) -> None:
        """Still servable, never a parent."""
        self._do("update versions set state = 'abandoned' where id > ? and state = 'published'", after)

    def versions(self) -> list[dict[str, Any]]:
        names = ("id", "kind", "base", "parent", "pass", "state", "keys", "at", "reason")
        return [dict(zip(names, row, strict=True)) for row in self._all("select * from versions order by id")]

    def chain(self) -> list[int]:
        """The published versions that the next delta stands on, its base first; empty without a base."""
        by_id = {each["id"]: each for each in self.versions()}
        last = self.get("follows")
        chain: list[int] = []
        while last is not None:
            chain.append(last)
            last = by_id[last]["parent"] if last in by_id else None
        return chain[::-1]

    def add_checkpoint(
        self,
        name: str,
        ordinal: int,
        follows: int | None,
        base: int | None,
        at: float,
        *,
        mid: Mapping[str, Any] | None = None,
    ) -> None:
        """`mid` of the pass: the columns (state, epoch, trained_at) that the pass goes on with; its tasks are kept as they are."""
        with self:
            self._do(
                "insert or replace into checkpoints (name, pass, follows, base, at, mid) values (?, ?, ?, ?, ?, ?)",
                name,
                ordinal,
                follows,
                base,
                at,
                None if mid is None else json.dumps(dict(mid)),
            )
            self._db.execute("delete from kept where checkpoint = ?", (name,))
            if mid is not None:
                self._db.execute(
                    f"insert into kept (checkpoint, task, {_KEPT}) select ?, id, {_KEPT} from tasks where pass = ?",
                    (name, ordinal),
                )

    def checkpoints(self) -> list[dict[str, Any]]:
        """Those to come back to, oldest first. `mid` is None for one of a whole pass."""
        names = ("name", "pass", "follows", "base", "at", "mid")
        rows = self._all(f"select {', '.join(names)} from checkpoints where damaged is null order by pass, at")
        found = [dict(zip(names, row, strict=True)) for row in rows]
        return [{**row, "mid": row["mid"] and json.loads(row["mid"])} for row in found]

    def damaged_checkpoints(self) -> list[dict[str, Any]]:
        """Those that were set aside, oldest first."""
        names = ("name", "pass", "damaged")
        rows = self._all(f"select {', '.join(names)} from checkpoints where damaged is not null order by pass, at")
        return [dict(zip(names, row, strict=True)) for row in rows]

    def set_aside(self, name: str, reason: str) -> None:
        """No recovery comes back to this checkpoint any more."""
        self._do("update checkpoints set damaged = ? where name = ?", reason, name)

    def remove_checkpoint(self, name: str) -> None:
        with self:
            self._db.execute("delete from checkpoints where name = ?", (name,))
            self._db.execute("delete from kept where checkpoint = ?", (name,))

    # -- recoveries ------------------------------------------------------------------------------------------------

    def roll_back(self, ordinal: int, mid: Mapping[str, Any] | None = None) -> int:
        """Forget all training after pass `ordinal`, or after a checkpoint (its row) in the middle of that pass. What was found
        while checking stays. Returns the records trained in vain, a record once a task.
        """
        name = "" if mid is None else str(mid["name"])
        with self._keeping_totals():
            if mid is not None:
                ordinal -= 1
            lost = self._one(
                "select coalesce(sum(records), 0) from tasks left join kept on checkpoint = ? and task = id"
                " where pass > ? and tasks.trained > coalesce(kept.trained, 0)",
                name,
                ordinal,
            )
            self._db.execute("update tasks set trained = 0, repeated = 0 where pass > ?", (ordinal,))
            self._db.execute(
                "update passes set state = 'checked', epoch = 0, auc = null, trained_at = null, done_at = null,"
                " version = null where ordinal > ? and state in ('checked', 'training', 'evaluating', 'saving', 'done')",
                (ordinal,),
            )
            self._db.execute(
                "update tasks set state = 'todo', trainer = null, attempt = '', running = 0 where state = 'leased'"
            )
            self._db.execute("delete from saves where pass > ?", (ordinal,))
            if mid is not None:
                self._bring_back(ordinal + 1, name, mid["mid"])
        return int(lost[0]) if lost else 0

    def _bring_back(self, ordinal: int, checkpoint: str, columns: Mapping[str, Any]) -> None:
        """A pass and its tasks as they were when a checkpoint was made in its middle; one that is stopped stays so."""
        current = next((one for one in self.passes() if one.ordinal == ordinal), None)
        if current is not None and current.state == "checked":
            self.set_pass(ordinal, **columns)
            self._db.execute(
                f"update tasks set ({_KEPT}) = (select {_KEPT} from kept where checkpoint = ? and task = tasks.id),"
                " attempts = 0, losses = 0, error = '' where pass = ?",
                (checkpoint, ordinal),
            )

    def add_recovery(self, role: str, reason: str, at: float, rolled_back: int) -> None:
        self._do(
            "insert into recoveries (role, reason, at, rolled_back) values (?, ?, ?, ?)", role, reason, at, rolled_back
        )

    def end_recoveries(self, now: float) -> None:
        self._do("update recoveries set seconds = ? - at where seconds is null", now)

    def recoveries(self) -> list[dict[str, Any]]:
        names = ("role", "reason", "at", "seconds", "rolled_back")
        rows = self._all("select role, reason, at, seconds, rolled_back from recoveries order by id")
        return [dict(zip(names, row, strict=True)) for row in rows]
