"""Quality of predictions: AUC and logloss, weighted by shows and clicks.

A line is `show` impressions of which `click` were clicked, so it counts as `click` positives and `show - click`
negatives of the same score.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Logits in [-16, 16) in steps of 1/128: fine enough for rates of 0.1 %, where equal steps of the probability are not.
BUCKETS = 4096
LOGIT_LIMIT = 16.0
BUCKETS_PER_LOGIT = BUCKETS / (2 * LOGIT_LIMIT)


def weighted_auc(probability: npt.ArrayLike, click: npt.ArrayLike, show: npt.ArrayLike) -> float | None:
    """Exact area under the ROC curve, ties counted half; None without both a click and a show that was not clicked."""
    scores = np.asarray(probability, dtype=np.float64)
    positives = np.asarray(click, dtype=np.float64)
    negatives = np.asarray(show, dtype=np.float64) - positives
    _, group = np.unique(scores, return_inverse=True)
    return auc_of_histogram(np.bincount(group, positives), np.bincount(group, negatives))


def auc_of_histogram(positives: npt.ArrayLike, negatives: npt.ArrayLike) -> float | None:
    """AUC of counts by rising score; None when one class is empty. Sums of histograms are histograms of sums."""
    above = np.asarray(positives, dtype=np.float64)
    below = np.asarray(negatives, dtype=np.float64)
    total = above.sum() * below.sum()
    if total <= 0:
        return None
    lower = np.cumsum(below) - below
    return float(np.sum(above * (lower + 0.5 * below)) / total)


def weighted_logloss(probability: npt.ArrayLike, click: npt.ArrayLike, show: npt.ArrayLike) -> float:
    """Mean negative log likelihood of an impression, in nats. Probabilities are kept 1e-15 inside (0, 1)."""
    p = np.clip(np.asarray(probability, dtype=np.float64), 1e-15, 1 - 1e-15)
    clicks = np.asarray(click, dtype=np.float64)
    shows = np.asarray(show, dtype=np.float64)
    return float(-np.sum(clicks * np.log(p) + (shows - clicks) * np.log1p(-p)) / np.sum(shows))
