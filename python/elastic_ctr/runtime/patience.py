"""How long a parent bears with a worker process that says nothing.

A dead worker is seen at once: its socket ends. One that hangs keeps everything open, and is seen by its silence alone.
"""

from __future__ import annotations

# A worker that lives says something every second at least, and the parent looks as often.
LOOK_SECONDS = 1.0
# Nobody should be sent to a worker that has been late for so long; it may come back.
SILENT_SECONDS = 10.0
# A worker that has nothing long to do gets a turn within this on any machine that is of use.
HUNG_SECONDS = 30.0
# For what may keep a disk or the interpreter to itself: imports, machine code, a network. Tens of seconds on a busy machine
# of two cores; ten times as long is no work any more.
LONG_SECONDS = 600.0


class Patience:
    """What the parent knows of one worker: when it was last heard, whether something long is under way, what it owes.

    Seconds are counted in looks and not read from a clock: a parent that stands still (stopped, frozen, starved) does
    not look, and what is said to it meanwhile lies unread. That is nobody's silence.
    """

    def __init__(self, order_seconds: float = LONG_SECONDS) -> None:
        self._order_seconds = order_seconds
        self._now = 0.0
        self._heard_at = 0.0
        self._owed: dict[int, float] = {}
        self._given_up = False
        # It begins with imports.
        self.busy = True

    @property
    def silent(self) -> bool:
        """Whether it answers nobody just now, by all that is known. At something long it may be answering, and not say so."""
        return not self.busy and self._now - self._heard_at >= SILENT_SECONDS

    def heard(self) -> None:
        self._heard_at = self._now

    def ordered(self, number: int) -> None:
        self._owed[number] = self._now

    def answered(self, number: int) -> None:
        self._owed.pop(number, None)

    def look(self) -> str | None:
        """To be called every LOOK_SECONDS; what is wrong with a worker that is to be killed now, said once."""
        self._now += LOOK_SECONDS
        wrong = None if self._given_up else self._wrong()
        self._given_up = self._given_up or wrong is not None
        return wrong

    def _wrong(self) -> str | None:
        silence = self._now - self._heard_at
        if silence >= (LONG_SECONDS if self.busy else HUNG_SECONDS):
            return f"has said nothing for {silence:.0f} s"
        waited = self._now - min(self._owed.values(), default=self._now)
        if waited >= self._order_seconds:
            return f"has owed an answer for {waited:.0f} s"
        return None
