"""Drift: how far the columns of later data have moved from the pinned statistics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

from elastic_ctr.features.statistics.document import NumberStatistics, Statistics, TextStatistics

COMPARED_VALUES = 100
_DECILES = 10
# A value with a higher share of the later values is counted even if the other list lacks it: chance does not explain that.
_CERTAIN = 0.05
# From this expected count of a bin in the smaller data on, the chi-square approximation is used.
_MANY = 50.0
# Standard deviations that a normal variable exceeds once in 9,000 times: nine times rarer than promised, a margin for approximations.
_RARE = 3.7


class Drift(NamedTuple):
    """The drift of a column from the pinned to the later data. A share is None for a column without values, or of numbers.

    `psi` is the population stability index minus its mean by chance, 0 within chance: below 0.1 little has changed, above 0.25 much has
    (Siddiqi, 2006). A move of a tenth of the values makes it 0.04 or more, between any bins.
    `unseen` is the share of later values outside the pinned list of frequent values, `pinned_unseen` the same share of the pinned data,
    whose list may be too short for all values: the rise between the two shows new values, not the share alone. If the later list is
    also too short, both shares are counted outside the pinned values that must be in it unless they have become rarer.
    """

    column: str
    kind: Literal["text", "number"]
    psi: float | None
    pinned_missing: float
    missing: float
    pinned_unseen: float | None = None
    unseen: float | None = None


def compared(pinned: Statistics, later: Statistics) -> list[Drift]:
    """Return the drift of every series that both have, texts first.

    A pinned series that was not collected belongs to a column or to steps that no feature has any more, and is left out. A column that
    is collected and has no values is in both.
    """
    texts = [_text(name, each, later.texts[name]) for name, each in pinned.texts.items() if name in later.texts]
    numbers = pinned.numbers.items()
    return texts + [_number(name, each, later.numbers[name]) for name, each in numbers if name in later.numbers]


def population_stability(pinned: Sequence[float], later: Sequence[float]) -> float | None:
    """Return the sum of (q - p) ln(q / p) over the bins minus its mean by chance, with the shares p and q of a bin in the two; 0 if the
    sum is within chance. None if one has no values.

    Siddiqi: Credit Risk Scorecards, 2006. Each bin gets half a value more, (count + 1/2) / (n + bins / 2), so that an empty bin has a
    finite logarithm. Without any change the sum of many values is (1 / n + 1 / m) times a chi-square of bins - 1 degrees of freedom
    (Yurdakul and Naranjo: Statistical Properties of the Population Stability Index, 2020). For few values, both are computed:
    given a bin's values in both together, the number of them in the later data has a hypergeometric distribution.

    Args:
        pinned: the number of values of the pinned data in each bin.
        later: the same for the later data. Bins may be chosen by the sums of both, but not by one of them.
    """
    if not math.fsum(pinned) or not math.fsum(later):
        return None
    found, mean, variance = by_chance(pinned, later)
    return found - mean if found > _most_by_chance(mean, variance) else 0.0


def by_chance(pinned: Sequence[float], later: Sequence[float]) -> tuple[float, float, float]:
    """Return the sum over the bins, and its mean and variance if nothing has changed."""
    n, m = math.fsum(pinned), math.fsum(later)
    counts = [(a, b) for a, b in zip(pinned, later, strict=True) if a + b > 0]
    half = len(counts) / 2
    if len(counts) < 2:
        return 0.0, 0.0, 0.0
    found = math.fsum(_term((a + 0.5) / (n + half), (b + 0.5) / (m + half)) for a, b in counts)
    means, variances = zip(*(_term_by_chance(a + b, n, m, half) for a, b in counts), strict=True)
    mean = math.fsum(means)
    # The last bin is determined by the others, which matters if there are few bins.
    variance = math.fsum(variances) * len(counts) / (len(counts) - 1)
    return found, mean, variance


def _term(p: float, q: float) -> float:
    return (q - p) * math.log(q / p)


# The results are cached, because many bins have the same number of values.
@lru_cache(maxsize=1 << 14)
def _term_by_chance(together: float, n: float, m: float, half: float) -> tuple[float, float]:
    """Return mean and variance of the term of a bin with `together` of n + m values, if nothing has changed."""
    rest = 1 - together / (n + m)
    fewer, more = min(n, m), max(n, m)
    share = fewer / (n + m)
    if together * share > _MANY:
        mean = (1 / n + 1 / m) * rest
        return mean, 2 * mean**2
    last = min(round(together), round(together * share + 12 * math.sqrt(together * share) + 20))
    most = math.lgamma(together + 1)
    total = squares = 0.0
    for count in range(last + 1):
        left = together - count
        chance = (
            most - math.lgamma(count + 1) - math.lgamma(left + 1) + count * math.log(share) + left * math.log1p(-share)
        )
        term = _term((left + 0.5) / (more + half), (count + 0.5) / (fewer + half))
        total += math.exp(chance) * term
        squares += math.exp(chance) * term**2
    return total * rest, max(squares - total**2, 0.0) * rest**2


def _most_by_chance(mean: float, variance: float) -> float:
    """Return the bound that a sum with this mean and variance rarely exceeds: a scaled chi-square's, by Wilson and Hilferty (1931)."""
    if not variance:
        return mean
    part = variance / (9 * mean**2)  # 2 / (9 degrees of freedom)
    return mean * (1 - part + _RARE * math.sqrt(part)) ** 3


