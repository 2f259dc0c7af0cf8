"""Figures of predictions by their definitions, over every impression or pair of impressions."""

import numpy as np
import numpy.typing as npt

from elastic_ctr.training.model.evaluation import BUCKETS, Histograms, bucket_of

Floats = npt.NDArray[np.float64]


def auc(labels: npt.ArrayLike, scores: npt.ArrayLike, weights: npt.ArrayLike) -> float:
    """The share of pairs of a click and another impression in which the click has the higher score; a tie is half a pair."""
    label, score, weight = (np.asarray(each, np.float64) for each in (labels, scores, weights))
    click, other = label == 1, label == 0
    higher = np.sign(score[click, None] - score[other]) / 2 + 0.5
    return float(weight[click] @ higher @ weight[other] / (weight[click].sum() * weight[other].sum()))


def logloss(labels: npt.ArrayLike, scores: npt.ArrayLike, weights: npt.ArrayLike) -> float:
    label, score = (np.asarray(each, np.float64) for each in (labels, scores))
    return float(-np.average(label * np.log(score) + (1 - label) * np.log1p(-score), weights=weights))


def roc(labels: npt.ArrayLike, scores: npt.ArrayLike, weights: npt.ArrayLike) -> tuple[Floats, Floats]:
    """The shares of the other impressions and of the clicks whose scores reach each threshold, the highest threshold first."""
    label, score, weight = (np.asarray(each, np.float64) for each in (labels, scores, weights))
    reached = score >= np.append(np.inf, np.unique(score)[::-1])[:, None]
    other, click = reached @ (weight * (label == 0)), reached @ (weight * (label == 1))
    return other / other[-1], click / click[-1]


def histogram_of_scores(probability: npt.ArrayLike, click: npt.ArrayLike, show: npt.ArrayLike) -> Histograms:
    """Return the histograms as the training program counts them."""
    p = np.asarray(probability, dtype=np.float64)
    with np.errstate(divide="ignore"):
        logit = np.log(p) - np.log1p(-p)
    bucket = bucket_of(logit)
    positives = np.asarray(click, dtype=np.float64)
    negatives = np.asarray(show, dtype=np.float64) - positives
    counts = (np.bincount(bucket, each, BUCKETS).astype(np.float64) for each in (positives, negatives))
    return next(counts), next(counts)
