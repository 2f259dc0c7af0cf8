"""Decisions about the master's own steps of a save and of a compaction. The publisher works with the store and reports here."""

from collections.abc import Callable, Mapping

from elastic_ctr.training.master.decision_lock import DecisionLock
from elastic_ctr.training.master.generations.recovery import MidPassHandover
from elastic_ctr.training.master.ledger.rows import CompactionRow, PassRow, SaveRow
from elastic_ctr.training.master.saves.checkpointing import Checkpointing
from elastic_ctr.training.master.saves.compaction import Compacted
from elastic_ctr.training.master.saves.planning import LogPlan, SavePlanning


class SaveSteps:
    """Thread-safe. `advance` moves the current pass on, `recover` begins another generation."""

    def __init__(
        self,
        lock: DecisionLock,
        planning: SavePlanning,
        saves: Checkpointing,
        handover: MidPassHandover,
        advance: Callable[[], None],
        recover: Callable[[str, str], None],
    ) -> None:
        self._lock = lock
        self._planning = planning
        self._saves = saves
        self._handover = handover
        self._advance = advance
        self._recover = recover

    def open_save(self) -> tuple[PassRow, SaveRow] | None:
        """Return the current pass and its save if the publisher's next step is due, else None."""
        with self._lock.writing():
            return self._saves.due()

    def samples_of(self, ordinal: int) -> list[tuple[str, int, int]]:
        """Return the sample lines of a pass: (line without show and click, show, click)."""
        with self._lock.reading():
            return self._saves.samples_of(ordinal)

    def in_mid_pass(self, save: SaveRow) -> bool:
        """True if a save was ordered in the middle of its pass."""
        with self._lock.reading():
            return self._handover.mid_pass_state(save) is not None

    def checkpoint_committed(self, save: SaveRow, follows: int | None, base: int | None) -> None:
        with self._lock.writing():
            self._saves.commit_checkpoint(save, follows, base, self._handover.mid_pass_state(save))

    def files_judged(self, save: SaveRow) -> None:
        with self._lock.writing() as ledger, ledger:
            if self._handover.mid_pass_state(save) is not None:
                # The mid-pass checkpoint is committed; the recovery begins the new training.
                self._recover("training", "")
                return
            self._saves.end_files(save)
            self._advance()

    def compaction_due(self) -> Compacted | None:
        """Return a compaction whose files are in the store, or None."""
        with self._lock.reading():
            return self._saves.compaction.due()

    def compaction_committed(self, row: CompactionRow, keys: int) -> None:
        with self._lock.writing():
            self._saves.compaction.commit(row, keys)

    def compaction_failed(self, row: CompactionRow, reason: str) -> None:
        with self._lock.writing() as ledger:
            if ledger.facts.compaction == row:
                self._saves.compaction.drop(reason)

    def log_due(self, save: SaveRow) -> LogPlan | None:
        """Return the checkpoint by log to write with this version, or None."""
        with self._lock.writing():
            return self._planning.log_due(save)

    def version_committed(self, save: SaveRow, keys: int, *, refused: str = "", log_on: str = "") -> None:
        with self._lock.writing() as ledger, ledger:
            self._saves.commit_version(save, keys, refused, log_on)
            self._advance()

    def versions_found(self, published: list[int]) -> None:
        """Take the versions in the store at the master's start: some that the next delta depends on may be lost."""
        with self._lock.writing():
            lost = self._planning.lost_versions(published)
            if self._saves.stands_on(lost):
                self._recover("master", f"version {lost[0]}, which the save under way stands on, is not in the store")

    def versions_refused(self, refused: Mapping[int, str]) -> None:
        """Take the versions that cube-transfer refused: no delta can depend on them."""
        with self._lock.writing():
            self._planning.refused_versions(refused)
