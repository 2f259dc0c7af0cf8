from __future__ import annotations

import gzip
import math
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.features.hours import HourTree, parse_hour
from elastic_ctr.features.importers import (
    CRITEO,
    CsvFormat,
    ImportRefused,
    LibfmFormat,
    RowRefused,
    Summary,
    clicked,
    feasign_of,
    import_files,
    log_bucket,
)
from elastic_ctr.features.line import parse_line
from elastic_ctr.features.slots import SlotList

DATA = Path(__file__).parents[3].parent / "shared" / "data"
START = parse_hour("20200401/00")

needs_data = pytest.mark.skipif(not DATA.exists(), reason="needs the public click logs: put them into ../shared/data")


def run(kind: CsvFormat | LibfmFormat, out: Path, *files: Path, **options: float) -> Summary:
    with HourTree(out) as tree:
        return import_files(files, kind.rows, kind.slots(), tree, start=START, **options)  # type: ignore[arg-type]


def run_text(kind: CsvFormat | LibfmFormat, tmp_path: Path, text: str | bytes, **options: float) -> Summary:
    file = tmp_path / "in.txt"
    tmp_path.mkdir(exist_ok=True)
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return run(kind, tmp_path / "out", file, **options)


def hours(out: Path) -> dict[str, list[bytes]]:
    for folder in out.glob("????????/??"):
        assert (folder / "donefile").read_bytes() == b""
    return {
        str(part.parent.relative_to(out)): part.read_bytes().splitlines() for part in sorted(out.rglob("part-00000"))
    }


def line(show: int, click: int, **values: str) -> bytes:
    return b" ".join(
        [b"%d %d" % (show, click), *(b"%d:%s" % (feasign_of(s, v), s.encode()) for s, v in values.items())]
    )


def test_a_row_becomes_a_line_of_hashed_values_and_an_empty_value_is_left_out(tmp_path: Path) -> None:
    summary = run_text(CsvFormat(("app", "os"), label="y"), tmp_path, "y,os,app\n1,ios,x\n0,,x\n")

    assert hours(tmp_path / "out") == {
        "20200401/00": [line(1, 1, app="x", os="ios"), line(1, 0, app="x")],
    }
    assert (tmp_path / "out" / "slot.conf").read_text() == "app\nos\n"
    assert (summary.rows, summary.records, summary.shows, summary.clicks, summary.slots) == (2, 2, 2, 1, 2)


def test_a_feasign_is_the_hash_of_field_and_value() -> None:
    # xxh3_64 of b"app=x": fixed for ever, or models and lines made apart no longer agree.
    assert feasign_of("app", "x") == 5635426359475637851
    assert feasign_of("app", "x") != feasign_of("os", "x")


def test_a_feasign_is_the_same_in_every_process() -> None:
    code = "from elastic_ctr.features.importers import feasign_of; print(feasign_of('app', 'x'))"

    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    assert found == {f"{feasign_of('app', 'x')}\n"}


def test_rows_go_to_their_own_hours_whatever_their_order(tmp_path: Path) -> None:
    text = "t,y,a\n2017-11-07 02:59:59,0,third\n2017-11-06 23:00:00,1,first\n2017-11-07 02:00:00,0,third-too\n"

    summary = run_text(CsvFormat(("a",), label="y", time="t"), tmp_path, text)

    assert hours(tmp_path / "out") == {
        "20171106/23": [line(1, 1, a="first")],
        "20171107/00": [],
        "20171107/01": [],
        "20171107/02": [line(1, 0, a="third"), line(1, 0, a="third-too")],
    }
    assert (summary.hours, summary.start, summary.end) == (4, "20171106/23", "20171107/02")


@pytest.mark.parametrize(
    ("time_format", "text"),
    [
        ("%y%m%d%H", "14102105"),
        ("epoch", "1413867600"),
        ("epoch", "1413867600.5"),
        ("%Y-%m-%dT%H:%M:%S%z", "2014-10-21T07:00:00+0200"),
        ("iso", "2014-10-21 05:00:00"),
        ("iso", "2014-10-21T05:59:59Z"),
        ("iso", "2014-10-21T05:00:00.123456"),
        ("iso", "2014-10-21 05:00:00.123456789+00:00"),
        ("iso", "2014-10-21T07:30+02"),
        ("iso", "2014-10-20T23:30:00-0530"),
        ("iso", "20141021T050000Z"),
    ],
)
def test_a_time_may_be_written_in_many_ways(tmp_path: Path, time_format: str, text: str) -> None:
    kind = CsvFormat(("a",), label="y", time="t", time_format=time_format)

    assert run_text(kind, tmp_path, f"t,y,a\n{text},0,x\n").start == "20141021/05"


