"""Decay, expiry and selection of rows: Paddle's own sparse table beside the formulas, with real server and trainer processes."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bench.days import Formula

from contract.engine_world import StartedEngine, engine
from elastic_ctr.config.model import Model, SparseRule, Table, VectorRule
from elastic_ctr.config.networks import DeepFm, SlotDnn

# In `make test` tests/pipeline/test_days.py compares each row of a table with the same formulas, over the ends of three days.
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(importlib.util.find_spec("paddle") is None, reason="paddlepaddle is not installed"),
]

TABLE = Table(
    nonclk_coeff=0.25,
    click_coeff=0.5,
    base_threshold=1.5,
    delta_threshold=0.75,
    delta_keep_days=1,
    show_click_decay_rate=0.75,
    delete_threshold=0.625,
    delete_after_unseen_days=2,
    embed=SparseRule(name="adagrad", learning_rate=0.5, initial_g2sum=5, weight_bounds=(-8, 8)),
    embedx=VectorRule(name="naive", learning_rate=0.5, initial_range=0.25, weight_bounds=(-0.5, 0.5)),
)
WEAK, ONCE, DECAYED, OLD, STEADY = 1, 2, 3, 2**64 - 2, 5
DAYS: list[list[tuple[int, int, int]]] = [
    [(WEAK, 2, 1), (ONCE, 4, 0), (DECAYED, 6, 1), (OLD, 20, 10), (STEADY, 8, 4)],
    [(STEADY, 1, 1), (ONCE, 4, 2)],
    [(STEADY, 8, 8)],
    [(STEADY, 1, 0)],
]
"""(key, shows, clicks) of each day."""
STEPS = ("delta", "checkpoint", "shrink", "checkpoint", "base", "checkpoint", "batch", "checkpoint")
Rows = dict[int, tuple[float, ...]]
Seen = tuple[str, Rows]


def by_formula(table: Table) -> list[Seen]:
    """After each step of each day: the keys that it wrote, with what a checkpoint shows of their rows."""
    formula = Formula(table)
    found: list[Seen] = []
    for day in DAYS:
        for push in day:
            formula.push(*push)
        for step in STEPS:
            if step == "shrink":
                formula.shrink()
                continue
            before: Rows = {key: (r.unseen_days, r.delta_score, r.show, r.click) for key, r in formula.rows.items()}
            written = {key: before[key] for key in formula.save(step)}
            if step == "base":
                # A base resets delta_score before it writes a row, a delta afterwards.
                written = {key: (row[0], 0.0, *row[2:]) for key, row in written.items()}
            found.append((step, written))
    return found


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Any:
    model = Model(network=DeepFm(layers=(4,)), embedding_dim=3, partitions=4, table=TABLE)
    with engine(tmp_path_factory.mktemp("engine"), model, pservers=2, trainer_ids=(1, 7)) as found:
        yield found


@pytest.fixture(scope="module")
def observed(started: StartedEngine) -> list[Seen]:
    """The same of the engine. The trainers take turns: each day another one shrinks and saves."""
    found: list[Seen] = []
    for number, day in enumerate(DAYS):
        trainer = started.trainers[number % 2]
        trainer.train([(show, click, {"a": [key]}) for key, show, click in day])
        for step in STEPS:
            if step == "shrink":
                trainer.shrink()
                continue
            rows = started.saved(step, trainer=number % 2)
            found.append((step, {k: (r.unseen_days, r.delta_score, r.show, r.click) for k, r in rows.items()}))
    return found


def near(found: Sequence[Seen]) -> list[Any]:
    return [(step, {key: pytest.approx(row, rel=1e-5) for key, row in rows.items()}) for step, rows in found]


def test_rows_decay_expire_and_are_published_by_the_formulas_whichever_trainer_orders_it(observed: list[Seen]) -> None:
    assert observed == near(by_formula(TABLE))


def test_rows_go_when_their_score_is_low_or_they_were_unseen_for_too_long(observed: list[Seen]) -> None:
    rows = [set(seen) for step, seen in observed if step == "batch"]
    bases = [set(seen) for step, seen in observed if step == "base"]

    assert rows == [
        {ONCE, DECAYED, OLD, STEADY},
        {ONCE, DECAYED, OLD, STEADY},
        {ONCE, DECAYED, OLD, STEADY},
        {ONCE, STEADY},
    ]
    assert bases == [{OLD, STEADY}, {ONCE, OLD, STEADY}, {STEADY}, {STEADY}]


@pytest.mark.parametrize(
    ("setting", "other"),
    [
        ("nonclk_coeff", 0.1),
        ("click_coeff", 1.0),
        ("base_threshold", 0.0),
        ("delta_threshold", 1e-6),
        ("delta_keep_days", 16),
        ("show_click_decay_rate", 0.98),
        ("delete_threshold", 0.0),
        ("delete_after_unseen_days", 30),
    ],
)
def test_each_setting_of_the_table_has_an_effect(observed: list[Seen], setting: str, other: float) -> None:
    assert observed != near(by_formula(TABLE.model_copy(update={setting: other})))


def test_the_settings_of_the_rules_have_an_effect(started: StartedEngine, observed: list[Seen]) -> None:
    keys = range(100, 140)
    assert observed
    [trainer, _] = started.trainers
    trainer.train([(8, 0, {"a": list(keys)})])
    first = started.saved()
    trainer.train([(8, 0, {"a": list(keys)})])
    second = started.saved()

    for key in keys:
        (weight, squares, *vector), (later, sum_of_squares, *_) = first[key].rest, second[key].rest
        assert abs(weight) == pytest.approx(0.5 * squares**0.5, rel=1e-3)
        step = 0.5 * (sum_of_squares - squares) ** 0.5 * (5 / (5 + squares)) ** 0.5
        assert abs(later - weight) == pytest.approx(step, rel=1e-2)
        assert max(map(abs, vector)) <= 0.25
    assert max(abs(value) for key in keys for value in first[key].rest[2:]) > 0.2
    assert min(squares for key in keys for squares in first[key].rest[1:2]) > 0


def test_a_key_gets_its_vector_at_the_threshold_and_keeps_it_over_day_ends(tmp_path: Path) -> None:
    table = Table(embedx_threshold=2, show_click_decay_rate=1, embed=SparseRule(name="naive"), embedx=TABLE.embedx)
    with engine(tmp_path, Model(network=SlotDnn(layers=(4,)), embedding_dim=3, partitions=4, table=table)) as started:
        [trainer] = started.trainers
        trainer.train([(2, 1, {"a": [1]}), (2, 2, {"a": [2]})])
        for step in ("base", "batch"):
            trainer.shrink()
            saved = started.saved(step)

            assert {key: len(row.rest) for key, row in saved.items()} == {1: 1, 2: 3}
        trainer.train([(1, 1, {"a": [1]})])

        assert {key: len(row.rest) for key, row in started.saved("delta").items()} == {1: 3}


def test_each_server_counts_the_rows_that_it_would_save_before_and_after_a_shrink(tmp_path: Path) -> None:
    with engine(
        tmp_path, Model(network=SlotDnn(layers=(4,)), embedding_dim=3, partitions=5, table=TABLE), pservers=2
    ) as one:
        [trainer] = one.trainers
        assert trainer.count_rows() == [0, 0]
        # Scores after a shrink: 0.25 * 2 * 0.75 is below the threshold of 0.625, 0.5 * 2 * 0.75 is not.
        weak, strong = set(range(1, 400)), {2**64 - key for key in range(1, 300)}
        trainer.train([(2, 0, {"a": sorted(weak)}), (2, 2, {"a": sorted(strong)})])
        for kept in (weak | strong, strong):
            expected = [len(one.owned_by(server, kept)) for server in range(2)]

            assert set(one.saved()) == kept
            assert trainer.count_rows() == expected
            assert expected[0] != expected[1]
            trainer.shrink()
        assert trainer.count_rows() == [0, 0], "0.5 * 2 * 0.75 ** 2 is below it"


def test_a_checkpoint_writes_over_a_batch_save_and_holds_the_ages_after_it(
    started: StartedEngine, observed: list[Seen]
) -> None:
    assert observed
    [_, trainer] = started.trainers

    trainer.save("day", "batch")
    before = started.rows("day")
    files = started.files("day")
    trainer.save("day", "checkpoint")
    after = started.rows("day")

    assert started.files("day") == files
    assert {key: row.unseen_days for key, row in after.items()} == {k: r.unseen_days + 1 for k, r in before.items()}
