from __future__ import annotations

import gzip
import math
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elastic_ctr.formats.blocks import lines_in_range
from elastic_ctr.formats.seqfile.file_reader import SequenceFileReader
from elastic_ctr.formats.seqfile.file_writer import SequenceFileWriter
from elastic_ctr.training.export import table_text
from elastic_ctr.training.export.table_text import (
    RowLayout,
    RowsDamaged,
    nearest_float32,
    parse_rows,
    partition_to_sequence_file,
)

RULES = ["naive", "adagrad", "adagrad_v2", "std_adagrad", "adam", "shared_adam"]
ADAGRAD = RowLayout.of("adagrad", "adagrad", 2)

U64 = st.integers(0, 2**64 - 1)
LARGEST = float(np.finfo(np.float32).max)
SIX_DIGITS = st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda value: f"{value:.6g}")
NUMBERS = (
    SIX_DIGITS
    | st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda value: f"{value:.9g}")
    | st.floats(-1e38, 1e38).map(repr)
    | st.from_regex(r"[+-]?[0-9]{1,9}(\.[0-9]{0,9})?([eE][+-]?[0-3]?[0-9])?", fullmatch=True)
    | st.sampled_from(
        ["0", "-0", "0.0", "1e-45", "1.4013e-45", "7e-46", "1e-320", "1e-400", "1.17549e-38", "3.40282e+38", ".5", "5."]
    )
).filter(lambda token: abs(float(token)) <= LARGEST)


def exact(token: str) -> float:
    """float32 by way of rationals alone: the largest step below, then the nearer of the two."""
    value = Fraction(token)
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = max(math.frexp(float(size))[1] if float(size) else -149, -125) - 24
    while size >= Fraction(2) ** (exponent + 24):
        exponent += 1
    unit = Fraction(2) ** exponent
    return float(round(size / unit) * unit) * (1 if value > 0 else -1)


def row(key: int, layout: RowLayout, numbers: list[str]) -> bytes:
    """A row with the published numbers given and 0.5 elsewhere; without embedx if one number is given."""
    columns = ["0.5"] * (layout.full if len(numbers) > 1 else layout.short)
    columns[0] = str(key)
    columns[layout.embed_w] = numbers[0]
    columns[layout.embedx : layout.embedx + len(numbers) - 1] = numbers[1:]
    return " ".join(columns).encode() + b"\n"


def refusal(text: bytes, layout: RowLayout = ADAGRAD) -> str:
    with pytest.raises(RowsDamaged) as damaged:
        parse_rows(text, layout)
    return str(damaged.value)


@pytest.mark.parametrize(
    ("rule", "short", "full"),
    [
        ("naive", 7, 15),
        ("adagrad", 8, 17),
        ("adagrad_v2", 8, 17),
        ("std_adagrad", 8, 24),
        ("adam", 11, 37),
        ("shared_adam", 11, 23),
    ],
)
def test_each_rule_has_its_columns(rule: str, short: int, full: int) -> None:
    layout = RowLayout.of(rule, rule, 8)

    assert (layout.embed_w, layout.embedx, layout.short, layout.full) == (6, short, short, full)


def test_weight_and_vector_may_have_different_rules() -> None:
    layout = RowLayout.of("adam", "adagrad", 4)

    assert (layout.embedx, layout.short, layout.full) == (11, 11, 16)


def test_a_rule_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no rule 'sgd'; the rules are naive, adagrad"):
        RowLayout.of("adam", "sgd", 8)
    with pytest.raises(ValueError, match="-1 floats"):
        RowLayout.of("adam", "adam", -1)


def test_a_short_row_has_zeros_for_its_vector() -> None:
    rows = parse_rows(b"18446744073709551615 3 0 0.1 5 1 0.25 3.1\n7 3 0 0.1 5 1 -0.5 3.1 1.5 -2 3\n", ADAGRAD)

    assert rows.keys.tolist() == [2**64 - 1, 7]
    assert rows.values.dtype == np.float32
    assert rows.values.tolist() == [[0.25, 0, 0], [-0.5, 1.5, -2]]


