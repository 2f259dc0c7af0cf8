"""Write results into docs/performance.md, between its two marks: `python -m bench.document`."""

import argparse
from pathlib import Path
from typing import Any

from bench.method import RESULTS, Results, about, goal_of, number

PAGE = Path("docs/performance.md")
BEGIN, END = "<!-- results -->", "<!-- end of results -->"
_VERDICTS = {True: "holds", False: "**missed**", None: ""}


def as_markdown(document: dict[str, Any]) -> str:
    """The table of rows, and the machine under it."""
    lines = ["| what | ratio | min to max | goal | | note |", "|---|---|---|---|---|---|"]
    for row in document["rows"]:
        span = f"{number(row['min'])} to {number(row['max'])}"
        cells = (row["name"], number(row["ratio"]), span, goal_of(row), _VERDICTS[row["holds"]], row["note"])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"The last of these was measured on: {about(document['machine'])}."])


def with_results(page: str, document: dict[str, Any]) -> str:
    """The page with these results. Raises ValueError where it has no marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} has no lines {BEGIN} and {END}: there is no place for the results")
    return f"{before}{BEGIN}\n{as_markdown(document)}\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    PAGE.write_text(with_results(PAGE.read_text(), Results(given.results).read()))


if __name__ == "__main__":
    main()
