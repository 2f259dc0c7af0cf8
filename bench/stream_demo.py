"""A stream in three minutes: clicks whose truth drifts, a model that learns them within seconds, and one that is made each "hour".

    make stream-demo

`elastic-ctr local`'s own processes train a topic of a real Kafka broker, or a followed folder where Java or Kafka's jars are absent
(`tools/get java`, `tools/get kafka`). An hour lasts 30 seconds here: at its end the version that is live is kept,
and predicts the clicks of the next hour, as a model that is trained by the hour would. Both are asked for the same clicks, which none has
learned yet; their AUCs stand beside that of the truth itself. Report: build/stream/report.json.
"""

import argparse
import io
import json
import logging
import math
import shutil
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.live import Live
from rich.table import Table

from bench.kafka_broker import absent
from bench.method import ending
from bench.stream import Producer, Stream, freshness, quantiles
from bench.stream_log import ClickLog, click_log, possible_kind
from bench.stream_prober import Prober
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.features.synthetic import DrawnLines, Preset, Truth
from elastic_ctr.jobs.scoring.records import LineReader
from elastic_ctr.jobs.scoring.scorer import Scorer
from elastic_ctr.jobs.scoring.version import fetch_version
from elastic_ctr.store.versions.published_files import read_version
from elastic_ctr.training.model.evaluation import weighted_auc

FOLDER = Path("build/stream")
PRESET = Preset(slots=8, keys=300, spread=0.6)
RATE = 2000
HOUR = 30.0
JUDGED = 1500
EVERY = 3.0
Floats = npt.NDArray[np.float64]


class DriftingTruth(Truth):
    """Weights that turn into other ones: by a quarter circle in `seconds`."""

    def __init__(self, seed: int, seconds: float, preset: Preset = PRESET) -> None:
        super().__init__(preset, seed)
        self._from, self._to = (
            self.weights.copy(),
            np.random.default_rng(seed + 1).normal(0, preset.spread, self.weights.shape),
        )
        self._seconds = seconds
        self._began = time.time()
        self._lock = threading.Lock()

    def draw(self, rows: int, dice: np.random.Generator) -> DrawnLines:
        with self._lock:
            angle = (time.time() - self._began) / self._seconds * math.pi / 2
            self.weights = math.cos(angle) * self._from + math.sin(angle) * self._to
            return super().draw(rows, dice)


@dataclass
class Judged:
    """Clicks that nothing has learned, and what each model said of them."""

    clicks: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    scores: dict[str, list[Floats]] = field(default_factory=lambda: {"stream": [], "hourly": [], "truth": []})

    def auc(self, name: str, last: int = 0) -> float | None:
        if not self.clicks:
            return None
        clicks = np.concatenate(self.clicks[-last:])
        return weighted_auc(np.concatenate(self.scores[name][-last:]), clicks, np.ones(len(clicks)))


class Hourly:
    """The version that was live at the end of the last hour."""

    def __init__(self, run: Stream, scratch: Path) -> None:
        self._run = run
        self._scratch = scratch
        self._scorer: Scorer | None = None
        self._ends = 0.0
        self.version = 0

    def renew(self) -> None:
        """At the end of an hour."""
        live = self._run.session.live
        if live is None or time.time() < self._ends:
            return
        manifest = read_version(self._run.store, live)
        files = fetch_version(self._run.store, manifest, self._scratch, StoreConfig(url=self._run.store.url), None, 1)
        self._scorer, self._ends, self.version = Scorer(files), time.time() + HOUR, live

    def probabilities(self, text: bytes) -> Floats:
        assert self._scorer is not None
        reader = LineReader(self._scorer.schema, None, 1 << 20, no_clicks=False)
        found = [self._scorer.probabilities(each.instances) for each in reader.blocks(io.BytesIO(text), "drawn", 0, 0)]
        return np.concatenate(found).astype(np.float64)


def judge(run: Stream, truth: DriftingTruth, hourly: Hourly, dice: np.random.Generator, into: Judged) -> None:
    drawn = truth.draw(JUDGED, dice)
    text = truth.text(drawn)
    lines = [line.decode().split(" ", 2)[2] for line in text.splitlines()]
    body = {"inputs": [{"name": "line", "datatype": "BYTES", "shape": [len(lines)], "data": lines}]}
    answer = httpx.post(
        f"http://{run.session.places.serving}/v2/models/ctr/infer", json=body, timeout=10, trust_env=False
    )
    if answer.status_code != 200:
        return
    outputs = {each["name"]: each["data"] for each in answer.json()["outputs"]}
    into.clicks.append(drawn.clicks)
    into.scores["stream"].append(np.array(outputs["probability"]))
    into.scores["hourly"].append(hourly.probabilities(text))
    into.scores["truth"].append(drawn.probabilities)


