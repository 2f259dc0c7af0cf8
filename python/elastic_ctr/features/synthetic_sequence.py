"""Synthetic click logs with a history: the last items that a user has seen, in order, in one slot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elastic_ctr.features.synthetic import Lines, Preset, Truth, sigmoid

ITEM = 3
HISTORY = "4"
LONGEST = 8
_PRESET = Preset(slots=4, keys=500, spread=0.3, intercept=-1.5)
_LATENT = 4
_STRENGTH = 2.0
_FORGETTING = 0.7


@dataclass(frozen=True)
class Histories(Lines):
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

    def text(self, lines: Lines) -> bytes:
        assert isinstance(lines, Histories)
        tokens = [f" {feasign}:{HISTORY}" for feasign in self.feasigns[ITEM].tolist()]
        heads = super().text(lines).decode("ascii").splitlines()
        found = [
            head + "".join([tokens[item] for item in items if item >= 0])
            for head, items in zip(heads, lines.history.tolist(), strict=True)
        ]
        return "".join(f"{line}\n" for line in found).encode("ascii")
