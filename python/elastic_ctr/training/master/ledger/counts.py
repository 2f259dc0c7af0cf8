"""The part of the ledger that counts lines of files by their outcome."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from elastic_ctr.training.master.ledger.facts import LedgerFacts

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


class LedgerCounts(LedgerFacts):
    """Sums over tasks, refusals and files, for one pass or for all."""

    def counts(self, ordinal: int | None = None) -> dict[str, int]:
        """Return the numbers of files, lines by kind and tasks, for one pass or for all."""
        dropped = self.facts.dropped if ordinal is None else {}
        return total_of(self.counts_by_pass(ordinal or 0, ordinal), dropped)

    def counted(self, by_pass: Mapping[int, Mapping[str, int]] | None = None) -> dict[str, int]:
        """Return the counts that the status shows: every line of every file counts once. `by_pass`: the counts of all passes, if known."""
        counts = total_of(self.counts_by_pass(0) if by_pass is None else by_pass, self.facts.dropped)
        lines = counts["records"] + counts["refused"]
        shown = {name: counts[name] for name in ("files", "trained", "refused", "parked", "repeated")}
        return {**shown, "heldOut": counts["held_out"], "records": lines, "rolledBack": self.facts.rolled_back}

    @contextmanager
    def _keeping_totals(self, ordinal: int | None = None) -> Iterator[None]:
        """A transaction that reduces the counts of one pass or of any; the difference is added to `taken_back`, which `totals` includes."""
        with self:
            before = self.counts(ordinal)
            yield
            after, kept = self.counts(ordinal), self.facts.taken_back
            less = {name: max(0, before[name] - after[name]) for name in _TOTALS}
            self.set_facts(taken_back={name: kept.get(name, 0) + less[name] for name in _TOTALS})

    def totals(self) -> dict[str, int]:
        """Return all lines ever counted, including those of passes that were read or trained again. These numbers only grow."""
        counts, facts = self.counts(), self.facts
        totals = {name: counts[name] + facts.taken_back.get(name, 0) for name in _TOTALS}
        return {**totals, "rolled_back": facts.rolled_back}

    def counts_by_pass(self, first: int, last: int | None = None) -> Mapping[int, dict[str, int]]:
        """Return the counts of each pass from `first` on, in as many queries as for one. Missing counts are zero."""
        found: defaultdict[int, dict[str, int]] = defaultdict(lambda: dict.fromkeys((*_SUMS, *_OF_OTHER_TABLES), 0))
        where, values = "where pass >= ? and (? or pass <= ?) group by pass", (first, last is None, last)
        for ordinal, *sums in self._all(f"select pass, {_SUMS_OF_TASKS} from tasks {where}", *values):
            found[ordinal].update(zip(_SUMS, sums, strict=True))
        for name, sums_of in (("refused", "sum(lines) from refusals"), ("files", "count(*) from files")):
            for ordinal, total in self._all(f"select pass, {sums_of} {where}", *values):
                found[ordinal][name] = total
        # `trained` counts all records of a trained task; subtract those that are not trained.
        held_out = "sum(held_out.records) from held_out join tasks on tasks.id = task and trained > 0"
        for ordinal, total in self._all(
            f"select held_out.pass, {held_out} {where.replace('pass', 'held_out.pass')}", *values
        ):
            found[ordinal]["trained"] -= total
            found[ordinal]["held_out"] = total
        return found


def total_of(by_pass: Mapping[int, Mapping[str, int]], dropped: Mapping[str, int]) -> dict[str, int]:
    """Return the sums over these passes and over those that the ledger has dropped."""
    return {
        name: sum(each[name] for each in by_pass.values()) + dropped.get(name, 0)
        for name in (*_SUMS, *_OF_OTHER_TABLES)
    }