def test_rows_without_a_time_fill_hours_one_after_the_other(tmp_path: Path) -> None:
    text = "y,a\n" + "".join(f"0,{number}\n" for number in range(5))

    run_text(CsvFormat(("a",), label="y"), tmp_path, text, rows_per_hour=2)

    assert {hour: len(lines) for hour, lines in hours(tmp_path / "out").items()} == {
        "20200401/00": 2,
        "20200401/01": 2,
        "20200401/02": 1,
    }


def test_show_and_click_may_be_columns(tmp_path: Path) -> None:
    text = "a,s,c\nx,3,1\ny,0,0\ny,1,2\ny,-1,0\ny,1.5,0\nz,5,5\n"

    summary = run_text(CsvFormat(("a",), show="s", click="c"), tmp_path, text, max_refused_share=1)

    assert hours(tmp_path / "out")["20200401/00"] == [line(3, 1, a="x"), line(5, 5, a="z")]
    assert summary.refused == {"show_click": 3, "not_a_number": 1}


@pytest.mark.parametrize(
    ("text", "click"),
    [
        ("1", 1),
        ("+1", 1),
        ("1.0", 1),
        ("0", 0),
        ("-1", 0),
        ("0.0", 0),
        (" 1", 1),
        ("True", 1),
        ("false", 0),
        ("FALSE", 0),
    ],
)
def test_labels_are_one_and_zero_or_one_and_minus_one(text: str, click: int) -> None:
    assert clicked(text) == click


@pytest.mark.parametrize("text", ["", "2", "yes", "nan", "0.5", "-2", "1,0"])
def test_other_labels_are_refused(text: str) -> None:
    with pytest.raises(RowRefused, match="is not 1, 0, -1, true or false"):
        clicked(text)


def test_bad_rows_are_counted_with_the_first_examples(tmp_path: Path) -> None:
    text = "y,a\n1,x\n1\nmaybe,x\n\n1,x,z\n" + "2,x\n" * 10 + "0,x\n"

    summary = run_text(CsvFormat(("a",), label="y"), tmp_path, text, max_refused_share=1)

    assert summary.rows == 16
    assert summary.records == 2
    assert summary.refused == {"columns": 3, "label": 11}
    assert summary.examples[:2] == [
        f"{tmp_path / 'in.txt'}: line 3: 1 columns instead of 2",
        f"{tmp_path / 'in.txt'}: line 4: the label 'maybe' is not 1, 0, -1, true or false",
    ]
    assert len(summary.examples) == 5
    assert summary.as_dict()["refusedShare"] == 14 / 16


def test_too_many_bad_rows_write_nothing(tmp_path: Path) -> None:
    with pytest.raises(
        ImportRefused, match=r"1 of 50 rows were refused \(1 for label\), more than the share of 0.01; nothing"
    ):
        run_text(CsvFormat(("a",), label="y"), tmp_path, "y,a\n" + "1,x\n" * 49 + "?,x\n")

    assert not list((tmp_path / "out").rglob("*"))


def test_a_bad_time_is_refused_and_a_wrong_one_does_not_make_years_of_hours(tmp_path: Path) -> None:
    kind = CsvFormat(("a",), label="y", time="t")

    assert run_text(kind, tmp_path, "t,y,a\n2017-11-07 02:00:00,0,x\nnoon,1,x\n", max_refused_share=1).refused == {
        "time": 1
    }
    far_apart = "t,y,a\n2017-11-07 02:00:00,0,x\n1970-01-01 00:00:00,0,x\n"
    with pytest.raises(ImportRefused, match="the rows lie between 19700101/00 and 20171107/02, 419451 hours"):
        run_text(kind, tmp_path / "other", far_apart)


