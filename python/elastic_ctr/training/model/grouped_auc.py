"""AUC within groups of impressions (GAUC), such as those of a user, over a sample of the groups.

GAUC is the mean of the groups' AUCs, weighted by their impressions (Zhu et al. 2017, "Optimized Cost per Click in Taobao Display Advertising",
formula 8). A group without a click, or without a show that was not clicked, has no AUC and no weight.

The hash of a group's key decides whether it is in the sample, so each part of a pass can choose by itself. Groups whose hash is below
the smallest bound of the parts are complete.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.training.model.evaluation import FINE_BUCKETS, TAIL_BUCKETS

GROUP_BUCKETS = 1024
"""Buckets of the logit in a group: a quarter of the fine ones of a histogram. So few rows hold a group with many impressions, and impressions that
share a bucket differ too little for their order to count."""

Rows = npt.NDArray[Any]
"""Clicks and shows without click of one group in one bucket of the logit, sorted by both."""

ROW = np.dtype([("group", "<u8"), ("bucket", "<u2"), ("clicks", "<f8"), ("others", "<f8")])
_BOUND = struct.Struct("<Q")
_ALL = 0


@dataclass(frozen=True)
class GroupSample:
    """The rows of all groups whose hash is below `bound`, or of all groups if `bound` is 0."""

    bound: int
    rows: Rows

    def to_bytes(self) -> bytes:
        return _BOUND.pack(self.bound) + self.rows.tobytes()


NOTHING = GroupSample(_ALL, np.zeros(0, ROW))


def sample_of(raw: bytes) -> GroupSample:
    """Return the sample of bytes by `to_bytes`. Raises ValueError for others."""
    if len(raw) < _BOUND.size or (len(raw) - _BOUND.size) % ROW.itemsize:
        raise ValueError(f"a sample of groups of {len(raw)} bytes, which are no rows of {ROW.itemsize}")
    [bound] = _BOUND.unpack_from(raw)
    rows = np.frombuffer(raw, ROW, offset=_BOUND.size)
    if not (np.isfinite(rows["clicks"]) & np.isfinite(rows["others"])).all():
        raise ValueError("a sample of groups with a count that is not finite")
    return GroupSample(bound, rows)


def bucket_in_group(bucket: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the buckets in a group for those of a histogram. Buckets of the tails become the first and the last."""
    return np.clip(bucket - TAIL_BUCKETS, 0, FINE_BUCKETS - 1) // (FINE_BUCKETS // GROUP_BUCKETS)


def hashed(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the SplitMix64 finalizer (Steele et al. 2014) of each key, never 0: it spreads consecutive keys evenly."""
    h = np.asarray(keys, np.uint64)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    h ^= h >> np.uint64(31)
    return np.maximum(h, np.uint64(1))


def rows_of(
    groups: npt.NDArray[np.uint64], buckets: npt.NDArray[np.int64], clicks: npt.ArrayLike, others: npt.ArrayLike
) -> Rows:
    """Return one row for each impression: [n]. `groups` are hashes."""
    found = np.zeros(len(groups), ROW)
    found["group"], found["bucket"], found["clicks"], found["others"] = groups, buckets, clicks, others
    return found


def merged(samples: Sequence[GroupSample], most: int = 0) -> GroupSample:
    """Return the groups that are complete in all samples; with `most`, only as many groups as have at most so many rows."""
    bounds = [each.bound for each in samples if each.bound]
    bound = min(bounds, default=_ALL)
    rows = np.concatenate([each.rows for each in samples]) if samples else NOTHING.rows
    if bound:
        rows = rows[rows["group"] < np.uint64(bound)]
    order = np.lexsort((rows["bucket"], rows["group"]))
    rows = rows[order]
    if not len(rows):
        return GroupSample(bound, rows)
    same = (rows["group"][1:] == rows["group"][:-1]) & (rows["bucket"][1:] == rows["bucket"][:-1])
    starts = np.flatnonzero(np.concatenate(([True], ~same)))
    joined = rows[starts]
    for name in ("clicks", "others"):
        joined[name] = np.add.reduceat(rows[name], starts)
    if most and len(joined) > most:
        bound = int(joined["group"][most])
        joined = joined[joined["group"] < np.uint64(bound)]
    return GroupSample(bound, joined)


def folded(samples: Iterable[bytes], most: int) -> GroupSample:
    """Return `merged` of serialised samples, with at most about twice `most` rows in memory."""
    found, waiting, rows = NOTHING, list[GroupSample](), 0
    for each in samples:
        waiting.append(sample_of(each))
        rows += len(waiting[-1].rows)
        if rows > most:
            found, waiting, rows = merged([found, *waiting], most), [], 0
    return merged([found, *waiting], most)


def grouped_auc(sample: GroupSample) -> tuple[float | None, int]:
    """Return the GAUC of a merged sample, ties counted half, or None, and the number of groups with an AUC."""
    rows = sample.rows
    if not len(rows):
        return None, 0
    clicks, others = rows["clicks"], rows["others"]
    starts = np.flatnonzero(np.concatenate(([True], rows["group"][1:] != rows["group"][:-1])))
    positives, negatives = np.add.reduceat(clicks, starts), np.add.reduceat(others, starts)
    # Shows without click below a row, within its own group.
    below = np.cumsum(others) - others
    lower = below - np.repeat(below[starts], np.diff([*starts, len(rows)]))
    won = np.add.reduceat(clicks * (lower + 0.5 * others), starts)
    counted = (positives > 0) & (negatives > 0)
    if not counted.any():
        return None, 0
    auc = won[counted] / (positives[counted] * negatives[counted])
    weights = (positives + negatives)[counted]
    # Rounding may lead above 1, and late clicks, which subtract a negative of their own score, below 0.
    return min(max(float(auc @ weights / weights.sum()), 0.0), 1.0), int(counted.sum())
