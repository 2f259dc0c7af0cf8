import numpy as np
import pytest

from elastic_ctr.formats.cells import Cells, RowSample, cells_of
from elastic_ctr.formats.inputs import InputColumns, TextInput

INPUTS = InputColumns((TextInput("tag", ""), TextInput("word", "")), ("price",))


def cells(first: int, end: int) -> Cells:
    return cells_of([([str(row).encode(), b"w" * (row % 5)], [float(row)]) for row in range(first, end)], INPUTS)


def kept(rows: int, batch: int, most: int = 16) -> list[int]:
    """The numbers of the rows of a sample, after a look at each of their texts."""
    sample = RowSample(most)
    for first in range(0, rows, batch):
        sample.add(cells(first, min(first + batch, rows)))
    found = sample.rows()
    if found is None:
        return []
    numbers = [int(number) for number in found.numbers[:, 0]]
    assert [found.text(row, 0) for row in range(len(found))] == [str(number).encode() for number in numbers]
    assert [len(found.text(row, 1)) for row in range(len(found))] == [number % 5 for number in numbers]
    return numbers


def test_few_rows_are_all_kept() -> None:
    assert kept(16, 5) == list(range(16))


@pytest.mark.parametrize("rows", [17, 33, 100, 1000])
def test_of_many_rows_every_kth_is_kept_and_between_half_of_the_most_and_the_most(rows: int) -> None:
    found = kept(rows, 7)

    steps = set(np.diff(found).tolist())
    assert found[0] == 0
    assert len(steps) == 1
    assert 8 <= len(found) <= 16


def test_the_same_rows_give_the_same_sample_in_whatever_batches() -> None:
    assert kept(1000, 3) == kept(1000, 64) == kept(1000, 1000)


def test_without_rows_there_is_no_sample() -> None:
    assert kept(0, 1) == []


def test_a_sample_keeps_copies_of_its_rows() -> None:
    batch, sample = cells(0, 3), RowSample(16)
    batch = Cells(batch.data.copy(), batch.begins, batch.ends, batch.numbers)
    sample.add(batch)

    batch.data[:] = ord("x")

    rows = sample.rows()
    assert rows is not None
    assert rows.text(2, 0) == b"2"
