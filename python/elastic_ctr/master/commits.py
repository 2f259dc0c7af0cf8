"""What the ledger takes note of when the publisher has put something into the store: written -> exported -> scored -> done.

The publisher works without the coordinator's lock, so each of these asks first whether its save still stands: a recovery
may have dropped it meanwhile.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from elastic_ctr.control import control_pb2 as control
from elastic_ctr.master.checkpointing import results_of, saved_of
from elastic_ctr.master.ledger import Ledger
from elastic_ctr.master.ledger_rows import PassRow, SaveRow
from elastic_ctr.master.schedule import Schedule

log = logging.getLogger(__name__)

Due = tuple[PassRow, SaveRow, list[control.JobResult], control.SaveResult]


class Commits:
    """Checkpoints and versions that stand, and the ends of the passes that made them."""

    def __init__(self, ledger: Ledger, schedule: Schedule, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._schedule = schedule
        self._clock = clock

    def due(self) -> Due | None:
        """A save whose files are written or scored, with what its parents and its trainer have reported."""
        current = self._ledger.current_pass()
        if current is None or current.state != "saving":
            return None
        save = self._ledger.save_of(current.ordinal)
        if save is None or save.stage not in ("written", "scored"):
            return None
        return current, save, results_of(save), saved_of(save)

    def _still(self, save: SaveRow) -> PassRow | None:
        """The pass of a save, unless a recovery has dropped it while the publisher was at the store."""
        now = self._ledger.save_of(save.ordinal)
        current = self._ledger.current_pass()
        if current is None or now is None or current.ordinal != save.ordinal:
            return None
        same = (now.generation, now.version, now.stage) == (save.generation, save.version, save.stage)
        return current if same else None

    def checkpoint(
        self, save: SaveRow, follows: int | None, base: int | None, mid: Mapping[str, Any] | None = None
    ) -> None:
        """From now on recoveries come back to it. The checkpoint of a base counts with the version alone.

        `mid`: where its pass stood, if it was made in the middle of one.
        """
        if save.checkpoint is not None and self._still(save) is not None:
            self._ledger.add_checkpoint(save.checkpoint, save.ordinal, follows, base, self._clock(), mid=mid)

    def files(self, save: SaveRow) -> None:
        """The checkpoint of a written save stands; its version is scored next, or the pass is done without one."""
        current = self._still(save)
        if current is None:
            return
        if save.kind is not None:
            self._ledger.set_save(save.ordinal, stage="exported")
            return
        self._ledger.set_save(save.ordinal, stage="done")
        self._schedule.finish(current)

    def version(self, save: SaveRow, keys: int, refused: str) -> None:
        """The version is published, or refused with a reason; the pass is done."""
        current = self._still(save)
        if current is None or save.version is None or save.kind is None:
            return
        is_base = save.kind == "base"
        base = save.version if is_base else int(self._ledger.get("base"))
        parent = None if is_base else self._ledger.get("follows")
        state = "refused" if refused else "published"
        self._ledger.add_version(
            save.version, save.kind, base, parent, save.ordinal, state, keys, self._clock(), refused
        )
        if refused:
            log.error("version %d after pass %s is refused: %s", save.version, current.id, refused)
            # What this save marked as published is in no version: only a base catches up.
            self._ledger.set_fact(
                "base_due", f"version {save.version} was refused ({refused}); the next version is a base"
            )
        else:
            log.info("version %d (%s, %d keys) is published after pass %s", save.version, save.kind, keys, current.id)
            self._ledger.set_fact("follows", save.version)
            self._ledger.set_fact("base", base)
            if is_base:
                self._ledger.set_fact("base_due", value=False)
                # In one transaction with the version it follows: no recovery sees one without the other.
                self.checkpoint(save, save.version, save.version)
            self._ledger.set_pass(current.ordinal, version=save.version)
        self._ledger.set_save(save.ordinal, stage="done")
        self._schedule.finish(current)