def table_of(seconds: float, run: Stream, prober: Prober, judged: Judged, fresh: dict[str, float]) -> Table:
    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:.4f}"

    table = Table("", "now", "all", title=f"{seconds:.0f} s of a stream whose truth drifts, {RATE:,} clicks/s")
    for name in ("stream", "hourly", "truth"):
        table.add_row(
            f"AUC of the {name} model" if name != "truth" else "AUC of the truth",
            shown(judged.auc(name, 3)),
            shown(judged.auc(name)),
        )
    table.add_row("freshness, s", "p50 " + shown(fresh.get("p50")), "p99 " + shown(fresh.get("p99")))
    table.add_row("versions answered", str(len(prober.first)), f"{prober.asked:,} requests, {len(prober.wrong)} wrong")
    table.add_row("behind", f"{run.lag():,} {run.log.unit}", "")
    return table


def said_of(kind: str) -> str:
    if kind == "kafka":
        return "the clicks go to a topic of a real Kafka broker"
    return f"the clicks go to a followed folder; `tools/get {absent() or 'kafka'}` brings what a Kafka broker needs"


def demo(seconds: float, log: ClickLog, console: Console) -> dict[str, Any]:
    truth = DriftingTruth(3, seconds)
    run = Stream(FOLDER.resolve(), log, truth, {"windowMs": 300}, {})
    first = truth.text(truth.draw(20_000, np.random.default_rng(2))).splitlines(keepends=True)
    log.append(first)
    known = log.offset
    console.print("elastic-ctr starts; the first 20,000 clicks are trained")
    with run.session.running():
        run.until(lambda: run.answers_up_to(known), "the first version")
        probes = [line.decode().rstrip().split(" ", 2)[2] for line in first[:16]]
        prober, hourly, judged = (
            Prober(run.session.places.serving, run.session.places.store_url, probes),
            Hourly(run, FOLDER / "hourly"),
            Judged(),
        )
        producer = Producer(truth, log, RATE)
        threads = [threading.Thread(target=prober.run), threading.Thread(target=producer.run, args=(seconds,))]
        for each in threads:
            each.start()
        knows: dict[int, tuple[int, int]] = {}
        fresh: dict[str, float] = {}
        began, dice = time.time(), np.random.default_rng(7)
        try:
            with Live(console=console, refresh_per_second=2) as live:
                while threads[1].is_alive():
                    run.session.look()
                    hourly.renew()
                    judge(run, truth, hourly, dice, judged)
                    knows |= run.knows()
                    fresh = quantiles(*freshness(producer, prober.first, knows, so_far=True))
                    live.update(table_of(time.time() - began, run, prober, judged, fresh))
                    time.sleep(EVERY)
            run.until(lambda: run.answers_up_to(log.offset), "what was appended is live")
            time.sleep(1)
            knows |= run.knows()
            lag, status = run.lag(), run.status()
        finally:
            producer.stop()
            prober.stop()
            for each in threads:
                each.join()
    fresh = quantiles(*freshness(producer, prober.first, knows))
    console.print(table_of(time.time() - began, run, prober, judged, fresh))
    auc = {name: judged.auc(name) for name in judged.scores}
    return {
        "source": log.kind, "seconds": seconds, "rate": RATE, "records": status["ledger"]["trained"], "freshness": fresh, "wrong": len(prober.wrong) + len(prober.refused),
        "firstWrong": [*prober.wrong, *prober.refused][:3], "lag": lag, "versions": len(prober.first), "auc": auc,
        "streamWins": (auc["stream"] or 0) > (auc["hourly"] or 0),
    }  # fmt: skip


def main() -> int:
    # The engine's import lets every library speak.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=100, help="of clicks")
    parser.add_argument("--source", choices=["kafka", "folder"], help="absent: kafka where it can be started")
    given = parser.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    console = Console(highlight=False)
    kind = given.source or possible_kind()
    console.print(said_of(kind))
    with click_log(kind, FOLDER.resolve()) as log:
        report = demo(given.seconds, log, console)
    file = FOLDER / "report.json"
    file.write_text(json.dumps(report, indent=1))
    with suppress(OSError):
        shutil.rmtree(FOLDER / "hourly")
    print(f"report: {file}; logs: {FOLDER / 'run' / 'logs'}")
    return 0 if not report["wrong"] and report["streamWins"] else 1


if __name__ == "__main__":
    sys.exit(ending(main))
