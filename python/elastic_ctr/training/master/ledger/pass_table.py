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
    """One row for each pass. Counts are sums over the tasks, refusals and files of passes.

    Attributes:
        taken_back: grows with each change of passes up to `settled`, so that they must be read again.
    """

    def __init__(self, file: LedgerFile) -> None:
        self._file = file
        self.taken_back = 0
        # The counts of the passes up to one, all of them done. They do not change until `taken_back` does.
        self._settled: tuple[int, dict[str, int]] = (0, {})

    def all(self) -> list[PassRow]:
        return self._file.rows(PassRow, "passes order by ordinal")

    def first_of_newest(self, count: int) -> int:
        """Return the ordinal of the first of the newest `count` passes; 1 without any."""
        [first] = self._file.one(
            "select coalesce(min(ordinal), 1) from (select ordinal from passes order by ordinal desc limit ?)", count
        )
        return int(first)

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
        with self.changing(ordinal):
            self._file.update("passes", columns, "ordinal = ?", ordinal)

    def last_done(self) -> int | None:
        """Return the ordinal of the last pass that is done, or None."""
        [ordinal] = self._file.one("select max(ordinal) from passes where state = 'done'")
        return None if ordinal is None else int(ordinal)

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
        with self.changing(ordinal):
            self._file.do(
                "update passes set seconds = json_patch(seconds, ?) where ordinal = ?", json.dumps(rounded), ordinal
            )

    def counts(self, ordinal: int | None = None) -> dict[str, int]:
        """Return the numbers of files, lines by kind and tasks, for one pass or for all."""
        if ordinal is not None:
            return total_of(self.counts_by_pass(ordinal, ordinal), {})
        self.settled()
        last, settled = self._settled
        return total_of({**self.counts_by_pass(last + 1), last: settled}, self._file.facts.dropped)

    def counted(self) -> dict[str, int]:
        """Return the counts that the status shows: every line of every file counts once."""
        counts = self.counts()
        lines = counts["records"] + counts["refused"]
        shown = {name: counts[name] for name in ("files", "trained", "refused", "parked", "repeated")}
        return {**shown, "heldOut": counts["held_out"], "records": lines, "rolledBack": self._file.facts.rolled_back}

    def settled(self) -> int:
        """Return a pass up to which all are done, and have been since `taken_back` changed; 0 without one."""
        # A transaction may be rolled back, so nothing is settled within one.
        if not self._file.db.in_transaction:
            last, counts = self._settled
            [until] = self._file.one(
                "select coalesce((select min(ordinal) - 1 from passes where state != 'done'), max(ordinal), 0) from passes"
            )
            if until > last:
                self._settled = (until, total_of(self.counts_by_pass(last + 1, until), counts))
        return self._settled[0]

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
        with self.changing(ordinal):
            before = self.counts(ordinal)
            yield
            after, kept = self.counts(ordinal), self._file.facts.taken_back
            less = {name: max(0, before[name] - after[name]) for name in _TOTALS}
            self._file.set_facts(taken_back={name: kept.get(name, 0) + less[name] for name in _TOTALS})

    @contextmanager
    def changing(self, ordinal: int | None = None) -> Iterator[None]:
        """A transaction that changes the counts of one pass or of any. The counts of passes that are done are read again in it and after it."""
        is_settled = ordinal is None or ordinal <= self._settled[0]
        try:
            with self._file:
                if is_settled:
                    self._forget_counts()
                yield
        finally:
            if is_settled:
                self._forget_counts()

    def _forget_counts(self) -> None:
        self.taken_back += 1
        self._settled = (0, {})

    def _empty(self, ordinal: int) -> None:
        for table in OF_PASS:
            # Records that an operator skips (task '') stay skipped.
            but = " and task != ''" if table == "left_out" else ""
            self._file.db.execute(f"delete from {table} where pass = ?{but}", (ordinal,))


def total_of(by_pass: Mapping[int, Mapping[str, int]], dropped: Mapping[str, int]) -> dict[str, int]:
    """Return the sums over these passes and over those that the ledger has dropped."""
    return {
        name: sum(each.get(name, 0) for each in by_pass.values()) + dropped.get(name, 0)
        for name in (*_SUMS, *_OF_OTHER_TABLES)
    }
