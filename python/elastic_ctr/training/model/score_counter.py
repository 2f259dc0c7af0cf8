"""Counts the scores of a dataset run while it runs.

Paddle calls this from each of its training threads. Counters in variables of the program would lose records, because threads share
persistable variables and update them without a lock.
"""

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.training.model.evaluation import BUCKETS, Floats, Histograms, bucket_of
from elastic_ctr.training.model.grouped_auc import NOTHING, GroupSample, bucket_in_group, hashed, merged, rows_of

# A larger logit counts as no prediction: the gradients of its record would be as large, and adam squares them in float32.
MOST_LOGIT = 1e12
# Pending rows are merged when there are this many times the rows that may be kept.
_MERGED_AT = 4


class ScoreCounter:
    """Counts clicks and shows without click by bucket of the logit, of all records and, on request, of a sample of groups."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin()

    def begin(self, group_rows: int = 0, *, aborts: bool = False, seeks: bool = False) -> None:
        """Reset the counts. No run may be under way.

        Args:
            group_rows: the most rows of the sample of groups; 0: no sample.
            aborts: a prediction that is not a number ends the run before its batch is learned, and nothing of the batch is pushed. The
                process cannot run Paddle again.
            seeks: count nothing, but collect the shows and clicks of records without a prediction for `unpredictable`.
        """
        self._positives, self._negatives = np.zeros(BUCKETS), np.zeros(BUCKETS)
        self._group_rows = group_rows
        self._groups, self._pending, self._pending_rows = NOTHING, list[GroupSample](), 0
        self._failure: Exception | None = None
        self._aborts, self._seeks = aborts, seeks
        self._sought: list[tuple[Floats, Floats]] = []

    def count(self, logits: Any, shows: Any, clicks: Any, keys: Any = None) -> None:
        """Count one batch of Paddle tensors [n, 1]. `keys`: those of the grouping slot, with their level of detail (LoD).

        The first key of a record is its group; a record without one, or with the padding key 0, is in no group. Exceptions would be
        lost in Paddle's thread, so `check` raises them.
        """
        try:
            self._count(logits, shows, clicks, keys)
        except Exception as failed:
            self._failure = failed
            if self._aborts and isinstance(failed, FloatingPointError):
                raise

    def check(self) -> None:
        """Raises the exception of a batch of the run: FloatingPointError if a logit was not a number."""
        if self._failure is not None:
            raise self._failure

    def _count(self, logits: Any, shows: Any, clicks: Any, keys: Any) -> None:
        # Paddle's tensors only convert to their own type.
        logit, show, click = (np.array(each).astype(np.float64).reshape(-1) for each in (logits, shows, clicks))
        if self._seeks:
            without = ~(np.abs(logit) <= MOST_LOGIT)
            with self._lock:
                self._sought.append((show[without], click[without]))
            return
        # The gradients of an infinite logit are not numbers.
        if np.isnan(logit).any() or (self._aborts and np.isinf(logit).any()):
            raise FloatingPointError("a prediction is not a number")
        bucket = bucket_of(logit)
        positives = np.bincount(bucket, click, BUCKETS)
        negatives = np.bincount(bucket, show - click, BUCKETS)
        grouped = self._grouped(keys, bucket, click, show - click) if self._group_rows and keys is not None else None
        with self._lock:
            self._positives += positives
            self._negatives += negatives
            if grouped is not None:
                self._pending.append(grouped)
                self._pending_rows += len(grouped.rows)
                if self._pending_rows > _MERGED_AT * self._group_rows:
                    self._merge()

    def unpredictable(self) -> tuple[Floats, Floats]:
        """Return the shows and clicks of the records without a prediction, after a run with `seeks`."""
        nothing = np.zeros(0)
        shows, clicks = zip(*self._sought, strict=True) if self._sought else ((nothing,), (nothing,))
        return np.concatenate(shows), np.concatenate(clicks)

    def histograms(self) -> Histograms:
        """Return the histograms of the run so far."""
        return self._positives.copy(), self._negatives.copy()

    def groups(self) -> GroupSample:
        with self._lock:
            self._merge()
            return self._groups

    def _merge(self) -> None:
        self._groups = merged([self._groups, *self._pending], self._group_rows)
        self._pending, self._pending_rows = [], 0

    def _grouped(
        self, keys: Any, bucket: npt.NDArray[np.int64], clicks: npt.NDArray[np.float64], others: npt.NDArray[np.float64]
    ) -> GroupSample:
        """Return the rows of the groups below the present bound."""
        [begins] = (np.asarray(level) for level in keys.lod())
        padded = np.append(np.array(keys).reshape(-1), 0)
        first = np.where(begins[1:] > begins[:-1], padded[begins[:-1]], 0).astype(np.int64).view(np.uint64)
        has = first != 0
        groups = hashed(first)
        if bound := self._groups.bound:
            has &= groups < np.uint64(bound)
        return GroupSample(0, rows_of(groups[has], bucket_in_group(bucket[has]), clicks[has], others[has]))
