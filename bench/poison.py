"""Poisoned clicks: seconds until the release has gone back by itself, and what answers then.

    .venv/bin/python -m bench.poison [--kinds labels column] [--seconds 40] [--rate 2000]

`elastic-ctr local`'s own processes train a stream whose truth drifts, which must not hold publishing. Then the clicks are poisoned, one way
after the other, each on a run of its own:

labels  a click becomes an impression without one, and the other way round
column  one slot has one feasign in every line, as when whoever writes the log has lost a field

Predictions are asked for all the while and compared with the scores that the version was published with. Exit code 1 where a wrong answer
came, a drift held publishing, a poison did not within 30 s, a refused version answered later, or publishing did not go on.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.method import Results, Row
from bench.stream import Prober, Producer, Stream
from bench.stream_demo import DriftingTruth
from bench.stream_log import ClickLog, click_log
from elastic_ctr.features.synthetic import Lines, Preset

# Each of few slots says much.
PRESET = Preset(slots=3, keys=300, spread=0.9)
Kind = Literal["labels", "column"]
# The bound of the release's way back.
MOST_SECONDS = 30.0
DRIFT_SECONDS = 200.0
AFTERWARDS = 10.0


class PoisonedTruth(DriftingTruth):
    """A drifting truth whose lines are spoilt from the moment that `kind` is set."""

    kind: Kind | None = None

    def draw(self, rows: int, dice: np.random.Generator) -> Lines:
        return spoilt(super().draw(rows, dice), self.kind, self.heaviest())

    def heaviest(self) -> int:
        """The slot whose weights say most."""
        return int(np.argmax(self.weights.std(axis=1)))


def spoilt(lines: Lines, kind: Kind | None, slot: int) -> Lines:
    """The lines as a poisoned log has them."""
    if kind == "labels":
        return replace(lines, clicks=~lines.clicks)
    if kind == "column":
        indices = lines.indices.copy()
        indices[:, slot] = 0
        return replace(lines, indices=indices)
    return lines


def drill(
    kind: Kind, given: argparse.Namespace, folder: Path, log: ClickLog, say: Callable[[str], None]
) -> dict[str, Any]:
    truth = PoisonedTruth(3, DRIFT_SECONDS, PRESET)
    run = Stream(folder, log, truth, {"windowMs": 300}, {})
    first = truth.text(truth.draw(20_000, np.random.default_rng(2))).splitlines(keepends=True)
    log.append(first)
    known = log.offset

    def hold() -> dict[str, Any] | None:
        found: dict[str, Any] | None = run.status().get("hold")
        return found

    with run.session.running():
        run.until(lambda: run.answers_up_to(known), "the first version")
        probes = [line.decode().rstrip().split(" ", 2)[2] for line in first[:16]]
        prober = Prober(run.session.places.serving, run.store, probes)
        producer = Producer(truth, log, given.rate)
        lasts = given.seconds + 2 * MOST_SECONDS + 4 * AFTERWARDS
        threads = [
            threading.Thread(target=prober.run, daemon=True),
            threading.Thread(target=producer.run, args=(lasts,), daemon=True),
        ]
        for each in threads:
            each.start()
        try:
            say(f"{kind}: the truth drifts for {given.seconds:g} s")
            time.sleep(given.seconds)
            drift_held = hold()
            truth.kind, poisoned_at = kind, time.monotonic()
            say(f"{kind}: the clicks are poisoned")

            def is_back() -> bool:
                found, live = hold(), run.session.live
                over = time.monotonic() - poisoned_at > 2 * MOST_SECONDS
                return over or (
                    found is not None and live is not None and (not found["suspects"] or live < found["suspects"][0])
                )

            run.until(is_back, "the release goes back")
            took, held = time.monotonic() - poisoned_at, hold()
            say(f"{kind}: back after {took:.1f} s: {held and held['reason']}")
            # An answer that was under way.
            time.sleep(0.5)
            prober.first = {}
            time.sleep(AFTERWARDS)
            suspects = (held or {}).get("suspects") or [0, -1]
            later = sorted(each for each in prober.first if suspects[0] <= each <= suspects[1])
            truth.kind = None
            time.sleep(AFTERWARDS)
            resumed = subprocess.run(
                [sys.executable, "-m", "elastic_ctr", "rollback", "--resume", "--dir", run.session.places.folder],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            behind = log.offset
            run.until(lambda: run.answers_up_to(behind), "publishing goes on")
        finally:
            prober.stop()
            producer.stop()
            for each in threads:
                each.join(timeout=5)
    return {
        "kind": kind, "driftHeld": drift_held is not None, "secondsBack": took, "reason": (held or {}).get("reason"),
        "refused": later, "resumed": resumed.returncode == 0, "asked": prober.asked,
        "wrong": len(prober.wrong) + len(prober.refused), "firstWrong": [*prober.wrong, *prober.refused][:3],
    }  # fmt: skip


def is_right(found: dict[str, Any]) -> bool:
    """Whether a drill went as the page says."""
    return (
        not found["driftHeld"]
        and found["reason"] is not None
        and found["secondsBack"] <= MOST_SECONDS
        and not found["refused"]
        and found["resumed"]
        and not found["wrong"]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=get_args(Kind), default=get_args(Kind))
    parser.add_argument("--seconds", type=float, default=40, help="of a drift before the clicks are poisoned")
    parser.add_argument("--rate", type=int, default=2000, help="clicks a second")
    parser.add_argument("--json", action="store_true", help="the whole document on stdout")
    parser.add_argument("--keep", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    say = Console(stderr=True, highlight=False).print
    found = []
    for kind in given.kinds:
        folder = Path(tempfile.mkdtemp(prefix="poison-"))
        with click_log("folder", folder) as log:
            found.append(drill(kind, given, folder, log, say))
        if not given.keep:
            shutil.rmtree(folder, ignore_errors=True)
    if given.json:
        print(json.dumps(found))
    table = Table("poison", "back after, s", "held by the drift", "answers of refused versions", "wrong", "asked")
    for each in found:
        table.add_row(
            each["kind"], f"{each['secondsBack']:.1f}", str(each["driftHeld"]), str(each["refused"]), str(each["wrong"]),
            f"{each['asked']:,}",
        )  # fmt: skip
        took = each["secondsBack"]
        name = f"poisoned {each['kind']}: seconds until the release is back"
        Results().put(Row(name, took, took, took, MOST_SECONDS, bound="at most"), each)
    Console(highlight=False).print(table)
    return 0 if all(map(is_right, found)) else 1


if __name__ == "__main__":
    sys.exit(main())
