"""Compaction of a stream's log: deltas are merged into a base and a checkpoint with whole tables while training goes on.

A save walks the table and stops training meanwhile. The store already has the same content: the last save and the deltas since.
The pservers merge these files in separate processes (`training/pserver/table_compaction.py`), and the publisher commits the results:

* a checkpoint, on which later checkpoints by log depend. Its optimizer's state is that of the last save.
* a base with the keys of the version at which the log ends. The next delta changes that base and has all keys touched since.

So neither the log nor the chain of versions grows without bound. A recovery drops a compaction that is under way.
"""

import logging
from collections.abc import Collection, Sequence
from typing import NamedTuple

from elastic_ctr.store.versions.manifest import next_version
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.decisions import DecisionContext, Part
from elastic_ctr.training.master.generations.checkpoint_files import compacted_name
from elastic_ctr.training.master.generations.members import JobResults
from elastic_ctr.training.master.ledger.rows import CompactionRow

log = logging.getLogger(__name__)

_LISTED_SECONDS = 600.0


class Compacted(NamedTuple):
    """A compaction whose files are in the store."""

    row: CompactionRow
    results: Sequence[control.JobResult]


class Compaction(Part):
    """At most one compaction is under way. It is in the ledger; the pservers' results are in memory and are requested again."""

    def __init__(self, context: DecisionContext) -> None:
        super().__init__(context)
        self._results = JobResults(context.settings.pservers)

    def serve(self, pservers: int) -> None:
        """Set the number of pservers that take part."""
        self._results.serve(pservers)

    def forget(self) -> None:
        """Drop the compaction, because a new generation begins."""
        self._results.clear()
        if self._ledger.facts.compaction is not None:
            self._ledger.set_facts(compaction=None)

    def begin(self, name: str, version: int, ordinal: int) -> None:
        """Begin a compaction of the checkpoint by log `name`, made with `version` after pass `ordinal`, if the log is long."""
        facts = self._ledger.facts
        if facts.compaction is not None or not self._wanted(len(self._ledger.saves.chain())):
            return
        base = next_version(self._clock(), [*self._ledger.saves.version_passes(), facts.last_version])
        generation = self._generations.present
        row = CompactionRow(
            log_of=name, name=compacted_name(name), version=base, follows=version, ordinal=ordinal, generation=generation,
            began=self._clock(),
        )  # fmt: skip
        self._ledger.set_facts(compaction=row, last_version=base)
        self._results.clear()
        log.info("checkpoint %s is compacted to base %d", name, base)

    def _wanted(self, chain: int) -> bool:
        table = self._settings.model.table
        # With other thresholds a saved base leaves keys out that a compacted base would have.
        whole = table.base_threshold == 0 and table.delta_keep_days >= table.delete_after_unseen_days
        return whole and chain >= self._settings.data.stream.compact_versions

    def _jobs(self) -> list[control.Job]:
        row = self._ledger.facts.compaction
        if row is None or row.committed_at is not None or row.generation != self._generations.present:
            return []
        return [
            control.Job(
                id=f"{row.ordinal}-{row.generation}-compaction-{row.version}",
                kind=control.COMPACT,
                checkpoint=row.name,
                version=row.version,
                log_of=row.log_of,
            )
        ]

    def jobs(self, index: int) -> list[control.Job]:
        """Return the open jobs of a pserver."""
        return self._results.open(index, self._jobs())

    def has(self, job: str) -> bool:
        return job in {each.id for each in self._jobs()}

    def take(self, index: int, result: control.JobResult) -> None:
        """Take the result of a pserver's job."""
        self._results.take(index, result)

    def due(self) -> Compacted | None:
        """Return the compaction if every pserver has published its part, else None."""
        row, jobs = self._ledger.facts.compaction, self._jobs()
        if row is None or not jobs or not self._results.complete(jobs):
            return None
        return Compacted(row, self._results.all())

    def commit(self, row: CompactionRow, keys: int) -> None:
        """Commit a compaction whose manifests are in the store. Its checkpoint counts from now on, its base when it is adopted."""
        if self._ledger.facts.compaction != row:
            return
        if row.follows not in self._ledger.saves.chain():
            self.drop(f"no delta stands on version {row.follows} any more")
            return
        now, base = self._clock(), row.version
        with self._ledger:
            self._ledger.saves.add_version(
                id=base, kind="base", base=base, parent=None, ordinal=row.ordinal, state="published", keys=keys, at=now, reason=""
            )  # fmt: skip
            self._ledger.saves.add_checkpoint(row.name, row.ordinal, base, base, now, stands_on=row.name)
            self._ledger.set_facts(compaction=row.model_copy(update={"committed_at": now}))
        self._results.clear()
        log.info("checkpoint %s and base %d are compacted, in %.0f s: %d keys", row.name, base, now - row.began, keys)

    def drop(self, reason: str) -> None:
        """Drop the compaction under way. A later checkpoint by log begins another one."""
        row = self._ledger.facts.compaction
        if row is not None:
            log.warning("the compaction of %s is given up: %s", row.log_of, reason)
            self._ledger.set_facts(compaction=None)
            self._results.clear()

    def expire(self, now: float) -> None:
        row, longest = self._ledger.facts.compaction, self._config.save_timeout_seconds
        if row is not None and row.committed_at is None and not 0 <= now - row.began <= longest:
            self.drop(f"it takes longer than saveTimeoutSeconds {longest:g}")

    def adopt(self, published: Collection[int]) -> bool:
        """Let the next delta change the new base, if it is among `published`. Called between two saves. Return True if it was adopted."""
        row, now = self._ledger.facts.compaction, self._clock()
        if row is None or row.committed_at is None or self._ledger.facts.base_due:
            return False
        if row.follows not in self._ledger.saves.chain():
            self.drop(f"no delta stands on version {row.follows} any more")
            return False
        if row.version not in published:
            # The list may be older than the base.
            if not 0 <= now - row.committed_at <= _LISTED_SECONDS:
                self.drop(f"base {row.version} is no longer in the store")
            return False
        self._ledger.set_facts(follows=row.version, base=row.version, compaction=None)
        log.info("the next delta changes base %d, which has the keys of version %d", row.version, row.follows)
        return True
