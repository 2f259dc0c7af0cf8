"""Small CSV files in the dialects that people write: an import proposes values that the product takes, or refuses with a sentence.

Of what is imported, each row that trainers read is asked as a request would send it: keys and numbers must be the same.
"""

import csv
import io
import random
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from elastic_ctr.formats.hours import HoursRefused, HourTree, parse_hour
from elastic_ctr.formats.imports.delimited_files import CsvFormat, CsvImport
from elastic_ctr.formats.imports.importers import ImportRefused, import_files
from fuzz.imported_hours import check

_START = parse_hour("20200401/00")
# A sentence names a way out: an option, or what to write instead.
SENTENCE = re.compile(r"(?s).{20,}(--[a-z]|write|give|name |use |leave).*[.]")
_WORDS = ("", "\\N", "NULL", "null", "NaN", "nan", "NA", "N/A", "None", "-", "?")
_LETTERS = "abcxyz äßéñ€😀客户,;|'\"\t"

Draw = random.Random
Column = Callable[[Draw, int], str]


def _text(draw: Draw, _: int) -> str:
    return "".join(draw.choices(_LETTERS, k=draw.randrange(8)))


COLUMNS: dict[str, Column] = {
    "site": lambda draw, _: f"s{draw.randrange(4)}",
    "id": lambda _, row: f"u{row}",
    "number": lambda _, row: str(row),
    "age": lambda draw, _: str(draw.randrange(18, 40)),
    "price": lambda draw, _: f"{draw.uniform(0, 100):.2f}",
    "x": lambda draw, _: str(draw.uniform(1e6, 9e6)),
    "balance": lambda draw, _: f"{draw.gauss(0, 100):.3f}",
    "skewed": lambda draw, _: str(draw.paretovariate(0.5)),
    "strange": lambda draw, _: draw.choice(["-0", "+5", "007", ".5", "5.", "1e3", "-0.0", "1E-7", "9007199254740993", "5e-324"]),
    "large": lambda draw, _: draw.choice(["1e300", "1e30", "1e308", "-1e308", "1e400", "3.5"]),
    "money": lambda draw, _: f"${draw.uniform(1, 20):.2f}",
    "share": lambda draw, _: f"{draw.uniform(1, 20):.1f}%",
    "betrag": lambda draw, _: f"{draw.randrange(1, 9)}.{draw.randrange(100, 999)},{draw.randrange(10, 99)}",
    "thousands": lambda draw, _: f"{draw.randrange(1000, 9_999_999):,}",
    "rounded": lambda draw, _: f"{draw.uniform(1, 9):.5f}E+18",
    "day": lambda draw, _: f"2020-04-0{draw.randrange(1, 9)}",
    "at": lambda draw, row: f"2020-04-01 0{draw.randrange(3)}:{row % 60:02}:00",
    "millis": lambda draw, _: str(1585699200000 + draw.randrange(10**7)),
    "new": lambda draw, _: draw.choice(["True", "False"]),
    "same": lambda _, __: "x",
    "none": lambda _, __: "",
    "tags": lambda draw, _: "|".join(draw.sample(["a", "b", "c"], draw.randrange(3))),
    "title": _text,
    "lines": lambda draw, _: draw.choice(["one", "two\nlines", 'a "quote"', "a\r\nb", "c\rd"]),
    "pandas": lambda draw, _: draw.choice(["7.0", "8.0", "9.0", ""]),
    "blanks": lambda draw, _: f" {draw.randrange(20)}",
    "big": lambda draw, _: str(2**63 + draw.randrange(5)),
    "mixed": lambda draw, _: draw.choice(["1.5", "2.5", "many", "3"]),
}  # fmt: skip
_HEADS: tuple[Callable[[str], str], ...] = (
    *[lambda name: name] * 8,
    lambda name: f"{name}:float",
    lambda name: f"{name} 客户",
    lambda name: f" {name}",
    lambda name: f"{name}\nof a row",
    lambda name: f'"{name}"',
    lambda _: "",
    lambda _: "<<",
    lambda _: "twice",
)
_LABELS: tuple[tuple[Sequence[str], str | None], ...] = (
    (("0", "1"), None),
    (("0", "1"), None),
    (("-1", "1"), None),
    (("true", "False"), None),
    (("0.0", "1.0"), None),
    (("yes", "no"), "yes"),
    (("1", "2", "3", "4", "5"), ">=4"),
)
_ENCODINGS = ("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1", "cp1252", "gb18030")


class CsvFiles:
    """Whole imports of random files."""

    name = "csv-files"

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def batch(self, count: int) -> int:
        """How many files were imported."""
        return sum(self._one() for _ in range(count))

    def _one(self) -> bool:
        data, options = self._file()
        with tempfile.TemporaryDirectory() as folder:
            file, out = Path(folder) / "in.csv", Path(folder) / "out"
            file.write_bytes(data)
            try:
                form = CsvFormat(**options)
                with HourTree(out) as tree:
                    import_files([file], CsvImport(form), tree, start=_START)
            except (ImportRefused, HoursRefused) as refused:
                sentence = str(refused)
                assert SENTENCE.fullmatch(sentence), (sentence, options, data)
                return False
            try:
                check(out)
            except Exception as wrong:
                raise AssertionError(options, data, (out / "values.yaml").read_text()) from wrong
        return True

    def _file(self) -> tuple[bytes, dict[str, Any]]:
        draw = self._random
        labels, positive = draw.choice(_LABELS)
        names = draw.sample(list(COLUMNS), draw.randrange(1, 7))
        heads = [draw.choice(_HEADS)(name) for name in names]
        missing, gaps = draw.choice(_WORDS), draw.choice((0, 0, 0.1, 0.5))
        rows = [
            [draw.choice(labels), *(missing if draw.random() < gaps else COLUMNS[name](draw, row) for name in names)]
            for row in range(draw.choice((1, 5, 25, 60)))
        ]
        table = [["y", *heads], *rows]
        if draw.random() < 0.1:  # a comma at the end of each line
            table = [[*row, ""] for row in table]
        if draw.random() < 0.05:
            table[-1].append("more")
        delimiter, quote = draw.choice(",,,;\t|"), draw.choice('"""\'')
        encoding, ends = draw.choice(_ENCODINGS), draw.choice(("\n", "\n", "\r\n", "\r"))
        out = io.StringIO()
        quoting: Literal[0, 1] = draw.choice((csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
        csv.writer(out, delimiter=delimiter, quotechar=quote, lineterminator=ends, quoting=quoting).writerows(table)
        text = out.getvalue() + draw.choice(("", "", ends))
        options: dict[str, Any] = {"label": "y", "delimiter": delimiter, "quote": quote, "positive": positive}
        if encoding not in {"utf-8", "utf-8-sig", "utf-16"}:
            options["encoding"] = encoding
        if "at" in heads and draw.random() < 0.5:
            options["time"] = "at"
        # Somebody forgets an option, or knows it wrongly.
        wrong = {"positive": None, "delimiter": ",", "quote": '"', "encoding": None, "header": False}
        options |= {option: value for option, value in wrong.items() if draw.random() < 0.05}
        return text.encode(encoding, "replace"), options
