"""CSV files become hours of rows that trainers read: every row that is written is one that they take."""

from __future__ import annotations

import gzip
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.config.load import read_yaml
from elastic_ctr.config.values_file import Values
from elastic_ctr.formats.imports.delimited_files import CRITEO, CriteoImport, CsvFormat, CsvImport
from elastic_ctr.formats.imports.importers import ImportRefused, Summary
from elastic_ctr.formats.inputs import InputColumns, TextInput
from elastic_ctr.formats.readers.batches import Format, Wanted
from elastic_ctr.formats.readers.files import rows_in_range
from formats.imports.test_importers import hours, run, run_text

DATA = Path(__file__).parents[4].parent / "shared" / "data"

needs_data = pytest.mark.skipif(not DATA.exists(), reason="needs the public click logs: put them into ../shared/data")
LABELLED = CsvFormat(label="y")


def imported(form: CsvFormat, tmp_path: Path, text: str | bytes, **options: float) -> Summary:
    return run_text(CsvImport(form), tmp_path, text, **options)


def rows(tmp_path: Path, hour: str = "20200401/00") -> list[bytes]:
    return hours(tmp_path / "out")[hour]


def values(tmp_path: Path) -> dict[str, Any]:
    return read_yaml(tmp_path / "out" / "values.yaml")


def test_rows_stay_as_they_are_under_their_header(tmp_path: Path) -> None:
    text = 'y,os,app\n1,ios,"a ""b"", c"\n0,, x\n'

    summary = imported(LABELLED, tmp_path, text)

    assert (tmp_path / "out" / "20200401" / "00" / "part-00000").read_text() == text
    assert (summary.rows, summary.records, summary.shows, summary.clicks, summary.features) == (2, 2, 2, 1, 2)
    assert not (tmp_path / "out" / "slot.conf").exists()


def test_the_values_file_says_what_the_columns_are(tmp_path: Path) -> None:
    imported(
        CsvFormat(label="clicked?", time="at", without=("id",)),
        tmp_path,
        "clicked?,at,id,user id,price\n1,2020-04-01,5,u1,1.5\n0,2020-04-01T05:00,6,u2,\n",
    )

    found = values(tmp_path)
    assert found == {
        "data": {
            "source": {"url": "file:."},
            "path": "/",
            "start": "20200401/00",
            "end": "20200401/05",
            "format": "csv",
            "label": "clicked?",
            "splitsPerPass": 6,
        },
        "features": {
            "user_id": {"type": "categorical", "column": "user id"},
            "price": {"type": "numeric"},
        },
    }
    found["data"]["source"]["url"] = "file:///out"
    assert Values.model_validate(found).features is not None
    assert "# guessed from the first 2 rows" in (tmp_path / "out" / "values.yaml").read_text()


@pytest.mark.parametrize(
    ("label", "written"),
    [("1", "1"), ("0", "0"), ("-1", "0"), ("+1", "1"), ("1.0", "1"), (" 1", "1"), ("True", "1"), ("FALSE", "0")],
)
def test_a_label_is_written_as_0_or_1(tmp_path: Path, label: str, written: str) -> None:
    summary = imported(LABELLED, tmp_path, f'a,y\n"b, c",{label}\n')

    assert rows(tmp_path) == [b"a,y", b'"b, c",%s' % written.encode()]
    assert summary.clicks == int(written)


def test_bad_rows_are_counted_with_their_lines(tmp_path: Path) -> None:
    text = b'y,a\n1,x\n1\nmaybe,x\n\n1,x,z\n1,"x\n1,"x"z\n1,\xff\xfe\n0,\xc3\xa4\n'

    summary = imported(LABELLED, tmp_path, text, max_refused_share=1)

    assert rows(tmp_path) == [b"y,a", b"1,x", b"0,\xc3\xa4"]
    assert summary.refused == {"columns": 2, "label": 1, "empty": 1, "not_csv": 2, "not_utf8": 1}
    first = tmp_path / "in.txt"
    assert summary.examples[0] == f"{first}: line 3: 1 columns instead of 2"
    assert summary.examples[4].startswith(f"{first}: line 7: it is not CSV (unexpected end of data); a row is one line")
    assert "--quote none" in summary.examples[4]


