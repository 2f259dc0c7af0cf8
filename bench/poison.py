"""Poisoned clicks: seconds until the release has gone back by itself, and what answers then.

    .venv/bin/python -m bench.poison [--kinds labels column rates] [--seconds 40] [--rate 2000]

`elastic-ctr local`'s own processes train a stream whose truth drifts, which must not hold publishing. Then the clicks are poisoned, one way
after the other, each on a run of its own:

labels  a click becomes an impression without one, and the other way round
column  one slot has one feasign in every line, as when whoever writes the log has lost a field
rates   the clicks are good; the model is changed (`model.startFrom`) to a hundred times its learning rates, and the seconds count from when its
        first version is live

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.method import Results, Row, ending
from bench.stream import Producer, Stream
from bench.stream_demo import DriftingTruth
from bench.stream_log import ClickLog, click_log
from bench.stream_prober import Prober
from elastic_ctr.config.model import Model
from elastic_ctr.features.synthetic import DrawnLines, Preset
from elastic_ctr.store.versions.published_files import published_versions

# Each of few slots says much.
PRESET = Preset(slots=3, keys=300, spread=0.9)
Kind = Literal["labels", "column", "rates"]
# By what the learning rates are multiplied.
RATES = 100.0
RESTART_SECONDS = 60.0
# The bound of the release's way back.
MOST_SECONDS = 30.0
DRIFT_SECONDS = 200.0
AFTERWARDS = 10.0


class PoisonedTruth(DriftingTruth):
    """A drifting truth whose lines are spoilt from the moment that `kind` is set."""

    kind: Kind | None = None

    def draw(self, rows: int, dice: np.random.Generator) -> DrawnLines:
        return spoilt(super().draw(rows, dice), self.kind, self.heaviest())

    def heaviest(self) -> int:
        """The slot whose weights say most."""
        return int(np.argmax(self.weights.std(axis=1)))


def spoilt(lines: DrawnLines, kind: Kind | None, slot: int) -> DrawnLines:
    """The lines as a poisoned log has them."""
    if kind == "labels":
        return replace(lines, clicks=~lines.clicks)
    if kind == "column":
        indices = lines.indices.copy()
        indices[:, slot] = 0
        return replace(lines, indices=indices)
    return lines


class Drill:
    """A stream that is asked without pause, from the first version to the release's way back."""

    def __init__(
        self, kind: Kind, given: argparse.Namespace, folder: Path, log: ClickLog, say: Callable[[str], None]
    ) -> None:
        self.kind = kind
        self.truth = PoisonedTruth(3, DRIFT_SECONDS, PRESET)
        self._given = given
        self._folder = folder
        self._log = log
        self._say = say
        self._run = self._stream()
        self._probers: list[Prober] = []

    def _stream(self, model: dict[str, Any] | None = None) -> Stream:
        return Stream(self._folder, self._log, self.truth, {"windowMs": 300}, {}, model)

    def run(self) -> dict[str, Any]:
        given, kind, log = self._given, self.kind, self._log
        first = self.truth.text(self.truth.draw(20_000, np.random.default_rng(2))).splitlines(keepends=True)
        log.append(first)
        probes = [line.decode().rstrip().split(" ", 2)[2] for line in first[:16]]
        with self._producing():
            with self._asked(probes, log.offset) as prober:
                self._say(f"{kind}: the truth drifts for {given.seconds:g} s")
                time.sleep(given.seconds)
                drift_held = self._hold() is not None
                if kind != "rates":
                    self._say(f"{kind}: the clicks are poisoned")
                    self.truth.kind = kind
                    found = self._way_back(prober)
            if kind == "rates":
                self._say(f"{kind}: the model is trained on with {RATES:g} times its learning rates")
                # As docs/operations/change-the-model.md changes a model.
                shutil.rmtree(self._run.session.places.folder / "state" / "master")
                old = max(published_versions(self._run.store))
                self._run = self._stream({**faster(Model()), "startFrom": {"version": "latest"}})
                with self._asked(probes, 0) as prober:
                    self._run.until(
                        lambda: self._of_the_new(old) or self._hold() is not None, "the changed model's version"
                    )
                    found = self._way_back(prober)
        wrong = [each for prober in self._probers for each in (*prober.wrong, *prober.refused)]
        return {
            "kind": kind, "driftHeld": drift_held, **found, "asked": sum(each.asked for each in self._probers),
            "wrong": len(wrong), "firstWrong": wrong[:3],
        }  # fmt: skip

    @contextmanager
    def _producing(self) -> Iterator[None]:
        producer = Producer(self.truth, self._log, self._given.rate)
        lasts = self._given.seconds + 2 * MOST_SECONDS + 4 * AFTERWARDS + RESTART_SECONDS
        with running_thread(producer.run, producer.stop, lasts):
            yield

    @contextmanager
    def _asked(self, probes: list[str], known: int) -> Iterator[Prober]:
        """The roles run and are asked, from when answers know so much of the log."""
        run = self._run
        with run.session.running():
            run.until(lambda: run.answers_up_to(known), "an answer")
            prober = Prober(run.session.places.serving, run.session.places.store_url, probes)
            self._probers.append(prober)
            with running_thread(prober.run, prober.stop):
                yield prober

    def _hold(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._run.status().get("hold")
        return found

    def _of_the_new(self, old: int) -> bool:
        self._run.session.look()
        live = self._run.session.live
        return live is not None and live > old

    def _way_back(self, prober: Prober) -> dict[str, Any]:
        """From now, when bad clicks come or a bad version answers, to a release that publishes again."""
        run, began = self._run, time.monotonic()

        def is_back() -> bool:
            found, live = self._hold(), run.session.live
            over = time.monotonic() - began > 2 * MOST_SECONDS
            return over or (
                found is not None and live is not None and (not found["suspects"] or live < found["suspects"][0])
            )

        run.until(is_back, "the release goes back")
        took, held = time.monotonic() - began, self._hold() or {}
        self._say(f"{self.kind}: back after {took:.1f} s: {held.get('reason')}")
        # An answer that was under way.
        time.sleep(0.5)
        prober.first = {}
        time.sleep(AFTERWARDS)
        suspects = held.get("suspects") or [0, -1]
        later = sorted(each for each in prober.first if suspects[0] <= each <= suspects[1])
        self.truth.kind = None
        time.sleep(AFTERWARDS)
        resumed = subprocess.run(
            [sys.executable, "-m", "elastic_ctr", "rollback", "--resume", "--dir", run.session.places.folder],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        behind = self._log.offset
        run.until(lambda: run.answers_up_to(behind), "publishing goes on")
        return {
            "secondsBack": took, "reason": held.get("reason"), "refused": later, "resumed": resumed.returncode == 0
        }  # fmt: skip


@contextmanager
def running_thread(run: Callable[..., None], stop: Callable[[], None], *given: Any) -> Iterator[None]:
    thread = threading.Thread(target=run, args=given, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join(timeout=5)


def faster(model: Model) -> dict[str, Any]:
    """Settings of a model whose every learning rate is too high."""
    table, dense = model.table, model.dense
    return {
        "table": {
            name: {"learningRate": rule.learning_rate * RATES}
            for name, rule in (("embed", table.embed), ("embedx", table.embedx))
        },
        "dense": {"learningRate": dense.learning_rate * RATES},
    }


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
            found.append(Drill(kind, given, folder, log, say).run())
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
    sys.exit(ending(main))
