"""Generations of server processes, and the way back: a recovery begins the next one at the last checkpoint."""

import logging
from collections.abc import Callable, Iterable

from elastic_ctr.master.ledger import Ledger

log = logging.getLogger(__name__)

TRIES = 3
"""Saves, or loads of a checkpoint, that may fail in a row before the pass is stopped."""


class Generations:
    """What the ledger knows of the present generation. Nothing of it lives in memory: a master that restarts goes on in it."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock = clock
        if ledger.get("generation") is None:
            ledger.set_fact("generation", 1)

    @property
    def present(self) -> int:
        return int(self._ledger.get("generation"))

    @property
    def last_checkpoint(self) -> str | None:
        """Where the next recovery comes back to; None: to the start."""
        rows = self._ledger.checkpoints()
        return rows[-1]["name"] if rows else None

    @property
    def used(self) -> bool:
        """Somebody was told to initialise it, so its servers may hold something."""
        return bool(self._ledger.get("touched") == self.present)

    def use(self) -> None:
        self._ledger.set_fact("touched", self.present)

    @property
    def ready(self) -> bool:
        """Its servers hold first values, or a checkpoint whose rows were counted."""
        return bool(self._ledger.get("initialised") == self.present)

    @property
    def initialised_by(self) -> int:
        """The trainer whose values are in the servers; 0: nobody's yet."""
        generation, trainer = self._ledger.get("initialised_by", (0, 0))
        return int(trainer) if generation == self.present else 0

    def initialise(self, trainer: int) -> None:
        self._ledger.set_fact("initialised_by", [self.present, trainer])

    def open(self) -> None:
        """From now on it is trained."""
        with self._ledger:
            self._ledger.set_fact("initialised", self.present)
            self._ledger.set_fact("load_failures", 0)
            self._ledger.end_recoveries(self._clock())
        log.info("generation %d is ready", self.present)

    def start_pass_over(self, ordinal: int) -> None:
        """The next recovery comes back to before this pass: its files may be others now, so no part of it may stay trained."""
        for row in self._ledger.checkpoints():
            if row["pass"] == ordinal and row["mid"]:
                self._ledger.remove_checkpoint(row["name"])

    def set_aside(self, names: Iterable[str], reason: str) -> None:
        """Damaged checkpoints: the next recovery comes back to the one before them."""
        for name in names:
            log.error("checkpoint %s is damaged and is set aside: %s", name, reason)
            self._ledger.set_aside(name, reason)

    def holds(self, ordinal: int) -> bool:
        """Whether the last checkpoint was made after this pass, with all of it."""
        rows = self._ledger.checkpoints()
        return bool(rows) and rows[-1]["pass"] == ordinal and not rows[-1]["mid"]

    def roll_back(self, role: str, reason: str) -> None:
        """Back to the last checkpoint, in a new generation of server processes."""
        with self._ledger:
            generation = self._ledger.increment("generation")
            rows = self._ledger.checkpoints()
            back_to = rows[-1]["pass"] if rows else 0
            lost = self._ledger.roll_back(back_to, rows[-1] if rows and rows[-1]["mid"] else None)
            follows = rows[-1]["follows"] if rows else None
            self._ledger.set_fact("follows", follows)
            self._ledger.set_fact("base", rows[-1]["base"] if rows else None)
            self._ledger.abandon_versions(follows or 0)
            self._ledger.increment("rolled_back", lost)
            self._ledger.set_fact("finished", value=False)
            self._ledger.add_recovery(role, reason, self._clock(), lost)
            # A save of the checkpoint's own pass was on its way: it is planned anew.
            save = self._ledger.save_of(back_to)
            if save is not None and save.stage != "done":
                self._ledger.drop_saves(back_to)
        log.warning("generation %d begins at %s: %s", generation, rows[-1]["name"] if rows else "the start", reason)