def test_a_column_is_chosen_by_its_exact_name_or_refused_with_those_there_are(tmp_path: Path) -> None:
    text = "..ip,y,y\n1,2,3\n"

    with pytest.raises(ImportRefused, match=r"has no column 'ip'; its columns are: \.\.ip, y, y; .*--no-header"):
        run_text(CsvFormat(("ip",), label="y"), tmp_path, text)
    with pytest.raises(ImportRefused, match="has 2 columns 'y'"):
        run_text(CsvFormat(("..ip",), label="y"), tmp_path, text)
    with pytest.raises(ImportRefused, match="not separated by ';', which --delimiter changes"):
        run_text(CsvFormat(("a",), label="y", delimiter=";"), tmp_path, "y,a\n1,x\n")


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    assert run_text(CsvFormat(("a",), label="y"), tmp_path, "\ufeffy,a\r\n1,x\r\n").records == 1


@pytest.mark.parametrize("columns", [(), ("y", "a")])
def test_a_file_without_header_has_numbered_or_given_columns(tmp_path: Path, columns: tuple[str, ...]) -> None:
    label, name = columns or ("0", "1")

    run_text(CsvFormat((name,), label=label, header=False, columns=columns), tmp_path, "1,x\n0,z\n")

    assert hours(tmp_path / "out")["20200401/00"] == [line(1, 1, **{name: "x"}), line(1, 0, **{name: "z"})]


def test_names_that_can_not_be_slots_are_changed_and_still_have_to_differ() -> None:
    assert CsvFormat(("..ip", "user id", "a:b"), label="y").slots() == SlotList(("..ip", "user_id", "a_b"))
    with pytest.raises(ImportRefused, match="names a_b more than once"):
        CsvFormat(("a b", "a:b"), label="y").slots()


def test_a_stray_quote_counts_the_lines_that_it_takes_with_it_and_names_them(tmp_path: Path) -> None:
    taken = 131_072 // len("0,x\n")
    text = "y,a\n1,x\n" + '1,"x\n' + "0,x\n" * taken + "1,z\n"

    summary = run_text(CsvFormat(("a",), label="y"), tmp_path, text, max_refused_share=1)

    assert hours(tmp_path / "out")["20200401/00"] == [line(1, 1, a="x"), line(1, 1, a="z")]
    assert (summary.rows, summary.records, summary.refused) == (1 + taken + 2, 2, {"not_csv": 1 + taken})
    [example] = summary.examples
    assert f"lines 3 to {taken + 3} are not CSV (field larger than field limit" in example
    assert "--quote none" in example


@pytest.mark.parametrize("text", ['y,a\n1,"x\n0,y\n1,z\n', 'y,a\n1,"x\n0,y\n1,"z\n'])
def test_rows_between_two_stray_quotes_or_up_to_the_end_are_no_part_of_a_value(tmp_path: Path, text: str) -> None:
    with pytest.raises(ImportRefused, match=r"3 of 3 rows were refused .*lines 2 to 4 are not CSV"):
        run_text(CsvFormat(("a",), label="y"), tmp_path, text)


@pytest.mark.parametrize("row", ['1,",q\n', '1,q,"\n'])
def test_rows_between_two_lone_quotes_that_happen_to_make_a_value_are_counted_too(tmp_path: Path, row: str) -> None:
    text = "y,a,b\n1,x,y\n" + row + "0,x,y\n" * 50 + row + "1,x,z\n"

    summary = run_text(CsvFormat(("a", "b"), label="y"), tmp_path, text, max_refused_share=1)

    assert (summary.rows, summary.records) == (54, 2)
    assert summary.refused == {"not_csv": 52}
    [example] = summary.examples
    assert "lines 3 to 54 are not CSV (by their quotes they are one row)" in example


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_quoted_value_may_have_several_lines(tmp_path: Path, place: int) -> None:
    cells = ["x", "y", "z"]
    cells[place] = '"first, of\n\nthree"'
    text = "a,b,c,l\n" + ",".join(cells) + ",1\nu,v,w,0\n"

    summary = run_text(CsvFormat(("a", "b", "c"), label="l"), tmp_path, text)

    named = dict(zip("abc", [cell.strip('"') for cell in cells], strict=True))
    assert hours(tmp_path / "out")["20200401/00"] == [line(1, 1, **named), line(1, 0, a="u", b="v", c="w")]
    assert (summary.rows, summary.records) == (2, 2)


