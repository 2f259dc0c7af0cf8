"""An impression is trained at once, its click when it comes, as a line of show 0: as the engine and its server take that."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.engine_world import Clicks, engine
from elastic_ctr.config.model import Model

# What the engine learns of such lines. tests/pipeline/test_intake_streams.py trains late clicks, and tests/chart/test_refusals.py refuses the rules.
pytestmark = pytest.mark.nightly

USERS, ITEMS, ROUNDS = 6, 5, 90
DELAY = 40
BOUND = 10.0
RATES = {"adam": 0.01, "shared_adam": 0.01, "naive": 0.02}


def model_of(rule: str, rate: float) -> Model:
    learns = {"name": rule, "learningRate": rate, "weightBounds": [-BOUND, BOUND]}
    return Model.model_validate(
        {
            "embeddingDim": 3,
            "partitions": 4,
            "network": "lr",
            "table": {"embed": learns, "embedx": learns, "embeddingL2": 0},
        }
    )


def world() -> tuple[list[Clicks], dict[tuple[int, int], float]]:
    """Impressions of all pairs, each as one line with its click, and the share of each pair's impressions that were clicked."""
    random = np.random.default_rng(3)
    users, items = random.normal(-0.8, 0.9, USERS), random.normal(0, 0.9, ITEMS)
    pairs = [(user, item) for user in range(USERS) for item in range(ITEMS)] * ROUNDS
    random.shuffle(pairs)
    lines: list[Clicks] = []
    for user, item in pairs:
        click = int(random.random() < 1 / (1 + np.exp(-users[user] - items[item])))
        lines.append((1, click, {"a": [1 + user], "b": [101 + item]}))
    truth = {(user, item): 1 / (1 + np.exp(-users[user] - items[item])) for user, item in pairs}
    return lines, truth


def apart(lines: list[Clicks]) -> list[Clicks]:
    """Each impression at its place, and its click so many lines later."""
    found: list[tuple[int, Clicks]] = []
    for at, (show, click, keys) in enumerate(lines):
        found.append((at, (show, 0, keys)))
        if click:
            found.append((at + DELAY, (0, 1, keys)))
    return [line for _, line in sorted(found, key=lambda each: each[0])]


def trained(folder: Path, model: Model, lines: list[Clicks]) -> tuple[dict[int, Any], dict[tuple[int, int], float]]:
    """The rows of the table, and the score of each pair."""
    with engine(folder, model) as started:
        [trainer] = started.trainers
        counted = trainer.train(lines)
        assert sum(counted.values()) == sum(show for show, _, _ in lines)
        users, items = trainer.pull(range(1, USERS + 1)), trainer.pull(range(101, ITEMS + 101))
        pairs = [(user, item) for user in range(USERS) for item in range(ITEMS)]
        scores = trainer.score([[*users[user], *items[item]] for user, item in pairs])
        return started.saved(), dict(zip(pairs, scores, strict=True))


@pytest.mark.parametrize("rule", RATES)
def test_a_click_of_its_own_line_teaches_what_a_click_of_the_impressions_line_does(tmp_path: Path, rule: str) -> None:
    lines, truth = world()
    rows, scores = trained(tmp_path / "joined", model_of(rule, RATES[rule]), lines)
    late_rows, late_scores = trained(tmp_path / "apart", model_of(rule, RATES[rule]), apart(lines))

    assert {key: (row.show, row.click) for key, row in late_rows.items()} == {
        key: (row.show, row.click) for key, row in rows.items()
    }
    assert sum(row.show for row in rows.values()) == 2 * len(lines)
    off, late_off = (
        np.mean([abs(found[pair] - rate) for pair, rate in truth.items()]) for found in (scores, late_scores)
    )
    # A model that knows nothing is off by five times as much.
    blind = np.mean([abs(np.mean([*truth.values()]) - rate) for rate in truth.values()])
    assert off < blind / 3
    assert late_off < blind / 3
    assert np.mean([*late_scores.values()]) == pytest.approx(np.mean([*truth.values()]), rel=0.1)
    assert max(abs(value) for row in late_rows.values() for value in row.rest[:1]) < BOUND / 2


@pytest.mark.parametrize("rule", ["adagrad", "std_adagrad"])
def test_why_an_adagrad_rule_is_refused_for_late_clicks_it_divides_by_their_shows(tmp_path: Path, rule: str) -> None:
    lines, _ = world()
    rows, _ = trained(tmp_path / "joined", model_of(rule, 0.05), lines[:200])
    late_rows, _ = trained(tmp_path / "apart", model_of(rule, 0.05), apart(lines[:200]))

    def at_bounds(found: dict[int, Any]) -> int:
        return sum(not abs(row.rest[0]) < BOUND for row in found.values())

    assert at_bounds(rows) == 0
    assert at_bounds(late_rows) > len(late_rows) / 2
