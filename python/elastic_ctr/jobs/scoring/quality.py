"""The quality of scores: sums over impressions during scoring, and the measures computed from them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from elastic_ctr.jobs.scoring.scoring_job import Outcome, QualitySums
from elastic_ctr.training.model.evaluation import BUCKETS, auc_of_histogram, bucket_of, inside

Counts = npt.NDArray[np.int64]
K = TypeVar("K")


class QualityCounter:
    """Sums over the rows of a task."""

    def __init__(self) -> None:
        self._positives, self._negatives = np.zeros(BUCKETS), np.zeros(BUCKETS)
        self._sums = np.zeros(4)

    def add(self, probabilities: npt.NDArray[np.float32], shows: Counts, clicks: Counts) -> None:
        """Add rows with `shows` impressions, of which `clicks` were clicked."""
        if not len(probabilities):
            return
        p = inside(probabilities)
        positives, negatives = clicks.astype(np.float64), (shows - clicks).astype(np.float64)
        for_click, against = np.log(p), np.log1p(-p)
        bucket = bucket_of(for_click - against)
        self._positives += np.bincount(bucket, positives, BUCKETS)
        self._negatives += np.bincount(bucket, negatives, BUCKETS)
        self._sums += (
            p @ shows,
            -(positives @ for_click + negatives @ against),
            positives @ (1 - p) + negatives @ p,
            positives @ (1 - p) ** 2 + negatives @ p**2,
        )

    def quality(self) -> QualitySums:
        predicted, loss, absolute, squared = (max(float(each), 0.0) for each in self._sums)
        return QualitySums(
            predicted=predicted,
            loss=loss,
            absolute=absolute,
            squared=squared,
            positives=_sparse(self._positives),
            negatives=_sparse(self._negatives),
        )


def _sparse(counts: npt.NDArray[np.float64]) -> dict[int, int]:
    return {int(bucket): int(counts[bucket]) for bucket in np.flatnonzero(counts)}


def total(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the sum of several outcomes."""
    added = list(outcomes)
    labelled = [each.quality for each in added if each.quality is not None]
    quality = QualitySums(
        predicted=sum(each.predicted for each in labelled),
        loss=sum(each.loss for each in labelled),
        absolute=sum(each.absolute for each in labelled),
        squared=sum(each.squared for each in labelled),
        positives=_added(each.positives for each in labelled),
        negatives=_added(each.negatives for each in labelled),
    )
    return Outcome(
        rows=sum(each.rows for each in added),
        refused=_added(each.refused for each in added),
        # The first of several examples stays.
        examples={reason: text for each in reversed(added) for reason, text in each.examples.items()},
        shows=sum(each.shows for each in added),
        clicks=sum(each.clicks for each in added),
        quality=quality if labelled else None,
    )


def _added(counts: Iterable[Mapping[K, int]]) -> dict[K, int]:
    found: Counter[K] = Counter()
    for each in counts:
        found.update(each)
    return dict(found)


def measures(outcome: Outcome) -> dict[str, Any]:
    """Return counts of rows and refused rows, and for labelled rows the measures of their impressions, None if these are too few.

    `calibration` is predicted ÷ observed CTR.
    """
    found: dict[str, Any] = {"rows": outcome.rows, "refused": sum(outcome.refused.values())}
    quality, shows, clicks = outcome.quality, outcome.shows, outcome.clicks
    if quality is None:
        return found
    found |= {"shows": shows, "clicks": clicks, "auc": None, "logloss": None, "calibration": None, "observedCtr": None}
    found |= {"predictedCtr": None, "mae": None, "rmse": None}
    if shows:
        found["auc"] = auc_of_histogram(_dense(quality.positives), _dense(quality.negatives))
        found["logloss"] = quality.loss / shows
        found["observedCtr"], found["predictedCtr"] = clicks / shows, quality.predicted / shows
        found["calibration"] = quality.predicted / clicks if clicks else None
        found["mae"], found["rmse"] = quality.absolute / shows, (quality.squared / shows) ** 0.5
    return found


def _dense(counts: Mapping[int, int]) -> npt.NDArray[np.float64]:
    found = np.zeros(BUCKETS)
    for bucket, count in counts.items():
        if 0 <= bucket < BUCKETS:
            found[bucket] = count
    return found


@dataclass(frozen=True)
class ScoringReport:
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