def test_rows_refused_for_one_reason_are_one_short_sentence(tmp_path: Path) -> None:
    kind = CsvFormat(("a",), label="y", time="t", time_format="epoch")
    with pytest.raises(ImportRefused) as refused:
        run_text(kind, tmp_path, "t,y,a\n" + "2014-10-21,0,x\n" * 50)

    assert str(refused.value) == (
        "50 of 50 rows were refused (50 for time), more than the share of 0.01; nothing was written. First: "
        f"{tmp_path / 'in.txt'}: line 2: the time '2014-10-21' is not epoch; --time-format says how times are written."
    )


def test_a_first_row_of_several_lines_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImportRefused, match="lines 1 to 2 are not CSV"):
        run_text(CsvFormat(("a",), label="y"), tmp_path, 'y,"a\n1,b"\n1,x\n')


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_without_quoting_a_quote_is_a_character_like_others(tmp_path: Path, delimiter: str) -> None:
    kind = CsvFormat(("a",), label="y", delimiter=delimiter, quote=None)

    run_text(kind, tmp_path, 'y,a\n1,"x\n0,"y"\n1,5"\n'.replace(",", delimiter))

    values = ('"x', '"y"', '5"')
    assert hours(tmp_path / "out")["20200401/00"] == [
        line(1, click, a=value) for click, value in zip((1, 0, 1), values, strict=True)
    ]


def test_another_quote_may_be_given(tmp_path: Path) -> None:
    run_text(CsvFormat(("a",), label="y", quote="'"), tmp_path, "y,a\n1,'x,y'\n")

    assert hours(tmp_path / "out")["20200401/00"] == [line(1, 1, a="x,y")]


@pytest.mark.parametrize("header", [True, False])
def test_a_first_row_that_is_not_csv_is_a_sentence(tmp_path: Path, header: bool) -> None:
    with pytest.raises(ImportRefused, match=r"in\.txt: lines 1 to 3 are not CSV \(.*--quote none"):
        run_text(CsvFormat(("1",), label="0", header=header), tmp_path, '1,"x\n0,y\n1,z\n')


def test_bytes_that_are_not_text_are_values_like_others(tmp_path: Path) -> None:
    summary = run_text(CsvFormat(("a",), label="y"), tmp_path, b"y,a\n1,\xff\xfe\n0,\xc3\xa4\n")

    assert summary.records == 2
    [one, two] = hours(tmp_path / "out")["20200401/00"]
    assert one.split()[2] != two.split()[2]


def test_gzipped_files_are_unzipped(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"y,a\n1,x\n"))

    assert run(CsvFormat(("a",), label="y"), tmp_path / "out", tmp_path / "a.csv.gz").records == 1


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    for text in ("", "y,a\n"):
        with pytest.raises(ImportRefused, match="there is no row in"):
            run_text(CsvFormat(("a",), label="y"), tmp_path, text)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"label": "y", "show": "s", "click": "c"},
        {"show": "s"},
        {"click": "c"},
        {"label": "y", "delimiter": ",,"},
        {"label": "y", "quote": "''"},
        {"label": "a"},
        {"label": "y", "time": "a"},
        {"show": "s", "click": "a"},
    ],
)
def test_a_format_that_makes_no_sense_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(ImportRefused):
        CsvFormat(("a",), **options)  # type: ignore[arg-type]


def test_counts_are_bucketed_as_is_usual_for_criteo() -> None:
    assert [log_bucket(count) for count in (-3, 0, 2, 3, 10, 1382)] == [-3, 0, 2, 1, 5, 52]


@given(count=st.integers(-10, 10**9))
def test_a_bucket_is_one_of_few(count: int) -> None:
    assert -10 <= log_bucket(count) <= 430
    assert log_bucket(count) == (count if count <= 2 else math.floor(math.log(count) ** 2))


def test_criteo_rows_have_slots_for_what_is_not_empty(tmp_path: Path) -> None:
    cells = ["1", "", "-1", "1382", *[""] * 10, "68fd1e64", *[""] * 24, "9727dd16"]
    (tmp_path / "in").write_text(
        "\t".join(cells) + "\r\n" + "\t".join(cells[:-1]) + "\n" + "\t".join(["0", "x", *cells[2:]])
    )

    with HourTree(tmp_path / "out") as tree:
        summary = import_files([tmp_path / "in"], CRITEO.rows, CRITEO.slots(), tree, start=START, max_refused_share=1)

    assert hours(tmp_path / "out")["20200401/00"] == [line(1, 1, I2="-1", I3="52", C1="68fd1e64", C26="9727dd16")]
    assert summary.refused == {"columns": 1, "not_a_number": 1}
    assert (tmp_path / "out" / "slot.conf").read_text().split() == [f"I{i}" for i in range(1, 14)] + [
        f"C{i}" for i in range(1, 27)
    ]


