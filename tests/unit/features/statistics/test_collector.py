"""Statistics of rows beside the same in numpy and plain Python."""

import tracemalloc
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_ctr.features.statistics import collector as collector_module
from elastic_ctr.features.statistics.collector import CHUNK_ROWS, Collector, merged, merged_series, part_name, part_of
from elastic_ctr.features.statistics.document import BUCKETS, LONGEST, Statistics
from elastic_ctr.formats.cells import Cells, cells_of
from elastic_ctr.formats.inputs import InputColumns, TextInput

Row = tuple[tuple[str, ...], tuple[float, ...]]
INPUTS = InputColumns((TextInput("city", ""), TextInput("tags", "|")), ("price",))
CITY, TAGS, PRICE = "city", "tags[|]", "price"
NAN = float("nan")
LARGE = 200_000

number = st.floats(allow_nan=False, allow_infinity=False, width=64)
some_rows = st.lists(
    st.tuples(
        st.tuples(st.text(max_size=3), st.lists(st.text("ab|é😀", max_size=3), max_size=3).map("|".join)),
        st.tuples(number | st.just(NAN)),
    ),
    max_size=20,
)


def cells(rows: list[Row], inputs: InputColumns = INPUTS) -> Cells:
    return cells_of([([text.encode() for text in texts], numbers) for texts, numbers in rows], inputs)


def part(rows: list[Row], inputs: InputColumns = INPUTS, top: int = 100) -> bytes:
    collector = Collector(inputs, top)
    collector.add(cells(rows, inputs))
    return collector.to_bytes()


def of(rows: list[Row]) -> Statistics:
    return merged({"only": part(rows)})


def texts_only(values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Cells:
    """One text input: the decimals of these, ten digits each."""
    data = np.frombuffer("".join(f"{each:010d}" for each in values.tolist()).encode(), np.uint8)
    begins = np.arange(0, len(data), 10, dtype=np.int64)[:, None]
    return Cells(data, begins, begins + 10, np.empty((len(values), 0)))


def numbers_only(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Cells:
    nothing = np.empty((len(values), 0), np.int64)
    return Cells(np.empty(0, np.uint8), nothing, nothing, values[:, None])


@given(st.lists(some_rows, min_size=1, max_size=4))
def test_text_statistics_are_those_of_every_value(parts: list[list[Row]]) -> None:
    found = merged({str(place): part(rows) for place, rows in enumerate(parts)})

    rows = [row for each in parts for row in each]
    for name, lists in (
        (CITY, [[texts[0]] if texts[0] else [] for texts, _ in rows]),
        (TAGS, [[tag for tag in texts[1].split("|") if tag] for texts, _ in rows]),
    ):
        values = [value for each in lists for value in each]
        counts, text = Counter(values), found.texts[name]
        assert (text.rows, text.missing, text.values) == (len(rows), lists.count([]), len(values))
        assert text.distinct == len(counts)
        assert text.mean_bytes == pytest.approx(sum(len(each.encode()) for each in values) / max(len(values), 1))
        assert text.count_error == 0
        assert list(text.top) == sorted(counts.items(), key=lambda each: (-each[1], each[0].encode()))


@given(st.lists(some_rows, min_size=1, max_size=4))
def test_number_statistics_are_those_of_numpy(parts: list[list[Row]]) -> None:
    found = merged({str(place): part(rows) for place, rows in enumerate(parts)}).numbers[PRICE]

    every = np.array([numbers[0] for rows in parts for _, numbers in rows], np.float64)
    given_ = every[~np.isnan(every)] + 0.0
    assert (found.rows, found.missing, found.distinct) == (len(every), len(every) - len(given_), len(np.unique(given_)))
    if len(given_):
        assert (found.min, found.max) == (given_.min(), given_.max())
        with np.errstate(over="ignore"):
            # numpy's own sums overflow and cancel; test_moments has exact ones.
            scale = np.abs(given_).max() or 1.0
            tiny = 1e-300
            assert found.mean == pytest.approx((given_ / scale).mean() * scale, rel=1e-12, abs=1e-12 * scale + tiny)
            assert found.deviation == pytest.approx((given_ / scale).std() * scale, rel=1e-12, abs=1e-7 * scale + tiny)
        grid = np.arange(BUCKETS + 1) / BUCKETS
        assert found.quantiles == tuple(np.quantile(given_, grid, method="inverted_cdf").tolist())
    else:
        assert (found.min, found.max, found.mean, found.deviation, found.quantiles) == (None, None, None, None, ())


@pytest.mark.parametrize("shape", ["lognormal", "counts", "sorted", "constant"])
def test_numbers_of_many_rows_are_within_a_hundredth_of_their_ranks(shape: str) -> None:
    dice = np.random.default_rng(2)
    numbers = {
        "lognormal": dice.lognormal(3, 2, LARGE),
        "counts": dice.geometric(0.02, LARGE) * (dice.random(LARGE) < 0.4) * 1.0,
        "sorted": np.sort(dice.normal(1e9, 1, LARGE)),
        "constant": np.full(LARGE, 0.1),
    }[shape]
    parts = {}
    for place, share in enumerate(np.array_split(numbers, 3)):
        collector = Collector(InputColumns((), (PRICE,)))
        collector.add(numbers_only(share))
        parts[str(place)] = collector.to_bytes()

    found = merged(parts).numbers[PRICE]

    ordered, ranks = np.sort(numbers), np.arange(0, 1001) / 1000
    values = np.array([found.quantile(rank) for rank in ranks])
    low, high = (np.searchsorted(ordered, values, side=side) / LARGE for side in ("left", "right"))
    assert np.maximum(low - ranks, ranks - high).max() < 0.001
    assert found.distinct == pytest.approx(len(np.unique(numbers)), rel=0.03)
    assert found.distinct <= LARGE
    assert found.mean == pytest.approx(numbers.mean(), rel=1e-12)
    assert found.deviation == pytest.approx(numbers.std(), rel=1e-7 if shape == "sorted" else 1e-12, abs=1e-12)


def test_frequent_and_distinct_values_of_many_rows_are_within_their_bounds() -> None:
    values = np.random.default_rng(3).zipf(1.1, LARGE).clip(0, 2**31)
    counts = Counter(f"{each:010d}" for each in values.tolist())
    parts = {}
    for place, share in enumerate(np.array_split(values, 3)):
        collector = Collector(InputColumns((TextInput(CITY, ""),), ()), top=500)
        collector.add(texts_only(share))
        parts[str(place)] = collector.to_bytes()

    found = merged(parts).texts[CITY]

    assert len(counts) > 50_000
    assert found.distinct == pytest.approx(len(counts), rel=0.03)
    assert len(found.top) == 500
    assert 0 < found.count_error < 0.001 * LARGE
    assert all(count <= counts[value] <= count + found.count_error for value, count in found.top)
    listed = {value for value, _ in found.top}
    assert max(count for value, count in counts.items() if value not in listed) <= found.top[-1][1] + found.count_error
    assert [value for value, _ in counts.most_common(20)] == [value for value, _ in found.top[:20]]


def test_parts_give_the_same_bytes_in_every_order() -> None:
    dice = np.random.default_rng(4)
    parts = {}
    for name in "abcd":
        collector = Collector(InputColumns((TextInput(CITY, ""),), ()), top=10)
        collector.add(texts_only(dice.zipf(1.3, 5000).clip(0, 2**31)))
        parts[name] = collector.to_bytes()

    texts = {merged(dict(order)).to_json() for order in permutations(parts.items())}

    assert len(texts) == 1


@settings(max_examples=10)
@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=10))
def test_rows_give_the_same_bytes_in_batches_of_any_size(sizes: list[int]) -> None:
    rows = 2 * CHUNK_ROWS + 100
    numbers = np.random.default_rng(5).normal(size=rows)
    batches, whole = Collector(InputColumns((), (PRICE,))), Collector(InputColumns((), (PRICE,)))
    whole.add(numbers_only(numbers))
    at = 0
    for size in [*sizes, rows]:
        batches.add(numbers_only(numbers[at : at + size]))
        at += size

    assert batches.to_bytes() == whole.to_bytes()


