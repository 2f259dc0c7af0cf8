import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.master.ledger_rows import PassRow, SaveRow, TaskRow, packed, unpacked


@given(st.lists(st.floats(0, 1e15), max_size=50))
def test_a_histogram_comes_back_as_it_was_packed(counts: list[float]) -> None:
    histogram = np.array(counts)

    assert unpacked(packed(histogram)).tolist() == counts


def test_a_row_of_each_table_has_its_columns_in_their_types() -> None:
    one = PassRow.of((1, "20200401/00", '["20200401/00"]', 5, 1, "done", 2, "", 0.5, None, None, 7.0, 9))
    task = TaskRow.of(("t", 1, "a", 0, 10, "leased", 1, 2, "t:1", 3, 8.0, 6.0, 1, 10, 0))
    save = SaveRow.of((1, 2, "saved", '["base", "checkpoint"]', "base", 9, "c", b"x", '{"results": ""}', 4.0))

    assert (one.splits, one.ends_day, one.auc, one.version) == (("20200401/00",), True, None, 9)
    assert (task.ordinal, task.losses, task.running, task.lease_ends) == (1, 2, True, 8.0)
    assert (save.steps, save.jobs, save.result) == (("base", "checkpoint"), {"results": ""}, b"x")
