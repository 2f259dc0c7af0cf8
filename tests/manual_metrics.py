"""The table of metrics in docs/operations/metrics.md, and what a role's page of metrics says of each."""

from pathlib import Path

MANUAL = Path(__file__).parents[1] / "docs" / "operations" / "metrics.md"


def in_the_manual() -> list[str]:
    """The lines of the table, in its order."""
    return [line for line in MANUAL.read_text().splitlines() if line.startswith("|") and "`elastic_ctr_" in line]


def on_the_page(role: str, text: str) -> list[str]:
    """The lines of the table that a page of metrics makes."""
    found = []
    kinds = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    for line in text.splitlines():
        if line.startswith("# HELP"):
            name, what = line.split(None, 3)[2:]
            # Of every role: docs/operations/metrics.md names them once.
            if not name.endswith("_created") and not name.startswith(("process_", "elastic_ctr_build")):
                found.append(f"| {role} | `{name}` | {kinds[name]} | {what} |")
    return found
