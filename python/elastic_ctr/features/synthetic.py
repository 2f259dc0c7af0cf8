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

from elastic_ctr.features.transforms.xxh3 import GAMMA, mixed
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
class DrawnLines:
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

    def draw(self, rows: int, dice: np.random.Generator) -> DrawnLines:
        """Draw lines of one impression each."""
        indices = self._keys(rows, self.preset.slots, dice)
        logits = self.preset.intercept + self._sum_of_weights(indices) + self._interactions(indices)
        probabilities = sigmoid(logits)
        return DrawnLines(indices, probabilities, dice.random(rows) < probabilities)

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

    def text(self, lines: DrawnLines) -> bytes:
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


LABEL = "click"
NUMBERS = tuple(f"number_{place}" for place in range(13))
CATEGORIES = ("city", "device", "item")
# The number of first columns that are counts, which are skewed.
COUNTS = 5
_KEYS = 200
_INTERCEPT = -1.2
_SQUARED = (1, 4, 7, 10)
_PAIRS = ((0, 5), (2, 8), (6, 11), (9, 12))


@dataclass(frozen=True)
class DrawnRows(DrawnLines):
    """Drawn rows: `indices` i64[n, 3] of categories, and `numbers` f64[n, 13] as in the file."""

    numbers: Floats


class NumbersTruth:
    """13 numbers and 3 categories: each number has a linear effect, four also by their squares, and four pairs by their products.

    A count x, which is log-normal, enters as (ln(1 + x) - 2) / 1.2. Any other number, which is normal, enters unchanged.
    """

    slots = None

    def __init__(self, seed: int) -> None:
        dice = np.random.default_rng([seed, 5])
        self.slopes = dice.normal(0.0, 0.3, len(NUMBERS))
        self.squares = dice.choice([-0.35, 0.35], len(_SQUARED))
        self.products = dice.choice([-0.5, 0.5], len(_PAIRS))
        self.weights = dice.normal(0.0, 0.3, (len(CATEGORIES), _KEYS))

    def draw(self, rows: int, dice: np.random.Generator) -> DrawnRows:
        """Draw rows of one impression each."""
        numbers = np.round(dice.normal(0.0, 1.0, (rows, len(NUMBERS))), 4)
        numbers[:, :COUNTS] = np.floor(dice.lognormal(2.0, 1.2, (rows, COUNTS)))
        categories = dice.integers(0, _KEYS, (rows, len(CATEGORIES)))
        probabilities = sigmoid(self.logits(numbers, categories))
        return DrawnRows(categories, probabilities, dice.random(rows) < probabilities, numbers)

    def logits(self, numbers: Floats, categories: npt.NDArray[np.int64]) -> Floats:
        """Return the logits of rows, given as in the file."""
        z = numbers.copy()
        z[:, :COUNTS] = (np.log1p(z[:, :COUNTS]) - 2.0) / 1.2
        total = _INTERCEPT + z @ self.slopes + (z[:, _SQUARED] ** 2 - 1.0) @ self.squares
        total += sum(z[:, i] * z[:, j] * by for (i, j), by in zip(_PAIRS, self.products, strict=True))
        result: Floats = total + self.weights[np.arange(len(CATEGORIES)), categories].sum(axis=1)
        return result

    def text(self, rows: DrawnLines) -> bytes:
        """Return CSV with a header."""
        assert isinstance(rows, DrawnRows)
        counts = rows.numbers[:, :COUNTS].astype(np.int64).tolist()
        others = rows.numbers[:, COUNTS:].tolist()
        lines = [",".join((LABEL, *NUMBERS, *CATEGORIES))]
        for click, whole, real, keys in zip(rows.clicks.tolist(), counts, others, rows.indices.tolist(), strict=True):
            cells = [
                int(click),
                *whole,
                *(f"{x:.4f}" for x in real),
                *(f"{name[0]}{key}" for name, key in zip(CATEGORIES, keys, strict=True)),
            ]
            lines.append(",".join(map(str, cells)))
        return "".join(f"{line}\n" for line in lines).encode("ascii")

    def values(self, first: str, last: str) -> str:
        """Return the text of the values file for hours from `first` to `last`."""
        steps = ["[log1p, standardize]"] * COUNTS + ["[standardize]"] * (len(NUMBERS) - COUNTS)
        numeric = [f"  {name}: {{type: numeric, transform: {how}}}\n" for name, how in zip(NUMBERS, steps, strict=True)]
        return (
            "data:\n"
            '  source: {url: "file:."}    # the folder of this file; a cluster needs hdfs:// or a mounted file:///\n'
            "  path: /\n"
            f"  start: {first}\n"
            f"  end: {last}\n"
            "  format: csv\n"
            f"  label: {LABEL}\n"
            "features:\n" + "".join(numeric) + "".join(f"  {name}: {{type: categorical}}\n" for name in CATEGORIES)
        )


ITEM = 3
HISTORY = "4"
LONGEST = 8
_PRESET = Preset(slots=4, keys=500, spread=0.3, intercept=-1.5)
_LATENT = 4
_STRENGTH = 2.0
_FORGETTING = 0.7


@dataclass(frozen=True)
class Histories(DrawnLines):
    """Lines with `history` i64[n, LONGEST] of items, the newest last; -1 fills shorter histories."""

    history: npt.NDArray[np.int64]


class SequenceTruth(Truth):
    """Four slots with weights, and the history of a user: 1 to 8 items, oldest first, with the keys of the slot of the item.

    An item is clicked more often the more it resembles the history: the logit has the mean of the dot products of its vector with the
    vectors of the history, in which each item counts 0.7 times as much as the next one.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(_PRESET, seed)
        self.slots = self.slots.parse([*self.slots, HISTORY])
        self.items = np.random.default_rng([seed, 4]).normal(0.0, 1.0, (_PRESET.keys, _LATENT))

    def draw(self, rows: int, dice: np.random.Generator) -> Histories:
        indices = self._keys(rows, _PRESET.slots, dice)
        history = self._keys(rows, LONGEST, dice)
        history[np.arange(LONGEST) < LONGEST - dice.integers(1, LONGEST + 1, (rows, 1))] = -1
        shares = np.where(history < 0, 0.0, _FORGETTING ** np.arange(LONGEST - 1, -1, -1))
        shares /= shares.sum(axis=1, keepdims=True)
        taste = (shares[:, :, None] * self.items[history]).sum(axis=1)
        likeness = (taste * self.items[indices[:, ITEM]]).sum(axis=1)
        logits = _PRESET.intercept + self._sum_of_weights(indices) + _STRENGTH / np.sqrt(_LATENT) * likeness
        probabilities = sigmoid(logits)
        return Histories(indices, probabilities, dice.random(rows) < probabilities, history)

    def text(self, lines: DrawnLines) -> bytes:
        assert isinstance(lines, Histories)
        tokens = [f" {feasign}:{HISTORY}" for feasign in self.feasigns[ITEM].tolist()]
        heads = super().text(lines).decode("ascii").splitlines()
        found = [
            head + "".join([tokens[item] for item in items if item >= 0])
            for head, items in zip(heads, lines.history.tolist(), strict=True)
        ]
        return "".join(f"{line}\n" for line in found).encode("ascii")