@pytest.mark.parametrize(
    ("rules", "state", "vector_state"),
    [
        (("naive", "naive"), "", ""),
        (("adagrad", "adagrad"), " 0.00886998", " 0"),
        (("adagrad_v2", "adagrad_v2"), " 0.0644959", " 0"),
        (("std_adagrad", "std_adagrad"), " 0.0305012", " 0 0 0"),
        (("adam", "adam"), " -0.0358685 0.000128653 0.81 0.998001", " 0 0 0 0 0 0 0.9 0.999"),
        (("shared_adam", "shared_adam"), " -0.0166836 2.78339e-05 0.81 0.998001", " 0 0 0.9 0.999"),
        (("adam", "adagrad"), " -0.00463073 2.14434e-06 0.81 0.998001", " 0"),
    ],
)
def test_rows_are_read_as_paddle_wrote_them(rules: tuple[str, str], state: str, vector_state: str) -> None:
    # Columns as saved by paddlepaddle 2.6.2 with a vector of 3, once for each rule.
    text = (
        f"553402322211286542 1 0 0 1 1 -0.0098211{state}\n"
        f"17432173149655526073 1 0 0 3 3 -0.0294633{state} -0.00632476 -0.000310339 0.00412928{vector_state}\n"
    )

    rows = parse_rows(text.encode(), RowLayout.of(*rules, 3))

    assert rows.keys.tolist() == [553402322211286542, 17432173149655526073]
    expected = np.array([[-0.0098211, 0, 0, 0], [-0.0294633, -0.00632476, -0.000310339, 0.00412928]], np.float32)
    assert (rows.values == expected).all()


def test_an_empty_text_has_no_rows() -> None:
    rows = parse_rows(b"", ADAGRAD)

    assert rows.keys.shape == (0,)
    assert rows.values.shape == (0, 3)


@settings(max_examples=300)
@given(
    given_rows=st.lists(
        st.tuples(U64, NUMBERS, st.none() | st.tuples(NUMBERS, NUMBERS, NUMBERS)), min_size=1, max_size=4
    ),
    rule=st.sampled_from(RULES),
    blank=st.sampled_from([b"", b" "]),
)
@example(given_rows=[(1, "8388608.5000000001", None)], rule="naive", blank=b"")
@example(given_rows=[(1, "16777217", None), (2, "16777219", None)], rule="naive", blank=b"")
@example(given_rows=[(1, "1.00000005960464477539062501", None)], rule="naive", blank=b"")
@example(given_rows=[(1, "0.00000000000000000000000000000000000000000000123", None)], rule="naive", blank=b"")
def test_keys_are_exact_and_floats_are_the_nearest(
    given_rows: list[tuple[int, str, tuple[str, str, str] | None]], rule: str, blank: bytes
) -> None:
    layout = RowLayout.of(rule, rule, 3)
    text = b"".join(row(key, layout, [w, *(x or ())]).replace(b"\n", blank + b"\n") for key, w, x in given_rows)

    rows = parse_rows(text, layout)

    assert rows.keys.tolist() == [key for key, _, _ in given_rows]
    expected = [[exact(w), *map(exact, x or ("0", "0", "0"))] for _, w, x in given_rows]
    assert rows.values.tolist() == expected


@given(token=SIX_DIGITS)
def test_six_digits_are_read_as_python_reads_them(token: str) -> None:
    [[value]] = parse_rows(row(1, RowLayout.of("naive", "naive", 0), [token]), RowLayout.of("naive", "naive", 0)).values

    assert value == np.float32(float(token))
    assert np.signbit(value) == token.startswith("-")


def test_a_text_near_the_middle_of_two_floats_is_rounded_once() -> None:
    # The double nearest to it is that middle, from where the float32 with the even last bit would be taken.
    token = "1.00000005960464477539062501"

    assert np.float32(float(token)) == 1.0
    assert nearest_float32(token) == np.nextafter(np.float32(1), np.float32(2))
    assert nearest_float32("1e39") == np.inf


def test_many_numbers_that_need_care_are_read_in_rounds() -> None:
    layout = RowLayout.of("naive", "naive", 2)
    text = b"".join(row(key, layout, ["1e-40", "2e-40", "123456789.123456789123"]) for key in range(7000))

    rows = parse_rows(text, layout)

    assert (
        rows.values == np.array([exact("1e-40"), exact("2e-40"), exact("123456789.123456789123")], np.float32)
    ).all()


@pytest.mark.parametrize("number", ["nan", "-nan", "inf", "-inf", "+Inf"])
@pytest.mark.parametrize("column", [3, 6, 7, 8, 10])
def test_a_number_that_is_not_finite_is_refused_by_row_and_column(number: str, column: int) -> None:
    columns = b"1 3 0 0.1 5 1 0.25 3.1 1 2 3".split()
    columns[column] = number.encode()

    told = refusal(row(9, ADAGRAD, ["1"]) + b" ".join(columns) + b"\n")

    assert told.startswith(f"row 2: column {column + 1} is '{number}': the model has diverged")


