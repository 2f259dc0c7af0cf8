"""A lease of what is no task: the initialisation, or a save. One trainer has it, and keeps it by renewing."""

from dataclasses import dataclass


@dataclass
class Lease:
    """Times in unix seconds. `longest` s after it began it is over whatever is renewed: a trainer that hangs renews for ever."""

    trainer: int
    attempt: str
    began: float
    ends: float
    longest: float

    def over(self, now: float) -> bool:
        return now > self.ends or self.overdue(now)

    def overdue(self, now: float) -> bool:
        return now - self.began > self.longest
