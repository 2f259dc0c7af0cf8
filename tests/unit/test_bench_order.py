"""The cases of the measurement of orders."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from bench.order import cases, converted, orders
from bench.spread import prepared

from elastic_ctr.features.synthetic import PRESETS, Truth


def test_each_order_has_the_same_lines_and_the_default_trains_them_in_another_one(tmp_path: Path) -> None:
    (tmp_path / "slot.conf").write_text(Truth(PRESETS["easy"], 1).slots.text())
    texts = {}

    for name, how, lines, shuffle in cases(300):
        converted(tmp_path, lines, shuffle=shuffle)
        texts[name, how] = (tmp_path / "train.txt").read_bytes().splitlines()

    assert len({tuple(text) for text in texts.values()}) == len(texts) == 7
    assert len({frozenset(Counter(text).items()) for text in texts.values()}) == 1


def test_lines_in_order_of_user_and_label_stand_together() -> None:
    lines = Truth(PRESETS["easy"], 1).draw(300, np.random.default_rng(1))

    found = orders(lines)

    assert (np.diff(lines.indices[found["by user"], 0]) >= 0).all()
    assert (np.diff(lines.clicks[found["by label"]].astype(int)) >= 0).all()


@pytest.mark.parametrize(("kind", "largest"), [("raw", 1e5), ("standardised", 100.0)])
def test_two_numbers_stand_between_the_label_and_the_keys(tmp_path: Path, kind: str, largest: float) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    for name in ("train.txt", "held.txt", "slot.conf"):
        (plain / name).write_text("1 1 1 0 1 17 2 3 4\n" * 20)

    folder = prepared(plain, tmp_path / kind, kind)

    [tokens, *_] = [line.split() for line in (folder / "train.txt").read_text().splitlines()]
    assert (tokens[:5], tokens[7:]) == (["1", "1", "1", "0", "2"], ["1", "17", "2", "3", "4"])
    assert max(abs(float(token)) for token in tokens[5:7]) < largest
