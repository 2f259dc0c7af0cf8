"""The master's durable state in one SQLite file, of which one process is the owner."""

from pathlib import Path
from typing import Any

from elastic_ctr.training.master.ledger.figure_table import FigureTable
from elastic_ctr.training.master.ledger.key_table import KeyTable
from elastic_ctr.training.master.ledger.ledger_file import OF_PASS, LedgerFile
from elastic_ctr.training.master.ledger.pass_table import PassTable, total_of
from elastic_ctr.training.master.ledger.rows import HISTOGRAMS, Columns, DriftRow
from elastic_ctr.training.master.ledger.save_table import KEPT, SaveTable
from elastic_ctr.training.master.ledger.task_table import CLEAN, TaskTable

_DRIFTS = 100


class Ledger(LedgerFile):
    """The file with its tables, and the changes that concern several of them. Every public method is one transaction. Callers need the
    coordinator's lock.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.passes = PassTable(self)
        self.tasks = TaskTable(self)
        self.saves = SaveTable(self)
        self.figures = FigureTable(self)
        self.keys = KeyTable(self, self.saves)

    def lost_offsets(self, count: int) -> None:
        """Count offsets that the stream deleted before their task read them."""
        places = self.facts.stream
        if places is not None:
            self.set_facts(stream=places.model_copy(update={"gone": places.gone + count}))

    def begin_check(self, ordinal: int) -> None:
        """Begin the check after an analysis: reset all tasks to todo."""
        with self:
            self.tasks.drop_collected(ordinal)
            self.do(f"update tasks set state = 'todo', {CLEAN} where pass = ?", ordinal)
            self.passes.update(ordinal, state="checking")

    def set_drift(self, ordinal: int, drift: DriftRow) -> None:
        """Set the drift of a pass and delete its collected parts. Only the last 100 passes keep theirs."""
        with self:
            self.tasks.drop_collected(ordinal)
            self.do("delete from drifts where pass <= ?", ordinal - _DRIFTS)
            self.insert("drifts", {"ordinal": ordinal, "columns": drift.model_dump_json()})

    def forget(self) -> None:
        """Delete data that no later step reads, or the file would grow without bound.

        These are the histograms, samples of groups and save results of done passes, and sample lines before the oldest checkpoint.
        """
        with self:
            slim = ", ".join(row[1] for row in self.all("pragma table_info(tasks)") if row[1] not in HISTOGRAMS)
            # Rows are replaced, not updated, because SQLite merges half-empty pages only after deletions.
            self.db.execute(
                f"replace into tasks ({slim}) select {slim} from tasks where positives is not null"
                " and pass in (select ordinal from passes where state = 'done') order by rowid"
            )
            self.db.execute("delete from groups where pass in (select ordinal from passes where state = 'done')")
            self.db.execute("update saves set saved = null, written = null where stage = 'done' and saved is not null")
            self._forget_samples()

    def _forget_samples(self) -> None:
        """Delete sample lines of passes that no recovery returns to. The last such pass with lines keeps them: later ones may have none.

        Without a whole-pass checkpoint nothing is deleted, because a recovery may skip a mid-pass one and return to the start.
        """
        self.db.execute(
            "delete from sample_lines where pass <"
            " (select max(pass) from sample_lines where pass <= "
            " (select case when sum(mid is null) > 0 then min(pass) end from checkpoints))"
        )

    def drop_passes(self, before: int) -> None:
        """Delete the passes before this one, which are done and to which no recovery returns. Their counts are kept, and the versions that
        the next delta depends on.
        """
        with self.passes.changing():
            facts, counts = self.facts, self.passes.counts_by_pass(0, before - 1)
            [passes] = self.one("select count(*) from passes where ordinal < ?", before)
            dropped = total_of(counts, facts.dropped)
            kept = [
                *self.saves.chain(),
                *(each["follows"] for each in self.saves.checkpoints() if each["follows"] is not None),
            ]
            for table in (*OF_PASS, "saves"):
                if table not in ("sample_lines", "touched"):
                    self.db.execute(f"delete from {table} where pass < ?", (before,))
            self.db.execute("delete from passes where ordinal < ?", (before,))
            self.db.execute(
                f"delete from versions where pass < ? and id not in ({', '.join('?' * len(kept))})", (before, *kept)
            )
            self.set_facts(dropped=dropped, dropped_passes=facts.dropped_passes + passes)

    def roll_back(self, ordinal: int, mid: Columns | None = None) -> int:
        """Undo all training after pass `ordinal`, or after the mid-pass checkpoint `mid` (a row) of that pass. Results of checks stay.
        Return the number of records whose training is lost, each counted once.
        """
        name = "" if mid is None else str(mid["name"])
        with self.passes.keeping_totals():
            if mid is not None:
                ordinal -= 1
            [lost] = self.one(
                "select coalesce(sum(tasks.records - coalesce(held_out.records, 0)), 0) from tasks"
                " left join kept on checkpoint = ? and kept.task = id left join held_out on held_out.task = id"
                " where tasks.pass > ? and tasks.trained > coalesce(kept.trained, 0)",
                name,
                ordinal,
            )
            self.db.execute("update tasks set trained = 0, repeated = 0 where pass > ?", (ordinal,))
            self.db.execute(
                "update passes set state = 'checked', epoch = 0, auc = null, trained_at = null, done_at = null,"
                " version = null where ordinal > ? and state in ('checked', 'training', 'evaluating', 'saving', 'done')",
                (ordinal,),
            )
            self.db.execute("delete from qualities where pass > ? and moment = 'after'", (ordinal,))
            self.db.execute("delete from table_rows where pass > ?", (ordinal,))
            self.db.execute(
                "update tasks set state = 'todo', trainer = null, attempt = '', running = 0 where state = 'leased'"
            )
            # An unfinished save of the checkpoint's own pass is planned again.
            self.db.execute("delete from saves where pass > ? or (pass = ? and stage != 'done')", (ordinal, ordinal))
            # Restore the pass and its tasks as of the mid-pass checkpoint. A stopped pass stays stopped.
            if mid is not None and self.one(
                "select 1 from passes where ordinal = ? and state = 'checked'", ordinal + 1
            ):
                self.passes.update(ordinal + 1, **mid["mid"])
                self.db.execute(
                    f"update tasks set ({KEPT}) = (select {KEPT} from kept where checkpoint = ? and task = tasks.id),"
                    f" {CLEAN} where pass = ?",
                    (name, ordinal + 1),
                )
            self.keys.forget()
        return int(lost)

    def add_recovery(self, role: str, reason: str, at: float, rolled_back: int) -> None:
        self.insert("recoveries", {"role": role, "reason": reason, "at": at, "rolled_back": rolled_back})

    def end_recoveries(self, now: float) -> None:
        self.do("update recoveries set seconds = ? - at where seconds is null", now)

    def recoveries(self) -> list[dict[str, Any]]:
        return self.dicts("select role, reason, at, seconds, rolled_back from recoveries order by id")
