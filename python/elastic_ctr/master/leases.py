"""A lease of what is no task: the initialisation, or a save. One trainer has it, and keeps it by renewing."""

from dataclasses import dataclass


@dataclass
class Lease:
    """Times in unix seconds."""

    trainer: int
    attempt: str
    ends: float

    def over(self, now: float) -> bool:
        return now > self.ends
