"""Write results into the table of docs/performance.md, between its two marks: `python -m bench.document`."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.method import RESULTS, Results, about, goal_of, number

PAGE = Path("docs/performance.md")
BEGIN, END = "<!-- results -->", "<!-- end of results -->"
_HEAD = ("| what | ratio | min to max | goal | | note | measured |", "|---|---|---|---|---|---|---|")
_VERDICTS = {True: "holds", False: "**missed**", None: ""}


def as_markdown(document: dict[str, Any], former: Iterable[str]) -> str:
    """The table of rows, and the machine under it; former lines stay where nothing of their name was measured again.

    Raises ValueError where a row is not of what its goal is of.
    """
    lines = {_name_of(line): line for line in former}
    for row in document["rows"]:
        if row.get("quick"):
            raise ValueError(f"{row['name']} is of a quick run, or of another size than its goal: measure it again")
        span = f"{number(row['min'])} to {number(row['max'])}"
        state = f"{row['measured'][:10]}, {row['commit']}"
        cells = (row["name"], number(row["ratio"]), span, goal_of(row), _VERDICTS[row["holds"]], row["note"], state)
        lines[row["name"]] = f"| {' | '.join(cells)} |"
    return "\n".join([*_HEAD, *lines.values(), "", f"The last of these was measured on: {about(document['machine'])}."])


def _name_of(line: str) -> str:
    return line.split(" | ", 1)[0].removeprefix("| ")


def with_results(page: str, document: dict[str, Any]) -> str:
    """The page with these results. Raises ValueError where it has no marks."""
    before, begin, rest = page.partition(BEGIN)
    table, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} has no lines {BEGIN} and {END}: there is no place for the results")
    former = [line for line in table.splitlines() if line.startswith("| ") and _name_of(line) != "what"]
    return f"{before}{BEGIN}\n{as_markdown(document, former)}\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    try:
        PAGE.write_text(with_results(PAGE.read_text(), Results(given.results).read()))
    except ValueError as wrong:
        parser.error(str(wrong))


if __name__ == "__main__":
    main()
