"""Everything that `make bench` measures, one after the other: table, results.json and plot in build/bench.

    python -m bench [--only cube serving] [--rows "30 keys"] [--quick]

Each measurement runs in a process of its own, so that none inherits another's memory; a failed one does not keep the
others from running. More than an hour on two cores; nothing else should run meanwhile.
"""

import argparse
import subprocess
import sys
import time

from rich.console import Console

from bench import own_network
from bench.method import FOLDER, RESULTS, Results, ending, plot, show

MEASUREMENTS = (
    "cube_kernel", "quantised", "cube", "serving", "serving_rows", "serving_candidates", "scoring", "build", "training", "features", "column_statistics", "memory",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", choices=MEASUREMENTS, default=list(MEASUREMENTS), help="these measurements"
    )
    parser.add_argument("--rows", default="", help="rows whose name contains this")
    parser.add_argument("--quick", action="store_true", help="short runs: does it work, and roughly how fast")
    given = parser.parse_args()
    console = Console(highlight=False)
    began = time.monotonic()
    failed = []
    for name in given.only:
        console.rule(name)
        options = [*(["--quick"] if given.quick else []), *(["--only", given.rows] if given.rows else [])]
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", f"bench.{name}", *options], check=False, preexec_fn=own_network.enter
        )
        if done.returncode:
            failed.append(name)
        console.print(f"{name}: {time.monotonic() - started:.0f} s{' and FAILED' if done.returncode else ''}")
    document = Results().read()
    console.rule("all results")
    show(document)
    picture = FOLDER / "results.png"
    plot(document, picture)
    console.print(f"{RESULTS}, {picture}; {time.monotonic() - began:.0f} s in all")
    if failed:
        console.print(f"[red]these did not run to their end: {', '.join(failed)}; their words are above")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(ending(main))
