"""Quality of predictions, weighted by shows and clicks: AUC, logloss, calibration and errors, exact or from two histograms.

A line is `show` impressions of which `click` were clicked, so it counts as `click` positives and `show - click` negatives of the
same score. A late click has show 0, so it adds one positive and subtracts one negative at the score of its own line. Sums are right,
but single buckets may be negative.

A histogram represents each logit by the centre of its bucket, at most 1/256 away, so a probability is off by at most 0.4 % of
itself and never by more than 0.001. Predicted CTR and calibration are thus within 0.4 %, MAE and RMSE within 0.001, the logloss
within 1/256 nats, and the AUC within half the chance that a click and a show without click share a bucket. Buckets beyond ±16 are
wider: the loss of an impression there is off by at most 0.4 % of itself.

Figures are those of served float32 probabilities, so `inside` clips 0 and 1. A histogram has logits before the shift, so it extends
to ±64; a logit beyond that stays 0 or 1 as a probability under any shift that occurs.
"""

import math

import numpy as np
import numpy.typing as npt

from elastic_ctr.store.versions.manifest import Decile, Quality

Floats = npt.NDArray[np.float64]
Histograms = tuple[Floats, Floats]
"""Clicks, and shows without click, by bucket of the logit: [BUCKETS] each."""

# Logits in [-16, 16) in steps of 1/128: fine enough for rates of 0.1 %, where equal steps of the probability are not.
FINE_BUCKETS = 4096
LOGIT_LIMIT = 16.0
BUCKETS_PER_LOGIT = FINE_BUCKETS / (2 * LOGIT_LIMIT)
# The tails go to ±64 in steps of 1/8; the outermost buckets include all logits beyond.
_TAIL_LIMIT, _TAIL_BUCKETS_PER_LOGIT = 64.0, 8
TAIL_BUCKETS = round((_TAIL_LIMIT - LOGIT_LIMIT) * _TAIL_BUCKETS_PER_LOGIT)
"""Below the fine ones, and as many above."""
BUCKETS = FINE_BUCKETS + 2 * TAIL_BUCKETS

# A click at a probability of 0 would have an infinite loss. The upper limit is the largest float32 below 1.
_LEAST, _MOST = 1e-15, 1 - 2.0**-24

DECILES = 10
ROC_STEPS = 100
# Constants of BasicAucCalculator in paddle/fluid/framework/fleet/metrics.h of Paddle 2.6.
_MAX_SPAN = 0.01
_RELATIVE_ERROR = 0.05


def weighted_auc(probability: npt.ArrayLike, click: npt.ArrayLike, show: npt.ArrayLike) -> float | None:
    """Return the exact area under the ROC curve, ties counted half; None without a click or without a show that was not clicked."""
    _, positives, negatives = _by_score(probability, click, show)
    return auc_of_histogram(positives, negatives)


def auc_of_histogram(positives: npt.ArrayLike, negatives: npt.ArrayLike) -> float | None:
    """Return the AUC of counts by rising score; None if one class is empty."""
    above = np.asarray(positives, dtype=np.float64)
    below = np.asarray(negatives, dtype=np.float64)
    total = above.sum() * below.sum()
    if total <= 0:
        return None
    lower = np.cumsum(below) - below
    return _rate(float(np.sum(above * (lower + 0.5 * below)) / total))


def weighted_logloss(probability: npt.ArrayLike, click: npt.ArrayLike, show: npt.ArrayLike) -> float:
    """Return the mean negative log likelihood of an impression, in nats."""
    p = inside(probability)
    clicks = np.asarray(click, dtype=np.float64)
    shows = np.asarray(show, dtype=np.float64)
    return float(-np.sum(clicks * np.log(p) + (shows - clicks) * np.log1p(-p)) / np.sum(shows))


def inside(probability: npt.ArrayLike) -> Floats:
    """Return probabilities clipped into (0, 1): at least 1e-15 and at most the largest float32 below 1."""
    return np.clip(np.asarray(probability, dtype=np.float64), _LEAST, _MOST)


def bucket_of(logit: Floats) -> npt.NDArray[np.int64]:
    """Return the bucket of each logit; buckets rise with logits. No logit may be NaN."""
    below = (logit + _TAIL_LIMIT) * _TAIL_BUCKETS_PER_LOGIT
    within = TAIL_BUCKETS + (logit + LOGIT_LIMIT) * BUCKETS_PER_LOGIT
    above = TAIL_BUCKETS + FINE_BUCKETS + (logit - LOGIT_LIMIT) * _TAIL_BUCKETS_PER_LOGIT
    place = np.where(logit < -LOGIT_LIMIT, below, np.where(logit < LOGIT_LIMIT, within, above))
    return np.clip(place, 0, BUCKETS - 1).astype(np.int64)


def bucket_centres(shift: float = 0.0) -> Floats:
    """Return the probability of each bucket's centre after adding `shift` to the logits, rising: [BUCKETS]."""
    tail = LOGIT_LIMIT + (np.arange(TAIL_BUCKETS) + 0.5) / _TAIL_BUCKETS_PER_LOGIT
    tail[-1] = np.inf
    fine = (np.arange(FINE_BUCKETS) + 0.5) / BUCKETS_PER_LOGIT - LOGIT_LIMIT
    return inside(1 / (1 + np.exp(-np.concatenate([-tail[::-1], fine, tail]) - shift)))


def histogram_of(counts: npt.ArrayLike) -> Floats:
    """Return counts [BUCKETS]; those of an earlier release, which ended at ±16, are padded. Raises ValueError for other sizes."""
    found = np.asarray(counts, dtype=np.float64)
    if found.size == FINE_BUCKETS:
        return np.pad(found, TAIL_BUCKETS)
    if found.size != BUCKETS:
        raise ValueError(f"a histogram of {found.size} buckets instead of {BUCKETS}")
    return found


