"""Write results into docs/performance.md, between its two marks: `python -m bench.document`."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.method import RESULTS, Results, about, goal_of, number

PAGE = Path("docs/performance.md")
BEGIN, END = "<!-- results -->", "<!-- end of results -->"
_VERDICTS = {True: "holds", False: "**missed**", None: ""}


def as_markdown(document: dict[str, Any]) -> str:
    """The table of rows, and the machine under it. Raises ValueError where one is not of what its goal is of."""
    lines = ["| what | ratio | min to max | goal | | note |", "|---|---|---|---|---|---|"]
    for row in document["rows"]:
        if row.get("quick"):
            raise ValueError(f"{row['name']} is of a quick run, or of another size than its goal: measure it again")
        span = f"{number(row['min'])} to {number(row['max'])}"
        cells = (row["name"], number(row["ratio"]), span, goal_of(row), _VERDICTS[row["holds"]], row["note"])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(
        [
            *lines,
            "",
            *_measured(document["rows"]),
            "",
            f"The last of these was measured on: {about(document['machine'])}.",
        ]
    )


def _measured(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Of which state of the code they are, and when that was run; rows of before that was noted do not say."""
    noted = [row for row in rows if "commit" in row]
    for commit in dict.fromkeys(row["commit"] for row in noted):
        times = sorted(row["measured"] for row in noted if row["commit"] == commit)
        yield f"{len(times)} of {len(rows)} rows: commit {commit}, {times[0]} to {times[-1]}."
    if len(noted) < len(rows):
        yield f"{len(rows) - len(noted)} of {len(rows)} rows: measured before the file of results took note of that."


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
    try:
        PAGE.write_text(with_results(PAGE.read_text(), Results(given.results).read()))
    except ValueError as wrong:
        parser.error(str(wrong))


if __name__ == "__main__":
    main()