@settings(max_examples=10)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=10), st.integers(1, 500))
def test_rows_of_long_texts_give_the_same_bytes_in_batches_of_any_size(sizes: list[int], most: int) -> None:
    values = np.random.default_rng(6).integers(0, 100, 1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collector_module, "CHUNK_BYTES", most)
        inputs = InputColumns((TextInput(CITY, ""),), ())
        batches, whole = Collector(inputs, top=5), Collector(inputs, top=5)
        whole.add(texts_only(values))
        at = 0
        for size in [*sizes, len(values)]:
            batches.add(texts_only(values[at : at + size]))
            at += size

    assert batches.to_bytes() == whole.to_bytes()


def test_rows_that_wait_keep_neither_the_block_they_were_read_from_nor_more_than_a_chunk_of_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collector_module, "CHUNK_BYTES", 1 << 16)
    collector = Collector(InputColumns((TextInput(CITY, ""),), ()), top=10)
    # Of each row ten bytes are read and 10,000 are not.
    begins = np.arange(0, 1_000_000, 10_000, dtype=np.int64)[:, None]
    collector.add(Cells(np.zeros(1_000_000, np.uint8), begins, begins + 10, np.empty((100, 0))))

    tracemalloc.start()
    for _ in range(20):
        collector.add(Cells(np.zeros(1_000_000, np.uint8), begins, begins + 10, np.empty((100, 0))))
    for _ in range(20):
        collector.add(Cells(np.zeros(1_000_000, np.uint8), begins, begins + 10_000, np.empty((100, 0))))
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert kept < 300_000
    assert peak < 3_000_000


