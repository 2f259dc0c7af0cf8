"""Synthetic rows of columns, most of them numbers: CSV with a header, and a values file with the features of the columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elastic_ctr.features.synthetic import Floats, Lines, sigmoid

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
class Rows(Lines):
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

    def draw(self, rows: int, dice: np.random.Generator) -> Rows:
        """Draw rows of one impression each."""
        numbers = np.round(dice.normal(0.0, 1.0, (rows, len(NUMBERS))), 4)
        numbers[:, :COUNTS] = np.floor(dice.lognormal(2.0, 1.2, (rows, COUNTS)))
        categories = dice.integers(0, _KEYS, (rows, len(CATEGORIES)))
        probabilities = sigmoid(self.logits(numbers, categories))
        return Rows(categories, probabilities, dice.random(rows) < probabilities, numbers)

    def logits(self, numbers: Floats, categories: npt.NDArray[np.int64]) -> Floats:
        """Return the logits of rows, given as in the file."""
        z = numbers.copy()
        z[:, :COUNTS] = (np.log1p(z[:, :COUNTS]) - 2.0) / 1.2
        total = _INTERCEPT + z @ self.slopes + (z[:, _SQUARED] ** 2 - 1.0) @ self.squares
        total += sum(z[:, i] * z[:, j] * by for (i, j), by in zip(_PAIRS, self.products, strict=True))
        result: Floats = total + self.weights[np.arange(len(CATEGORIES)), categories].sum(axis=1)
        return result

    def text(self, rows: Lines) -> bytes:
        """Return CSV with a header."""
        assert isinstance(rows, Rows)
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
