"""The ledger's tasks: leases, results, and all that tasks report of their lines."""

import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import orjson

from elastic_ctr.features.statistics.collector import StatisticsPart as CollectedPart
from elastic_ctr.features.statistics.collector import part_name
from elastic_ctr.formats.line import Reason
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.ledger.ledger_file import LedgerFile
from elastic_ctr.training.master.ledger.rows import HISTOGRAMS, Histogram, PassRow, Sample, TaskRow, packed, unpacked

Parts = Sequence[tuple[str, int, int]]
"""Path, first byte, byte after the last; 0: to the end."""
# The columns of a task without failures.
CLEAN = "failures = 0, lost_leases = 0, error = ''"
# Compressed to a fifth, because a micro-pass has as many sample lines as an hour, and there may be two a second.
_LEVEL = 1
_NAMED = 5


class TaskTable:
    """A task's own row has its first file; further files, refusals, sample lines, collected columns, held-out and left-out records have
    tables of their own.
    """

    def __init__(self, file: LedgerFile) -> None:
        self._file = file

    def of(self, ordinal: int, state: str | None = None) -> list[TaskRow]:
        where, values = ("", ()) if state is None else (" and state = ?", (state,))
        return self._file.rows(TaskRow, f"tasks where pass = ?{where} order by rowid", ordinal, *values)

    def of_attempt(self, attempt: str) -> TaskRow | None:
        return self._file.row(TaskRow, "tasks where attempt = ? and state = 'leased'", attempt)

    def leased(self) -> list[TaskRow]:
        return self._file.rows(TaskRow, "tasks where state = 'leased'")

    def lease(self, task: str, trainer: int, attempt: str, since: float | None, ends: float) -> None:
        """Lease a task. `since` None: it was leased ahead and waits for `start_next_task`."""
        row = {"state": "leased", "trainer": trainer, "attempt": attempt, "leased_at": since, "lease_ends": ends}
        self._file.update("tasks", {**row, "running": 0}, "id = ?", task)

    def start_next_task(self, trainer: int, now: float) -> None:
        """Start the clock of the task that the trainer had leased ahead, because it has ended another one."""
        self._file.update(
            "tasks", {"leased_at": now}, "state = 'leased' and trainer = ? and leased_at is null", trainer
        )

    def renew(self, attempts: Iterable[str], running: str, now: float, ends: float) -> None:
        """Renew leases. The time of the attempt `running` starts now if it was not running before."""
        with self._file:
            for attempt in attempts:
                runs = int(attempt == running)
                self._file.db.execute(
                    "update tasks set lease_ends = ?, leased_at = case when ? > running then ? else leased_at end,"
                    " running = max(running, ?) where attempt = ? and state = 'leased'",
                    (ends, runs, now, runs, attempt),
                )

    def exclude_downtime(self, now: float, lease_seconds: float) -> None:
        """Exclude the time since each trainer's last renewal from its task's time: while the master was down, it could not report."""
        self._file.do(
            "update tasks set leased_at = leased_at + max(0, ? - (lease_ends - ?))"
            " where state = 'leased' and leased_at is not null",
            now,
            lease_seconds,
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
        with self._file:
            self._file.update("tasks", {**row, "trainer": None, "attempt": "", "running": 0}, "id = ?", task.id)
            self._file.do("update tasks set repeated = repeated + ? where id = ?", repeated, task.id)
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
        with self._file:
            found = dict(zip(HISTOGRAMS, map(packed, histograms), strict=True))
            self._file.update("tasks", {"state": "done", "checked": 1, **counts, **found}, "id = ?", task.id)
            self._file.do(f"update tasks set {CLEAN} where id = ?", task.id)
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
        with self._file:
            self._file.do(f"update tasks set state = 'done', {CLEAN} where id = ?", task.id)
            self._refused(task, refused, refused_of)
            self._collected(task, records, collected)

    def trained(self, task: TaskRow, histograms: tuple[Histogram, Histogram], *, epochs: int = 1) -> None:
        """Mark a task as done in an epoch of training, or, with `epochs` 0, in a walk that only predicts."""
        self._file.do(
            f"update tasks set state = 'done', {CLEAN}, trained = trained + ?, positives = ?, negatives = ? where id = ?",
            epochs,
            *map(packed, histograms),
            task.id,
        )

    def next_epoch(self, ordinal: int) -> None:
        """Reset all tasks with records to todo; the others stay done."""
        self._file.do(
            "update tasks set state = case when records > 0 then 'todo' else 'done' end, failures = 0, lost_leases = 0"
            " where pass = ?",
            ordinal,
        )

    def records(self, ordinal: int) -> int:
        """Return the number of records of a pass, including held-out ones."""
        [records] = self._file.one("select coalesce(sum(records), 0) from tasks where pass = ?", ordinal)
        return int(records)

    def histograms(self, ordinal: int) -> tuple[Histogram, Histogram] | None:
        """Return the sums of the histograms of all tasks in the last epoch, or None if one has none."""
        rows = self._file.all("select positives, negatives from tasks where pass = ? and records > 0", ordinal)
        if not rows or any(row[0] is None for row in rows):
            return None
        positives, negatives = (np.sum([unpacked(blob) for blob in blobs], axis=0) for blobs in zip(*rows, strict=True))
        return positives, negatives

    def refusals(self, ordinal: int) -> dict[str, tuple[int, list[str]]]:
        """Return reason -> (lines, first examples) of a pass."""
        found: dict[str, tuple[int, list[str]]] = {}
        rows = self._file.all("select reason, lines, examples from refusals where pass = ?", ordinal)
        for reason, lines, examples in rows:
            seen, first = found.get(reason, (0, []))
            found[reason] = (seen + lines, (first + json.loads(examples))[:3])
        return found

    def worst_file(self, ordinal: int) -> str:
        """Return the file of a pass with the most refused lines, as `path (lines)`; "" if no line was refused."""
        row = self._file.one(
            "select path, sum(lines) from refused_files where pass = ? group by path order by 2 desc, 1 limit 1",
            ordinal,
        )
        return "" if row is None else f"{row[0]} ({row[1]})"

    def set_further(self, ordinal: int, tasks: Mapping[str, Parts]) -> None:
        """Set the further parts of the tasks of a pass that was just filled."""
        with self._file:
            self._file.db.executemany(
                "insert into further values (?, ?, ?, ?, ?, ?)",
                [(task, place, ordinal, *part) for task, parts in tasks.items() for place, part in enumerate(parts)],
            )

    def further(self, ordinal: int) -> dict[str, list[tuple[str, int, int]]]:
        """Return the further parts of a pass's tasks, by task. Tasks of one file are left out."""
        found: dict[str, list[tuple[str, int, int]]] = {}
        for task, *part in self._file.all(
            "select task, path, start, stop from further where pass = ? order by task, place", ordinal
        ):
            found.setdefault(task, []).append((part[0], part[1], part[2]))
        return found

    def samples(self, ordinal: int) -> list[list[Sample]]:
        """Return the offered sample lines of each task, in the order of task names."""
        rows = self._file.all("select data from sample_lines where pass = ? order by task", ordinal)
        return [[(line, show, click) for line, show, click in orjson.loads(zlib.decompress(data))] for (data,) in rows]

    def last_sampled(self, last: int) -> int | None:
        """Return the last pass up to this one that has a sample line, or None."""
        [ordinal] = self._file.one("select max(pass) from sample_lines where pass <= ?", last)
        return None if ordinal is None else int(ordinal)

    def set_held_out(self, task: str, ordinal: int, records: int) -> None:
        self._file.insert("held_out", {"task": task, "ordinal": ordinal, "records": records})

    def held_out(self, ordinal: int) -> dict[str, int]:
        """Return the number of held-out records of each task of a pass."""
        return dict(map(tuple, self._file.all("select task, records from held_out where pass = ?", ordinal)))

    def skip(self, one: PassRow, rows: Iterable[tuple[str, int]]) -> str:
        """Skip the records at (path, offset) from the next listing of the pass on. Return the reason for a refusal, else ""."""
        known = [path for (path,) in self._file.all("select path from files where pass = ? order by path", one.ordinal)]
        given = [(path, offset, Reason.SKIPPED.value) for path, offset in rows]
        if unknown := [path for path, *_ in given if path not in known]:
            return f"pass {one.id} has no {unknown[0]}; it has {', '.join(known[:_NAMED])}{' …' if len(known) > _NAMED else ''}"
        self._leave_out("", one.ordinal, given)
        return ""

    def set_unpredictable(self, task: TaskRow, rows: Iterable[control.LeftOut]) -> None:
        """Leave out the records that the task's check could not predict."""
        self._leave_out(
            task.id, task.ordinal, [(each.path, offset, each.reason) for each in rows for offset in each.offsets]
        )

    def left_out(self, task: TaskRow, paths: Collection[str]) -> list[control.LeftOut]:
        """Return the records that a task over these paths leaves out: those that its check found, and those that an operator skips."""
        found: dict[tuple[str, str], list[int]] = {}
        for path, offset, reason in self._file.all(
            "select path, offset, reason from left_out where pass = ? and task in ('', ?) order by path, offset",
            task.ordinal,
            task.id,
        ):
            if path in paths:
                found.setdefault((path, reason), []).append(offset)
        return [control.LeftOut(path=path, reason=reason, offsets=places) for (path, reason), places in found.items()]

    def skipped(self, ordinal: int) -> int:
        """Return the number of records of a pass that an operator skips."""
        [rows] = self._file.one("select count(*) from left_out where pass = ? and task = ''", ordinal)
        return int(rows)

    def collected_records(self, ordinal: int) -> int | None:
        """Return the number of records of the tasks with collected columns, or None if there is no such task."""
        [records] = self._file.one("select sum(records) from collected where pass = ?", ordinal)
        return None if records is None else int(records)

    def collected(self, ordinal: int) -> dict[str, tuple[str, bytes]]:
        """Return (task, head) of each collected part, by the part's name. `collected_series` has the rest of a part."""
        rows = self._file.db.execute(
            "select path, start, task, data from collected join tasks on tasks.id = task where collected.pass = ?",
            (ordinal,),
        )
        # Equal heads share one object.
        heads: dict[bytes, bytes] = {}
        return {part_name(path, start): (task, heads.setdefault(head, head)) for path, start, task, head in rows}

    def collected_series(self, task: str, place: int) -> bytes | None:
        """Return one series of a part, or None if it was dropped in the meantime."""
        row = self._file.one("select data from collected_series where task = ? and place = ?", task, place)
        return None if row is None else bytes(row[0])

    def drop_collected(self, ordinal: int) -> None:
        with self._file:
            self._file.db.execute("delete from collected where pass = ?", (ordinal,))
            self._file.db.execute("delete from collected_series where pass = ?", (ordinal,))

    def _refused(
        self, task: TaskRow, found: Iterable[tuple[str, int, Sequence[str]]], refused_of: Mapping[str, int] | None
    ) -> None:
        refused = list(found)
        lines = sum(count for _, count, _ in refused)
        self._set_refused_files(task, refused_of or ({task.path: lines} if lines else {}))
        self._file.db.execute("delete from refusals where task = ?", (task.id,))
        self._file.db.executemany(
            "insert into refusals values (?, ?, ?, ?, ?)",
            [(task.id, task.ordinal, reason, lines, json.dumps(list(each))) for reason, lines, each in refused],
        )

    def _collected(self, task: TaskRow, records: int, part: CollectedPart) -> None:
        self._file.insert(
            "collected", {"task": task.id, "ordinal": task.ordinal, "records": records, "data": part.head}
        )
        self._file.db.execute("delete from collected_series where task = ?", (task.id,))
        self._file.db.executemany(
            "insert into collected_series values (?, ?, ?, ?)",
            [(task.id, place, task.ordinal, data) for place, data in enumerate(part.series)],
        )

    def _set_refused_files(self, task: TaskRow, lines: Mapping[str, int]) -> None:
        self._file.db.execute("delete from refused_files where task = ?", (task.id,))
        self._file.db.executemany(
            "insert into refused_files values (?, ?, ?, ?)",
            [(task.id, task.ordinal, path, count) for path, count in lines.items()],
        )

    def _set_samples(self, task: TaskRow, samples: Iterable[Sample]) -> None:
        """Replace the sample lines of a checked task."""
        lines = list(samples)
        self._file.db.execute("delete from sample_lines where task = ?", (task.id,))
        if lines:
            data = zlib.compress(orjson.dumps(lines), _LEVEL)
            self._file.db.execute("insert into sample_lines values (?, ?, ?)", (task.id, task.ordinal, data))

    def _leave_out(self, task: str, ordinal: int, rows: list[tuple[str, int, str]]) -> None:
        with self._file:
            self._file.db.executemany(
                "insert or ignore into left_out values (?, ?, ?, ?, ?)", [(ordinal, *row, task) for row in rows]
            )