def test_libfm_features_are_in_one_slot(tmp_path: Path) -> None:
    summary = run_text(LibfmFormat(), tmp_path, "1 3:1 7:0.5 9:0\n-1 3:1.0\n0\n3 1:1\n1 x\n", max_refused_share=1)

    slot = "features"
    assert hours(tmp_path / "out")["20200401/00"] == [
        b"1 1 %d:features %d:features" % (feasign_of(slot, "3"), feasign_of(slot, "7:0.5")),
        b"1 0 %d:features" % feasign_of(slot, "3"),
        b"1 0",
    ]
    assert summary.refused == {"label": 1, "not_a_number": 1}


def test_libfm_lines_with_a_fixed_number_of_fields_have_a_slot_each(tmp_path: Path) -> None:
    summary = run_text(LibfmFormat(2), tmp_path, "1 3:1 7:1\n0 3:1\n", max_refused_share=1)

    assert hours(tmp_path / "out")["20200401/00"] == [b"1 1 %d:0 %d:1" % (feasign_of("0", "3"), feasign_of("1", "7"))]
    assert summary.refused == {"columns": 1}


@given(text=st.text(max_size=60) | st.binary(max_size=60))
def test_whatever_the_text_every_row_is_written_or_counted(
    tmp_path_factory: pytest.TempPathFactory, text: str | bytes
) -> None:
    folder = tmp_path_factory.mktemp("import")
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    kind = CsvFormat(("1",), label="0", header=False, columns=("0", "1"))

    summary = run_text(kind, folder, b"1,x\n" + data, max_refused_share=1)

    assert summary.records + summary.refused.total() == summary.rows
    written = hours(folder / "out")["20200401/00"]
    assert len(written) == summary.records
    for one in written:
        parse_line(one, kind.slots(), None)


# ---- real files


@needs_data
def test_the_clicks_of_talkingdata_fall_into_their_72_hours(tmp_path: Path) -> None:
    kind = CsvFormat(("..ip", "app", "device", "os", "channel"), label="is_attributed", time="click_time")

    summary = run(kind, tmp_path / "out", DATA / "talkingdata" / "train_sample.csv")

    found = hours(tmp_path / "out")
    assert (summary.records, summary.clicks, summary.hours) == (100_000, 227, 72)
    assert (summary.start, summary.end) == ("20171106/16", "20171109/15")
    assert sum(map(len, found.values())) == 100_000
    assert (min(map(len, found.values())), max(map(len, found.values()))) == (225, 2208)


@needs_data
def test_criteo_rows_are_read_whole(tmp_path: Path) -> None:
    with HourTree(tmp_path / "out") as tree:
        files = [DATA / "criteo" / "train.csv", DATA / "criteo" / "dev.csv"]
        summary = import_files(files, CRITEO.rows, CRITEO.slots(), tree, start=START, rows_per_hour=1000)

    assert (summary.records, summary.clicks, summary.hours, summary.refused) == (7609, 1642, 8, Counter())


@needs_data
def test_avazu_rows_are_the_same_with_and_without_header_and_with_crlf(tmp_path: Path) -> None:
    names = (DATA / "avazu" / "train.csv").read_text().partition("\n")[0].split(",")
    fields = tuple(names[3:])
    kind = CsvFormat(fields, label="click", time="hour", time_format="%y%m%d%H")
    headless = replace(kind, header=False, columns=tuple(names))

    with_header = run(kind, tmp_path / "a", DATA / "avazu" / "small3.train.csv")
    without = run(headless, tmp_path / "b", DATA / "avazu" / "dev.csv")

    assert (with_header.records, with_header.clicks, with_header.start) == (9567, 1626, "20141021/00")
    assert (without.records, without.clicks) == (480, 86)
    both = [Counter(hours(tmp_path / name)["20141021/00"]) for name in ("a", "b")]
    assert both[1] <= both[0]
