"""A saved partition of the sparse table with the deltas that were published since: what a checkpoint by log loads.

A row keeps its optimizer state of the save. A row that is new has the state of one that was just created, after Paddle's
`SparseAdamSGDRule::InitValueWork` and its like: zeros, and the decay rates themselves as their powers.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elastic_ctr.training.export.table_text import RowLayout, row_keys

Keys = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]

_SHOW, _CLICK = 4, 5
# Of SparseAdam, which the model has no settings for.
_BETAS = (b"0.9", b"0.999")


@dataclass(frozen=True)
class Log:
    """What deltas have changed. Keys u64[n] are sorted, each once; values f32[n, 1 + D] are the last ones; counts f32[n, 2] are the
    shows and clicks that were added.
    """

    keys: Keys
    values: Floats
    counts: Floats

    @classmethod
    def of(cls, deltas: Iterable[tuple[Keys, Floats]], counts: Iterable[tuple[Keys, Floats]], dim: int) -> "Log":
        """Of deltas in their order, and of counts. A key that has counts alone was given a value by no delta and is left out."""
        all_deltas = [*deltas]
        keys = np.concatenate([np.empty(0, np.uint64), *(each for each, _ in all_deltas)])
        values = np.concatenate([np.empty((0, dim), np.float32), *(each for _, each in all_deltas)])
        # The first one from behind is the last.
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
    """The rows of a partition with the log's on them, and how many there are. `rules` are of embed and embedx.

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
    """A row with its log's value and counts. One without the embedx block gets it once there is a value for it."""
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
    """Columns behind a new weight or vector."""
    zeros = {"naive": 0, "adagrad": 1, "adagrad_v2": 1, "std_adagrad": dim, "adam": 2 * dim, "shared_adam": 2}[rule]
    return [b"0"] * zeros + [*(_BETAS if rule in ("adam", "shared_adam") else ())]
