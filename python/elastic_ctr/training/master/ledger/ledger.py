"""The master's durable state, of which one process is the owner.

A checkpoint includes all passes up to its own. A mid-pass one also has columns of its pass in `mid`, and those of tasks in `kept`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from elastic_ctr.features.statistics.collector import StatisticsPart as CollectedPart
from elastic_ctr.features.statistics.collector import part_name
from elastic_ctr.training.master.ledger.counts import LedgerCounts, total_of
from elastic_ctr.training.master.ledger.figures import LedgerQuality
from elastic_ctr.training.master.ledger.further import LedgerFurther
from elastic_ctr.training.master.ledger.ledger_learning import LedgerLearning
from elastic_ctr.training.master.ledger.ledger_left_out import LedgerLeftOut
from elastic_ctr.training.master.ledger.ledger_table import LedgerTable
from elastic_ctr.training.master.ledger.rows import (
    Columns,
    DriftRow,
    Histogram,
    Pass,
    PassRow,
    SaveRow,
    TaskRow,
    packed,
    unpacked,
)
from elastic_ctr.training.master.ledger.samples import LedgerSamples, Sample
from elastic_ctr.training.master.ledger.touched import LedgerTouched

_DRIFTS = 100
_HISTOGRAMS = ("positives", "negatives")
# Columns of a task that training changes.
_KEPT = "state, trained, repeated, positives, negatives"
# Tables whose rows of a pass are deleted when the pass is listed anew.
_OF_PASS = (
    *("files", "tasks", "refusals", "sample_lines", "collected", "collected_series", "drifts"),
    *("learning", "held_out", "qualities", "table_rows", "touched", "left_out", "further", "refused_files"),
)
_CLEAN = "failures = 0, lost_leases = 0, error = ''"


class Ledger(
    LedgerCounts, LedgerFurther, LedgerLearning, LedgerLeftOut, LedgerQuality, LedgerSamples, LedgerTable, LedgerTouched
):
    """The only owner of the file. Every public method is one transaction. Callers need the coordinator's lock."""

    # -- passes ----------------------------------------------------------------------------------------------------

    def passes(self) -> list[PassRow]:
        return self._rows(PassRow, "passes order by ordinal")

    def last_passes(self, count: int) -> list[PassRow]:
        return self._rows(PassRow, "passes order by ordinal desc limit ?", count)[::-1]

    def count_passes(self) -> int:
        return int(self._one("select count(*) from passes")[0])

    def current_pass(self) -> PassRow | None:
        """Return the first pass that is not done, or None. Passes are trained in order."""
        return self._row(PassRow, "passes where state != 'done' order by ordinal")

    def passes_after(self, ordinal: int) -> list[PassRow]:
        return self._rows(PassRow, "passes where ordinal > ? order by ordinal", ordinal)

    def last_pass(self) -> PassRow | None:
        return self._row(PassRow, "passes order by ordinal desc")

    def add_pass(self, one: Pass) -> None:
        self._insert("passes", {**vars(one), "splits": json.dumps(one.splits)}, "insert")

    def drop_pass(self, ordinal: int) -> None:
        """Delete a waiting pass, and its content if it was listed before."""
        with self._keeping_totals(ordinal):
            self._db.execute("delete from passes where ordinal = ? and state = 'waiting'", (ordinal,))
            self._empty_pass(ordinal)

    def _empty_pass(self, ordinal: int) -> None:
        for table in _OF_PASS:
            # Records that an operator skips (task '') stay skipped.
            but = " and task != ''" if table == "left_out" else ""
            self._db.execute(f"delete from {table} where pass = ?{but}", (ordinal,))

    def set_pass(self, ordinal: int, /, **columns: Any) -> None:
        self._update("passes", columns, "ordinal = ?", ordinal)

    def fill_pass(
        self,
        ordinal: int,
        files: Mapping[str, int],
        tasks: Iterable[tuple[str, str, int, int]],
        *,
        state: str = "checking",
    ) -> None:
        """Set the files of a complete pass and its tasks, which are then to be checked or analyzed."""
        with self._keeping_totals(ordinal):
            self._empty_pass(ordinal)
            self._db.executemany("insert into files values (?, ?, ?)", [(ordinal, *each) for each in files.items()])
            self._db.executemany(
                "insert into tasks (id, pass, path, start, stop, state) values (?, ?, ?, ?, ?, 'todo')",
                [(name, ordinal, path, start, stop) for name, path, start, stop in tasks],
            )
            self.set_pass(ordinal, state=state, epoch=0, reason="")

    def begin_micro_pass(self, ordinal: int, ranges: Sequence[str], event_time_max: int, *, ends_day: bool) -> None:
        """Set the offsets of a pass of a stream."""
        columns = {"splits": json.dumps(ranges), "event_time_max": event_time_max, "ends_day": ends_day}
        self.set_pass(ordinal, **columns)

    def lost_offsets(self, count: int) -> None:
        """Count offsets that the stream deleted before their task read them."""
        places = self.facts.stream
        if places is not None:
            self.set_facts(stream=places.model_copy(update={"gone": places.gone + count}))

    def took(self, ordinal: int, seconds: Mapping[str, float]) -> None:
        """Add the seconds of stages of a pass, for the status and the benchmarks."""
        rounded = {name: round(taken, 3) for name, taken in seconds.items()}
        self._do("update passes set seconds = json_patch(seconds, ?) where ordinal = ?", json.dumps(rounded), ordinal)

    # -- tasks -----------------------------------------------------------------------------------------------------

    def tasks(self, ordinal: int, state: str | None = None) -> list[TaskRow]:
        where, values = ("", ()) if state is None else (" and state = ?", (state,))
        return self._rows(TaskRow, f"tasks where pass = ?{where} order by rowid", ordinal, *values)

    def task_of_attempt(self, attempt: str) -> TaskRow | None:
        return self._row(TaskRow, "tasks where attempt = ? and state = 'leased'", attempt)

    def leased(self) -> list[TaskRow]:
        return self._rows(TaskRow, "tasks where state = 'leased'")

    def exclude_downtime(self, now: float, lease_seconds: float) -> None:
        """Exclude the time since each trainer's last renewal from its task's time: while the master was down, it could not report."""
        self._do(
            "update tasks set leased_at = leased_at + max(0, ? - (lease_ends - ?))"
            " where state = 'leased' and leased_at is not null",
            now,
            lease_seconds,
        )

    def lease(self, task: str, trainer: int, attempt: str, since: float | None, ends: float) -> None:
        """Lease a task. `since` None: it was leased ahead and waits for `start_next_task`."""
        row = {"state": "leased", "trainer": trainer, "attempt": attempt, "leased_at": since, "lease_ends": ends}
        self._update("tasks", {**row, "running": 0}, "id = ?", task)

    def start_next_task(self, trainer: int, now: float) -> None:
        """Start the clock of the task that the trainer had leased ahead, because it has ended another one."""
        self._update("tasks", {"leased_at": now}, "state = 'leased' and trainer = ? and leased_at is null", trainer)

    def renew(self, attempts: Iterable[str], running: str, now: float, ends: float) -> None:
        """Renew leases. The time of the attempt `running` starts now if it was not running before."""
        with self:
            for attempt in attempts:
                runs = int(attempt == running)
                self._db.execute(
                    "update tasks set lease_ends = ?, leased_at = case when ? > running then ? else leased_at end,"
                    " running = max(running, ?) where attempt = ? and state = 'leased'",
                    (ends, runs, now, runs, attempt),
                )

    def give_back(
        self,
        task: TaskRow,
        *,
        error: str,
        failed: bool = False,
        lost: bool = False,
        repeated: int = 0,
        park_at: int = 0,
    ) -> bool:
        """Release an unfinished task for another trainer, or park it once it has `failed`, or has `lost` its trainer, `park_at` times in a
        row. Return True if it was parked.
        """
        failures, lost_leases = task.failures + int(failed), task.lost_leases + int(lost)
        parked = (failed and failures >= park_at) or (lost and lost_leases >= park_at)
        row = {
            "state": "parked" if parked else "todo",
            "failures": failures,
            "lost_leases": lost_leases,
            "error": error,
        }
        with self:
            self._update("tasks", {**row, "trainer": None, "attempt": "", "running": 0}, "id = ?", task.id)
            self._do("update tasks set repeated = repeated + ? where id = ?", repeated, task.id)
        return parked

    def checked(
        self,
        task: TaskRow,
        counts: Mapping[str, int],
        refused: Iterable[tuple[str, int, Sequence[str]]],
        samples: Iterable[Sample],
        histograms: tuple[Histogram, Histogram],
        collected: CollectedPart | None = None,
        refused_of: Mapping[str, int] | None = None,
    ) -> None:
        """Take the result of a check: counts of lines by kind, refusals (reason, lines, examples), sample lines, histograms, collected
        statistics if there are any, and refused lines by file if the task has several.
        """
        with self:
            found = dict(zip(_HISTOGRAMS, map(packed, histograms), strict=True))
            self._update("tasks", {"state": "done", "checked": 1, **counts, **found}, "id = ?", task.id)
            self._do(f"update tasks set {_CLEAN} where id = ?", task.id)
            self._set_samples(task, samples)
            self._refused(task, refused, refused_of)
            if collected is not None:
                self._collected(task, counts["records"], collected)

    def analyzed(
        self,
        task: TaskRow,
        records: int,
        refused: Iterable[tuple[str, int, Sequence[str]]],
        collected: CollectedPart,
        refused_of: Mapping[str, int] | None = None,
    ) -> None:
        """Take the statistics of a task's columns. The later check counts records and refusals again."""
        with self:
            self._do(f"update tasks set state = 'done', {_CLEAN} where id = ?", task.id)
            self._refused(task, refused, refused_of)
            self._collected(task, records, collected)

    def _refused(
        self, task: TaskRow, found: Iterable[tuple[str, int, Sequence[str]]], refused_of: Mapping[str, int] | None
    ) -> None:
        refused = list(found)
        lines = sum(count for _, count, _ in refused)
        self._set_refused_files(task, refused_of or ({task.path: lines} if lines else {}))
        self._db.execute("delete from refusals where task = ?", (task.id,))
        self._db.executemany(
            "insert into refusals values (?, ?, ?, ?, ?)",
            [(task.id, task.ordinal, reason, lines, json.dumps(list(each))) for reason, lines, each in refused],
        )

    def _collected(self, task: TaskRow, records: int, part: CollectedPart) -> None:
        self._insert("collected", {"task": task.id, "ordinal": task.ordinal, "records": records, "data": part.head})
        self._db.execute("delete from collected_series where task = ?", (task.id,))
        self._db.executemany(
            "insert into collected_series values (?, ?, ?, ?)",
            [(task.id, place, task.ordinal, data) for place, data in enumerate(part.series)],
        )

    def trained(self, task: TaskRow, histograms: tuple[Histogram, Histogram], *, epochs: int = 1) -> None:
        """Mark a task as done in an epoch of training, or, with `epochs` 0, in a walk that only predicts."""
        self._do(
            f"update tasks set state = 'done', {_CLEAN}, trained = trained + ?, positives = ?, negatives = ? where id = ?",
            epochs,
            *map(packed, histograms),
            task.id,
        )

    def next_epoch(self, ordinal: int) -> None:
        """Reset all tasks with records to todo; the others stay done."""
        self._do(
            "update tasks set state = case when records > 0 then 'todo' else 'done' end, failures = 0, lost_leases = 0"
            " where pass = ?",
            ordinal,
        )

    def records(self, ordinal: int) -> int:
        """Return the number of records of a pass, including held-out ones."""
        [records] = self._one("select coalesce(sum(records), 0) from tasks where pass = ?", ordinal)
        return int(records)

    def histograms(self, ordinal: int) -> tuple[Histogram, Histogram] | None:
        """Return the sums of the histograms of all tasks in the last epoch, or None if one has none."""
        rows = self._all("select positives, negatives from tasks where pass = ? and records > 0", ordinal)
        if not rows or any(row[0] is None for row in rows):
            return None
        positives, negatives = (np.sum([unpacked(blob) for blob in blobs], axis=0) for blobs in zip(*rows, strict=True))
        return positives, negatives

    def unpublished(self) -> int:
        """Return the number of records of the passes after the last one that made a version."""
        [records] = self._one(
            "select coalesce(sum(records), 0) from tasks"
            " where pass > (select coalesce(max(pass), 0) from versions where state = 'published')"
        )
        return int(records)

    def refusals(self, ordinal: int) -> dict[str, tuple[int, list[str]]]:
        """Return reason -> (lines, first examples) of a pass."""
        found: dict[str, tuple[int, list[str]]] = {}
        rows = self._all("select reason, lines, examples from refusals where pass = ?", ordinal)
        for reason, lines, examples in rows:
            seen, first = found.get(reason, (0, []))
            found[reason] = (seen + lines, (first + json.loads(examples))[:3])
        return found

    def worst_file(self, ordinal: int) -> str:
        """Return the file of a pass with the most refused lines, as `path (lines)`; "" if no line was refused."""
        row = self._one(
            "select path, sum(lines) from refused_files where pass = ? group by path order by 2 desc, 1 limit 1",
            ordinal,
        )
        return "" if row is None else f"{row[0]} ({row[1]})"

    def forget(self) -> None:
        """Delete data that no later step reads, or the file would grow without bound.

        These are the histograms, samples of groups and save results of done passes, and sample lines before the oldest checkpoint.
        """
        with self:
            slim = ", ".join(row[1] for row in self._all("pragma table_info(tasks)") if row[1] not in _HISTOGRAMS)
            # Rows are replaced, not updated, because SQLite merges half-empty pages only after deletions.
            self._db.execute(
                f"replace into tasks ({slim}) select {slim} from tasks where positives is not null"
                " and pass in (select ordinal from passes where state = 'done') order by rowid"
            )
            self._db.execute("delete from groups where pass in (select ordinal from passes where state = 'done')")
            self._db.execute("update saves set saved = null, written = null where stage = 'done' and saved is not null")
            self._forget_samples()

    def drop_passes(self, before: int) -> None:
        """Delete the passes before this one, which are done and to which no recovery returns. Their counts are kept, and the versions that
        the next delta depends on.
        """
        with self:
            facts, counts = self.facts, self.counts_by_pass(0, before - 1)
            [passes] = self._one("select count(*) from passes where ordinal < ?", before)
            dropped = total_of(counts, facts.dropped)
            kept = [*self.chain(), *(each["follows"] for each in self.checkpoints() if each["follows"] is not None)]
            for table in (*_OF_PASS, "saves"):
                if table not in ("sample_lines", "touched"):
                    self._db.execute(f"delete from {table} where pass < ?", (before,))
            self._db.execute("delete from passes where ordinal < ?", (before,))
            self._db.execute(
                f"delete from versions where pass < ? and id not in ({', '.join('?' * len(kept))})", (before, *kept)
            )
            self.set_facts(dropped=dropped, dropped_passes=facts.dropped_passes + passes)

    # -- statistics of the columns ---------------------------------------------------------------------------------

    def collected_records(self, ordinal: int) -> int | None:
        """Return the number of records of the tasks with collected columns, or None if there is no such task."""
        [records] = self._one("select sum(records) from collected where pass = ?", ordinal)
        return None if records is None else int(records)

    def collected(self, ordinal: int) -> dict[str, tuple[str, bytes]]:
        """Return (task, head) of each collected part, by the part's name. `collected_series` has the rest of a part."""
        rows = self._db.execute(
            "select path, start, task, data from collected join tasks on tasks.id = task where collected.pass = ?",
            (ordinal,),
        )
        # Equal heads share one object.
        heads: dict[bytes, bytes] = {}
        return {part_name(path, start): (task, heads.setdefault(head, head)) for path, start, task, head in rows}

    def collected_series(self, task: str, place: int) -> bytes | None:
        """Return one series of a part, or None if it was dropped in the meantime."""
        row = self._one("select data from collected_series where task = ? and place = ?", task, place)
        return None if row is None else bytes(row[0])

    def drop_collected(self, ordinal: int) -> None:
        with self:
            self._db.execute("delete from collected where pass = ?", (ordinal,))
            self._db.execute("delete from collected_series where pass = ?", (ordinal,))

    def begin_check(self, ordinal: int) -> None:
        """Begin the check after an analysis: reset all tasks to todo."""
        with self:
            self.drop_collected(ordinal)
            self._do(f"update tasks set state = 'todo', {_CLEAN} where pass = ?", ordinal)
            self.set_pass(ordinal, state="checking")

    def set_drift(self, ordinal: int, drift: DriftRow) -> None:
        """Set the drift of a pass and delete its collected parts. Only the last 100 passes keep theirs."""
        with self:
            self.drop_collected(ordinal)
            self._do("delete from drifts where pass <= ?", ordinal - _DRIFTS)
            self._insert("drifts", {"ordinal": ordinal, "columns": drift.model_dump_json()})

    def drifts(self) -> dict[int, DriftRow]:
        """Return the drift by pass, in order."""
        rows = self._all("select pass, columns from drifts order by pass")
        return {ordinal: DriftRow.model_validate_json(columns) for ordinal, columns in rows}

    # -- saves, versions, checkpoints ------------------------------------------------------------------------------

    def save_of(self, ordinal: int) -> SaveRow | None:
        return self._row(SaveRow, "saves where pass = ?", ordinal)

    def begin_save(self, save: SaveRow) -> None:
        """Write a save before its first step, because steps change the table and must not be repeated."""
        self._insert("saves", {**vars(save), "steps": json.dumps(save.steps)})

    def set_save(self, ordinal: int, **columns: Any) -> None:
        self._update("saves", columns, "pass = ?", ordinal)

    def add_version(self, **columns: Any) -> None:
        self._insert("versions", columns)

    def abandon_versions(self, after: int) -> None:
        """Mark later versions as abandoned: they can be served, but no delta depends on them."""
        self._update("versions", {"state": "abandoned"}, "id > ? and state = 'published'", after)

    def versions(self) -> list[dict[str, Any]]:
        return self._dicts("select * from versions order by id")

    def version_passes(self) -> dict[int, int]:
        """Return the pass of each version in the ledger, by version id."""
        return dict(self._all("select id, pass from versions"))

    def chain(self) -> list[int]:
        """Return the published versions that the next delta depends on, its base first; [] without a base."""
        parents = dict(self._all("select id, parent from versions"))
        last = self.facts.follows
        chain: list[int] = []
        while last is not None:
            chain.append(last)
            last = parents.get(last)
        return chain[::-1]

    def add_checkpoint(
        self,
        name: str,
        ordinal: int,
        follows: int | None,
        base: int | None,
        at: float,
        *,
        mid: Columns | None = None,
        stands_on: str = "",
    ) -> None:
        """Add a checkpoint. `mid`: the columns (state, epoch, trained_at) with which its pass continues; tasks are recorded, too.
        `stands_on`: the saved checkpoint that a checkpoint by log needs; its own name if it was compacted.
        """
        with self:
            self._db.execute("delete from logs where checkpoint = ?", (name,))
            if stands_on:
                self._insert("logs", {"checkpoint": name, "stands_on": stands_on})
            row = {"name": name, "ordinal": ordinal, "follows": follows, "base": base, "at": at}
            self._insert("checkpoints", {**row, "mid": None if mid is None else json.dumps(dict(mid))})
            self._db.execute("delete from kept where checkpoint = ?", (name,))
            if mid is not None:
                self._db.execute(
                    f"insert into kept (checkpoint, task, {_KEPT}) select ?, id, {_KEPT} from tasks where pass = ?",
                    (name, ordinal),
                )

    def checkpoints(self) -> list[dict[str, Any]]:
        """Return the checkpoints for recoveries, oldest first. `mid` is None for a whole pass; `stands_on` is "" unless it is by log. With
        `compacted` its dense values are in the network of its version.
        """
        found = self._dicts(
            "select checkpoints.*, coalesce(stands_on, '') as stands_on from checkpoints left join logs on checkpoint = name"
            " where damaged is null order by pass, at"
        )
        for row in found:
            row["mid"] = row["mid"] and json.loads(row["mid"])
            row["compacted"] = row["stands_on"] == row["name"]
            row["stands_on"] = "" if row["compacted"] else row["stands_on"]
        return found

    def damaged_checkpoints(self) -> list[dict[str, Any]]:
        """Return the checkpoints that were set aside, oldest first."""
        return self._dicts("select * from checkpoints where damaged is not null order by pass, at")

    def set_aside(self, name: str, reason: str) -> None:
        """Mark a checkpoint as damaged, so that no recovery returns to it."""
        self._update("checkpoints", {"damaged": reason}, "name = ?", name)

    def remove_checkpoint(self, name: str) -> None:
        with self:
            self._db.execute("delete from checkpoints where name = ?", (name,))
            self._db.execute("delete from kept where checkpoint = ?", (name,))
            self._db.execute("delete from logs where checkpoint = ?", (name,))

    # -- recoveries ------------------------------------------------------------------------------------------------

    def roll_back(self, ordinal: int, mid: Columns | None = None) -> int:
        """Undo all training after pass `ordinal`, or after the mid-pass checkpoint `mid` (a row) of that pass. Results of checks stay.
        Return the number of records whose training is lost, each counted once.
        """
        name = "" if mid is None else str(mid["name"])
        with self._keeping_totals():
            if mid is not None:
                ordinal -= 1
            [lost] = self._one(
                "select coalesce(sum(tasks.records - coalesce(held_out.records, 0)), 0) from tasks"
                " left join kept on checkpoint = ? and kept.task = id left join held_out on held_out.task = id"
                " where tasks.pass > ? and tasks.trained > coalesce(kept.trained, 0)",
                name,
                ordinal,
            )
            self._db.execute("update tasks set trained = 0, repeated = 0 where pass > ?", (ordinal,))
            self._db.execute(
                "update passes set state = 'checked', epoch = 0, auc = null, trained_at = null, done_at = null,"
                " version = null where ordinal > ? and state in ('checked', 'training', 'evaluating', 'saving', 'done')",
                (ordinal,),
            )
            self._db.execute("delete from qualities where pass > ? and moment = 'after'", (ordinal,))
            self._db.execute("delete from table_rows where pass > ?", (ordinal,))
            self._db.execute(
                "update tasks set state = 'todo', trainer = null, attempt = '', running = 0 where state = 'leased'"
            )
            # An unfinished save of the checkpoint's own pass is planned again.
            self._db.execute("delete from saves where pass > ? or (pass = ? and stage != 'done')", (ordinal, ordinal))
            # Restore the pass and its tasks as of the mid-pass checkpoint. A stopped pass stays stopped.
            if mid is not None and self._one(
                "select 1 from passes where ordinal = ? and state = 'checked'", ordinal + 1
            ):
                self.set_pass(ordinal + 1, **mid["mid"])
                self._db.execute(
                    f"update tasks set ({_KEPT}) = (select {_KEPT} from kept where checkpoint = ? and task = tasks.id),"
                    f" {_CLEAN} where pass = ?",
                    (name, ordinal + 1),
                )
            self.forget_touched()
        return int(lost)

    def add_recovery(self, role: str, reason: str, at: float, rolled_back: int) -> None:
        self._insert("recoveries", {"role": role, "reason": reason, "at": at, "rolled_back": rolled_back})

    def end_recoveries(self, now: float) -> None:
        self._do("update recoveries set seconds = ? - at where seconds is null", now)

    def recoveries(self) -> list[dict[str, Any]]:
        return self._dicts("select role, reason, at, seconds, rolled_back from recoveries order by id")
