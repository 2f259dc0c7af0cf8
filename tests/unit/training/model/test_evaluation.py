import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.training.model.evaluation import (
    BUCKETS,
    auc_of_histogram,
    quality_of_histogram,
    weighted_auc,
    weighted_logloss,
)
from quality_oracles import auc as auc_of_pairs
from quality_oracles import logloss

LINES = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]), st.integers(1, 5), st.integers(0, 5)).map(
        lambda drawn: (drawn[0], drawn[1], min(drawn[1], drawn[2]))
    ),
    min_size=1,
    max_size=20,
)
COUNTS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=20)


def impressions(lines: list[tuple[float, int, int]]) -> tuple[list[int], list[float], list[int]]:
    """Each line as two weighted examples: label, score, weight."""
    labels, scores, weights = [], [], []
    for score, show, click in lines:
        labels += [1, 0]
        scores += [score, score]
        weights += [click, show - click]
    return labels, scores, weights


def columns(lines: list[tuple[float, int, int]]) -> tuple[list[float], list[int], list[int]]:
    return [line[0] for line in lines], [line[2] for line in lines], [line[1] for line in lines]


@given(LINES)
def test_auc_is_that_of_the_impressions_one_by_one(lines: list[tuple[float, int, int]]) -> None:
    labels, scores, weights = impressions(lines)
    clicks = sum(line[2] for line in lines)

    auc = weighted_auc(*columns(lines))

    if clicks in (0, sum(line[1] for line in lines)):
        assert auc is None
    else:
        assert auc == pytest.approx(auc_of_pairs(labels, scores, weights), abs=1e-12)


@given(LINES)
def test_logloss_is_that_of_the_impressions_one_by_one(lines: list[tuple[float, int, int]]) -> None:
    labels, scores, weights = impressions(lines)
    kept = np.clip(scores, 1e-15, np.nextafter(np.float32(1), np.float32(0)))

    expected = logloss(labels, kept, weights)

    assert weighted_logloss(*columns(lines)) == pytest.approx(expected, rel=1e-9)


def test_a_sure_and_wrong_prediction_costs_much_and_not_everything() -> None:
    assert 16 < weighted_logloss([1.0], [0], [1]) < 17  # of the largest float32 below 1
    assert 30 < weighted_logloss([0.0], [1], [1]) < 40


@given(COUNTS)
def test_auc_is_between_none_and_one_and_turns_round_with_the_scores(counts: list[tuple[int, int]]) -> None:
    above, below = np.array(counts).T

    auc = auc_of_histogram(above, below)
    back = auc_of_histogram(above[::-1], below[::-1])

    if auc is None or back is None:
        assert above.sum() == 0 or below.sum() == 0
        assert auc is back is None
    else:
        assert 0 <= auc <= 1
        assert auc + back == pytest.approx(1)


@given(COUNTS)
def test_empty_buckets_and_weights_change_nothing(counts: list[tuple[int, int]]) -> None:
    above, below = np.array(counts).T

    auc = auc_of_histogram(above, below)

    assert auc_of_histogram(np.insert(above, 0, 0), np.insert(below, 0, 0)) == auc
    scaled = auc_of_histogram(7 * above, 7 * below)
    assert scaled == (None if auc is None else pytest.approx(auc))


def test_perfect_and_random_predictions() -> None:
    assert auc_of_histogram([0, 5], [5, 0]) == 1.0
    assert auc_of_histogram([5, 0], [0, 5]) == 0.0
    assert auc_of_histogram([5], [5]) == 0.5
    assert auc_of_histogram([5], [0]) is None


def test_rounding_leaves_no_auc_above_1() -> None:
    """Of perfect scores whose products are beyond what a double counts exactly."""
    dice = np.random.default_rng(0)
    for _ in range(200):
        positives, negatives = np.zeros(BUCKETS), np.zeros(BUCKETS)
        positives[dice.choice(np.arange(BUCKETS // 2, BUCKETS // 2 + 2048), 5, replace=False)] = dice.integers(
            1, 10**12, 5
        )
        negatives[BUCKETS // 2 - 1 - dice.choice(2048, 5, replace=False)] = dice.integers(1, 10**12, 5)
        found = quality_of_histogram(positives, negatives)
        assert found is not None
        assert found.auc == pytest.approx(1)