def _text(name: str, pinned: TextStatistics, later: TextStatistics) -> Drift:
    """Compare a text series by bins: the 100 most frequent values of both together, and the others. More bins would show mere chance.

    A value that is frequent in only one of the two may be so by chance: if bins were chosen by one list, 100 of 10,000 equally frequent
    values would seem to have moved by much in each comparison.
    """
    before, after = dict(pinned.top), dict(later.top)
    together = Counter(
        {
            value: before.get(value, 0) + after.get(value, 0)
            for value in before.keys() | after.keys()
            if _is_counted(value, before, pinned, after, later) and _is_counted(value, after, later, before, pinned)
        }
    )
    # Equally frequent values are sorted by their text: the order of one list would prefer the values that it has.
    bins = set(sorted(together, key=lambda value: (-together[value], value))[:COMPARED_VALUES])
    bins |= {value for value in together if after.get(value, 0) > _CERTAIN * later.values}
    p, q = ([counts.get(value, 0) for value in sorted(bins)] for counts in (before, after))
    psi = population_stability([*p, max(pinned.values - sum(p), 0)], [*q, max(later.values - sum(q), 0)])
    least = 0.0
    if 0 < sum(after.values()) < later.values:
        # A value is surely listed if its expected count e is three deviations above the list's last count: e - 3 sqrt(e) = last.
        expected = ((3 + math.sqrt(9 + 4 * min(after.values()))) / 2) ** 2
        least = expected / later.values * pinned.values
    known = {value for value, count in pinned.top if count >= least}
    return Drift(
        name, "text", psi, pinned.missing_share, later.missing_share, _outside(known, pinned), _outside(known, later)
    )


def _is_counted(
    value: str, counts: Mapping[str, int], of: TextStatistics, others: Mapping[str, int], other: TextStatistics
) -> bool:
    """True if the count of a value is known: it is in the list, the list has all values, or the other count is far above it. A value
    that a short list lacks by chance would look like a change.
    """
    return value in counts or sum(counts.values()) == of.values or others[value] > _CERTAIN * other.values


def _outside(known: set[str], texts: TextStatistics) -> float | None:
    if not texts.values:
        return None
    return 1.0 - sum(count for value, count in texts.top if value in known) / texts.values


def _number(name: str, pinned: NumberStatistics, later: NumberStatistics) -> Drift:
    """Compare a number series by bins: up to each decile of the pinned numbers, equal deciles once, and above the last."""
    if not later.values or not pinned.values:
        return Drift(name, "number", None, pinned.missing_share, later.missing_share)
    edges = sorted({pinned.quantile(i / _DECILES) for i in range(1, _DECILES)})
    p, q = (_shares(each, edges, low_end=edges[0] == pinned.min) for each in (pinned, later))
    psi = population_stability([share * pinned.values for share in p], [share * later.values for share in q])
    return Drift(name, "number", psi, pinned.missing_share, later.missing_share)


def _shares(numbers: NumberStatistics, edges: Sequence[float], *, low_end: bool) -> list[float]:
    """Return the shares of the bins. `low_end`: many numbers equal the least, so the numbers below it are a bin of their own."""
    below = [numbers.share_below(edges[0])] if low_end else []
    return [b - a for a, b in pairwise([0.0, *below, *map(numbers.share_up_to, edges), 1.0])]
