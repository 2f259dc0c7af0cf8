"""AUC within groups of impressions (GAUC), as of one user each, of a sample of the groups.

GAUC is the mean of the groups' AUCs, weighted by their impressions (Zhu et al. 2017, "Optimized Cost per Click in Taobao Display Advertising",
formula 8). A group without a click, or without a show that was not clicked, has no AUC and no weight.

A group is in the sample or not by the hash of its key. So each part of a pass may choose by itself, and the groups that all parts have chosen are
whole: those whose hash is below the least bound of the parts.
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
    """The rows of all groups whose hash is below `bound`; 0: of all groups."""

    bound: int
    rows: Rows

    def to_bytes(self) -> bytes:
        return _BOUND.pack(self.bound) + self.rows.tobytes()


NOTHING = GroupSample(_ALL, np.zeros(0, ROW))


def sample_of(raw: bytes) -> GroupSample:
    """What `to_bytes` made. Raises ValueError for anything else."""
    if len(raw) < _BOUND.size or (len(raw) - _BOUND.size) % ROW.itemsize:
        raise ValueError(f"a sample of groups of {len(raw)} bytes, which are no rows of {ROW.itemsize}")
    [bound] = _BOUND.unpack_from(raw)
    rows = np.frombuffer(raw, ROW, offset=_BOUND.size)
    if not (np.isfinite(rows["clicks"]) & np.isfinite(rows["others"])).all():
        raise ValueError("a sample of groups with a count that is not finite")
    return GroupSample(bound, rows)


def bucket_in_group(bucket: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Of the buckets of a histogram; those below the fine ones are the first, those above are the last."""
    return np.clip(bucket - TAIL_BUCKETS, 0, FINE_BUCKETS - 1) // (FINE_BUCKETS // GROUP_BUCKETS)


def hashed(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of SplitMix64 (Steele et al. 2014), never 0: keys may be numbered in a row, their hashes are evenly spread."""
    h = np.asarray(keys, np.uint64)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    h ^= h >> np.uint64(31)
    return np.maximum(h, np.uint64(1))


def rows_of(
    groups: npt.NDArray[np.uint64], buckets: npt.NDArray[np.int64], clicks: npt.ArrayLike, others: npt.ArrayLike
) -> Rows:
    """One row an impression: [n] each. `groups` are hashes."""
    found = np.zeros(len(groups), ROW)
    found["group"], found["bucket"], found["clicks"], found["others"] = groups, buckets, clicks, others
    return found


def merged(samples: Sequence[GroupSample], most: int = 0) -> GroupSample:
    """The groups that are whole in all of them, and, with `most`, as many of those as have so many rows together."""
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
    """`merged` of what `sample_of` reads, with at most so many rows at a time and as many again."""
    found, waiting, rows = NOTHING, list[GroupSample](), 0
    for each in samples:
        waiting.append(sample_of(each))
        rows += len(waiting[-1].rows)
        if rows > most:
            found, waiting, rows = merged([found, *waiting], most), [], 0
    return merged([found, *waiting], most)


def grouped_auc(sample: GroupSample) -> tuple[float | None, int]:
    """GAUC of a merged sample, ties counted half, and the number of groups that have an AUC; None where there is none."""
    rows = sample.rows
    if not len(rows):
        return None, 0
    clicks, others = rows["clicks"], rows["others"]
    starts = np.flatnonzero(np.concatenate(([True], rows["group"][1:] != rows["group"][:-1])))
    positives, negatives = np.add.reduceat(clicks, starts), np.add.reduceat(others, starts)
    # Shows without click below a row, of its own group alone.
    below = np.cumsum(others) - others
    lower = below - np.repeat(below[starts], np.diff([*starts, len(rows)]))
    won = np.add.reduceat(clicks * (lower + 0.5 * others), starts)
    counted = (positives > 0) & (negatives > 0)
    if not counted.any():
        return None, 0
    auc = won[counted] / (positives[counted] * negatives[counted])
    weights = (positives + negatives)[counted]
    # By rounding it may come out above 1, and by late clicks, which take back a negative of their own score, below 0.
    return min(max(float(auc @ weights / weights.sum()), 0.0), 1.0), int(counted.sum())
