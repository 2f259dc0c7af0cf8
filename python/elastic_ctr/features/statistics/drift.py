"""How far the columns of later data have moved from the pinned statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from elastic_ctr.features.statistics.document import NumberStatistics, Statistics, TextStatistics

COMPARED_VALUES = 100
_DECILES = 10


class Drift(NamedTuple):
    """Of a column: pinned, and in the later data. A share of None is of a column without values, or of numbers.

    `psi` is the population stability index: below 0.1 little has changed, above 0.25 much has (Siddiqi, 2006).
    `unseen` is the share of values outside the pinned list of frequent values, `pinned_unseen` that of the pinned data, whose list
    may have been too short for all: the rise between the two tells of new values, not the share alone. Where the later list is too
    short as well, both are shares outside those pinned values that must be in it unless they have become rarer.
    """

    column: str
    kind: Literal["text", "number"]
    psi: float | None
    pinned_missing: float
    missing: float
    pinned_unseen: float | None = None
    unseen: float | None = None


def compared(pinned: Statistics, later: Statistics) -> list[Drift]:
    """The drift of every series that both have, texts first.

    A pinned one that was not collected is of a column or of steps that no feature has any more: nothing is known of it. A column that
    is collected and has no values is in both.
    """
    texts = [_text(name, each, later.texts[name]) for name, each in pinned.texts.items() if name in later.texts]
    numbers = pinned.numbers.items()
    return texts + [_number(name, each, later.numbers[name]) for name, each in numbers if name in later.numbers]


def population_stability(
    pinned: Sequence[float], later: Sequence[float], pinned_count: int, later_count: int
) -> float | None:
    """The sum of (q - p) ln(q / p) over the bins, p and q being the shares of a bin in the two; None where one is of no values.

    Siddiqi: Credit Risk Scorecards, 2006. Each bin gets half a value more, (share x count + 1/2) / (count + bins / 2), so that
    an empty one has a finite logarithm. Without any change the mean is (bins - 1) (1 / n + 1 / m) of n and m values
    (Yurdakul and Naranjo: Statistical Properties of the Population Stability Index, 2020).
    """
    if not pinned_count or not later_count:
        return None
    bins = len(pinned)

    def smoothed(share: float, count: int) -> float:
        return (share * count + 0.5) / (count + bins / 2)

    pairs = [(smoothed(p, pinned_count), smoothed(q, later_count)) for p, q in zip(pinned, later, strict=True)]
    return math.fsum((q - p) * math.log(q / p) for p, q in pairs)


def _text(name: str, pinned: TextStatistics, later: TextStatistics) -> Drift:
    """Bins: the 100 most frequent of the pinned values, and all others. More bins would tell of chance in small data.

    A value that the later list lacks counts as absent there; it is rarer than each one in that list.
    """
    counts, compared_values = dict(later.top), pinned.top[:COMPARED_VALUES]
    p = [count / max(pinned.values, 1) for _, count in compared_values]
    q = [counts.get(value, 0) / max(later.values, 1) for value, _ in compared_values]
    psi = population_stability([*p, _rest(p)], [*q, _rest(q)], pinned.values, later.values)
    least = 0.0
    if 0 < sum(counts.values()) < later.values:
        # An expected count of e is above the list's last one, by three deviations of chance: e - 3 sqrt(e) = last.
        expected = ((3 + math.sqrt(9 + 4 * min(counts.values()))) / 2) ** 2
        least = expected / later.values * pinned.values
    known = {value for value, count in pinned.top if count >= least}
    return Drift(
        name, "text", psi, pinned.missing_share, later.missing_share, _outside(known, pinned), _outside(known, later)
    )


def _rest(shares: Sequence[float]) -> float:
    return max(1.0 - math.fsum(shares), 0.0)


def _outside(known: set[str], texts: TextStatistics) -> float | None:
    if not texts.values:
        return None
    return 1.0 - sum(count for value, count in texts.top if value in known) / texts.values


def _number(name: str, pinned: NumberStatistics, later: NumberStatistics) -> Drift:
    """Bins: up to each decile of the pinned numbers, equal ones once, and above the last."""
    if not later.values or not pinned.values:
        return Drift(name, "number", None, pinned.missing_share, later.missing_share)
    edges = sorted({pinned.quantile(i / _DECILES) for i in range(1, _DECILES)})
    p, q = (_shares(each, edges, low_end=edges[0] == pinned.min) for each in (pinned, later))
    psi = population_stability(p, q, pinned.values, later.values)
    return Drift(name, "number", psi, pinned.missing_share, later.missing_share)


def _shares(numbers: NumberStatistics, edges: Sequence[float], *, low_end: bool) -> list[float]:
    """`low_end`: many numbers are the least, and what is below that is a bin of its own."""
    below = [numbers.share_below(edges[0])] if low_end else []
    return [b - a for a, b in pairwise([0.0, *below, *map(numbers.share_up_to, edges), 1.0])]
