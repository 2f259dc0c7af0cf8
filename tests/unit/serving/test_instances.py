import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.serving.batching import instances as module
from elastic_ctr.serving.batching.instances import feasign_array, instances_of, joined
from elastic_ctr.serving.request_error import RequestError

ROWS = st.integers(1, 4).flatmap(
    lambda slots: st.lists(
        st.lists(st.lists(st.integers(0, 12) | st.just(2**64 - 1), max_size=4), min_size=slots, max_size=slots),
        min_size=1,
        max_size=6,
    )
)


@given(ROWS, st.data())
def test_parts_joined_again_are_the_whole(rows: list[list[list[int]]], data: st.DataObject) -> None:
    whole = instances_of(rows, len(rows[0]))
    cut = data.draw(st.integers(0, whole.rows))

    again = joined([whole.part(0, cut), whole.part(cut, whole.rows)])

    assert again.feasigns.tolist() == whole.feasigns.tolist()
    assert again.lengths.tolist() == whole.lengths.tolist()
    assert again.rows == whole.rows


@given(ROWS, st.integers(1, 5), st.integers(1, 8))
def test_parts_keep_their_bounds_and_are_the_whole_together(
    rows: list[list[list[int]]], max_rows: int, max_feasigns: int
) -> None:
    whole = instances_of(rows, len(rows[0]))

    parts = list(whole.parts(max_rows, max_feasigns))

    assert joined(parts).feasigns.tolist() == whole.feasigns.tolist()
    assert joined(parts).lengths.tolist() == whole.lengths.tolist()
    assert all(1 <= part.rows <= max_rows for part in parts)
    assert all(part.rows == 1 or len(part.feasigns) <= max_feasigns for part in parts)


@given(st.lists(st.integers(-(2**63), 2**64 - 1)))
def test_feasigns_are_64_bits_however_they_are_written(values: list[int]) -> None:
    as_numbers = feasign_array(list(values), str)
    as_text = feasign_array([str(value) for value in values], str)

    assert as_numbers.dtype == np.uint64
    assert as_numbers.tolist() == as_text.tolist() == [value % 2**64 for value in values]


def test_more_feasigns_than_memory_should_hold_are_refused_with_413(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FEASIGNS", 3)

    with pytest.raises(RequestError, match="has 4 feasigns; 3 are allowed") as refused:
        feasign_array([1] * 4, str)
    assert refused.value.status == 413
