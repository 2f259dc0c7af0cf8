from __future__ import annotations

import csv
import hashlib
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.features.synthetic import (
    COUNTS,
    LONGEST,
    NUMBERS,
    PRESETS,
    NumbersTruth,
    Preset,
    SequenceTruth,
    Truth,
    distinct_words,
    parts,
    probability_text,
)
from elastic_ctr.formats.line import parse_line
from elastic_ctr.training.model.evaluation import weighted_auc

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


@pytest.mark.parametrize(("preset", "digest"), [("easy", "193fcd51aabf9fd8"), ("sparse", "4f58080da93c10c0")])
def test_lines_of_a_seed_stay_what_they_were(preset: str, digest: str) -> None:
    truth = Truth(PRESETS[preset], 4)
    lines = truth.draw(1000, np.random.default_rng([4, 1, 0]))

    text = truth.text(lines) + probability_text(lines.probabilities)
    assert hashlib.sha256(text).hexdigest()[:16] == digest


@pytest.mark.parametrize("preset", ["pairwise", "third-order"])
def test_the_probability_of_a_line_with_interactions_is_the_truths(preset: str) -> None:
    truth = Truth(PRESETS[preset], 5)
    lines = truth.draw(200, np.random.default_rng(1))

    instances = [parse_line(line, truth.slots, None) for line in truth.text(lines).splitlines()]
    for instance, probability in zip(instances, lines.probabilities, strict=True):
        places = [truth.feasigns[slot].tolist().index(key) for slot, [key] in enumerate(instance.keys)]
        logit = -1.5 + sum(truth.weights[slot, place] for slot, place in enumerate(places))
        for number, group in enumerate(truth.preset.groups):
            for coordinate in range(2):
                product = 0.6 / 2**0.5
                for slot in group:
                    product *= truth.vectors[number, slot, places[slot], coordinate]
                logit += product
        assert probability == pytest.approx(1 / (1 + np.exp(-logit)))


@pytest.mark.parametrize("preset", ["pairwise", "third-order"])
def test_without_its_interactions_a_truth_says_much_less(preset: str) -> None:
    truth = Truth(PRESETS[preset], 1)
    lines = truth.draw(50_000, np.random.default_rng(1))
    alone = truth.weights[np.arange(8), lines.indices].sum(axis=1)
    shows = np.ones(50_000)

    assert (weighted_auc(lines.probabilities, lines.clicks, shows) or 0) > 0.78
    assert (weighted_auc(alone, lines.clicks, shows) or 1) < 0.69


def test_a_history_is_one_slot_with_its_items_in_order_and_its_probability_is_the_truths() -> None:
    truth = SequenceTruth(3)
    lines = truth.draw(500, np.random.default_rng(1))

    instances = [parse_line(line, truth.slots, None) for line in truth.text(lines).splitlines()]
    items = {key: place for place, key in enumerate(truth.feasigns[3].tolist())}
    lengths = [len(instance.keys[4]) for instance in instances]
    assert {*lengths} == {*range(1, LONGEST + 1)}
    for instance, probability in zip(instances, lines.probabilities, strict=True):
        *plain, history = instance.keys
        logit = -1.5 + sum(
            truth.weights[slot, truth.feasigns[slot].tolist().index(key)] for slot, [key] in enumerate(plain)
        )
        shares = [0.7**age for age in reversed(range(len(history)))]
        for share, key in zip(shares, history, strict=True):
            logit += share / sum(shares) * float(truth.items[items[key]] @ truth.items[items[plain[3][0]]])
        assert probability == pytest.approx(1 / (1 + np.exp(-logit)))


def test_numbers_are_written_as_the_truth_has_read_them() -> None:
    truth = NumbersTruth(3)
    rows = truth.draw(300, np.random.default_rng(1))

    written = list(csv.DictReader(io.StringIO(truth.text(rows).decode())))
    assert len(written) == 300
    numbers = np.array([[float(row[name]) for name in NUMBERS] for row in written])
    assert (numbers == rows.numbers).all()
    assert (numbers[:, :COUNTS] == np.floor(numbers[:, :COUNTS])).all()
    for row, x, probability, click in zip(written, numbers, rows.probabilities, rows.clicks, strict=True):
        z = [(np.log1p(each) - 2) / 1.2 if place < 5 else each for place, each in enumerate(x)]
        logit = -1.2 + sum(slope * each for slope, each in zip(truth.slopes, z, strict=True))
        logit += sum(by * (z[place] ** 2 - 1) for place, by in zip((1, 4, 7, 10), truth.squares, strict=True))
        logit += sum(
            by * z[i] * z[j] for (i, j), by in zip(((0, 5), (2, 8), (6, 11), (9, 12)), truth.products, strict=True)
        )
        logit += sum(truth.weights[place, int(row[name][1:])] for place, name in enumerate(("city", "device", "item")))
        assert probability == pytest.approx(1 / (1 + np.exp(-logit)))
        assert row["click"] == str(int(click))
