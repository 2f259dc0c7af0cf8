"""From one training to the next, when an upgrade replaces it: what the old one's servers hold is saved once more before they go.

The upgrade ends the old one's pods, and within their grace they still work. Nothing is trained any more; once no task is open, a
trainer saves the table as it is: a checkpoint in mid pass, which changes nothing in the table. A pass that is being saved as it
is ends its own save instead. Then, or when the old ones fall silent, or their time is up, the recovery follows that begins the
new training; until then its members wait.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from elastic_ctr.config.roles import MasterConfig
from elastic_ctr.master.checkpoint_files import checkpoint_name
from elastic_ctr.master.ledger import Ledger, SaveRow
from elastic_ctr.master.members import Pservers, Trainers
from elastic_ctr.master.recovery import Generations

log = logging.getLogger(__name__)

_LONGEST_PATIENCE = 30.0
_TRAINED = ("training", "evaluating")


class MidPassHandover:
    """What the ledger knows of it. Nothing of it lives in memory: a master that restarts goes on with it."""

    def __init__(
        self,
        ledger: Ledger,
        generations: Generations,
        config: MasterConfig,
        *,
        seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._generations = generations
        self._seconds = seconds
        self._silence = max(config.lease_seconds, config.pserver_timeout_seconds)
        self._clock = clock
        # The first look: whoever lives is heard again within a lease from there, also after a restart of the master.
        self._listens_since: float | None = None

    def _fact(self) -> dict[str, Any]:
        return self._ledger.get("handover") or {}

    @property
    def under_way(self) -> bool:
        return bool(self._fact())

    @property
    def before(self) -> str | None:
        """The training that is replaced; None while none is."""
        return self._fact().get("before")

    @property
    def pservers(self) -> int:
        """How many the training has that is replaced."""
        return int(self._fact()["pservers"])

    @property
    def patience(self) -> float:
        """Seconds that a member which was told to end waits for a master that does not answer: it restarts in an upgrade too."""
        return min(_LONGEST_PATIENCE, self._seconds)

    def resume(self) -> None:
        """Members may have called and not been heard."""
        self._listens_since = None

    # -- its steps -------------------------------------------------------------------------------------------------

    def begin(self, before: str) -> bool:
        """Whether the replaced training is worth a save: its servers hold a part of a pass that no checkpoint has."""
        current = self._ledger.current_pass()
        pservers = len(self._ledger.get("pservers", {}))
        if not self._seconds or not pservers or not self._generations.ready:
            return False
        if current is None or current.state not in (*_TRAINED, "saving"):
            return False
        now = self._clock()
        self._ledger.set_fact(
            "handover",
            {
                "before": before,
                "pservers": pservers,
                "pass": current.ordinal,
                "ends": now + self._seconds,
                "mid": None,
            },
        )
        log.warning("training %s is replaced: it has %.0f s to save once more and leave", before, self._seconds)
        return True

    def order(self) -> None:
        """The save in mid pass, once and as soon as no task is open."""
        current = self._ledger.current_pass()
        if current is None or current.state not in _TRAINED or self._ledger.leased():
            return
        generation = self._generations.present
        save = SaveRow(
            current.ordinal,
            generation,
            "ordered",
            ("checkpoint",),
            None,
            None,
            checkpoint_name(current, generation),
            None,
            {},
            self._clock(),
        )
        stood = {"state": current.state, "epoch": current.epoch, "trained_at": current.trained_at}
        with self._ledger:
            self._ledger.begin_save(save)
            self._ledger.set_pass(current.ordinal, state="saving")
            self._ledger.set_fact("handover", {**self._fact(), "mid": stood})

    def mid_pass_state(self, save: SaveRow) -> Mapping[str, Any] | None:
        """Where the pass stood when this save was ordered in its middle; None for a save of a whole pass."""
        fact = self._fact()
        mine = fact and fact["pass"] == save.ordinal and save.generation == self._generations.present
        return fact["mid"] if mine else None

    @property
    def done(self) -> bool:
        """The pass under way was saved as a whole; a save in its middle is told by its commit."""
        current = self._ledger.current_pass()
        return current is None or current.ordinal != self._fact()["pass"]

    def broken(self, pservers: Pservers, trainers: Trainers) -> str:
        """Why nothing more can be saved; empty while it can."""
        current, now = self._ledger.current_pass(), self._clock()
        if current is not None and current.state == "stopped":
            return f"pass {current.id} is stopped"
        if now > self._fact()["ends"]:
            return f"it was not done within {self._seconds:g} s"
        if self._listens_since is None:
            self._listens_since = now
        since = now - self._silence
        if since < self._listens_since:
            return ""
        if unheard := pservers.silent_since(since):
            return f"pserver {', '.join(map(str, unheard))} of {pservers.count} is gone"
        save = None if current is None else self._ledger.save_of(current.ordinal)
        only_written = save is not None and save.stage in ("saved", "written")
        return "" if only_written or trainers.heard_since(since) else "no trainer is left"

    def end(self) -> None:
        self._ledger.set_fact("handover", None)

    def reason_text(self, training: str, why_not: str) -> str:
        """Why a recovery begins the new training, and why without what was trained last."""
        replaced = f"training {self.before} was replaced by {training}"
        save = self._ledger.save_of(self._fact()["pass"])
        stands = save is not None and save.checkpoint in {row["name"] for row in self._ledger.checkpoints()}
        return replaced if stands or not why_not else f"{replaced}, and was not saved once more: {why_not}"
