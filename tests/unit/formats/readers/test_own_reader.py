"""Readers of the user's own."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pytest

from elastic_ctr.formats.readers.batches import ColumnsRefused, Format
from elastic_ctr.formats.readers.files import rows_in_range
from elastic_ctr.formats.readers.own_reader import ReaderFailed, find_reader
from formats.readers.oracle import Row, rows_of, wanted_of

HERE = __name__


def letters(file: BinaryIO, start: int, end: int | None) -> Iterator[Any]:
    """A row a byte, two a batch."""
    content = file.read()[start:end]
    for at in range(0, len(content), 2):
        yield pa.RecordBatch.from_pydict({"x": [chr(byte) for byte in content[at : at + 2]]})


def tables(file: BinaryIO, start: int, end: int | None) -> Iterator[Any]:
    yield pa.table({"x": ["a"]})


def forgetful(file: BinaryIO, start: int, end: int | None) -> Iterator[Any]:
    yield pa.RecordBatch.from_pydict({"x": ["a"]})
    raise KeyError("boom")


def eager(file: BinaryIO, start: int, end: int | None) -> Iterator[Any]:
    raise ValueError("two\n  lines " + "x" * 1000)


def silent(file: BinaryIO, start: int, end: int | None) -> Iterator[Any]:
    raise NotImplementedError


def cut_off(file: BinaryIO, start: int, end: int | None) -> Iterator[Any]:
    yield pa.RecordBatch.from_pydict({"x": [file.read().decode()]})


def test_record_batches_of_a_function_become_rows_with_running_numbers() -> None:
    form = Format("reader", reader=f"{HERE}:letters")

    found = rows_of(rows_in_range(io.BytesIO(b"abcdef"), "part-0", form, wanted_of(["x"]), 1, 6))

    assert found == [Row(place, (b"%c" % letter,), (), 1, 0) for place, letter in enumerate(b"bcdef")]


def test_a_batch_with_other_columns_names_the_file() -> None:
    with pytest.raises(ColumnsRefused, match="part-0 lacks the column 'y'; it has 'x'"):
        list(rows_in_range(io.BytesIO(b"abc"), "part-0", Format("reader", reader=f"{HERE}:letters"), wanted_of(["y"])))


def test_a_function_that_yields_something_else_is_refused() -> None:
    with pytest.raises(ColumnsRefused, match=r"yields Table for part-0; a reader yields pyarrow\.RecordBatch"):
        list(rows_in_range(io.BytesIO(b"abc"), "part-0", Format("reader", reader=f"{HERE}:tables"), wanted_of(["x"])))


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("forgetful", "KeyError: 'boom'"),
        ("eager", f"ValueError: two lines {'x' * 290}…"),
        ("silent", "NotImplementedError"),
    ],
)
def test_an_error_of_a_reader_is_reported_with_its_name_and_the_file(function: str, error: str) -> None:
    with pytest.raises(ReaderFailed) as failed:
        list(rows_in_range(io.BytesIO(), "part-0", Format("reader", reader=f"{HERE}:{function}"), wanted_of(["x"])))

    assert str(failed.value) == f"the reader {HERE}:{function} failed in part-0: {error}; mend the reader, or the file."


def test_a_store_that_is_away_is_no_fault_of_the_function() -> None:
    class Away(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:  # noqa: ARG002
            raise ConnectionError("the store is away")

    with pytest.raises(ConnectionError, match="the store is away"):
        list(rows_in_range(Away(), "part-0", Format("reader", reader=f"{HERE}:cut_off"), wanted_of(["x"])))


def test_a_module_that_fails_when_it_is_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_reader.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ValueError, match="broken_reader raises ZeroDivisionError: division by zero; mend it"):
        find_reader("broken_reader:rows")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("letters", r"the reader 'letters' is not package\.module:function"),
        (f"{HERE}:", r"is not package\.module:function"),
        ("no_such_package.at_all:rows", r"cannot be imported \(No module named 'no_such_package'\); is its package"),
        (f"{HERE}:nothing", r"is not there: .* has no function 'nothing'"),
        (f"{HERE}:HERE", "has no function 'HERE'"),
    ],
)
def test_a_name_without_a_function_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        find_reader(name)
