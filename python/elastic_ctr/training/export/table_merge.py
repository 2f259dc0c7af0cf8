"""Merges published deltas into a saved partition of the sparse table, for the load of a checkpoint by log.

A row keeps its optimizer state of the save. A new row has the initial state of Paddle's `SparseAdamSGDRule::InitValueWork` and its
like: zeros, and the decay rates as the powers of themselves.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elastic_ctr.training.export.table_text import RowLayout, row_keys

Keys = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]

_SHOW, _CLICK = 4, 5
# Decay rates of SparseAdam, for which the model has no settings.
_BETAS = (b"0.9", b"0.999")


@dataclass(frozen=True)
class Log:
    """The changes of deltas: sorted unique `keys` uint64 [n], their last `values` float32 [n, 1 + D], and `counts` float32 [n, 2], the
    added shows and clicks.
    """

    keys: Keys
    values: Floats
    counts: Floats

    @classmethod
    def of(cls, deltas: Iterable[tuple[Keys, Floats]], counts: Iterable[tuple[Keys, Floats]], dim: int) -> "Log":
        """Return the log of deltas in order, and of counts. A key with counts but without a value in any delta is left out."""
        all_deltas = [*deltas]
        keys = np.concatenate([np.empty(0, np.uint64), *(each for each, _ in all_deltas)])
        values = np.concatenate([np.empty((0, dim), np.float32), *(each for _, each in all_deltas)])
        # np.unique returns first occurrences, so reversed arrays yield the last ones.
        unique, last = np.unique(keys[::-1], return_index=True)
        sums = np.zeros((len(unique), 2), np.float64)
        for each, added in counts:
            if len(each) and len(unique):
                places = np.minimum(np.searchsorted(unique, each), len(unique) - 1)
                known = unique[places] == each
                np.add.at(sums, places[known], added[known])
        return cls(unique, values[::-1][last], sums.astype(np.float32))

    def part(self, mine: npt.NDArray[np.bool_]) -> "Log":
        return Log(self.keys[mine], self.values[mine], self.counts[mine])


def merged(text: bytes, layout: RowLayout, rules: tuple[str, str], log: Log) -> tuple[bytes, int]:
    """Return the rows of a partition with the log merged in, and their number. `rules` are those of embed and embedx.

    Raises RowsDamaged.
    """
    keys, ends = row_keys(text)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1])
    places = np.minimum(np.searchsorted(log.keys, keys), max(len(log.keys) - 1, 0))
    hits = np.flatnonzero(log.keys[places] == keys) if len(log.keys) else np.empty(0, np.int64)
    pieces, copied = [], 0
    for row in hits.tolist():
        start, end, place = int(starts[row]), int(ends[row]), int(places[row])
        pieces += [text[copied:start], _changed(text[start:end].split(), layout, rules[1], log, place)]
        copied = end
    pieces.append(text[copied:])
    fresh = np.ones(len(log.keys), np.bool_)
    fresh[places[hits]] = False
    new = np.flatnonzero(fresh)
    for place in new.tolist():
        row = [b"%d" % log.keys[place], b"0", b"0", b"0", b"0", b"0", b"0", *_first_state(rules[0], 1)]
        pieces += [_changed(row, layout, rules[1], log, place), b"\n"]
    return b"".join(pieces), len(keys) + len(new)


def _changed(row: list[bytes], layout: RowLayout, embedx_rule: str, log: Log, place: int) -> bytes:
    """Return a row with the log's value and counts. A row without the embedx block gets one if the log has a vector."""
    values = log.values[place].tolist()
    row[_SHOW] = b"%.9g" % (float(row[_SHOW]) + float(log.counts[place, 0]))
    row[_CLICK] = b"%.9g" % (float(row[_CLICK]) + float(log.counts[place, 1]))
    row[layout.embed_w] = b"%.9g" % values[0]
    vector = [b"%.9g" % each for each in values[1:]]
    if len(row) == layout.full:
        row[layout.embedx : layout.embedx + layout.dim] = vector
    elif any(values[1:]):
        row += [*vector, *_first_state(embedx_rule, layout.dim)]
    return b" ".join(row)


def _first_state(rule: str, dim: int) -> list[bytes]:
    """Return the state columns after a new weight or vector."""
    zeros = {"naive": 0, "adagrad": 1, "adagrad_v2": 1, "std_adagrad": dim, "adam": 2 * dim, "shared_adam": 2}[rule]
    return [b"0"] * zeros + [*(_BETAS if rule in ("adam", "shared_adam") else ())]
