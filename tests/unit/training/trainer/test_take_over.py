"""Parameters of one network in the places of another, beside sums over inputs that are written out by name."""

import numpy as np
import pytest

from elastic_ctr.training.trainer.take_over import Array, Axis, Names, Values, random_rows, take_over

BEFORE = Names(("a", "b", "c"), ("x", "y"))
NOW = Names(("c", "d", "a"), ("z", "y"))
DIM = 3
HIDDEN = 4


def shapes(names: Names, slots: int = 0, numbers: int = 0) -> dict[str, tuple[int, ...]]:
    width = (len(names.slots) + slots) * DIM + len(names.numbers) + numbers
    return {"w": (width, HIDDEN), "b": (HIDDEN,), "cross": (width, width), "out": (width + HIDDEN, 1)}


def values(names: Names, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes(names).items()}


def logits(parameters: Values, pooled: Array, numbers: Array) -> Array:
    x = np.concatenate([pooled, numbers], axis=1)
    crossed = x * (x @ parameters["cross"]) + x
    hidden = np.tanh(x @ parameters["w"] + parameters["b"])
    logit: Array = np.concatenate([crossed, hidden], axis=1) @ parameters["out"]
    return logit[:, 0]


def test_the_new_network_answers_as_the_old_one_where_their_other_inputs_are_absent() -> None:
    old, first = values(BEFORE, 1), values(NOW, 2)
    theirs, ours = random_rows(BEFORE, NOW, DIM)
    wanted = logits(old, *theirs)

    def distance(these: Values) -> float:
        return float(np.abs(logits(these, *ours) - wanted).mean())

    found = take_over(old, first, (shapes(NOW, slots=1), shapes(NOW, numbers=1)), BEFORE, NOW, distance)

    assert np.abs(wanted).max() > 0.5
    assert distance(found.values) < 1e-5
    assert distance(first) > 0.1
    assert found.sentence.startswith("4 of 4 parameters")
    assert not found.values["w"][DIM : 2 * DIM].any(), "the new slot d has a part in it from the start"


def test_a_parameter_of_another_shape_begins_anew_and_is_named() -> None:
    old, first = values(BEFORE, 1), values(NOW, 2)
    old["b"] = np.zeros(HIDDEN + 1, np.float32)

    probes = (shapes(NOW, slots=1), shapes(NOW, numbers=1))
    found = take_over(old, first, probes, BEFORE, NOW, lambda these: float((these["w"] == first["w"]).mean()))

    assert (found.values["b"] == first["b"]).all()
    assert "b begin anew" in found.sentence


def test_a_parameter_with_which_the_logits_are_farther_begins_anew() -> None:
    old, first = values(BEFORE, 1), values(NOW, 2)
    probes = (shapes(NOW, slots=1), shapes(NOW, numbers=1))

    def distance(these: Values) -> float:
        """As of a network whose `cross` does not lie along the inputs slot by slot."""
        return float((these["w"] == first["w"]).mean() + (these["cross"] != first["cross"]).any())

    found = take_over(old, first, probes, BEFORE, NOW, distance)

    assert (found.values["cross"] == first["cross"]).all()
    assert "3 of 4 parameters" in found.sentence
    assert "cross begin anew" in found.sentence


@pytest.mark.parametrize("seed", range(10))
def test_a_parameter_in_front_of_one_that_begins_anew_is_taken_over(seed: int) -> None:
    old, first = values(BEFORE, seed), values(NOW, 100 + seed)
    theirs, ours = random_rows(BEFORE, NOW, DIM)
    wanted = logits(old, *theirs)
    del old["out"]

    def distance(these: Values) -> float:
        # First values alone are far, whatever the chance of this seed.
        return 1e9 if these["b"] is first["b"] else float(np.abs(logits(these, *ours) - wanted).mean())

    probes = (shapes(NOW, slots=1), shapes(NOW, numbers=1))
    found = take_over(old, first, probes, BEFORE, NOW, distance)

    assert "3 of 4 parameters" in found.sentence
    assert "out begin anew" in found.sentence


def test_weights_of_pairs_of_fields_begin_anew() -> None:
    old, first = (
        {**values(names, 1), "cin1.w": np.ones((2 * len(names.slots), 4), np.float32)} for names in (BEFORE, NOW)
    )
    probes = tuple({**shapes(NOW, slots=more, numbers=1 - more), "cin1.w": (2 * (3 + more), 4)} for more in (1, 0))

    found = take_over(old, first, probes, BEFORE, NOW, lambda these: float(these["w"] is first["w"]))  # type: ignore[arg-type]

    assert "4 of 5 parameters" in found.sentence
    assert "cin1.w begin anew" in found.sentence


@pytest.mark.parametrize("near", [2.0, float("nan")])
def test_nothing_is_taken_over_where_that_brings_the_answers_no_nearer(near: float) -> None:
    old, first = values(BEFORE, 1), values(NOW, 2)

    probes = (shapes(NOW, slots=1), shapes(NOW, numbers=1))
    found = take_over(old, first, probes, BEFORE, NOW, lambda these: 1.0 if these["w"] is first["w"] else near)

    assert all((found.values[name] == each).all() for name, each in first.items())
    assert found.sentence.startswith("nothing")


def test_a_hidden_layer_of_as_many_units_as_the_inputs_is_not_taken_for_one() -> None:
    width = len(NOW.slots) * DIM
    axis = Axis.of(width, width, width, NOW)

    before, now = axis.moved(BEFORE, NOW)

    assert before.tolist() == now.tolist() == list(range(width))
