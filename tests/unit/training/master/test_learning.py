import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.config.training_settings import TrainerConfig
from elastic_ctr.training.master.passes.learning import batch_size, calibrating_shift, goes_on, log_odds
from elastic_ctr.training.model.evaluation import BUCKETS
from quality_oracles import histogram_of_scores

AUTO = TrainerConfig()
# Clicks that are not rare.
sized, another = partial(batch_size, clicks=10**9), partial(goes_on, clicks=10**9)


@pytest.mark.parametrize(
    ("records", "sizes"),
    [
        (10, (16, 64)),
        (5_000, (16, 64)),
        (7_000, (32, 128)),
        (20_000, (64, 256)),
        (60_000, (256, 1024)),
        (5_000_000, (4096, 4096)),
    ],
)
def test_the_batch_size_grows_with_the_pass_and_with_its_epochs(records: int, sizes: tuple[int, int]) -> None:
    assert (sized(AUTO, records, 1), sized(AUTO, records, 2)) == sizes


@given(records=st.integers(0, 10**9), epoch=st.integers(0, 8), clicks=st.integers(0, 10**6))
def test_the_batch_size_is_a_power_of_two_within_its_bounds(records: int, epoch: int, clicks: int) -> None:
    found = batch_size(AUTO, records, epoch, clicks=clicks)

    assert 16 <= found <= 4096
    assert found & (found - 1) == 0
    assert batch_size(AUTO, records + 1, epoch, clicks=clicks) >= found
    assert batch_size(AUTO, records, epoch, clicks=clicks + 1) <= found


@pytest.mark.parametrize(("clicks", "sizes"), [(100, (16, 64)), (4, (32, 64)), (1, (64, 64)), (0, (256, 256))])
def test_a_pass_with_few_clicks_has_few_steps(clicks: int, sizes: tuple[int, int]) -> None:
    """Some 16 a click, and 8 of a pass without one."""
    found = tuple(batch_size(AUTO, 1500, epoch, clicks=clicks) for epoch in (1, 2))

    assert found == sizes
    assert goes_on(AUTO, 1500, [0.5, None], clicks=clicks) == bool(clicks), "a second epoch needs a click"
    # Of records held out the logloss falls in any case.
    assert goes_on(AUTO, 1500, [0.5, 0.4], clicks=clicks) == bool(clicks)
    assert goes_on(TrainerConfig(epochs=3), 1500, [0.5, 0.4], clicks=0)


@pytest.mark.parametrize(
    ("records", "size"), [(10, 16), (600, 16), (1000, 32), (2000, 64), (16_000, 128), (100_000, 1024), (10**7, 4096)]
)
def test_a_micro_pass_has_few_steps_and_a_large_one_few_more(records: int, size: int) -> None:
    assert sized(AUTO, records, 1, stream=True) == size
    assert another(AUTO, records, [None], stream=True)
    assert not another(AUTO, records, [None, None], stream=True)
    assert another(TrainerConfig(epochs=2), records, [None, None], stream=True)


def test_a_batch_size_and_epochs_that_are_set_are_taken_as_they_are() -> None:
    fixed = TrainerConfig(batch_size=100, epochs=3)

    assert [batch_size(fixed, 10**6, epoch, clicks=0) for epoch in (1, 2)] == [100, 100]
    assert [another(fixed, 10, [0.7, *[None] * epochs]) for epochs in range(5)] == [True, True, True, False, False]
    # Held-out records do not stop epochs that were asked for.
    assert another(fixed, 10, [0.5, 0.6, 0.7])


@pytest.mark.parametrize(("records", "epochs"), [(1, 2), (29_999, 2), (30_000, 1), (10**9, 1)])
def test_without_held_out_records_the_epochs_are_chosen_by_size(records: int, epochs: int) -> None:
    losses: list[float | None] = [0.5]
    while another(AUTO, records, losses):
        losses.append(None)

    assert len(losses) == 1 + epochs


@pytest.mark.parametrize(
    ("losses", "patience", "epochs"),
    [
        ([0.69, 0.5, 0.45, 0.46, 0.40], 1, 3),
        ([0.69, 0.5, 0.45, 0.46, 0.40, 0.41, 0.42], 2, 6),
        ([0.5, 0.5, 0.4], 1, 1),  # the first pass that taught it nothing
        ([0.5, 0.49999, 0.4], 1, 1),  # a fall by less than a thousandth is none
        ([0.7 - 0.05 * number for number in range(12)], 1, 8),
    ],
)
def test_held_out_records_end_the_epochs_when_their_logloss_no_longer_falls(
    losses: list[float], patience: int, epochs: int
) -> None:
    made = 0
    while another(TrainerConfig(patience=patience), 10**7, losses[: made + 1]):
        made += 1

    assert made == epochs


def test_a_model_begins_with_the_log_odds_of_a_click() -> None:
    assert 1 / (1 + math.exp(-log_odds(2_300, 1_000_000))) == pytest.approx(0.0023, rel=1e-3)
    assert log_odds(0, 100) == pytest.approx(math.log(0.5 / 100.5))
    assert 1 / (1 + math.exp(-log_odds(0, 10**9))) == pytest.approx(1e-4)
    assert math.isfinite(log_odds(10, 10))
    assert math.isfinite(log_odds(3, 0))


@given(rate=st.floats(0.001, 0.9), off=st.floats(-3, 3), seed=st.integers(0, 2**32 - 1))
def test_the_shift_makes_the_predicted_clicks_those_observed(rate: float, off: float, seed: int) -> None:
    dice = np.random.default_rng(seed)
    logits = math.log(rate / (1 - rate)) + dice.standard_normal(20_000)
    clicks = dice.random(20_000) < 1 / (1 + np.exp(-logits))
    scores = 1 / (1 + np.exp(-(logits + off)))

    shift = calibrating_shift(*histogram_of_scores(scores, clicks, np.ones(20_000)))

    predicted = float(np.sum(1 / (1 + np.exp(-(logits + off + shift)))))
    # Ten clicks of a prior, and buckets of 1/128.
    assert abs(predicted - clicks.sum()) <= 10 * abs(shift) + 0.005 * clicks.sum() + 1


@pytest.mark.parametrize("clicks", [0, 1, 3])
def test_a_few_clicks_shift_a_version_little(clicks: int) -> None:
    shift = calibrating_shift(*histogram_of_scores(np.full(10, 0.2), np.arange(10) < clicks, np.ones(10)))

    assert abs(shift) < 0.2


def test_passes_of_few_clicks_come_to_the_shift_of_one_with_many() -> None:
    histograms = histogram_of_scores(np.full(1000, 0.01), np.arange(1000) < 3, np.ones(1000))
    shift = 0.0
    for _ in range(40):
        shift = calibrating_shift(*histograms, before=shift)

    assert shift == pytest.approx(math.log(0.003 / 0.997) - math.log(0.01 / 0.99), abs=0.02)


def test_empty_histograms_shift_nothing() -> None:
    assert calibrating_shift(np.zeros(BUCKETS), np.zeros(BUCKETS)) == 0
