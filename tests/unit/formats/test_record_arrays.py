"""The text for Paddle read back, against the parser of single lines."""

import random

import numpy as np

from elastic_ctr.formats.convert import Converter
from elastic_ctr.formats.line import parse_line
from elastic_ctr.formats.record_arrays import record_arrays
from elastic_ctr.formats.slots import SlotList

SLOTS = SlotList(("0", "user", "7"))


def random_line(dice: random.Random) -> bytes:
    show = dice.choice([1, 2, 10, 2**31 - 1])
    features = [
        f"{dice.choice([0, 1, dice.randrange(2**64 - 1), 2**64 - 2])}:{dice.choice([*SLOTS, 'unread'])}"
        for _ in range(dice.randrange(0, 8))
    ]
    if dice.random() < 0.1:
        features.append("bad")
    return " ".join([str(show), str(dice.randrange(0, show + 1)), *features]).encode()


def test_records_for_trainers_are_read_back_as_the_lines_have_them() -> None:
    dice = random.Random(3)
    lines = [random_line(dice) for _ in range(3000)]
    for sparse_dim in (None, 1000):
        converted = Converter(SLOTS, sparse_dim).convert(b"\n".join(lines))

        found = record_arrays(converted.text, converted.records, len(SLOTS))

        parsed = [parse_line(line, SLOTS, sparse_dim) for line in lines if not line.endswith(b" bad")]
        # A slot without keys has the padding key.
        keys = [slot or [0] for each in parsed for slot in each.keys]
        assert found.lengths.tolist() == [len(slot) for slot in keys]
        assert found.keys.tolist() == [key for slot in keys for key in slot]
        assert found.shows.tolist() == [each.show for each in parsed]
        assert found.clicks.tolist() == [each.click for each in parsed]


def test_no_record_is_no_array() -> None:
    found = record_arrays(b"", 0, len(SLOTS))

    assert [len(array) for array in found] == [0, 0, 0, 0]
    assert found.keys.dtype == np.uint64
