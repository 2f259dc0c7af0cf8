"""Records of JSON lines and Parquet as rows."""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elastic_ctr.config.load import read_yaml
from elastic_ctr.formats.imports.delimited_files import RecordFormat
from elastic_ctr.formats.imports.importers import ImportRefused, Summary
from elastic_ctr.formats.imports.record_files import JsonImport, ParquetImport
from formats.imports.test_importers import hours, run


def imported_json(
    tmp_path: Path, lines: list[Any], form: RecordFormat | None = None, **options: float
) -> tuple[Summary, JsonImport]:
    file = tmp_path / "in.jsonl"
    file.write_bytes(b"".join((each if isinstance(each, bytes) else orjson.dumps(each)) + b"\n" for each in lines))
    kind = JsonImport(form or RecordFormat(label="y"))
    return run(kind, tmp_path / "out", file, **options), kind


def rows(tmp_path: Path, hour: str = "20200401/00") -> list[dict[str, Any]]:
    return [json.loads(line) for line in hours(tmp_path / "out")[hour]]


def features(tmp_path: Path) -> dict[str, Any]:
    return dict(read_yaml(tmp_path / "out" / "values.yaml")["features"])


def test_lines_stay_as_they_are_but_for_their_labels(tmp_path: Path) -> None:
    lines = [b'{"y": 1,  "user": "u1"}', b'{"y": true, "user": "u2"}', b'{"user": 18446744073709551615, "y": -1}']

    imported_json(tmp_path, lines)

    assert hours(tmp_path / "out")["20200401/00"] == [
        lines[0],
        lines[1],
        b'{"user":18446744073709551615,"y":0}',
    ]
    data = read_yaml(tmp_path / "out" / "values.yaml")["data"]
    assert (data["format"], data["label"]) == ("jsonl", "y")


def test_the_values_of_json_say_what_a_column_is(tmp_path: Path) -> None:
    lines = [
        {
            "y": row % 2, "user": f"u{row % 3}", "age": row % 7, "price": row + 0.5, "flag": row % 3 == 0, "text": f"{row % 4}.5",
            "tags": ["a|b", "c"][: row % 3], "mixed": 1.5 if row % 2 else "x", "of": {"a": 1}, "id": row * 10**15 + 7, "vector": [row % 5, 0.5 + row % 2],
            "uneven": [0.5] * (row % 3), "gap": None if row % 2 else 7.0 + row % 5, "null": None,
        }
        for row in range(40)
    ]  # fmt: skip

    _, kind = imported_json(tmp_path, lines)

    assert features(tmp_path) == {
        "user": {"type": "categorical"},
        "age": {"type": "categorical"},
        "price": {"type": "numeric"},
        "flag": {"type": "categorical"},
        "text": {"type": "categorical"},
        "tags": {"type": "categorical", "separator": ","},
        "gap": {"type": "categorical", "round": 0},
        "vector_0": {"type": "categorical"},
        "vector_1": {"type": "numeric"},
    }
    left = {each.column: each.why for each in kind.columns if not each.feature}
    assert left.keys() >= {"mixed", "of", "id", "uneven", "null"}
    assert "vectors: its 2 numbers are the columns vector_0 to vector_1" in kind.notes[-1]
    assert rows(tmp_path)[3]["vector_1"] == 1.5


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([b'[{"y": 1}]'], "is one list, and JSON lines have an object a line; `jq -c"),
        ([{"x": 1}], "has no column 'y'; its columns are: x"),
        ([b"{", b"7"], "it is not JSON"),
        ([{"y": "yes", "x": 1}], "--positive says which labels are clicks"),
        ([b""], "there is no row in"),
    ],
)
def test_files_that_are_no_json_lines_are_refused(lines: list[Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ImportRefused, match=sentence):
        imported_json(tmp_path, lines)


def test_parquet_has_decimals_dates_times_and_vectors(tmp_path: Path) -> None:
    count = 24
    table = pa.table(
        {
            "y": pa.array([row % 2 == 0 for row in range(count)]),
            "at": pa.array(
                [datetime(2020, 4, 1, row % 2, 30, tzinfo=timezone.utc) for row in range(count)],
                pa.timestamp("ns", "UTC"),
            ),
            "price": pa.array([Decimal(row) / 4 for row in range(count)], pa.decimal128(9, 2)),
            "day": pa.array([date(2020, 4, 1 + row % 3) for row in range(count)]),
            "key": pa.array([2**63 + row % 3 for row in range(count)], pa.uint64()),
            "vector": pa.array([[row / 7, 1.0] for row in range(count)], pa.list_(pa.float64())),
            "tags": pa.array([["a", "b"][: row % 3] for row in range(count)]),
            "nan": pa.array([float("nan") if row % 2 else row / 3 for row in range(count)]),
        }
    )
    file = tmp_path / "in.parquet"
    pq.write_table(table, file)

    summary = run(ParquetImport(RecordFormat(label="y", time="at")), tmp_path / "out", file)

    assert (summary.records, summary.refused, summary.hours) == (count, {}, 2)
    assert rows(tmp_path)[1] == {
        "y": 1, "at": "2020-04-01T00:30:00+00:00", "price": 0.5, "day": "2020-04-03", "key": 2**63 + 2, "vector_0": 2 / 7, "vector_1": 1.0,
        "tags": ["a", "b"], "nan": 2 / 3,
    }  # fmt: skip
    found = features(tmp_path)
    assert found["price"] == found["vector_0"] == found["nan"] == {"type": "numeric"}
    assert found["key"] == found["day"] == {"type": "categorical"}
    assert found["tags"] == {"type": "categorical", "separator": "|"}


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.parquet").write_text("a,b\n")

    with pytest.raises(ImportRefused, match="cannot be read as Parquet"):
        run(ParquetImport(RecordFormat(label="y")), tmp_path / "out", tmp_path / "in.parquet")
