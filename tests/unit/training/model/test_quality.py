"""The figures of two histograms against exact computations on every impression."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quality_oracles as oracles
from elastic_ctr.jobs.scoring.quality import QualityCounter, measures
from elastic_ctr.jobs.scoring.scoring_job import Outcome
from elastic_ctr.store.versions.manifest import Quality
from elastic_ctr.training.master.calendar.quality_gate import auc_error, calibration_error
from elastic_ctr.training.model.evaluation import (
    BUCKETS,
    FINE_BUCKETS,
    TAIL_BUCKETS,
    bucket_centres,
    bucket_error,
    bucket_of,
    histogram_of,
    quality_of_histogram,
    quality_of_scores,
)

Floats = npt.NDArray[np.float64]
# Of a logit, from its bucket's centre.
OFF = 1 / 256


class Lines:
    """Scores with their clicks and shows."""

    def __init__(self, score: npt.ArrayLike, click: npt.ArrayLike, show: npt.ArrayLike) -> None:
        self.score = np.asarray(score, np.float64)
        self.click = np.asarray(click, np.float64)
        self.show = np.asarray(show, np.float64)

    def weighted(self) -> tuple[Floats, Floats, Floats]:
        """Each line as two weighted examples: labels, scores, weights."""
        labels = np.repeat([1.0, 0.0], len(self.score))
        return labels, np.tile(self.score, 2), np.concatenate([self.click, self.show - self.click])

    def impressions(self) -> tuple[Floats, Floats]:
        """Labels and scores, one of each impression."""
        labels, scores, weights = self.weighted()
        return np.repeat(labels, weights.astype(int)), np.repeat(scores, weights.astype(int))


@st.composite
def lines(draw: st.DrawFn, most: int = 300) -> Lines:
    """Random scores of a rate that is drawn, and clicks that a drawn bias makes more or fewer than foretold."""
    seed, size = draw(st.integers(0, 2**32 - 1)), draw(st.integers(1, most))
    middle, spread, bias = draw(st.floats(-7, 3)), draw(st.floats(0, 3)), draw(st.floats(-2, 2))
    random = np.random.default_rng(seed)
    logit = np.clip(random.normal(middle, spread, size), -15.9, 15.9)
    show = random.integers(1, 6, size)
    return Lines(1 / (1 + np.exp(-logit)), random.binomial(show, 1 / (1 + np.exp(-logit - bias))), show)


def quality_of(given: Lines) -> Quality:
    found = quality_of_scores(given.score, given.click, given.show)
    assert found is not None
    return found


def from_histogram(given: Lines) -> Quality:
    found = quality_of_histogram(*oracles.histogram_of_scores(given.score, given.click, given.show))
    assert found is not None
    return found


@given(lines())
def test_exact_figures_are_those_of_the_impressions_by_their_definitions(given: Lines) -> None:
    labels, scores, weights = given.weighted()

    found = quality_of(given)

    assert found.shows == given.show.sum()
    assert found.clicks == given.click.sum()
    assert found.logloss == pytest.approx(oracles.logloss(labels, scores, weights), rel=1e-9)
    assert found.mae == pytest.approx(np.average(abs(labels - scores), weights=weights), rel=1e-9)
    assert found.rmse == pytest.approx(np.average((labels - scores) ** 2, weights=weights) ** 0.5, rel=1e-9)
    assert found.observed_ctr == pytest.approx(np.average(labels, weights=weights))
    assert found.predicted_ctr == pytest.approx(np.average(scores, weights=weights))
    if 0 < found.clicks < found.shows:
        assert found.auc == pytest.approx(oracles.auc(labels, scores, weights), abs=1e-12)
    else:
        assert found.auc is None


@given(lines(), st.integers(0, 2**32 - 1))
def test_clicks_that_come_late_give_the_figures_of_those_that_were_known(given: Lines, seed: int) -> None:
    late = np.random.default_rng(seed).binomial(given.click.astype(int), 0.5)
    scores = np.concatenate([given.score, given.score])
    apart = Lines(scores, [*(given.click - late), *late], [*given.show, *np.zeros(len(late))])

    for found, together in ((quality_of(apart), quality_of(given)), (from_histogram(apart), from_histogram(given))):
        for name, figure in together.model_dump(exclude={"deciles", "roc"}, exclude_none=True).items():
            assert getattr(found, name) == pytest.approx(figure, rel=1e-6, abs=1e-9), name


@given(lines(most=20), lines(most=60))
def test_a_window_of_mostly_late_clicks_has_figures_inside_their_bounds(given: Lines, late: Lines) -> None:
    """Their impressions were in other windows, whatever the scores were."""
    mixed = Lines([*given.score, *late.score], [*given.click, *late.show], [*given.show, *np.zeros(len(late.score))])

    for found in (quality_of(mixed), from_histogram(mixed)):
        assert found.clicks == given.click.sum() + late.show.sum()
        assert found.shows == given.show.sum()
        assert auc_error(found) >= calibration_error(found) * 0


def test_late_clicks_alone_have_no_figures() -> None:
    assert quality_of_scores([0.5, 0.2], [1, 2], [0, 0]) is None


@given(lines())
def test_a_histogram_gives_the_exact_figures_within_the_bounds_of_its_buckets(given: Lines) -> None:
    exact = quality_of(given)

    found = from_histogram(given)

    assert (found.shows, found.clicks, found.observed_ctr) == (exact.shows, exact.clicks, exact.observed_ctr)
    assert found.predicted_ctr == pytest.approx(exact.predicted_ctr, rel=math.expm1(OFF))
    assert found.logloss == pytest.approx(exact.logloss, abs=OFF)
    assert found.mae == pytest.approx(exact.mae, abs=OFF / 4)
    assert found.rmse == pytest.approx(exact.rmse, abs=OFF / 4)
    if exact.calibration is None:
        assert found.calibration is None
    else:
        assert found.calibration == pytest.approx(exact.calibration, rel=math.expm1(OFF))


@given(lines())
def test_the_auc_of_a_histogram_is_off_by_what_shares_a_bucket(given: Lines) -> None:
    exact, found = quality_of(given).auc, from_histogram(given).auc

    positives, negatives = oracles.histogram_of_scores(given.score, given.click, given.show)

    if exact is None:
        assert found is None
    else:
        together = float(np.sum(positives * negatives)) / (positives.sum() * negatives.sum())
        assert found == pytest.approx(exact, abs=together / 2 + 1e-12)


def test_each_bucket_is_counted_by_its_own_centre() -> None:
    fine = slice(TAIL_BUCKETS, -TAIL_BUCKETS)
    centres = bucket_centres()[fine]

    positives, negatives = oracles.histogram_of_scores(centres, np.ones(len(centres)), np.full(len(centres), 3))

    assert np.array_equal(positives[fine], np.ones(len(centres)))
    assert np.array_equal(negatives[fine], np.full(len(centres), 2.0))


def test_buckets_rise_with_the_logit_on_both_sides_of_the_fine_ones() -> None:
    logits = np.concatenate([[-np.inf], np.linspace(-70, 70, 20_000), [np.inf]])

    bucket = bucket_of(logits)

    assert (bucket[0], bucket[-1]) == (0, BUCKETS - 1)
    assert set(np.diff(bucket).tolist()) <= {0, 1}
    assert (np.diff(bucket_centres()) >= 0).all()


@given(st.lists(st.tuples(st.floats(-90, 90), st.booleans()), min_size=2, max_size=200), st.floats(-3, 3))
def test_the_figures_of_shifted_logits_are_those_of_the_probabilities_that_are_served(
    rows: list[tuple[float, bool]], shift: float
) -> None:
    """Served probabilities are float32: far logits are 0 and 1 there, and no figure may be better than theirs."""
    logits, clicks = np.array([logit for logit, _ in rows]), np.array([click for _, click in rows], np.int64)
    with np.errstate(over="ignore"):
        served = np.float32(1) / (np.float32(1) + np.exp(-(logits + shift).astype(np.float32)))
    evaluated = QualityCounter()
    evaluated.add(served, np.ones(len(rows), np.int64), clicks)
    due = measures(
        Outcome(rows=len(rows), shows=len(rows), clicks=int(clicks.sum()), quality=evaluated.quality()),
    )
    bucket = bucket_of(logits)

    found = quality_of_histogram(
        np.bincount(bucket, clicks, BUCKETS), np.bincount(bucket, 1 - clicks, BUCKETS), shift=shift
    )

    assert found is not None
    assert found.logloss == pytest.approx(due["logloss"], rel=0.01, abs=2 * OFF)
    assert found.predicted_ctr == pytest.approx(due["predictedCtr"], abs=OFF)
    if found.auc is not None:
        # Pairs that share a bucket in one of the two are ties there.
        near = np.abs(logits[clicks == 1][:, None] - logits[clicks == 0][None, :]) < 0.25
        assert found.auc == pytest.approx(due["auc"], abs=near.mean() / 2 + 1e-9)


def test_a_model_that_answers_0_for_everything_has_the_logloss_that_evaluate_finds() -> None:
    """Its logits were taken for -16 once, and a shift of 16 made a calibrated model of it: 0.69 instead of 18.65."""
    clicks, others = np.zeros(BUCKETS), np.zeros(BUCKETS)
    clicks[0], others[0] = 54, 46

    found = quality_of_histogram(clicks, others, shift=16.02)

    assert found is not None
    assert found.logloss == pytest.approx(0.54 * -math.log(1e-15))
    assert found.calibration == pytest.approx(0, abs=1e-12)
    assert found.auc == 0.5


def test_a_histogram_of_an_earlier_release_has_its_counts_at_the_same_logits() -> None:
    counts = np.arange(FINE_BUCKETS, dtype=float)

    found = histogram_of(counts)

    assert found[bucket_of(np.array([-15.995, 0.003, 15.995]))].tolist() == [0, 2048, 4095]
    with pytest.raises(ValueError, match="a histogram of 7 buckets instead of 4864"):
        histogram_of(np.zeros(7))


def test_calibration_is_above_1_where_clicks_were_overestimated() -> None:
    found = quality_of(Lines([0.2, 0.2], [1, 0], [5, 5]))

    assert [found.predicted_ctr, found.observed_ctr] == pytest.approx([0.2, 0.1])
    assert found.calibration == pytest.approx(2)


def test_an_undefined_measure_is_none() -> None:
    found = quality_of(Lines([0.2], [0], [5]))

    assert (found.auc, found.calibration, found.bucket_error, found.roc) == (None, None, None, ())
    assert quality_of_histogram(np.zeros(BUCKETS), np.zeros(BUCKETS)) is None
    assert quality_of_scores([], [], []) is None


# -- deciles -----------------------------------------------------------------------------------------------------------


@given(lines())
def test_deciles_are_tenths_of_the_impressions_by_score(given: Lines) -> None:
    """By brute force: of ten times the impressions each tenth is whole, ties mixed evenly by their mean."""
    order = np.argsort(given.score, kind="stable")
    ties, group = np.unique(given.score[order], return_inverse=True)
    shows, clicks = np.bincount(group, given.show[order]), np.bincount(group, given.click[order])
    tenths = (10 * shows).astype(int)
    predicted = np.repeat(ties, tenths).reshape(10, -1).mean(axis=1)
    observed = np.repeat(clicks / shows, tenths).reshape(10, -1).mean(axis=1)

    found = quality_of(given).deciles

    assert [each.predicted_ctr for each in found] == pytest.approx(predicted, rel=1e-5, abs=1e-12)
    assert [each.observed_ctr for each in found] == pytest.approx(observed, rel=1e-5, abs=1e-12)


@given(lines())
def test_the_mean_of_the_deciles_is_the_whole(given: Lines) -> None:
    found = from_histogram(given)

    assert np.mean([each.predicted_ctr for each in found.deciles]) == pytest.approx(found.predicted_ctr, rel=1e-5)
    assert np.mean([each.observed_ctr for each in found.deciles]) == pytest.approx(found.observed_ctr, rel=1e-5)


# -- ROC ---------------------------------------------------------------------------------------------------------------


@given(lines())
def test_the_roc_is_that_of_every_threshold_at_101_points(given: Lines) -> None:
    labels, scores, weights = given.weighted()
    found = quality_of(given)
    if found.auc is None:
        assert found.roc == ()
        return
    false, true = oracles.roc(labels, scores, weights)

    def true_at(share: float) -> float:
        """On the line between the two points around it, or the highest of those right there."""
        if (here := true[false == share]).size:
            return float(here.max())
        left, right = np.flatnonzero(false < share)[-1], np.flatnonzero(false > share)[0]
        part = (share - false[left]) / (false[right] - false[left])
        return float(true[left] + part * (true[right] - true[left]))

    assert found.roc == pytest.approx([true_at(each) for each in np.linspace(0, 1, 101)], abs=1e-5)
    # A rising curve at 101 points: half a step at most.
    steps = np.asarray(found.roc)
    assert float(np.mean((steps[1:] + steps[:-1]) / 2)) == pytest.approx(found.auc, abs=0.0051)


# -- bucket error ------------------------------------------------------------------------------------------------------


def baidu(table: list[Floats]) -> float | None:
    """BasicAucCalculator::calculate_bucket_error of Paddle 2.6 line by line; table[0] negatives, table[1] positives."""
    size = len(table[0])
    last_ctr, impressions, ctr_sum, click_sum, error_sum, error_count = -1.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(size):
        click, show, ctr = table[1][i], table[0][i] + table[1][i], i / size
        if abs(ctr - last_ctr) > 0.01:
            last_ctr, impressions, ctr_sum, click_sum = ctr, 0.0, 0.0, 0.0
        impressions += show
        ctr_sum += ctr * show
        click_sum += click
        if impressions == 0 or ctr_sum == 0:
            continue  # NaN and infinity there: no comparison holds
        adjusted = ctr_sum / impressions
        if math.sqrt((1 - adjusted) / (adjusted * impressions)) < 0.05:
            error_sum += abs(click_sum / impressions / adjusted - 1) * impressions
            error_count += impressions
            last_ctr = -1.0
    return error_sum / error_count if error_count else None


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 20_000), st.floats(0.001, 0.9), st.floats(0.5, 2))
def test_the_bucket_error_is_that_of_baidu(seed: int, size: int, rate: float, bias: float) -> None:
    random, buckets = np.random.default_rng(seed), 5000
    score = np.clip(random.beta(2, 2 / rate, size), 0, 1 - 1e-9)
    click = random.random(size) < score * bias
    bucket = (score * buckets).astype(int)
    table = [np.bincount(bucket, which, buckets).astype(float) for which in (~click, click)]

    found = bucket_error(np.arange(buckets) / buckets, table[1], table[0])

    assert found == (None if (expected := baidu(table)) is None else pytest.approx(expected, rel=1e-9))


def test_well_calibrated_predictions_have_a_small_bucket_error_and_others_that_of_their_bias() -> None:
    random = np.random.default_rng(1)
    score = 1 / (1 + np.exp(-random.normal(-3, 1, 400_000)))
    click = random.random(len(score)) < score
    show = np.ones(len(score))

    right, high = (
        from_histogram(Lines(score, click, show)),
        from_histogram(Lines(np.minimum(score * 1.5, 0.99), click, show)),
    )

    # The groups' own deviation is 5 %, so their mean error is 5 % * sqrt(2 / pi).
    assert right.bucket_error == pytest.approx(0.04, abs=0.01)
    assert high.bucket_error == pytest.approx(1 / 3, abs=0.03)
