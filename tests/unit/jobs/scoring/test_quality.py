"""Sums over rows against the exact measures of all of them at once."""

from typing import Any

import numpy as np
import pytest

from elastic_ctr.jobs.scoring.quality import QualityCounter, measures, total
from elastic_ctr.jobs.scoring.scoring_job import Outcome
from elastic_ctr.training.model.evaluation import weighted_auc, weighted_logloss


def drawn(rows: int, seed: int) -> tuple[Any, Any, Any]:
    dice = np.random.default_rng(seed)
    p = dice.beta(1, 4, rows).astype(np.float32)
    shows = dice.integers(1, 5, rows)
    return p, shows, dice.binomial(shows, p)


def outcome_of(p: Any, shows: Any, clicks: Any) -> Outcome:
    sums = QualityCounter()
    for some in np.array_split(np.arange(len(p)), 3):
        sums.add(p[some], shows[some], clicks[some])
    return Outcome(rows=len(p), shows=int(shows.sum()), clicks=int(clicks.sum()), quality=sums.quality())


def test_measures_of_parts_together_are_those_of_all_rows() -> None:
    parts = [drawn(2000, seed) for seed in (1, 2)]
    p, shows, clicks = (np.concatenate([part[place] for part in parts]) for place in range(3))

    found = measures(total([outcome_of(*part) for part in parts]))

    assert (found["rows"], found["shows"], found["clicks"]) == (4000, shows.sum(), clicks.sum())
    assert found["auc"] == pytest.approx(weighted_auc(p, clicks, shows), abs=1e-4)
    assert found["logloss"] == pytest.approx(weighted_logloss(p, clicks, shows), rel=1e-6)
    assert found["calibration"] == pytest.approx(p @ shows / clicks.sum(), rel=1e-6)
    assert found["observedCtr"] == pytest.approx(clicks.sum() / shows.sum())
    assert found["predictedCtr"] == pytest.approx(p @ shows / shows.sum(), rel=1e-6)
    assert found["mae"] == pytest.approx((clicks @ (1 - p) + (shows - clicks) @ p) / shows.sum(), rel=1e-6)
    assert found["rmse"] ** 2 == pytest.approx(
        (clicks @ (1 - p) ** 2 + (shows - clicks) @ p**2) / shows.sum(), rel=1e-6
    )


def test_a_measure_that_cannot_be_computed_is_none() -> None:
    one = np.ones(1, np.int64)

    found = measures(outcome_of(np.array([0.25], np.float32), one, 0 * one))

    assert (found["auc"], found["calibration"]) == (None, None)
    assert measures(outcome_of(np.empty(0, np.float32), one[:0], one[:0]))["logloss"] is None
    assert measures(Outcome(rows=3, refused={"empty": 1})) == {"rows": 3, "refused": 1}


def test_certain_scores_are_finite() -> None:
    p = np.array([0, 1, 1, 0], np.float32)

    found = measures(outcome_of(p, np.ones(4, np.int64), np.array([1, 0, 1, 0])))

    assert found["auc"] == 0.5
    assert np.isfinite(found["logloss"])


def test_refusals_are_summed_by_reason_with_the_first_example() -> None:
    found = total([Outcome(rows=2, refused={"empty": 1}, examples={"empty": "a"}),
                   Outcome(rows=3, refused={"empty": 2, "binary": 1}, examples={"empty": "b", "binary": "c"})])  # fmt: skip

    assert (found.rows, found.refused, found.examples) == (5, {"empty": 3, "binary": 1}, {"empty": "a", "binary": "c"})
    assert found.quality is None
