"""The ledger's passes, and the counts of their lines by outcome."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from elastic_ctr.training.master.ledger.ledger_file import OF_PASS, LedgerFile
from elastic_ctr.training.master.ledger.rows import Pass, PassRow

_SUMS = {
    **{name: f"sum({name})" for name in ("records", "shows", "clicks", "ignored", "padding", "repeated")},
    "tasks": "count(*)",
    "done": "sum(state = 'done')",
    "trained": "sum(case when trained > 0 then records else 0 end)",
    "parked_tasks": "sum(state = 'parked')",
    "parked": "sum(case when state = 'parked' and trained = 0 then records else 0 end)",
}
_TOTALS = ("files", "records", "refused", "trained", "repeated")
_OF_OTHER_TABLES = ("refused", "files", "held_out")
_SUMS_OF_TASKS = ", ".join(f"coalesce({sql}, 0)" for sql in _SUMS.values())


class PassTable:
    """One row for each pass. Counts are sums over the tasks, refusals and files of passes."""

    def __init__(self, file: LedgerFile) -> None:
        self._file = file

    def all(self) -> list[PassRow]:
        return self._file.rows(PassRow, "passes order by ordinal")

    def newest(self, count: int) -> list[PassRow]:
        return self._file.rows(PassRow, "passes order by ordinal desc limit ?", count)[::-1]

    def count(self) -> int:
        return int(self._file.one("select count(*) from passes")[0])

    def current(self) -> PassRow | None:
        """Return the first pass that is not done, or None. Passes are trained in order."""
        return self._file.row(PassRow, "passes where state != 'done' order by ordinal")

    def after(self, ordinal: int) -> list[PassRow]:
        return self._file.rows(PassRow, "passes where ordinal > ? order by ordinal", ordinal)

    def last(self) -> PassRow | None:
        return self._file.row(PassRow, "passes order by ordinal desc")

    def add(self, one: Pass) -> None:
        self._file.insert("passes", {**vars(one), "splits": json.dumps(one.splits)}, "insert")

    def drop(self, ordinal: int) -> None:
        """Delete a waiting pass, and its content if it was listed before."""
        with self.keeping_totals(ordinal):
            self._file.db.execute("delete from passes where ordinal = ? and state = 'waiting'", (ordinal,))
            self._empty(ordinal)

    def update(self, ordinal: int, /, **columns: Any) -> None:
        self._file.update("passes", columns, "ordinal = ?", ordinal)

    def fill(
        self,
        ordinal: int,
        files: Mapping[str, int],
        tasks: Iterable[tuple[str, str, int, int]],
        *,
        state: str = "checking",
    ) -> None:
        """Set the files of a complete pass and its tasks, which are then to be checked or analyzed."""
        with self.keeping_totals(ordinal):
            self._empty(ordinal)
            self._file.db.executemany(
                "insert into files values (?, ?, ?)", [(ordinal, *each) for each in files.items()]
            )
            self._file.db.executemany(
                "insert into tasks (id, pass, path, start, stop, state) values (?, ?, ?, ?, ?, 'todo')",
                [(name, ordinal, path, start, stop) for name, path, start, stop in tasks],
            )
            self.update(ordinal, state=state, epoch=0, reason="")

    def files(self, ordinal: int) -> dict[str, int]:
        """Return the files that a pass was begun with, and their bytes."""
        return dict(self._file.all("select path, bytes from files where pass = ?", ordinal))

    def begin_micro_pass(self, ordinal: int, ranges: Sequence[str], event_time_max: int, *, ends_day: bool) -> None:
        """Set the offsets of a pass of a stream."""
        columns = {"splits": json.dumps(ranges), "event_time_max": event_time_max, "ends_day": ends_day}
        self.update(ordinal, **columns)

    def took(self, ordinal: int, seconds: Mapping[str, float]) -> None:
        """Add the seconds of stages of a pass, for the status and the benchmarks."""
        rounded = {name: round(taken, 3) for name, taken in seconds.items()}
        self._file.do(
            "update passes set seconds = json_patch(seconds, ?) where ordinal = ?", json.dumps(rounded), ordinal
        )

    def counts(self, ordinal: int | None = None) -> dict[str, int]:
        """Return the numbers of files, lines by kind and tasks, for one pass or for all."""
        dropped = self._file.facts.dropped if ordinal is None else {}
        return total_of(self.counts_by_pass(ordinal or 0, ordinal), dropped)

    def counted(self, by_pass: Mapping[int, Mapping[str, int]] | None = None) -> dict[str, int]:
        """Return the counts that the status shows: every line of every file counts once. `by_pass`: the counts of all passes, if known."""
        counts = total_of(self.counts_by_pass(0) if by_pass is None else by_pass, self._file.facts.dropped)
        lines = counts["records"] + counts["refused"]
        shown = {name: counts[name] for name in ("files", "trained", "refused", "parked", "repeated")}
        return {**shown, "heldOut": counts["held_out"], "records": lines, "rolledBack": self._file.facts.rolled_back}

    def totals(self) -> dict[str, int]:
        """Return all lines ever counted, including those of passes that were read or trained again. These numbers only grow."""
        counts, facts = self.counts(), self._file.facts
        totals = {name: counts[name] + facts.taken_back.get(name, 0) for name in _TOTALS}
        return {**totals, "rolled_back": facts.rolled_back}

    def counts_by_pass(self, first: int, last: int | None = None) -> Mapping[int, dict[str, int]]:
        """Return the counts of each pass from `first` on, in as many queries as for one. Missing counts are zero."""
        found: defaultdict[int, dict[str, int]] = defaultdict(lambda: dict.fromkeys((*_SUMS, *_OF_OTHER_TABLES), 0))
        where, values = "where pass >= ? and (? or pass <= ?) group by pass", (first, last is None, last)
        for ordinal, *sums in self._file.all(f"select pass, {_SUMS_OF_TASKS} from tasks {where}", *values):
            found[ordinal].update(zip(_SUMS, sums, strict=True))
        for name, sums_of in (("refused", "sum(lines) from refusals"), ("files", "count(*) from files")):
            for ordinal, total in self._file.all(f"select pass, {sums_of} {where}", *values):
                found[ordinal][name] = total
        # `trained` counts all records of a trained task; subtract those that are not trained.
        held_out = "sum(held_out.records) from held_out join tasks on tasks.id = task and trained > 0"
        for ordinal, total in self._file.all(
            f"select held_out.pass, {held_out} {where.replace('pass', 'held_out.pass')}", *values
        ):
            found[ordinal]["trained"] -= total
            found[ordinal]["held_out"] = total
        return found

    @contextmanager
    def keeping_totals(self, ordinal: int | None = None) -> Iterator[None]:
        """A transaction that reduces the counts of one pass or of any; the difference is added to `taken_back`, which `totals` includes."""
        with self._file:
            before = self.counts(ordinal)
            yield
            after, kept = self.counts(ordinal), self._file.facts.taken_back
            less = {name: max(0, before[name] - after[name]) for name in _TOTALS}
            self._file.set_facts(taken_back={name: kept.get(name, 0) + less[name] for name in _TOTALS})

    def _empty(self, ordinal: int) -> None:
        for table in OF_PASS:
            # Records that an operator skips (task '') stay skipped.
            but = " and task != ''" if table == "left_out" else ""
            self._file.db.execute(f"delete from {table} where pass = ?{but}", (ordinal,))


def total_of(by_pass: Mapping[int, Mapping[str, int]], dropped: Mapping[str, int]) -> dict[str, int]:
    """Return the sums over these passes and over those that the ledger has dropped."""
    return {
        name: sum(each[name] for each in by_pass.values()) + dropped.get(name, 0)
        for name in (*_SUMS, *_OF_OTHER_TABLES)
    }
