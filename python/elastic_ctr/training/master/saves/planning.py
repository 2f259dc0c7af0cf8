"""What the save after a pass is to have: a checkpoint or none, a base or a delta, and on what it stands."""

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.store import StoreError
from elastic_ctr.store.versions.manifest import next_version
from elastic_ctr.store.versions.refusals import refused_below
from elastic_ctr.training.master.calendar.schedule import SavePlan, save_plan
from elastic_ctr.training.master.generations.checkpoint_files import checkpoint_name
from elastic_ctr.training.master.generations.recovery import Part
from elastic_ctr.training.master.generations.store_queries import Pending, StoreQueries
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.ledger.rows import PassRow, SaveRow
from elastic_ctr.training.master.saves.compaction import Compaction
from elastic_ctr.training.master.saves.hold import is_held

log = logging.getLogger(__name__)

# Between two checkpoints of any kind: what is trained again after a pserver's loss.
_LOG_SECONDS = 5.0
# While publishing is held: between two saves of the table.
_HELD_SECONDS = 900.0
# Versions from a base to the next one, of a stream, where compactions do not come to their end: their files stay in the store.
_LONGEST_CHAIN = 1000


class LogPlan(NamedTuple):
    """A checkpoint by log: the saved checkpoint that it stands on, and the versions since."""

    stands_on: str
    versions: tuple[int, ...]


class SavePlanning(Part):
    """Orders the save of a pass in the ledger. `compaction` is of the log that the versions are."""

    def __init__(
        self,
        ledger: Ledger,
        settings: MasterFile,
        store: StoreQueries,
        clock: Callable[[], float],
        compaction: Compaction,
    ) -> None:
        super().__init__(ledger, settings, store, clock)
        self._compaction = compaction

    def step(self, current: PassRow) -> bool:
        """Plan the save after a pass, once. Whether the pass is done with that."""
        if self._ledger.save_of(current.ordinal) is not None:
            return False
        data, now = self._settings.data, self._clock()
        chain = self._ledger.chain()
        if data.is_stream and is_held(self._ledger, current, self._config, now, late_clicks=data.stream.late_clicks):
            # No delta is published that a checkpoint by log could be made of.
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
            # Before: a compacted base has the values of the versions that it was made of, refused ones too.
            if not stands_on_refused and self._compaction.adopt(published):
                chain = self._ledger.chain()
                plan = self._plan(current, chain)
            if stands_on_refused or self._lost_of(chain, published):
                plan = self._plan(current, chain)
            known = [*published, *self._ledger.version_passes(), self._ledger.facts.last_version]
            version = next_version(self._clock(), known)
            self._ledger.set_facts(last_version=version)
        steps = plan.steps
        whole = [row["pass"] for row in self._ledger.checkpoints() if not row["mid"]]
        if current.ordinal in whole and plan.kind == "delta":
            # A recovery returned to this very checkpoint: only its version is missing.
            steps = tuple(step for step in steps if step != "checkpoint")
        if not steps:
            self._schedule.finish(current)
            return True
        generation = self._generations.present
        checkpoint = checkpoint_name(current, generation) if "checkpoint" in steps else None
        save = SaveRow(current.ordinal, generation, steps, plan.kind, version, checkpoint, self._clock())
        self._ledger.begin_save(save)
        return False

    def _plan(self, current: PassRow, chain: Sequence[int]) -> SavePlan:
        stream = self._settings.data.is_stream
        # A compaction that has begun has its time.
        long = stream and len(chain) >= max(_LONGEST_CHAIN, 2 * self._settings.data.stream.compact_versions)
        if stream and chain and not self._ledger.knows_touched(self._ledger.facts.follows):
            self._base_is_due("which keys were trained since the last version is not known")
        return save_plan(
            current,
            self._config,
            # A pass without records still saves what the passes before it left unsaved.
            records=self._ledger.unpublished(),
            has_base=bool(chain),
            base_due=long or bool(self._ledger.facts.base_due),
            is_last=self._schedule.is_last(current),
            checkpoint_due=self._checkpoint_is_due(chain) if stream else None,
        )

    def _checkpoint_is_due(self, chain: Sequence[int]) -> bool:
        """Of a stream: by time, for each one walks the table and holds up the passes behind it. Between two of them are checkpoints
        by log.
        """
        return self._save_is_old() or self._log(chain) is None

    def _save_is_old(self, most: float = math.inf) -> bool:
        saved = [row["at"] for row in self._ledger.checkpoints() if not row["stands_on"] and not row["compacted"]]
        # A compacted one outlives the save that it was made of.
        last = max([*saved, self._ledger.facts.table_saved_at])
        # In the future only where the clock was set back while no master ran.
        return not 0 <= self._clock() - last < min(self._settings.data.stream.checkpoint_seconds, most)

    def lost_versions(self, published: Collection[int]) -> list[int]:
        """Versions that the next delta would depend on and the store, which holds `published`, has lost: a base is due then."""
        return self._lost_of(self._ledger.chain(), published)

    def _lost_of(self, chain: Sequence[int], published: Collection[int]) -> list[int]:
        there = set(published)
        lost = [version for version in chain if version not in there]
        if lost:
            self._base_is_due(f"version {lost[0]} is no longer in the store, and no delta can stand on it")
        return lost

    def refused_versions(self, refused: Mapping[int, str]) -> bool:
        """Whether the next delta would depend on a version that cube-transfer refused: a base is due then."""
        return self._refused_of(self._ledger.chain(), refused)

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
        """The checkpoint by log that this delta by key completes, unless the last checkpoint is young or its log has a gap."""
        newest = max((row["at"] for row in self._ledger.checkpoints()), default=0.0)
        if not save.keeps_table or save.version is None or 0 <= self._clock() - newest < _LOG_SECONDS:
            return None
        plan = self._log(self._ledger.chain())
        if plan is None:
            return None
        return LogPlan(plan.stands_on, (*plan.versions, save.version))

    def _log(self, chain: Sequence[int]) -> LogPlan | None:
        """The last save of the table, and the versions of the ledger's chain since. None without one, and where they do not have
        all since.
        """
        saved = [row for row in self._ledger.checkpoints() if not row["stands_on"] and not row["mid"]]
        if not saved:
            return None
        passes, last = self._ledger.version_passes(), saved[-1]
        if not passes.keys() >= set(chain):
            return None
        log = [version for version in chain if passes[version] > last["pass"]]
        below = chain[: len(chain) - len(log)]
        # The counts of the first delta begin with the pass behind that of the save.
        complete = bool(below) and passes[below[-1]] == last["pass"]
        return LogPlan(last["name"], tuple(log)) if complete else None
