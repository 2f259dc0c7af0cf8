"""Click logs made from a known truth, to compare a trained model with the best possible one.

The truth is a sum: each key has a weight, a line is clicked with the probability sigmoid(intercept + sum of weights + interactions).
An interaction is between the keys of a group of slots: each key has a vector for it, and the vectors are multiplied and summed. The
truth depends only on its seed and the preset; the drawn lines depend on another seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elastic_ctr.features.splitmix import GAMMA, mixed
from elastic_ctr.formats.hours import values_text
from elastic_ctr.formats.slots import SlotList

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Preset:
    """The parameters that decide how hard a truth is to learn.

    Attributes:
        keys: different keys of a slot; key k is drawn in proportion to 1 / (k + 1)^zipf.
        spread: standard deviation of the keys' weights.
        groups: slots that interact, each group by itself.
        latent: dimensions of the vectors of an interaction.
        offset: mean of their coordinates, whose deviation is 1; above 0 a part of an interaction is one of fewer slots.
        strength: standard deviation of an interaction, if the offset is 0.
    """

    slots: int
    keys: int
    zipf: float = 1.05
    spread: float = 0.5
    intercept: float = -1.8
    groups: tuple[tuple[int, ...], ...] = ()
    latent: int = 2
    offset: float = 0.0
    strength: float = 0.0


PRESETS = {
    "easy": Preset(slots=8, keys=1_000),
    "sparse": Preset(slots=8, keys=100_000),
    "pairwise": Preset(
        slots=8,
        keys=200,
        spread=0.3,
        intercept=-1.5,
        groups=((0, 1), (2, 3), (4, 5), (6, 7), (0, 7), (1, 2)),
        strength=0.6,
    ),
    "third-order": Preset(
        slots=8, keys=60, spread=0.3, intercept=-1.5, groups=((0, 1, 2), (3, 4, 5), (5, 6, 7)), offset=0.5, strength=0.6
    ),
}


@dataclass(frozen=True)
class Lines:
    """Drawn lines: `indices` i64[n, slots] of keys, `probabilities` f64[n] of the truth, `clicks` bool[n]."""

    indices: npt.NDArray[np.int64]
    probabilities: Floats
    clicks: npt.NDArray[np.bool_]


class Truth:
    """Keys with their weights and frequencies.

    Attributes:
        slots: names of the slots, 0, 1, 2, …
        feasigns: u64[slots, keys], all different.
        weights: f64[slots, keys].
        vectors: f64[groups, slots, keys, latent]; a group uses the vectors of its slots.
    """

    def __init__(self, preset: Preset, seed: int) -> None:
        self.preset = preset
        self.slots = SlotList.parse(list(range(preset.slots)))
        count = preset.slots * preset.keys
        shape = (preset.slots, preset.keys)
        self.feasigns = distinct_words(count, seed).reshape(shape)
        self.weights = np.random.default_rng([seed, count]).normal(0.0, preset.spread, shape)
        self.vectors = np.random.default_rng([seed, count, 3]).normal(
            preset.offset, 1.0, (len(preset.groups), *shape, preset.latent)
        )
        often = np.arange(1, preset.keys + 1, dtype=np.float64) ** -preset.zipf
        self._cumulated = np.cumsum(often) / often.sum()
        self._tokens: list[npt.NDArray[np.object_]] | None = None

    def draw(self, rows: int, dice: np.random.Generator) -> Lines:
        """Draw lines of one impression each."""
        indices = self._keys(rows, self.preset.slots, dice)
        logits = self.preset.intercept + self._sum_of_weights(indices) + self._interactions(indices)
        probabilities = sigmoid(logits)
        return Lines(indices, probabilities, dice.random(rows) < probabilities)

    def _keys(self, rows: int, columns: int, dice: np.random.Generator) -> npt.NDArray[np.int64]:
        drawn = np.searchsorted(self._cumulated, dice.random((rows, columns)), side="right")
        return np.minimum(drawn, self.preset.keys - 1)

    def _sum_of_weights(self, indices: npt.NDArray[np.int64]) -> Floats:
        total: Floats = self.weights[np.arange(self.preset.slots), indices].sum(axis=1)
        return total

    def _interactions(self, indices: npt.NDArray[np.int64]) -> Floats:
        total = np.zeros(len(indices))
        for group, slots in enumerate(self.preset.groups):
            product = np.ones((len(indices), self.preset.latent))
            for slot in slots:
                product *= self.vectors[group, slot, indices[:, slot]]
            total += product.sum(axis=1) * (self.preset.strength / np.sqrt(self.preset.latent))
        return total

    def values(self, first: str, last: str) -> str:
        """Return the text of the values file for hours from `first` to `last`."""
        return values_text(self.slots, first, last)

    def text(self, lines: Lines) -> bytes:
        """Return the lines as `1 click feasign:slot …`."""
        if self._tokens is None:
            self._tokens = [
                np.array([f"{feasign}:{slot}" for feasign in feasigns], dtype=object)
                for slot, feasigns in enumerate(self.feasigns.tolist())
            ]
        heads = np.array(["1 0", "1 1"], dtype=object)[lines.clicks.astype(np.int64)]
        columns = [tokens[lines.indices[:, slot]].tolist() for slot, tokens in enumerate(self._tokens)]
        joined = map(" ".join, zip(heads.tolist(), *columns, strict=True))
        return "".join(f"{line}\n" for line in joined).encode("ascii")


def sigmoid(logits: Floats) -> Floats:
    result: Floats = 1.0 / (1.0 + np.exp(-logits))
    return result


def parts(rows: int, hours: int, files_per_hour: int, seed: int) -> Iterator[tuple[int, int, int, np.random.Generator]]:
    """Yield hour, file, rows and random generator of each file; rows are spread evenly, and each file has its own generator."""
    files = hours * files_per_hour
    for number in range(files):
        hour, file = divmod(number, files_per_hour)
        share = rows * (number + 1) // files - rows * number // files
        yield hour, file, share, np.random.default_rng([seed, 1, number])


def distinct_words(count: int, seed: int) -> Words:
    """Return pseudo-random u64, all different and none of them 0 (the padding key), by splitmix64, which is a bijection."""
    start = np.uint64(np.random.default_rng([seed, 2]).integers(0, 2**64, dtype=np.uint64))
    words = mixed(np.arange(1, count + 2, dtype=np.uint64) * GAMMA + start)
    some: Words = words[words != 0][:count]
    return some


def probability_text(probabilities: Floats) -> bytes:
    """Return one probability per line, with 9 digits."""
    return "".join(f"{probability:.9g}\n" for probability in probabilities.tolist()).encode("ascii")
