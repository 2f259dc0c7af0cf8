from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.features.line import parse_line
from elastic_ctr.features.synthetic import PRESETS, Preset, Truth, distinct_words, parts, probability_text

SMALL = Preset(slots=3, keys=50)


def test_a_line_holds_one_feasign_of_each_slot_and_its_probability_is_the_truths() -> None:
    truth = Truth(SMALL, 7)
    weights = dict(zip(truth.feasigns.ravel().tolist(), truth.weights.ravel().tolist(), strict=True))

    lines = truth.draw(500, np.random.default_rng(1))

    instances = [parse_line(line, truth.slots, None) for line in truth.text(lines).splitlines()]
    assert len(instances) == 500
    for instance, probability, click in zip(instances, lines.probabilities, lines.clicks, strict=True):
        assert [len(keys) for keys in instance.keys] == [1, 1, 1]
        assert (instance.show, instance.click) == (1, int(click))
        logit = -1.8 + sum(weights[key] for [key] in instance.keys)
        assert probability == pytest.approx(1 / (1 + np.exp(-logit)))


def test_the_truth_depends_on_its_seed_and_the_preset_alone() -> None:
    one, same, other = Truth(SMALL, 7), Truth(SMALL, 7), Truth(SMALL, 8)

    assert (one.feasigns == same.feasigns).all()
    assert (one.weights == same.weights).all()
    assert not (one.feasigns == other.feasigns).any()
    assert not (one.weights == other.weights).any()


def test_weights_and_draws_are_spread_as_the_preset_says() -> None:
    truth = Truth(PRESETS["easy"], 3)

    lines = truth.draw(200_000, np.random.default_rng(3))

    assert truth.weights.std() == pytest.approx(0.5, abs=0.02)
    often = np.arange(1, 1001) ** -1.05
    shares = np.bincount(lines.indices[:, 0], minlength=1000) / 200_000
    assert shares[:20] == pytest.approx((often / often.sum())[:20], abs=0.003)
    assert lines.clicks.mean() == pytest.approx(lines.probabilities.mean(), abs=0.005)


def test_feasigns_are_distinct_over_slots_and_many_have_the_highest_bit() -> None:
    feasigns = Truth(PRESETS["easy"], 1).feasigns.ravel()

    assert len(np.unique(feasigns)) == len(feasigns) == 8000
    assert 0.45 < (feasigns >= 2**63).mean() < 0.55


@given(seed=st.integers(0, 2**40), count=st.integers(1, 500))
def test_words_are_distinct_and_never_the_padding_key(seed: int, count: int) -> None:
    words = distinct_words(count, seed)

    assert words.shape == (count,)
    assert len(set(words.tolist()) - {0}) == count


@given(rows=st.integers(0, 1000), hours=st.integers(1, 10), files=st.integers(1, 4))
def test_rows_are_spread_evenly_over_files(rows: int, hours: int, files: int) -> None:
    found = list(parts(rows, hours, files, 1))

    assert [(hour, file) for hour, file, _, _ in found] == [(h, f) for h in range(hours) for f in range(files)]
    shares = [share for _, _, share, _ in found]
    assert sum(shares) == rows
    assert max(shares) - min(shares) <= 1


def test_files_have_dice_of_their_own() -> None:
    first = [dice.random() for _, _, _, dice in parts(100, 3, 2, 1)]

    assert first == [dice.random() for _, _, _, dice in parts(100, 3, 2, 1)]
    assert len({*first, *(dice.random() for _, _, _, dice in parts(100, 3, 2, 2))}) == 12


def test_probabilities_are_written_with_nine_digits() -> None:
    assert probability_text(np.array([1 / 3, 0.5, 1e-7])) == b"0.333333333\n0.5\n1e-07\n"