def test_a_weight_beyond_float32_is_refused_by_row_and_column() -> None:
    assert refusal(row(9, ADAGRAD, ["1"]) + row(9, ADAGRAD, ["1", "2", "1e39"])).startswith(
        "row 2: column 10 is too large"
    )
    assert refusal(row(9, ADAGRAD, ["-1e39"])).startswith("row 1: column 7 is too large")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"\n", "row 1: it has 0 columns"),
        (b"1 2\n", "row 1: it has 2 columns; the rules of the model give 8 without embedx and 11 with it"),
        (b"1 3 0 0.1 5 1 0.25 3.1 1\n", "it has 9 columns"),
        (b"1 3 0 0.1 5 1 0.25 3.1 1 2 3 4\n", "it has 12 columns"),
        (b"-1 3 0 0.1 5 1 0.25 3.1\n", "the key '-1' is not a decimal number below 2^64"),
        (b"18446744073709551616 3 0 0.1 5 1 0.25 3.1\n", "the key '18446744073709551616' is not"),
        (b"1.5 3 0 0.1 5 1 0.25 3.1\n", "the key '1.5' is not"),
        (b"1 3  0 0.1 5 1 0.25 3.1\n", "column 3 is '', which is not a number"),
        (b"1 3 0 0.1 5 1 abc 3.1\n", "column 7 is 'abc', which is not a number"),
        (b"1 3 0 0.1 5 1 1e 3.1\n", "column 7 is '1e', which is not a number"),
        (b"1 3 0 0.1 5 1 1-2 3.1\n", "column 7 is '1-2', which is not a number"),
        (b"1 3 0 0.1 5 1 " + b"1" * 65 + b" 3.1\n", "which is not a number"),
        (b"1 3 0 0.1 5 1 0.25 3.1\r\n", "column 8 is '3.1\\r', which is not a number"),
        (b"\x00\xff\n", r"the key '\x00\\xff' is not"),
        (b"1 3 0 0.1 5 1 0.25 3.1", "row 1: it has no line end, so it may be cut off"),
    ],
)
def test_a_damaged_row_is_refused_with_a_sentence(text: bytes, told: str) -> None:
    assert told in refusal(text)


@given(text=st.binary(max_size=60), at=st.integers(0, 40), rule=st.sampled_from(RULES))
def test_rows_of_any_bytes_are_read_or_refused(text: bytes, at: int, rule: str) -> None:
    layout = RowLayout.of(rule, rule, 1)
    whole = row(12, layout, ["0.5", "1"])

    for damaged in (text + b"\n", whole[:at] + text + whole[at:]):
        told = _refused(damaged, layout)
        # Told to be damaged for the number of its columns, and for nothing else, is only what has another number.
        assert "columns; the rules" not in str(told) or _columns_differ(damaged, layout, told.row if told else 0)


def _refused(text: bytes, layout: RowLayout) -> RowsDamaged | None:
    try:
        assert np.isfinite(parse_rows(text, layout).values).all()
    except RowsDamaged as told:
        return told
    return None


def _columns_differ(text: bytes, layout: RowLayout, number: int) -> bool:
    columns = len(text.split(b"\n")[number - 1].rstrip(b" ").split(b" "))
    return columns not in {layout.short, layout.full} or not text.split(b"\n")[number - 1].strip(b" ")


def test_a_table_without_vectors_may_have_garbage_as_their_state() -> None:
    layout = RowLayout.of("adagrad", "adagrad", 0)

    rows = parse_rows(b"1 3 0 0.1 5 1 0.25 3.1 -nan\n2 3 0 0.1 5 1 0.5 3.1\n", layout)

    assert rows.values.tolist() == [[0.25], [0.5]]


# ---- a whole partition


def write_rows(path: Path, count: int, layout: RowLayout = ADAGRAD) -> dict[int, list[float]]:
    dice = np.random.default_rng(count)
    keys = np.unique(dice.integers(0, 2**64, count, dtype=np.uint64))[::-1]
    expected = {}
    lines = []
    for number, key in enumerate(keys.tolist()):
        values = [f"{value:.6g}" for value in dice.normal(0, 0.1, 3)]
        short = number % 3 == 0
        lines.append(row(key, layout, values[:1] if short else values))
        expected[key] = [float(np.float32(value)) for value in values[:1] + (["0", "0"] if short else values[1:])]
    data = b"".join(lines)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return expected


