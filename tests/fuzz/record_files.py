"""Small files of JSON lines and of Parquet with values of many types: as csv_files.py."""

import random
import tempfile
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from elastic_ctr.formats.hours import HoursRefused, HourTree, parse_hour
from elastic_ctr.formats.imports.delimited_files import RecordFormat
from elastic_ctr.formats.imports.importers import ImportRefused, import_files
from elastic_ctr.formats.imports.record_files import JsonImport, ParquetImport
from fuzz.csv_files import SENTENCE
from fuzz.imported_hours import check

_START = parse_hour("20200401/00")
Draw = random.Random
Value = Callable[[Draw, int], Any]
_OF_BOTH: dict[str, Value] = {
    "site": lambda draw, _: f"s{draw.randrange(4)}",
    "id": lambda _, row: row,
    "big": lambda draw, _: 2**63 - 1 - draw.randrange(3),
    "age": lambda draw, _: draw.randrange(18, 40),
    "price": lambda draw, _: draw.uniform(-5, 100),
    "whole": lambda draw, _: float(draw.randrange(5)),
    "large": lambda draw, _: draw.choice([1e300, 1e20, -1e308, 3.5]),
    "flag": lambda draw, _: draw.random() < 0.5,
    "text": lambda draw, _: draw.choice(["1.5", "NaN", "-", "客户", 'a"b', "x\ny", ""]),
    "tags": lambda draw, _: draw.sample(["a", "b|c", "d,e"], draw.randrange(4)),
    "counts": lambda draw, _: [draw.randrange(9) for _ in range(draw.randrange(3))],
    "vector": lambda draw, _: [draw.random(), 1.0, 0.0],
    "uneven": lambda draw, _: [draw.random()] * draw.randrange(3),
    "客户:float": lambda draw, _: draw.random(),
    "": lambda draw, _: draw.random(),
}
_OF_JSON: dict[str, Value] = {
    **_OF_BOTH,
    "unsigned": lambda draw, _: 2**64 - 1 - draw.randrange(3),
    "mixed": lambda draw, _: draw.choice([1.5, "x", 7, True]),
    "words": lambda draw, _: draw.choice([1.5, 2.5, "NaN", "-", None]),
    "object": lambda _, row: {"a": row},
    "nested": lambda _, __: [["a"]],
    "either": lambda draw, _: draw.choice(["a", ["a", "b"], 7]),
}
_OF_PARQUET: dict[str, Value] = {
    **_OF_BOTH,
    "decimal": lambda draw, _: Decimal(draw.randrange(-999, 9999)).scaleb(-2),
    "day": lambda draw, _: date(2020, 4, draw.randrange(1, 9)),
    "at": lambda draw, _: datetime(2020, 4, 1, draw.randrange(3), 30, 0, 7, timezone.utc),
    "bytes": lambda draw, _: draw.choice([b"a", b"b"]),
    "struct": lambda _, row: {"a": row},
    "nan": lambda draw, _: draw.choice([float("nan"), 1.5, 2.25]),
}
_LABELS: tuple[tuple[tuple[Any, ...], str | None], ...] = (
    ((0, 1), None), ((True, False), None), ((1, -1), None), ((0.0, 1.0), None), (("yes", "no"), "yes"), ((1, 3, 5), ">=4"), (("a", "b"), None),
)  # fmt: skip


class RecordFiles:
    """Whole imports of random files."""

    name = "record-files"

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def batch(self, count: int) -> int:
        """How many files were imported."""
        return sum(self._one() for _ in range(count))

    def _one(self) -> bool:
        draw = self._random
        labels, positive = draw.choice(_LABELS)
        is_parquet = draw.random() < 0.5
        kinds = _OF_PARQUET if is_parquet else _OF_JSON
        names = draw.sample(list(kinds), draw.randrange(1, 7))
        gaps = draw.choice((0, 0, 0.3))
        rows = [
            {
                "y": draw.choice(labels),
                **{name: None if draw.random() < gaps else kinds[name](draw, row) for name in names},
            }
            for row in range(draw.choice((1, 5, 25, 60)))
        ]
        time = "at" if "at" in names and not gaps else None
        form = RecordFormat(label="y", positive=positive, time=time)
        with tempfile.TemporaryDirectory() as folder:
            file, out = Path(folder) / "in", Path(folder) / "out"
            if is_parquet:
                pq.write_table(pa.Table.from_pylist(rows), file)
            else:
                file.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
            kind = ParquetImport(form) if is_parquet else JsonImport(form)
            try:
                with HourTree(out) as tree:
                    import_files([file], kind, tree, start=_START)
            except (ImportRefused, HoursRefused) as refused:
                sentence = str(refused)
                assert SENTENCE.fullmatch(sentence), (sentence, rows)
                return False
            try:
                check(out)
            except Exception as wrong:
                raise AssertionError(rows, (out / "values.yaml").read_text()) from wrong
        return True
