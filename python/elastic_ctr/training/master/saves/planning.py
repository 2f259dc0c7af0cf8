"""The plan of the save after a pass: a checkpoint or none, a base or a delta, and the versions that it depends on."""

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from elastic_ctr.store.backends import StoreError
from elastic_ctr.store.versions.manifest import next_version
from elastic_ctr.store.versions.safeguards import refused_below
from elastic_ctr.training.master.calendar.schedule import SavePlan, save_plan
from elastic_ctr.training.master.decisions import DecisionContext, Part
from elastic_ctr.training.master.generations.checkpoint_files import checkpoint_name
from elastic_ctr.training.master.generations.store_queries import Pending
from elastic_ctr.training.master.ledger.rows import PassRow, SaveRow
from elastic_ctr.training.master.saves.compaction import Compaction
from elastic_ctr.training.master.saves.publishing_hold import is_held

log = logging.getLogger(__name__)

# Seconds between two checkpoints of any kind, which bound the training that a recovery repeats.
_LOG_SECONDS = 5.0
# Seconds between two saves of the table during a publishing hold.
_HELD_SECONDS = 900.0
# The most versions on one base of a stream if compactions fail. Their files all stay in the store.
_LONGEST_CHAIN = 1000


class LogPlan(NamedTuple):
    """A checkpoint by log: the saved checkpoint that it depends on, and the versions since."""

    stands_on: str
    versions: tuple[int, ...]


