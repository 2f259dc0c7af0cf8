"""The pure parts of the drill of poisoned clicks."""

from typing import Any

import numpy as np
import pytest
from bench.poison import MOST_SECONDS, is_right, spoilt

from elastic_ctr.features.synthetic import DrawnLines

LINES = DrawnLines(np.array([[1, 2], [3, 4]]), np.array([0.2, 0.7]), np.array([True, False]))
GOOD: dict[str, Any] = {
    "driftHeld": False, "reason": "AUC fell", "secondsBack": 3.0, "refused": [], "resumed": True, "wrong": 0
}  # fmt: skip


def test_labels_are_turned_round_and_a_column_is_constant_where_they_are_poisoned_and_nowhere_else() -> None:
    labels, column = spoilt(LINES, "labels", 1), spoilt(LINES, "column", 1)

    assert labels.clicks.tolist() == [False, True]
    assert labels.indices.tolist() == LINES.indices.tolist()
    assert column.indices.tolist() == [[1, 0], [3, 0]]
    assert column.clicks.tolist() == LINES.clicks.tolist()
    assert spoilt(LINES, None, 1) is LINES


@pytest.mark.parametrize(
    "wrong",
    [
        {"driftHeld": True}, {"reason": None}, {"secondsBack": MOST_SECONDS + 1}, {"refused": [7]}, {"resumed": False},
        {"wrong": 1},
    ],
)  # fmt: skip
def test_a_drill_is_right_only_where_nothing_went_wrong(wrong: dict[str, Any]) -> None:
    assert is_right(GOOD)
    assert not is_right({**GOOD, **wrong})
