"""Hours of random rows of columns, of every kind that features take."""

import csv
import random
from pathlib import Path
from typing import Any

COLUMNS = ("clicked", "user", "item", "price", "age", "tags", "title", "unread")
FEATURES: dict[str, Any] = {
    "user": {"type": "categorical"},
    "item": {"type": "categorical", "vocabulary": {"top": 20}},
    "pair": {"type": "crossed", "of": ["user", "age"], "hash": 1000},
    "price": {"type": "numeric", "transform": ["log1p", "standardize"]},
    "dear": {"type": "bucketized", "column": "price", "boundaries": {"quantiles": 8}},
    "age": {"type": "bucketized", "boundaries": [18, 30, 65]},
    "years": {"type": "numeric", "column": "age", "transform": [{"clip": [0, 100]}, "minMax"], "missing": 0.5},
    "tags": {"type": "categorical", "separator": "|", "pooling": "mean"},
    "title": {"type": "text", "ngrams": [1, 2]},
}
WORDS = ("Red", "blue", "größe", "XL", "shoe", "中文", "sale!")
Row = dict[str, Any]


def random_row(dice: random.Random) -> Row:
    """A row as a request has it: a column that is missing is left out."""
    row: Row = {
        "user": f"u{dice.randrange(200)}",
        "item": dice.randrange(40),
        "price": round(dice.lognormvariate(1, 2), 3),
        "age": dice.randrange(10, 90),
        "tags": [dice.choice("abcdef") for _ in range(dice.randrange(1, 5))],
        "title": " ".join(dice.choices(WORDS, k=dice.randrange(1, 5))),
    }
    return {name: value for name, value in row.items() if dice.random() > 0.1}


def click_of(row: Row, dice: random.Random) -> int:
    dear = float(row.get("price", 3)) > 5
    return int(dice.random() < (0.6 if dear else 0.1) + (0.2 if "a" in row.get("tags", ()) else 0))


def write_hour(folder: Path, rows: list[Row], dice: random.Random) -> None:
    folder.mkdir(parents=True)
    with (folder / "part-0.csv").open("w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            cells = {**row, "clicked": click_of(row, dice), "tags": "|".join(row.get("tags", [])), "unread": "x"}
            writer.writerow([cells.get(name, "") for name in COLUMNS])
    (folder / "donefile").touch()
