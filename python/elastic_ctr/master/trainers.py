"""Who trains at this moment: ids that are given out once, and when each was last heard."""

from elastic_ctr.master.ledger import Ledger


class Trainers:
    """Names and times live in memory, the last id given out in the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[int, tuple[str, float]] = {}

    def _last(self) -> int:
        return int(self._ledger.get("last_trainer", 0))

    def enter(self, name: str, trainer: int, now: float) -> int:
        """The id of a trainer that asks to be let in: its own, or a new one where it brings none that was given out here."""
        if not trainer or not self.given_out(trainer):
            trainer = self._ledger.increment("last_trainer")
        self._known[trainer] = (name, now)
        return trainer

    def given_out(self, trainer: int) -> bool:
        return trainer <= self._last()

    def heard(self, trainer: int, now: float) -> None:
        name = self._known.get(trainer, ("", 0.0))[0]
        self._known[trainer] = (name, now)

    def leave(self, trainer: int) -> None:
        self._known.pop(trainer, None)

    def heard_since(self, moment: float) -> dict[int, tuple[str, float]]:
        """Id -> (name, last heard at)."""
        return {trainer: each for trainer, each in self._known.items() if each[1] >= moment}
