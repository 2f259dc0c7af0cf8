"""Compaction of a stream's log: its deltas become a base and a checkpoint with whole tables, beside the stream.

A save of the table walks it, and nothing is trained meanwhile. What it would write is in the store already: the last save and the deltas
since. The pservers merge them in processes of their own (`pserver/compaction.py`), and the publisher commits the results:

* a checkpoint, on which further checkpoints by log stand. Its optimizer's state is that of the last save.
* a base with the keys of the version at whose pass the log ends. The next delta changes that base, and has all keys trained since.

So neither the log nor the chain of versions grows without end. A recovery drops a compaction that is under way.
"""

import logging
from collections.abc import Collection, Sequence
from typing import NamedTuple

from elastic_ctr.control import control_pb2 as control
from elastic_ctr.master.checkpoint_files import compacted_name
from elastic_ctr.master.ledger_rows import CompactionRow
from elastic_ctr.master.recovery import Part
from elastic_ctr.versions.manifest import next_version

log = logging.getLogger(__name__)


class Compacted(NamedTuple):
    """A compaction whose files are in the store."""

    row: CompactionRow
    results: Sequence[control.JobResult]


class Compaction(Part):
    """At most one is under way. It is in the ledger; the results of the pservers are in memory, and are asked for again."""

    def serve(self, pservers: int) -> None:
        """From now on so many pservers take part."""
        self._results.serve(pservers)

    def forget(self) -> None:
        """Another generation begins."""
        self._results.clear()
        if self._ledger.facts.compaction is not None:
            self._ledger.set_facts(compaction=None)

    def begin(self, name: str, version: int, ordinal: int) -> None:
        """Begin with the checkpoint by log `name`, made with `version` after pass `ordinal`, if the log is long."""
        facts = self._ledger.facts
        if facts.compaction is not None or not self._wanted(len(self._ledger.chain())):
            return
        base = next_version(self._clock(), [*self._ledger.version_passes(), facts.last_version])
        generation = self._generations.present
        row = CompactionRow(
            log_of=name, name=compacted_name(name), version=base, follows=version, ordinal=ordinal, generation=generation,
            began=self._clock(),
        )  # fmt: skip
        self._ledger.set_facts(compaction=row, last_version=base)
        self._results.clear()
        log.info("checkpoint %s is compacted to base %d", name, base)

    def _wanted(self, chain: int) -> bool:
        # A base has the keys whose score reaches the threshold, and a saved row says too little of that.
        return self._settings.model.table.base_threshold == 0 and chain >= self._settings.data.stream.compact_versions

    def _jobs(self) -> list[control.Job]:
        row = self._ledger.facts.compaction
        if row is None or row.committed or row.generation != self._generations.present:
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
        """What a pserver still has to do."""
        return self._results.open(index, self._jobs())

    def has(self, job: str) -> bool:
        return job in {each.id for each in self._jobs()}

    def take(self, index: int, result: control.JobResult) -> None:
        """The result of a pserver."""
        self._results.take(index, result)

    def due(self) -> Compacted | None:
        """Once every pserver has published its part."""
        row, jobs = self._ledger.facts.compaction, self._jobs()
        if row is None or not jobs or not self._results.complete(jobs):
            return None
        return Compacted(row, self._results.all())

    def commit(self, row: CompactionRow, keys: int) -> None:
        """Both manifests are in the store. The checkpoint counts from now on, the base once it is adopted."""
        if self._ledger.facts.compaction != row:
            return
        now = self._clock()
        with self._ledger:
            self._ledger.add_version(
                id=row.version, kind="base", base=row.version, parent=None, ordinal=row.ordinal, state="published",
                keys=keys, at=now, reason="",
            )  # fmt: skip
            base = self._ledger.base_of(row.follows)
            self._ledger.add_checkpoint(row.name, row.ordinal, row.follows, base, now, stands_on=row.name)
            self._ledger.set_facts(compaction=row.model_copy(update={"committed": True}))
        self._results.clear()
        seconds = now - row.began
        log.info("checkpoint %s and base %d are compacted, in %.0f s: %d keys", row.name, row.version, seconds, keys)

    def drop(self, row: CompactionRow, reason: str) -> None:
        """It cannot be finished; another one begins with the next checkpoint by log."""
        if self._ledger.facts.compaction == row:
            log.warning("the compaction of %s is given up: %s", row.log_of, reason)
            self._ledger.set_facts(compaction=None)
            self._results.clear()

    def expire(self, now: float) -> None:
        row, longest = self._ledger.facts.compaction, self._config.save_timeout_seconds
        if row is not None and not row.committed and not 0 <= now - row.began <= longest:
            self.drop(row, f"it takes longer than saveTimeoutSeconds {longest:g}")

    def adopt(self, published: Collection[int]) -> bool:
        """The next delta changes the new base. Between two saves, and when the list of `published` versions has it. Whether it was adopted."""
        row = self._ledger.facts.compaction
        if row is None or not row.committed or row.version not in published:
            return False
        with self._ledger:
            self._ledger.set_facts(follows=row.version, base=row.version, compaction=None)
            if row.name in {each["name"] for each in self._ledger.checkpoints()}:
                self._ledger.add_checkpoint(
                    row.name, row.ordinal, row.version, row.version, self._clock(), stands_on=row.name
                )
        log.info("the next delta changes base %d, which has the keys of version %d", row.version, row.follows)
        return True