def quality_of_histogram(positives: npt.ArrayLike, negatives: npt.ArrayLike, *, shift: float = 0.0) -> Quality | None:
    """Return the quality by two histograms [BUCKETS], within the bounds above, with `shift` added to all logits; None if empty."""
    return _quality(bucket_centres(shift), np.asarray(positives, np.float64), np.asarray(negatives, np.float64))


def quality_of_scores(probability: npt.ArrayLike, click: npt.ArrayLike, show: npt.ArrayLike) -> Quality | None:
    """Return the exact quality, None without an impression. It loops over distinct scores; for millions use histograms."""
    return _quality(*_by_score(probability, click, show))


def bucket_error(probability: npt.ArrayLike, positives: npt.ArrayLike, negatives: npt.ArrayLike) -> float | None:
    """Return the mean relative error of the CTR over adaptive groups by rising probability, weighted by impressions.

    This is `calculate_bucket_error` of Baidu's BasicAucCalculator (paddle/fluid/framework/fleet/metrics.cc). A group grows until
    the binomial's relative deviation sqrt((1 - p) / (p n)) is below 5 %; a group that first spans more than 0.01 of probability
    is left out. None, where Baidu has 0, if no group is large enough.
    """
    errors = counted = 0.0
    first, shows, predicted, clicks = -1.0, 0.0, 0.0, 0.0
    rows = zip(*(np.asarray(each, np.float64).tolist() for each in (probability, positives, negatives)), strict=True)
    for p, positive, negative in rows:
        if abs(p - first) > _MAX_SPAN:
            first, shows, predicted, clicks = p, 0.0, 0.0, 0.0
        shows += positive + negative
        predicted += p * (positive + negative)
        clicks += positive
        # (1 - ctr) / (ctr * shows) with ctr = predicted / shows, without a division by 0
        if shows - predicted < _RELATIVE_ERROR**2 * predicted * shows:
            errors += abs(clicks / predicted - 1) * shows
            counted += shows
            first = -1.0
    return errors / counted if counted else None


def _by_score(probability: npt.ArrayLike, click: npt.ArrayLike, show: npt.ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Return the distinct scores, rising, with their clicks and shows without click."""
    positives = np.asarray(click, dtype=np.float64)
    negatives = np.asarray(show, dtype=np.float64) - positives
    scores, group = np.unique(np.asarray(probability, dtype=np.float64), return_inverse=True)
    return scores, _counts(group, positives, len(scores)), _counts(group, negatives, len(scores))


def _counts(group: npt.NDArray[np.int64], weights: Floats, groups: int) -> Floats:
    return np.asarray(np.bincount(group, weights, groups), dtype=np.float64)


def _quality(probability: Floats, positives: Floats, negatives: Floats) -> Quality | None:
    """Return the quality of counts by rising probability, or None without an impression."""
    seen = (positives + negatives > 0) | (positives > 0)
    # Scores that are served as the same probability are ties.
    p, group = np.unique(inside(probability[seen]), return_inverse=True)
    positives, negatives = (_counts(group, each[seen], len(p)) for each in (positives, negatives))
    by_score = positives + negatives
    shows, clicks = float(by_score.sum()), float(positives.sum())
    if not shows:
        return None
    predicted = float(p @ by_score)
    return Quality(
        shows=shows,
        clicks=clicks,
        auc=auc_of_histogram(positives, negatives),
        logloss=max(weighted_logloss(p, positives, by_score), 0.0),
        predicted_ctr=min(predicted / shows, 1.0),
        observed_ctr=min(clicks / shows, 1.0),
        calibration=predicted / clicks if clicks else None,
        bucket_error=bucket_error(p, positives, negatives),
        mae=_rate(float(positives @ (1 - p) + negatives @ p) / shows),
        rmse=math.sqrt(_rate(float(positives @ (1 - p) ** 2 + negatives @ p**2) / shows)),
        deciles=_deciles(p, positives, by_score),
        roc=_roc(positives, negatives),
    )


def _deciles(p: Floats, positives: Floats, shows: Floats) -> tuple[Decile, ...]:
    """Return deciles of impressions by rising score. A score on a border is split in proportion."""
    ends = np.cumsum(shows)
    borders = np.linspace(0, ends[-1], DECILES + 1)

    def rates(counts: Floats) -> list[float]:
        sums = np.interp(borders, [0, *ends], [0, *np.cumsum(counts)])
        return [_short(rate) for rate in np.diff(sums) / (ends[-1] / DECILES)]

    pairs = zip(rates(p * shows), rates(positives), strict=True)
    return tuple(Decile(predicted_ctr=predicted, observed_ctr=observed) for predicted, observed in pairs)


def _roc(positives: Floats, negatives: Floats) -> tuple[float, ...]:
    """Return the true positive rates at false positive rates 0, 0.01 … 1; () without both classes."""
    true, false = np.cumsum([0, *positives[::-1]]), np.cumsum([0, *negatives[::-1]])
    # Negative buckets must not reduce the cumulative rate.
    false = np.maximum.accumulate(false)
    if not (true[-1] and false[-1]):
        return ()
    # For points with the same abscissa np.interp takes the highest.
    shares = np.linspace(0, 1, ROC_STEPS + 1)
    return tuple(_short(rate) for rate in np.interp(shares, false / false[-1], true / true[-1]))


def _rate(number: float) -> float:
    """Return the number clipped to [0, 1], which rounding and late clicks may exceed."""
    return min(max(number, 0.0), 1.0)


def _short(rate: float) -> float:
    """Return a rate with six significant digits, for a plot."""
    return _rate(float(f"{rate:.6g}"))