def read_back(path: Path, records: int) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    last = -1
    with SequenceFileReader(path, expected_records=records) as reader:
        for keys, values in reader:
            for key, value in zip(keys.tolist(), values.tolist(), strict=True):
                assert key > last
                found[key] = value
                last = key
    return found


@pytest.mark.parametrize("name", ["part-000-00001", "part-000-00001.gz"])
def test_a_partition_becomes_a_sequence_file_sorted_by_key(tmp_path: Path, name: str) -> None:
    expected = write_rows(tmp_path / name, 1000)

    written = partition_to_sequence_file(tmp_path / name, tmp_path / "out.seq", ADAGRAD, "v1-1")

    assert read_back(tmp_path / "out.seq", written) == expected
    assert written == 1000


def test_a_partition_beyond_memory_gives_the_same_bytes_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path / "part", 5000)
    monkeypatch.setattr(table_text, "lines_in_range", partial(lines_in_range, chunk=4096))
    held: list[int] = []

    class Watched(SequenceFileWriter):
        def write(self, keys: Any, values: Any) -> None:
            held.append(len(keys))
            super().write(keys, values)

    monkeypatch.setattr(table_text, "SequenceFileWriter", Watched)
    whole = partition_to_sequence_file(tmp_path / "part", tmp_path / "whole.seq", ADAGRAD, b"s")
    assert held == [5000]
    held.clear()
    pieces = partition_to_sequence_file(tmp_path / "part", tmp_path / "pieces.seq", ADAGRAD, b"s", memory_rows=500)

    assert max(held) < 2 * 500
    assert pieces == whole == sum(held) == 5000
    assert (tmp_path / "pieces.seq").read_bytes() == (tmp_path / "whole.seq").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["part", "pieces.seq", "whole.seq"]


def test_another_seed_gives_another_sync_marker(tmp_path: Path) -> None:
    write_rows(tmp_path / "part", 10)

    for seed in ("a", "b"):
        partition_to_sequence_file(tmp_path / "part", tmp_path / seed, ADAGRAD, seed)

    first, second = (tmp_path / seed for seed in ("a", "b"))
    assert first.stat().st_size == second.stat().st_size
    assert first.read_bytes() != second.read_bytes()


def test_an_empty_partition_is_a_file_without_records(tmp_path: Path) -> None:
    (tmp_path / "part").touch()

    written = partition_to_sequence_file(tmp_path / "part", tmp_path / "out.seq", ADAGRAD, "s")

    assert written == 0
    assert read_back(tmp_path / "out.seq", written) == {}


@pytest.mark.parametrize(
    ("data", "name", "told"),
    [
        (
            row(5, ADAGRAD, ["1"]) + row(6, ADAGRAD, ["1"]) + row(5, ADAGRAD, ["2"]),
            "part",
            "part: the key 5 is there twice",
        ),
        (row(5, ADAGRAD, ["1"]) + b"6 broken\n", "part", "part, row 2: "),
        (row(5, ADAGRAD, ["1"])[:-1], "part", "part, row 1: it has no line end"),
        (gzip.compress(row(5, ADAGRAD, ["1"]) * 99, mtime=0)[:-9], "part.gz", "part.gz is damaged or cut off"),
    ],
)
def test_a_damaged_partition_is_refused_by_name_and_nothing_is_written(
    tmp_path: Path, data: bytes, name: str, told: str
) -> None:
    (tmp_path / name).write_bytes(data)

    with pytest.raises(RowsDamaged) as damaged:
        partition_to_sequence_file(tmp_path / name, tmp_path / "out.seq", ADAGRAD, "s")

    assert told in str(damaged.value)
    assert str(tmp_path) in str(damaged.value)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_file_larger_than_a_block_is_read_by_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: list[int] = []

    def watched(text: bytes, layout: RowLayout) -> table_text.Rows:
        blocks.append(len(text))
        return parse_rows(text, layout)

    monkeypatch.setattr(table_text, "parse_rows", watched)
    (tmp_path / "part").write_bytes(b"".join(row(key, ADAGRAD, ["1", "2", "3"]) for key in range(150_000, 0, -1)))

    written = partition_to_sequence_file(tmp_path / "part", tmp_path / "out.seq", ADAGRAD, "s", memory_rows=40_000)

    assert len(blocks) > 1
    assert (tmp_path / "part").stat().st_size == sum(blocks) > 4 << 20
    with SequenceFileReader(tmp_path / "out.seq") as reader:
        assert [key for keys, _ in reader for key in keys.tolist()] == list(range(1, 150_001))
    assert written == 150_000
