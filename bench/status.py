"""Milliseconds of the master's status and of a scrape of its metrics, by the number of passes in its ledger.

    python -m bench.status [--passes 4 100 1000 10000] [--tasks 8] [--write]

A master of the tests trains one hour, and its rows are repeated for the other passes. Both hold the lock that trainers and pservers wait
for. A stream's ledger has at most a thousand passes; ten thousand hours are fourteen months. The median of nine is shown, after one more
pass each, so nothing is remembered from the look before but what a running master remembers. --write puts the table into
docs/performance.md.
"""

import argparse
import sqlite3
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import bench.tests_path  # noqa: F401 (the next imports need it)
from bench.page import with_table
from elastic_ctr.training.master.metrics import MasterMetrics
from elastic_ctr.training.master.training_status import status
from training.master.world import World, data_of

if TYPE_CHECKING:
    from elastic_ctr.training.master.ledger.ledger import Ledger

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
# Tables with a row or several for each pass, and the columns that name the row.
_OF_PASS = {
    "passes": ("ordinal", "id"), "files": ("pass",), "tasks": ("pass", "id"), "saves": ("pass",), "versions": ("pass", "id"),
    "learning": ("pass",), "qualities": ("pass",), "table_rows": ("pass",), "drifts": ("pass",),
}  # fmt: skip
_TIMES = 9


def repeat(db: sqlite3.Connection, last: int, number: int, tasks: int) -> None:
    """Insert the rows of pass `last` again as pass `number`; each of its tasks becomes one of `tasks` tasks."""
    for table, (column, *names) in _OF_PASS.items():
        found = db.execute(f"select * from {table} where {column} = ?", (last,)).fetchall()
        for row in found:
            for copy in range(tasks if table == "tasks" else 1):
                new = dict(row)
                new[column] = number
                for name in names:
                    new[name] = number * 100_000 if table == "versions" else f"{row[name]}/{number}/{copy}"
                if table == "passes":
                    new["version"] = number * 100_000
                db.execute(
                    f"insert into {table} ({', '.join(new)}) values ({', '.join('?' * len(new))})", [*new.values()]
                )


def milliseconds(one: World, ledger: "Ledger", passes: int, tasks: int) -> tuple[float, float, float]:
    """Median ms of a status, of its JSON and of a scrape."""
    taken: dict[str, list[float]] = {"status": [], "JSON": [], "scrape": []}
    metrics = MasterMetrics(one.coordinator)
    [have] = ledger.db.execute("select max(ordinal) from passes").fetchone()
    with ledger:
        for number in range(have + 1, passes + 1):
            repeat(ledger.db, have, number, tasks)
    for turn in range(_TIMES + 1):
        with ledger:
            repeat(ledger.db, have, passes + 1 + turn, tasks)
        began = time.perf_counter()
        shown = status(one.coordinator)
        given = time.perf_counter()
        shown.model_dump_json(by_alias=True)
        written = time.perf_counter()
        list(metrics.collect())
        ended = time.perf_counter()
        for name, seconds in zip(taken, (given - began, written - given, ended - written), strict=True):
            taken[name].append(seconds * 1000)
    found = [median(each[1:]) for each in taken.values()]
    return found[0], found[1], found[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, nargs="+", default=[4, 100, 1_000, 10_000])
    parser.add_argument("--tasks", type=int, default=8, help="tasks for each task of the pass that is repeated")
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    given = parser.parse_args()
    lines = ["| passes in the ledger | status, ms | its JSON, ms | scrape, ms |", "|---:|---:|---:|---:|"]
    for passes in given.passes:
        with tempfile.TemporaryDirectory() as name:
            one = World(Path(name), data_of(end="20200401/00"))
            one.finish()
            figures = milliseconds(one, one.ledger, passes, given.tasks)
            lines.append(f"| {passes:,} | {' | '.join(f'{each:.1f}' for each in figures)} |")
            print(lines[-1], flush=True)
    if given.write:
        PAGE.write_text(with_table(PAGE.read_text(), "docs/performance.md", "status", lines))


if __name__ == "__main__":
    main()
