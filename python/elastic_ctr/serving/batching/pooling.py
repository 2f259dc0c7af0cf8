"""From feasigns to the input matrix of the dense network: unique keys by hashing, and the sum of each slot's values."""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.keys import PADDING_KEY, Keys, keys_of
from elastic_ctr.machine_code.compiled import compiled
from elastic_ctr.serving.batching.instances import Instances, Lengths

Floats = npt.NDArray[np.float32]
MOST_INLINE = 65_536
"""Feasigns; more are too slow for the thread that also reads the sockets."""

# The seed is secret, so that a client cannot choose keys that collide.
_SEED = np.uint64(secrets.randbits(64))
_PADDING = np.uint64(PADDING_KEY)
_1, _27, _30, _31 = (np.uint64(number) for number in (1, 27, 30, 31))
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
NOT_AVERAGED = np.zeros(0, np.bool_)


class UniqueKeys(NamedTuple):
    """The keys of a batch, each once: `keys` u64 in any order and without the padding key; `places` i64, one per feasign, shared ones
    last: 0 for the padding key, i + 1 for `keys[i]`.
    """

    keys: Keys
    places: npt.NDArray[np.int64]


@compiled
def _mixed(key: np.uint64) -> np.uint64:
    """As `features.splitmix.mixed`."""
    key = (key ^ (key >> _30)) * _MIX_1
    key = (key ^ (key >> _27)) * _MIX_2
    return key ^ (key >> _31)


@compiled
def _unique(keys: Any, seed: Any, slots: Any, found: Any, places: Any) -> Any:
    """Write unique keys to `found` and return their number; slots are zeros, a power of two of them, more than keys."""
    last = np.uint64(slots.size - 1)
    count = np.int32(0)
    for i in range(keys.size):
        key = keys[i]
        if key == _PADDING:
            places[i] = 0
            continue
        slot = _mixed(key ^ seed) & last
        while slots[slot] != 0 and found[slots[slot] - 1] != key:
            slot = (slot + _1) & last
        if slots[slot] == 0:
            found[count] = key
            count += np.int32(1)
            slots[slot] = count
        places[i] = slots[slot]
    return count


@compiled
def _segment_sum(values: Any, places: Any, lengths: Any, averaged: Any, sums: Any) -> None:
    """Add the values of each segment's keys to sums f32[segments, dim], zeros where it has keys; averaged slots are divided by their keys."""
    dim = values.shape[1]
    slots = averaged.size
    at = 0
    for segment in range(lengths.size):
        for _ in range(lengths[segment]):
            place = places[at]
            at += 1
            if place > 0:
                for d in range(dim):
                    sums[segment, d] += values[place - 1, d]
        if slots > 0 and averaged[segment % slots] and lengths[segment] > 1:
            for d in range(dim):
                sums[segment, d] /= np.float32(lengths[segment])


def unique_keys(instances: Instances, sparse_dim: int | None) -> UniqueKeys:
    """Return the keys to look up, in the order in which they first appear."""
    shared = instances.shared
    feasigns = instances.feasigns if shared is None else np.concatenate((instances.feasigns, shared.feasigns))
    keys = np.ascontiguousarray(keys_of(feasigns, sparse_dim))
    slots = np.zeros(1 << (2 * keys.size).bit_length(), np.int32)
    found, places = np.empty(keys.size, np.uint64), np.empty(keys.size, np.int64)
    count = _unique(keys, _SEED, slots, found, places)
    return UniqueKeys(found[:count], places)


def pooled(
    unique: UniqueKeys, values: Floats, instances: Instances, dim: int, averaged: npt.NDArray[np.bool_] = NOT_AVERAGED
) -> Floats:
    """Sum the values of each slot's keys, or average them; those of shared feasigns once for all rows of their group.

    Args:
        unique: the unique keys of these instances.
        values: f32 [len(unique.keys), dim], zeros for a missing key.
        instances: the instances, whose lengths assign feasigns to slots.
        dim: floats per key.
        averaged: bool [slots], true for slots whose sum is divided by the number of keys; empty if there are none.

    Returns:
        f32 [rows, slots * dim], C-contiguous. A key that appears twice in a slot counts twice, as in training.

    Raises:
        ValueError: lengths and feasigns do not agree.
    """
    shared = instances.shared
    own = int(instances.lengths.sum())
    due = own + (0 if shared is None else int(shared.lengths.sum()))
    if values.shape != (len(unique.keys), dim) or due != len(unique.places):
        raise ValueError(
            f"{values.shape} values of {len(unique.keys)} keys, {len(unique.places)} places in segments of {due}: these do not "
            "belong together"
        )
    values = np.ascontiguousarray(values, np.float32)
    if shared is None:
        sums = np.zeros((len(instances.lengths), dim), np.float32)
    else:
        # The last group, all zeros, is that of rows without shared feasigns, whose group is -1.
        groups, slots = shared.lengths.shape
        of_groups = np.zeros((groups + 1, slots, dim), np.float32)
        lengths = np.ascontiguousarray(shared.lengths).reshape(-1)
        _segment_sum(values, unique.places[own:], lengths, averaged, of_groups.reshape(-1, dim))
        sums = of_groups[shared.groups].reshape(-1, dim)
    _segment_sum(values, unique.places[:own], instances.lengths, averaged, sums)
    return sums.reshape(instances.rows, -1) if instances.rows else sums.reshape(0, 0)


def known_feasigns(instances: Instances, unique: UniqueKeys, missing: npt.NDArray[np.bool_]) -> Lengths:
    """Return how many feasigns of each instance the version has; the padding key does not count."""
    known = np.concatenate(([False], ~missing))[unique.places]
    own = len(instances.feasigns)
    counts = _known_by_row(known[:own], instances.lengths.reshape(instances.rows, -1))
    if (shared := instances.shared) is not None:
        counts += np.append(_known_by_row(known[own:], shared.lengths), 0)[shared.groups]
    return counts


def _known_by_row(known: npt.NDArray[np.bool_], lengths: Lengths) -> Lengths:
    before = np.concatenate(([0], np.cumsum(known)))
    ends = np.concatenate(([0], np.cumsum(lengths.sum(axis=1))))
    counts: Lengths = np.diff(before[ends])
    return counts


def warm_pooling() -> None:
    """Compile before the first request."""
    instances = Instances(np.ones(1, np.uint64), np.ones(1, np.int64), 1)
    unique = unique_keys(instances, None)
    assert pooled(unique, np.ones((1, 1), np.float32), instances, 1).item() == 1