def test_merging_needs_no_more_memory_for_many_parts_than_for_few() -> None:
    inputs = InputColumns((TextInput(CITY, ""),), (PRICE,))
    dice = np.random.default_rng(7)

    def drawn() -> bytes:
        rows = 5000
        texts, numbers = texts_only(dice.integers(0, 2000, rows)), dice.normal(size=(rows, 1))
        collector = Collector(inputs, top=500)
        collector.add(Cells(texts.data, texts.begins, texts.ends, numbers))
        return collector.to_bytes()

    drawn_parts = [part_of("one of few", drawn()) for _ in range(4)]

    def peak(parts: int) -> int:
        """Bytes of Python and numpy at most, while `parts` parts are read one by one."""
        heads = {part_name("file", number): drawn_parts[0].head for number in range(parts)}
        tracemalloc.start()
        # Anew each time, as from a file.
        merged_series(heads, lambda name, place: bytes(drawn_parts[int(name[-1]) % 4].series[place]))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(1)
    assert peak(150) < 1.5 * peak(40)


def test_quantiles_of_many_parts_are_within_a_tenth_of_a_percent_of_their_ranks() -> None:
    numbers = np.random.default_rng(8).lognormal(3, 2, LARGE)
    parts = {}
    for place, share in enumerate(np.array_split(numbers, 40)):
        collector = Collector(InputColumns((), (PRICE,)))
        collector.add(numbers_only(share))
        parts[part_name("file", place)] = collector.to_bytes()

    found = merged(parts).numbers[PRICE]

    ordered, ranks = np.sort(numbers), np.arange(0, BUCKETS + 1) / BUCKETS
    low, high = (np.searchsorted(ordered, found.quantiles, side=side) / LARGE for side in ("left", "right"))
    assert np.maximum(low - ranks, ranks - high).max() < 0.001
    assert (found.rows, found.min, found.max) == (LARGE, ordered[0], ordered[-1])


def test_the_exact_figures_do_not_depend_on_how_rows_are_cut_into_parts() -> None:
    rows: list[Row] = [((str(place % 7), ""), (0.1 * place,)) for place in range(100)]

    one, many = merged({"all": part(rows)}), merged({str(at): part(rows[at : at + 7]) for at in range(0, 100, 7)})

    assert one == many


def test_empty_and_absent_parts_are_the_same_but_for_a_whole_of_nothing() -> None:
    rows: list[Row] = [(("Oslo", "a|b"), (1.5,))]

    assert merged({"a": part(rows), "b": part([])}) == of(rows)
    assert of([]).texts[CITY].model_dump() == {
        "rows": 0, "missing": 0, "distinct": 0, "values": 0, "mean_bytes": 0.0, "top": (), "count_error": 0,
    }  # fmt: skip
    with pytest.raises(ValueError, match="there is no part of the data"):
        merged({})


def test_a_column_without_a_value_is_missing_in_every_row() -> None:
    found = of([(("", "||"), (NAN,)), (("", ""), (NAN,))])

    assert [each.missing_share for each in (*found.texts.values(), *found.numbers.values())] == [1, 1, 1]


def test_a_value_too_long_to_be_listed_is_counted() -> None:
    found = of([(("x" * (LONGEST + 1), ""), (0,)), (("y" * LONGEST, ""), (0,))]).texts[CITY]

    assert (found.values, found.distinct, found.top) == (2, 2, (("y" * LONGEST, 1),))


def test_a_list_of_long_values_is_cut_and_says_what_may_be_missing() -> None:
    values = [f"{place:02d}" + "x" * 200 for place in range(40)]
    rows: list[Row] = [((value, ""), (0,)) for place, value in enumerate(values) for _ in range(40 - place)]

    found = merged({"a": part(rows, top=20)}).texts[CITY]

    assert found.top == tuple((value, 40 - place) for place, value in enumerate(values[:6]))
    assert found.count_error == 34


def test_parts_of_other_columns_or_lists_are_refused() -> None:
    other = InputColumns((TextInput("city", ","), TextInput("tags", "|")), ("price",))

    for wrong in (part([], other), part([], top=7)):
        with pytest.raises(ValueError, match=r"the statistics of b are of other columns than those of a; make both"):
            merged({"a": part([]), "b": wrong})


@given(st.data())
def test_damaged_bytes_are_refused_with_the_name_of_their_part(data: st.DataObject) -> None:
    whole = part([(("Oslo", "a"), (1.0,))])
    place = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :]

    for damaged in (flipped, whole[:place], whole + b"\0"):
        with pytest.raises(ValueError, match="the statistics of day/file@0 are damaged, or of another release"):
            merged({"day/file@0": damaged})


def test_an_input_that_is_read_twice_in_one_way_is_refused() -> None:
    Collector(InputColumns((TextInput("tags", ""), TextInput("tags", "|")), ("tags",)))
    for texts, numbers in (((TextInput("a", "|"), TextInput("a", "|")), ()), ((), ("a", "a"))):
        with pytest.raises(ValueError, match="is read twice in the same way"):
            Collector(InputColumns(texts, numbers))
