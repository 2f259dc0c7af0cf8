"""Hours of a click log, each predicted before it is learned, beside an online logistic regression in the same order on the same features.

    python -m bench.progressive [--data ../shared/data/talkingdata/train_sample.csv] [--model '{"network": "lr"}']

Ours: the trainer's own engine beside one pserver, with the batch sizes, epochs, offset and shifts that the master would choose, by the
default settings. Theirs: FTRL-Proximal with a learning rate for each weight (McMahan et al., Ad Click Prediction: a View from the
Trenches, 2013, algorithm 1, L1 and L2 0, beta 1), which learns record by record, with the best of several rates by the result itself.
AUC is the mean over the hours that have clicks, logloss that of all records; the first hour counts for neither.
"""

import argparse
import csv
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.engine_beside_server import engine_beside_server, without_paddles_output
from elastic_ctr.config.model import Model, ModelInput
from elastic_ctr.config.training_settings import TrainerConfig
from elastic_ctr.formats.imports.importers import feasign_of
from elastic_ctr.store.versions.manifest import Quality
from elastic_ctr.training.master.passes.learning import batch_size, calibrating_shift, goes_on, log_odds
from elastic_ctr.training.model.evaluation import quality_of_histogram, quality_of_scores

FEATURES = ("ip", "app", "device", "os", "channel")
LABEL, TIME = "is_attributed", "click_time"
RATES = (0.03, 0.1, 0.3, 0.5, 1.0)
# Click, and a value of each feature.
Record = tuple[int, tuple[str, ...]]


def hours_of(file: Path) -> list[list[Record]]:
    """In order of time."""
    found: dict[str, list[tuple[str, Record]]] = defaultdict(list)
    with file.open(newline="") as given:
        rows = csv.reader(given)
        # The first name has dots before it.
        names = [name.lstrip(".") for name in next(rows)]
        for row in rows:
            cells = dict(zip(names, row, strict=True))
            record = (int(cells[LABEL]), tuple(cells[name] for name in FEATURES))
            found[cells[TIME][:13]].append((cells[TIME], record))
    return [[record for _, record in sorted(found[hour], key=lambda each: each[0])] for hour in sorted(found)]


def summary(hours: Iterable[Quality | None]) -> dict[str, float]:
    """Of all hours but the first."""
    _, *rest = hours
    known = [each for each in rest if each is not None]
    shows, clicks = sum(each.shows for each in known), sum(each.clicks for each in known)
    aucs = [each.auc for each in known if each.auc is not None]
    return {
        "auc": float(np.mean(aucs)),
        "hours": len(aucs),
        "logloss": sum(each.logloss * each.shows for each in known) / shows,
        "calibration": sum(each.predicted_ctr * each.shows for each in known) / clicks,
    }


class Ftrl:
    """A weight for each value of each feature, and a bias."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._z: dict[Any, float] = {}
        self._n: dict[Any, float] = {}

    def _weights(self, values: tuple[str, ...]) -> dict[Any, float]:
        keys = [*enumerate(values), "bias"]
        return {key: -self._z.get(key, 0) * self._rate / (1 + math.sqrt(self._n.get(key, 0))) for key in keys}

    def predict(self, values: tuple[str, ...]) -> float:
        return 1 / (1 + math.exp(-sum(self._weights(values).values())))

    def learn(self, click: int, values: tuple[str, ...]) -> None:
        weights = self._weights(values)
        slope = 1 / (1 + math.exp(-sum(weights.values()))) - click
        for key, weight in weights.items():
            before = self._n.get(key, 0.0)
            after = before + slope * slope
            self._z[key] = self._z.get(key, 0.0) + slope - (math.sqrt(after) - math.sqrt(before)) / self._rate * weight
            self._n[key] = after


def theirs(hours: Sequence[Sequence[Record]], rate: float) -> dict[str, float]:
    model = Ftrl(rate)
    found = []
    for hour in hours:
        scores = [model.predict(values) for _, values in hour]
        found.append(quality_of_scores(scores, [click for click, _ in hour], np.ones(len(hour))))
        for click, values in hour:
            model.learn(click, values)
    return summary(found)


def run_ours(file: Path, model: Model, folder: Path) -> None:
    """In a process of its own."""
    out = without_paddles_output()
    trainer, found, shift = TrainerConfig(), [], 0.0
    hours = hours_of(file)
    offset = log_odds(sum(click for click, _ in hours[0]), len(hours[0]))
    with engine_beside_server(model, ModelInput(FEATURES), folder, gradient_merge=trainer.gradient_merge) as engine:
        for number, hour in enumerate(hours):
            text = folder / f"{number}.txt"
            text.write_text("".join(map(_engine_line, hour)))
            records, clicks = len(hour), sum(click for click, _ in hour)
            engine.set_offset(offset + shift)
            found.append(quality_of_histogram(*engine.predict(engine.ready(engine.preload(text, 512), records))))
            engine.set_offset(offset)
            losses: list[float | None] = [1.0]
            while goes_on(trainer, records, losses, clicks=clicks):
                size = batch_size(trainer, records, len(losses), clicks=clicks)
                engine.train(engine.ready(engine.preload(text, size), records))
                engine.flush()
                losses.append(None)
            positives, negatives = engine.predict(engine.ready(engine.preload(text, 512), records))
            shift = calibrating_shift(positives, negatives, before=shift)
    os.write(out, f"{json.dumps(summary(found))}\n".encode())
    os._exit(0)


def _engine_line(record: Record) -> str:
    click, values = record
    keys = " ".join(f"1 {feasign_of(name, value)}" for name, value in zip(FEATURES, values, strict=True))
    return f"1 1 1 {click} {keys}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(__file__).parents[2] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=shared / "talkingdata" / "train_sample.csv")
    parser.add_argument("--model", default="{}", help="settings of `model`, as JSON")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.folder:
        run_ours(given.data, Model.model_validate_json(given.model), given.folder)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench.progressive", "--data", str(given.data), "--model", given.model]
        done = subprocess.run([*command, "--folder", folder], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the engine did not learn: {done.stderr[-2000:]}")
    ours = json.loads(done.stdout.strip().splitlines()[-1])
    hours = hours_of(given.data)
    rates = {rate: theirs(hours, rate) for rate in RATES}
    auc, logloss = max(each["auc"] for each in rates.values()), min(each["logloss"] for each in rates.values())
    for name, found in (("ours", ours), *((f"FTRL, rate {rate}", each) for rate, each in rates.items())):
        said = "  ".join(f"{key} {value:.5g}" for key, value in found.items())
        print(f"{name}: {said}")
    print(
        f"AUC {ours['auc'] - auc:+.4f} beside the best rate's, goal 0; logloss {ours['logloss'] / logloss:.4f} of the best, goal 1.05"
    )


if __name__ == "__main__":
    main()