def test_show_and_click_may_be_columns(tmp_path: Path) -> None:
    text = "a,s,c\nx,3,1\ny,0,0\ny,1,2\ny,-1,0\ny,1.5,0\nz, 5,5\n"

    summary = imported(CsvFormat(show="s", click="c"), tmp_path, text, max_refused_share=1)

    assert rows(tmp_path) == [b"a,s,c", b"x,3,1", b"z,5,5"]
    assert summary.refused == {"show_click": 3, "not_a_number": 1}
    assert (values(tmp_path)["data"]["label"], values(tmp_path)["data"]["shows"]) == ("c", "s")
    assert values(tmp_path)["features"] == {"a": {"type": "categorical"}}


def test_rows_go_to_their_own_hours_whatever_their_order(tmp_path: Path) -> None:
    text = "t,y,a\n2017-11-07 02:59:59,0,third\n2017-11-06 23:00:00,1,first\n2017-11-07 02:00:00,0,third-too\n"

    summary = imported(replace(LABELLED, time="t"), tmp_path, text)

    assert hours(tmp_path / "out") == {
        "20171106/23": [b"t,y,a", b"2017-11-06 23:00:00,1,first"],
        "20171107/00": [],
        "20171107/01": [],
        "20171107/02": [b"t,y,a", b"2017-11-07 02:59:59,0,third", b"2017-11-07 02:00:00,0,third-too"],
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
    form = replace(LABELLED, time="t", time_format=time_format)

    assert imported(form, tmp_path, f"t,y,a\n{text},0,x\n").start == "20141021/05"


def test_a_bad_time_is_refused_and_a_wrong_one_does_not_make_years_of_hours(tmp_path: Path) -> None:
    form = replace(LABELLED, time="t")

    assert imported(form, tmp_path, "t,y,a\n2017-11-07 02:00:00,0,x\nnoon,1,x\n", max_refused_share=1).refused == {
        "time": 1
    }
    far_apart = "t,y,a\n2017-11-07 02:00:00,0,x\n1970-01-01 00:00:00,0,x\n"
    with pytest.raises(ImportRefused, match="the rows lie between 19700101/00 and 20171107/02, 419451 hours"):
        imported(form, tmp_path / "other", far_apart)


def test_rows_refused_for_one_reason_are_one_short_sentence(tmp_path: Path) -> None:
    form = replace(LABELLED, time="t", time_format="epoch")
    with pytest.raises(ImportRefused) as refused:
        imported(form, tmp_path, "t,y,a\n" + "2014-10-21,0,x\n" * 50)

    assert str(refused.value) == (
        "50 of 50 rows were refused (50 for time), more than the share of 0.01; nothing was written. First: "
        f"{tmp_path / 'in.txt'}: line 2: the time '2014-10-21' is not epoch; --time-format says how times are written; mend the "
        "rows, or raise --max-refused-share."
    )


@pytest.mark.parametrize(
    ("text", "form", "sentence"),
    [
        ("..ip,y,y\n1,2,3\n", CsvFormat(label="y", fields=("ip",)), "has 2 columns 'y'; its columns are: ..ip, y, y"),
        ("..ip,y\n1,2\n", CsvFormat(label="y", fields=("ip",)), "has no column 'ip'; its columns are: ..ip, y; if that is no header, say --no-header"),
        ("y,a\n1,x\n", CsvFormat(label="z"), "has no column 'z'"),
        ("y,a\n1,x\n", CsvFormat(label="y", without=("b",)), "has no column 'b'"),
        ("y,a\n1,x\n", CsvFormat(label="y", delimiter=";"), "not separated by ';', which --delimiter changes"),
        ("y,a,a\n1,x,z\n", LABELLED, "has 2 columns 'a'; its columns are: y, a, a; give each its own name"),
        ("y\n1\n", LABELLED, "has no column beside the label and the time"),
        ('y,"a\n1,b\n1,x\n', LABELLED, "in.txt: line 1: it is not CSV"),
        (b"y,\xe9\n1,x\n", LABELLED, "is not UTF-8; --encoding, --delimiter and --quote say how it is written"),
        (b"y\0,a\0\n\0", LABELLED, "line 1 has bytes 0; is it UTF-16? Say --encoding utf-16-le"),
        ("y,a\n1,x\n", CsvFormat(label="y", encoding="klingon"), "--encoding klingon is none that Python knows"),
        (b"y,a\n1,\x81\n", CsvFormat(label="y", encoding="cp1252"), "in.txt is not cp1252"),
        ("y,a\nyes,x\n", LABELLED, "--positive says which labels are clicks, such as --positive yes"),
        (b"y,a\n1,\xe9\n", LABELLED, "--encoding says how the file is written, such as --encoding latin-1"),
        ("1,x\n", CsvFormat(label="y", header=False), "has no column 'y'; its columns are: 0, 1; --columns names them"),
        ("y,a\n", LABELLED, "there is no row in"),
        ("", LABELLED, "there is no row in"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_imported_are_refused_with_a_sentence(
    tmp_path: Path, text: str, form: CsvFormat, sentence: str
) -> None:
    with pytest.raises(ImportRefused) as refused:
        imported(form, tmp_path, text)

    assert sentence in str(refused.value)


def test_a_byte_order_mark_and_cr_are_no_part_of_names_and_values(tmp_path: Path) -> None:
    assert imported(LABELLED, tmp_path, "\ufeffy,a\r\n1,x\r\n").records == 1
    assert rows(tmp_path) == [b"y,a", b"1,x"]


@pytest.mark.parametrize("columns", [(), ("y", "a")])
def test_a_file_without_header_has_numbered_or_given_columns(tmp_path: Path, columns: tuple[str, ...]) -> None:
    label, name = columns or ("0", "1")

    imported(CsvFormat(label=label, header=False, columns=columns), tmp_path, "1,x\n0,z\n")

    assert rows(tmp_path) == [b"1,x", b"0,z"]
    assert values(tmp_path)["data"]["columns"] == [label, name]
    assert values(tmp_path)["features"] == {name: {"type": "categorical"}}


def test_files_of_other_columns_are_written_in_the_order_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,a,b\n1,x,z\n")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b'new,b,a,y\nn,"z,2",x2,0\n'))
    (tmp_path / "c.csv").write_text("y,a\n1,x\n")

    run(CsvImport(LABELLED), tmp_path / "out", tmp_path / "a.csv", tmp_path / "b.csv.gz")

    assert rows(tmp_path) == [b"y,a,b", b"1,x,z", b'0,x2,"z,2"']
    with pytest.raises(ImportRefused, match=r"c\.csv has no column 'b'"):
        run(CsvImport(LABELLED), tmp_path / "other", tmp_path / "a.csv", tmp_path / "c.csv")


@pytest.mark.parametrize(
    ("delimiter", "quote", "text", "kind", "written"),
    [
        ("\t", None, 'y\ta\n1\t"x\n', "tsv", [b"y\ta", b'1\t"x']),
        (",", None, 'y,a\n1,"x\n', "csv", [b"y,a", b'1,"""x"']),
        (";", '"', 'y;a\n1;"x;y,z"\n', "csv", [b"y,a", b'1,"x;y,z"']),
        (",", "'", "y,a\n1,'x,y'\n", "csv", [b"y,a", b'1,"x,y"']),
        ("\t", '"', 'y\ta\n1\t"x\ty"\n', "csv", [b"y,a", b"1,x\ty"]),
    ],
)
def test_rows_in_a_form_that_trainers_do_not_read_are_written_as_csv(
    tmp_path: Path, delimiter: str, quote: str | None, text: str, kind: str, written: list[bytes]
) -> None:
    imported(replace(LABELLED, delimiter=delimiter, quote=quote), tmp_path, text)

    assert rows(tmp_path) == written
    assert values(tmp_path)["data"]["format"] == kind


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
        {"label": "y", "without": ("b",)},
    ],
)
def test_a_format_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ImportRefused):
        CsvFormat(fields=("a",), **options)
    with pytest.raises(ImportRefused, match="name at least one field"):
        CsvFormat(label="y", fields=())


def read_back(folder: Path, form: Format, columns: list[str], label: str) -> tuple[int, int]:
    """How many rows trainers take and refuse."""
    taken = refused = 0
    wanted = Wanted(InputColumns(tuple(TextInput(column, "") for column in columns), ()), label)
    for part in sorted(folder.rglob("part-00000")):
        with part.open("rb") as stream:
            for batch in rows_in_range(stream, str(part), form, wanted):
                taken += len(batch.cells)
                refused += len(batch.refused)
    return taken, refused


@given(text=st.text(max_size=60) | st.binary(max_size=60) | st.text(alphabet='01,"\t\r\n ab', max_size=40))
def test_every_row_of_any_text_is_written_or_counted_and_trainers_take_it(
    tmp_path_factory: pytest.TempPathFactory, text: str | bytes
) -> None:
    folder = tmp_path_factory.mktemp("import")
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text

    for name, form in (
        ("csv", CsvFormat(label="0", header=False)),
        ("tsv", CsvFormat(label="0", header=False, delimiter="\t", quote=None)),
        ("plain", CsvFormat(label="0", header=False, quote=None)),
    ):
        first = b"1\tx\n" if form.kind == "tsv" else b"1,x\n"
        summary = imported(form, folder / name, first + data, max_refused_share=1)

        assert summary.records + summary.refused.total() == summary.rows
        kind = Format("tsv" if form.kind == "tsv" else "csv", ("0", "1"))
        assert read_back(folder / name / "out", kind, ["1"], "0") == (summary.records, 0)


def test_criteos_counts_are_numbers_and_its_categories_categories(tmp_path: Path) -> None:
    cells = ["1", "", "-1", "1382", *[""] * 10, "68fd1e64", *[""] * 24, "9727dd16"]
    text = "\t".join(cells) + "\r\n" + "\t".join(cells[:-1]) + "\n"

    summary = imported(CRITEO, tmp_path, text, max_refused_share=1)

    assert rows(tmp_path) == ["\t".join(cells).encode()]
    assert (summary.refused, summary.features) == ({"columns": 1}, 39)
    features = values(tmp_path)["features"]
    assert features["I13"] == {"type": "numeric", "transform": ["log1p"], "missing": 0}
    assert features["C26"] == {"type": "categorical"}
    assert values(tmp_path)["data"]["columns"] == list(CRITEO.columns)


# ---- real files


@needs_data
def test_the_clicks_of_talkingdata_fall_into_their_72_hours(tmp_path: Path) -> None:
    form = CsvFormat(label="is_attributed", without=("attributed_time",), time="click_time")

    summary = run(CsvImport(form), tmp_path / "out", DATA / "talkingdata" / "train_sample.csv")

    found = {hour: len(lines) - 1 for hour, lines in hours(tmp_path / "out").items()}
    assert (summary.records, summary.clicks, summary.hours, summary.features) == (100_000, 227, 72, 5)
    assert (summary.start, summary.end) == ("20171106/16", "20171109/15")
    assert sum(found.values()) == 100_000
    assert (min(found.values()), max(found.values())) == (225, 2208)
    assert read_back(tmp_path / "out", Format("csv"), ["..ip", "app"], "is_attributed") == (100_000, 0)


@needs_data
def test_criteo_rows_are_read_whole(tmp_path: Path) -> None:
    files = [DATA / "criteo" / "train.csv", DATA / "criteo" / "dev.csv"]

    summary = run(CsvImport(CRITEO), tmp_path / "out", *files, rows_per_hour=1000)

    assert (summary.records, summary.clicks, summary.hours, summary.refused) == (7609, 1642, 8, Counter())
    assert read_back(tmp_path / "out", Format("tsv", CRITEO.columns), ["C1"], "label") == (7609, 0)


@needs_data
def test_avazu_rows_are_the_same_with_and_without_header_and_with_crlf(tmp_path: Path) -> None:
    names = (DATA / "avazu" / "train.csv").read_text().partition("\n")[0].split(",")
    form = CsvFormat(fields=tuple(names[3:]), label="click", time="hour", time_format="%y%m%d%H")
    headless = replace(form, header=False, columns=tuple(names))

    with_header = run(CsvImport(form), tmp_path / "a", DATA / "avazu" / "small3.train.csv")
    without = run(CsvImport(headless), tmp_path / "b", DATA / "avazu" / "dev.csv")

    assert (with_header.records, with_header.clicks, with_header.start) == (9567, 1626, "20141021/00")
    assert (without.records, without.clicks) == (480, 86)
    both = [Counter(hours(tmp_path / name)["20141021/00"]) for name in ("a", "b")]
    assert both[1] <= both[0]
    kinds = yaml.safe_load((tmp_path / "a" / "values.yaml").read_text())["features"]
    assert {each["type"] for each in kinds.values()} == {"categorical"}


@pytest.mark.parametrize(
    ("positive", "labels", "clicks"),
    [
        ("yes", ["yes", "no", "maybe", " yes "], [1, 0, 0, 1]),
        ("yes,sure", ["yes", "sure", "no"], [1, 1, 0]),
        (">=4", ["5", "4.0", "3.9", "-1"], [1, 1, 0, 0]),
        ("<2", ["1", "2"], [1, 0]),
    ],
)
def test_labels_in_words_and_above_a_threshold_become_0_and_1(
    positive: str, labels: list[str], clicks: list[int], tmp_path: Path
) -> None:
    text = "y,a\n" + "".join(f"{label},x\n" for label in labels)

    imported(CsvFormat(label="y", positive=positive), tmp_path, text)

    assert rows(tmp_path) == [b"y,a", *(b"%d,x" % click for click in clicks)]


def test_a_label_that_is_no_number_is_refused_where_a_threshold_is_given(tmp_path: Path) -> None:
    with pytest.raises(ImportRefused, match="the label 'good' is no number to compare with >=4"):
        imported(CsvFormat(label="y", positive=">=4"), tmp_path, "y,a\ngood,x\n")
    with pytest.raises(ImportRefused, match="compares with no number"):
        CsvFormat(label="y", positive=">=high")


@pytest.mark.parametrize(
    ("encoding", "written", "ends"),
    [
        (None, "utf-8-sig", "\r\n"),
        (None, "utf-16", "\r\n"),
        (None, "utf-8", "\r"),
        ("latin-1", "latin-1", "\n"),
        ("cp1252", "cp1252", "\r"),
        ("utf-16-le", "utf-16-le", "\n"),
    ],
)
def test_rows_are_written_in_utf_8_whatever_the_encoding_and_the_line_ends(
    encoding: str | None, written: str, ends: str, tmp_path: Path
) -> None:
    text = ends.join(["y,città", "1,Zürich", "0,Genève", ""]).encode(written)

    summary = imported(CsvFormat(label="y", encoding=encoding), tmp_path, text)

    assert summary.refused == {}
    assert [row.decode() for row in rows(tmp_path)] == ["y,città", "1,Zürich", "0,Genève"]


def test_a_record_with_line_breaks_in_quotes_is_one_row(tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    file.write_bytes(b'y,a,b\n1,"two\r\nlines, ""quoted""",x\n0,"5"" screen",y\n0,a "quote,z\n')
    kind = CsvImport(LABELLED)

    summary = run(kind, tmp_path / "out", file)

    assert summary.refused == {}
    assert rows(tmp_path)[1:] == [b'1,"two lines, ""quoted""",x', b'0,"5"" screen",y', b'0,a "quote,z']
    assert "1 rows had line breaks within quotes" in kind.notes[-1]


def test_a_quote_that_is_never_closed_takes_no_other_row_with_it(tmp_path: Path) -> None:
    text = 'y,a\n1,"open\n' + "0,x\n0,z\n" * 250

    summary = imported(LABELLED, tmp_path, text)

    assert (summary.records, summary.refused) == (500, {"not_csv": 1})


def test_a_column_without_a_name_is_left_out_with_a_note(tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    file.write_text(",y,a,\n0,1,x,\n1,0,z,\n")
    kind = CsvImport(LABELLED)

    run(kind, tmp_path / "out", file)

    assert values(tmp_path)["features"] == {"a": {"type": "categorical"}}
    assert (
        str(kind.columns[0]) == '"": left out, it has no name; name it in the header, or by --no-header and --columns'
    )
    assert "Values" in type(Values.model_validate(values(tmp_path) | {"data": _absolute(tmp_path)})).__name__


def _absolute(tmp_path: Path) -> dict[str, Any]:
    return {**values(tmp_path)["data"], "source": {"url": f"file://{tmp_path}"}}


def test_a_file_in_which_nothing_can_be_learned_is_refused_by_column(tmp_path: Path) -> None:
    text = "y,id,same\n" + "".join(f"{row % 2},u{row},x\n" for row in range(30))

    with pytest.raises(
        ImportRefused, match=r"no column is left to learn from .'id': 30 of 30 values differ.*--fields names"
    ):
        imported(LABELLED, tmp_path, text)
    assert not (tmp_path / "out" / "values.yaml").exists()


def test_the_test_set_of_criteo_is_refused_with_the_command_that_scores_it(tmp_path: Path) -> None:
    for text, sentence in (
        ("\t".join(["1"] * 39) + "\n", "it has no label, .* elastic-ctr predict .* --columns I1,I2"),
        (",".join(["1"] * 40) + "\n", "has commas between its columns"),
        ("\t".join(["label", *["1"] * 39]) + "\n", "has a header"),
    ):
        with pytest.raises(ImportRefused, match=sentence):
            run_text(CriteoImport(CRITEO), tmp_path, text)