class SavePlanning(Part):
    """Writes the order of a pass's save into the ledger."""

    def __init__(self, context: DecisionContext, compaction: Compaction) -> None:
        super().__init__(context)
        self._compaction = compaction

    def step(self, current: PassRow) -> bool:
        """Plan the save after a pass, once. Return True if the pass is done without one."""
        if self._ledger.saves.of(current.ordinal) is not None:
            return False
        data, now = self._settings.data, self._clock()
        chain = self._ledger.saves.chain()
        if data.is_stream and is_held(self._ledger, current, self._config, now, late_clicks=data.stream.late_clicks):
            # Without deltas there are no checkpoints by log, so the table is saved more often.
            plan = SavePlan(("checkpoint",) if self._save_is_old(_HELD_SECONDS) else (), None)
        else:
            plan = self._plan(current, chain)
        version = None
        if plan.kind is not None:
            try:
                published, refused = self._store.published()
            except StoreError as failed:
                if not isinstance(failed, Pending):
                    log.warning("the save after pass %s waits for the store: %s", current.id, failed)
                return False
            stands_on_refused = self._refused_of(chain, refused)
            # Checked first, because a compacted base has the values of its versions, including refused ones.
            if not stands_on_refused and self._compaction.adopt(published):
                chain = self._ledger.saves.chain()
                plan = self._plan(current, chain)
            if stands_on_refused or self._lost_of(chain, published):
                plan = self._plan(current, chain)
            known = [*published, *self._ledger.saves.version_passes(), self._ledger.facts.last_version]
            version = next_version(self._clock(), known)
            self._ledger.set_facts(last_version=version)
        steps = plan.steps
        whole = [row["pass"] for row in self._ledger.saves.checkpoints() if not row["mid"]]
        if current.ordinal in whole and plan.kind == "delta":
            # A recovery returned to this checkpoint, so only its version is missing.
            steps = tuple(step for step in steps if step != "checkpoint")
        if not steps:
            self._schedule.finish(current)
            return True
        generation = self._generations.present
        checkpoint = checkpoint_name(current, generation) if "checkpoint" in steps else None
        save = SaveRow(current.ordinal, generation, steps, plan.kind, version, checkpoint, self._clock())
        self._ledger.saves.begin(save)
        return False

    def _plan(self, current: PassRow, chain: Sequence[int]) -> SavePlan:
        stream = self._settings.data.is_stream
        # Twice the limit of compactions, so that one under way can finish.
        long = stream and len(chain) >= max(_LONGEST_CHAIN, 2 * self._settings.data.stream.compact_versions)
        if stream and chain and not self._ledger.keys.knows(self._ledger.facts.follows):
            self._base_is_due("which keys were trained since the last version is not known")
        return save_plan(
            current,
            self._config,
            # Records since the last version, because a pass without records still saves those of earlier passes.
            records=self._ledger.saves.unpublished(),
            has_base=bool(chain),
            base_due=long or bool(self._ledger.facts.base_due),
            is_last=self._schedule.is_last(current),
            checkpoint_due=self._checkpoint_is_due(chain) if stream else None,
        )

    def _checkpoint_is_due(self, chain: Sequence[int]) -> bool:
        """True if a stream's table is to be saved: rarely, because a save walks the table and delays the passes behind it. Checkpoints by
        log come in between.
        """
        return self._save_is_old() or self._log(chain) is None

    def _save_is_old(self, most: float = math.inf) -> bool:
        saved = [row["at"] for row in self._ledger.saves.checkpoints() if not row["stands_on"] and not row["compacted"]]
        # The row of the save may be gone, because its compacted checkpoint has replaced it.
        last = max([*saved, self._ledger.facts.table_saved_at])
        # Negative only if the clock was set back while no master ran.
        return not 0 <= self._clock() - last < min(self._settings.data.stream.checkpoint_seconds, most)

    def lost_versions(self, published: Collection[int]) -> list[int]:
        """Return the versions that the next delta would depend on and that are not among `published`. If there are any, a base is due."""
        return self._lost_of(self._ledger.saves.chain(), published)

    def _lost_of(self, chain: Sequence[int], published: Collection[int]) -> list[int]:
        there = set(published)
        lost = [version for version in chain if version not in there]
        if lost:
            self._base_is_due(f"version {lost[0]} is no longer in the store, and no delta can stand on it")
        return lost

    def refused_versions(self, refused: Mapping[int, str]) -> bool:
        """True if the next delta would depend on a version that cube-transfer refused. A base is then due."""
        return self._refused_of(self._ledger.saves.chain(), refused)

    def _refused_of(self, chain: Sequence[int], refused: Mapping[int, str]) -> bool:
        wrong = refused_below(chain[0], chain[-1], refused) if chain else None
        if wrong is not None:
            self._base_is_due(f"version {wrong} was refused ({refused[wrong]}), and no delta can stand on it")
        return wrong is not None

    def _base_is_due(self, why: str) -> None:
        if not self._ledger.facts.base_due:
            log.warning("%s: the next version is a base", why)
            self._ledger.set_facts(base_due=f"{why}; the next version is a base")

    def log_due(self, save: SaveRow) -> LogPlan | None:
        """Return the plan of a checkpoint by log with this delta by key; None if the last checkpoint is recent or the log has a gap."""
        newest = max((row["at"] for row in self._ledger.saves.checkpoints()), default=0.0)
        if not save.keeps_table or save.version is None or 0 <= self._clock() - newest < _LOG_SECONDS:
            return None
        plan = self._log(self._ledger.saves.chain())
        if plan is None:
            return None
        return LogPlan(plan.stands_on, (*plan.versions, save.version))

    def _log(self, chain: Sequence[int]) -> LogPlan | None:
        """Return the last save of the table and the versions of the chain since. None without a save, or if these versions lack a
        pass since.
        """
        saved = [row for row in self._ledger.saves.checkpoints() if not row["stands_on"] and not row["mid"]]
        if not saved:
            return None
        passes, last = self._ledger.saves.version_passes(), saved[-1]
        if not passes.keys() >= set(chain):
            return None
        log = [version for version in chain if passes[version] > last["pass"]]
        below = chain[: len(chain) - len(log)]
        # Complete if the counts of the first delta begin with the pass after the save.
        complete = bool(below) and passes[below[-1]] == last["pass"]
        return LogPlan(last["name"], tuple(log)) if complete else None
