"""The findings of a job, as an object of JSON."""

from dataclasses import dataclass
from typing import Any

from elastic_ctr.jobs.scoring.quality import measures
from elastic_ctr.jobs.scoring.scoring_job import Outcome


@dataclass(frozen=True)
class Report:
    """The outcomes of a job, by split (or file) and in total."""

    version: int
    splits: dict[str, Outcome]
    total: Outcome
    max_refused_share: float

    def document(self) -> dict[str, Any]:
        """Return `version`, and the measures of `splits` and of the `total`, with refused rows by reason and an example of each."""
        return {
            "version": self.version,
            "maxRefusedShare": self.max_refused_share,
            "splits": {split: measures(outcome) for split, outcome in self.splits.items()},
            "total": {
                **measures(self.total),
                "refusedByReason": self.total.refused,
                "refusedExamples": self.total.examples,
            },
        }
