import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.features.record_text import record_text
from elastic_ctr.features.transforms.transformer import Transformed
from elastic_ctr.training.trainer.task_work import touched_keys

keys_of_a_slot = st.lists(st.one_of(st.integers(0, 20), st.integers(0, 2**64 - 1)), max_size=4)


def text_of(rows: list[list[list[int]]], numbers: int) -> bytes:
    lengths = np.array([len(slot) for row in rows for slot in row], np.int64)
    keys = np.array([key for row in rows for slot in row for key in slot], np.uint64)
    clicks = np.arange(len(rows), dtype=np.int64)
    dense = np.linspace(-3, 3, len(rows) * numbers, dtype=np.float32).reshape(len(rows), numbers)
    return record_text(Transformed(keys, lengths, dense, *np.empty((2, 0), np.int64)), clicks + 2, clicks)[0]


@given(
    st.integers(1, 3).flatmap(lambda n: st.lists(st.lists(keys_of_a_slot, min_size=n, max_size=n))), st.integers(0, 2)
)
def test_the_keys_of_a_text_are_those_of_its_records(rows: list[list[list[int]]], numbers: int) -> None:
    slots = len(rows[0]) if rows else 1

    found, counts = touched_keys(text_of(rows, numbers), len(rows), slots, numbers=bool(numbers))

    times: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        for key in [key for slot in row for key in slot if key]:
            had = times.setdefault(key, [0, 0])
            times[key] = [had[0] + number + 2, had[1] + number]
    assert found.tolist() == sorted(times)
    assert counts.tolist() == [times[key] for key in sorted(times)]
