import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.training.export.table_merge import Log, merged
from elastic_ctr.training.export.table_text import RowLayout, RowsDamaged, parse_rows

DIM = 2
RULES = ("naive", "adagrad", "adagrad_v2", "std_adagrad", "adam", "shared_adam")
some_keys = st.lists(st.one_of(st.integers(1, 9), st.integers(1, 2**64 - 1)), max_size=6, unique=True)
a_float = st.floats(-10, 10, width=32)


def row_of(key: int, layout: RowLayout, *, short: bool, fill: int) -> bytes:
    columns = layout.short if short else layout.full
    return b" ".join([b"%d" % key, b"1", b"3", b"0.5", b"7", b"2", *[b"%d" % (fill + n) for n in range(columns - 6)]])


def log_of(keys: list[int], values: list[list[float]], counts: list[list[float]] | None = None) -> Log:
    count = [[1.0, 0.0]] * len(keys) if counts is None else counts
    array = np.array(keys, np.uint64)
    found = np.array(values, np.float32).reshape(len(keys), 1 + DIM)
    return Log.of([(array, found)], [(array, np.array(count, np.float32).reshape(len(keys), 2))], 1 + DIM)


@pytest.mark.parametrize("rule", RULES)
@given(st.data())
def test_merged_rows_have_the_values_of_the_log_and_those_of_the_save_elsewhere(rule: str, data: st.DataObject) -> None:
    layout = RowLayout.of(rule, rule, DIM)
    saved, changed = data.draw(some_keys), data.draw(some_keys)
    rows = [row_of(key, layout, short=data.draw(st.booleans()), fill=10 * n) for n, key in enumerate(saved)]
    values = data.draw(
        st.lists(st.lists(a_float, min_size=3, max_size=3), min_size=len(changed), max_size=len(changed))
    )
    text = b"".join(row + b"\n" for row in rows)

    found, count = merged(text, layout, (rule, rule), log_of(changed, values))

    before, after = parse_rows(text, layout), parse_rows(found, layout)
    expected = dict(zip(before.keys.tolist(), before.values.tolist(), strict=True))
    expected |= {key: [np.float32(each) for each in value] for key, value in zip(changed, values, strict=True)}
    assert dict(zip(after.keys.tolist(), after.values.tolist(), strict=True)) == expected
    assert count == len(expected)
    shows = {int(row.split()[0]): (float(row.split()[4]), float(row.split()[5])) for row in found.splitlines()}
    assert shows == {
        key: (7.0 * (key in saved) + 1.0 * (key in changed), 2.0 * (key in saved)) for key in {*saved, *changed}
    }


def test_a_row_keeps_its_optimizers_state_and_a_new_one_begins_with_that_of_a_created_one() -> None:
    layout = RowLayout.of("adam", "adam", DIM)
    text = row_of(5, layout, short=False, fill=100) + b"\n" + row_of(6, layout, short=True, fill=200) + b"\n"

    found, _ = merged(
        text, layout, ("adam", "adam"), log_of([5, 6, 7, 8], [[1, 2, 3], [4, 5, 6], [7, 0, 0], [8, 9, 1]])
    )

    assert [row.split() for row in found.decode().splitlines()] == [
        ["5", "1", "3", "0.5", "8", "2", "1", "101", "102", "103", "104", "2", "3", *map(str, range(107, 113))],
        ["6", "1", "3", "0.5", "8", "2", "4", "201", "202", "203", "204", "5", "6", "0", "0", "0", "0", "0.9", "0.999"],
        ["7", "0", "0", "0", "1", "0", "7", "0", "0", "0.9", "0.999"],
        ["8", "0", "0", "0", "1", "0", "8", "0", "0", "0.9", "0.999", "9", "1", "0", "0", "0", "0", "0.9", "0.999"],
    ]


def test_the_later_delta_wins_and_counts_are_added() -> None:
    def of(*keys: int) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
        return np.array(keys, np.uint64)

    def rows(*given: list[int]) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
        return np.array(given, np.float32)

    deltas = [(of(1, 2), rows([1, 1, 1], [2, 2, 2])), (of(2, 3), rows([4, 4, 4], [5, 5, 5]))]
    counts = [(of(1, 2), rows([1, 0], [2, 1])), (of(2, 9), rows([3, 1], [8, 8]))]

    log = Log.of(deltas, counts, 1 + DIM)

    assert log.keys.tolist() == [1, 2, 3]
    assert log.values[:, 0].tolist() == [1, 4, 5]
    # A key that no delta has is in no table.
    assert log.counts.tolist() == [[1, 0], [5, 2], [0, 0]]


def test_without_a_log_nothing_changes() -> None:
    layout = RowLayout.of("adagrad", "adagrad", DIM)
    text = row_of(5, layout, short=False, fill=1) + b"\n"
    log = Log.of([], [], 1 + DIM)

    assert merged(text, layout, ("adagrad", "adagrad"), log) == (text, 1)
    assert merged(b"", layout, ("adagrad", "adagrad"), log) == (b"", 0)


@pytest.mark.parametrize("text", [b"5 1 3", b"x 1 3\n", b"\n", b"99999999999999999999 1\n"])
def test_rows_that_paddle_did_not_save_are_refused(text: bytes) -> None:
    layout = RowLayout.of("adagrad", "adagrad", DIM)

    with pytest.raises(RowsDamaged):
        merged(text, layout, ("adagrad", "adagrad"), log_of([5], [[1, 2, 3]]))
