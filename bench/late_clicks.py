"""Clicks that come later than their impressions: what each way to train them teaches.

    python -m bench.late_clicks [--quick] [--rules adam,adagrad] [--ways split,joined] [--write]

A stream of 1,000 impressions a second with a known truth. A click comes after 20 seconds in the mean, one in ten after fifteen times as
long. The trainer's own engine beside one pserver trains what has come by each second, in micro-passes of two seconds. Then 20,000 other
lines of the same truth are scored. `excess` is the logloss of the truth's own click rates above the least that is possible, in 1/1000 nats.

joined          the clicks of an impression are known when it is trained: what no stream has
split           the impression is trained at once, its click when it comes, as a line of show 0: `data.stream.lateClicks`
wait 60 s       the impression is trained a minute later, with the click that came until then
fake negative   the impression is trained at once, and again as a clicked one when its click comes

--write puts the table into docs/performance.md.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bench.engine_beside_server import engine_beside_server, without_paddles_output
from bench.page import with_table
from elastic_ctr.config.model import Model, ModelInput
from elastic_ctr.features.synthetic import DrawnLines, Preset, Truth
from elastic_ctr.formats.convert import Converter
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.training.model.evaluation import quality_of_scores

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
RATE, SECONDS, MICRO_PASS, BATCH = 1000, 300, 2, 64
HELD, SEED = 20_000, 5
WAIT = 60.0
RULES = {"adam": {"embed": 1e-2, "embedx": 2e-3}, "adagrad": {"embed": 5e-2, "embedx": 5e-2}}
WAYS = ("joined", "split", "wait 60 s", "fake negative")
Integers = npt.NDArray[np.int64]


class Trained(NamedTuple):
    """What is trained, by rising second: [n] each. `row`: of the impression."""

    second: npt.NDArray[np.float64]
    row: Integers
    show: Integers
    click: Integers


def delays(impressions: int, dice: np.random.Generator) -> npt.NDArray[np.float64]:
    """Seconds from an impression to its click."""
    return np.asarray(dice.exponential(20, impressions) * np.where(dice.random(impressions) < 0.1, 15, 1))


def trained(way: str, clicks: npt.NDArray[np.bool_], delay: npt.NDArray[np.float64], ends: float) -> Trained:
    """What comes before the end of the stream."""
    shown = np.arange(len(clicks)) / RATE
    rows, ones, none = np.arange(len(clicks)), np.ones(len(clicks), np.int64), np.zeros(len(clicks), np.int64)
    clicked = rows[clicks]
    if way == "joined":
        parts = [Trained(shown, rows, ones, clicks.astype(np.int64))]
    elif way == "wait 60 s":
        parts = [Trained(shown + WAIT, rows, ones, (clicks & (delay <= WAIT)).astype(np.int64))]
    else:
        show = none if way == "split" else ones
        late = Trained((shown + delay)[clicks], clicked, show[clicks], ones[clicks])
        parts = [Trained(shown, rows, ones, none), late]
    second, row, show, click = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(second, kind="stable")
    order = order[second[order] < ends]
    return Trained(second[order], row[order], show[order], click[order])


def model_of(rule: str) -> Model:
    rates = RULES[rule]
    return Model.model_validate({"table": {part: {"name": rule, "learningRate": rates[part]} for part in rates}})


def run_one(way: str, rule: str, folder: Path, seconds: int) -> None:
    """In a process of its own."""
    out = without_paddles_output()
    truth = Truth(Preset(slots=8, keys=1000), SEED)
    dice = np.random.default_rng([SEED, 1])
    lines = truth.draw(RATE * seconds, dice)
    features = [line.split(b" ", 2)[2] for line in truth.text(lines).splitlines()]
    given = trained(way, lines.clicks, delays(len(lines.clicks), dice), seconds)
    converter = Converter(truth.slots, None, late_clicks=True)
    held = truth.draw(HELD, np.random.default_rng([SEED, 2]))
    known = ModelInput(tuple(SlotList.parse(truth.slots.text())))
    with engine_beside_server(model_of(rule), known, folder) as engine:
        for start in range(0, seconds, MICRO_PASS):
            some = slice(*np.searchsorted(given.second, [start, start + MICRO_PASS]))
            columns = (given.show[some].tolist(), given.click[some].tolist(), given.row[some].tolist())
            text = b"".join(b"%d %d %s\n" % (s, c, features[row]) for s, c, row in zip(*columns, strict=True))
            if not text:
                continue
            converted = converter.convert(text)
            (folder / "pass.txt").write_bytes(converted.text)
            dataset = engine.ready(engine.preload(folder / "pass.txt", BATCH), converted.records)
            engine.train(dataset)
            dataset.release_memory()
        scores = scored(engine, truth, held, known)
    found = quality_of_scores(scores, held.clicks, np.ones(HELD))
    assert found is not None
    rate, score = held.probabilities, np.clip(scores, 1e-7, 1 - 1e-7)
    excess = np.mean(rate * np.log(rate / score) + (1 - rate) * np.log((1 - rate) / (1 - score)))
    said = {"excess": float(excess) * 1000, "calibration": float(score.sum() / rate.sum()), "auc": found.auc}
    os.write(out, f"{json.dumps(said)}\n".encode())
    os._exit(0)


def scored(engine: Any, truth: Truth, held: DrawnLines, known: ModelInput) -> npt.NDArray[np.float64]:
    """A key that was never trained has the values of a row that is created."""
    engine.pull_dense()
    keys = truth.feasigns[np.arange(len(known.slots)), held.indices]
    values: npt.NDArray[np.float32] = engine.pull(np.ascontiguousarray(keys.reshape(-1)).astype(np.uint64))
    pooled = values.reshape(len(keys), -1)
    return np.asarray(engine.score(pooled, np.zeros((len(keys), 0), np.float32)), np.float64).reshape(-1)


def measured(way: str, rule: str, seconds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="late-") as folder:
        command = [sys.executable, "-m", "bench.late_clicks", "--one", way, rule, folder, str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{way} by {rule} was not trained: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a minute and a half of the stream")
    parser.add_argument("--rules", default=",".join(RULES), help="these rules of the table")
    parser.add_argument("--ways", default=",".join(WAYS), help="these ways to train")
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        run_one(given.one[0], given.one[1], Path(given.one[2]), int(given.one[3]))
    if given.quick and given.write:
        parser.error("the page's table is of the whole stream: leave out --quick, or --write")
    lines = ["| way | rule | excess logloss, 1e-3 | predicted ÷ true rate | AUC |", "|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    for rule in given.rules.split(","):
        for way in given.ways.split(","):
            found = measured(way, rule, 90 if given.quick else SECONDS)
            figures = f"{found['excess']:.1f} | {found['calibration']:.3f} | {found['auc']:.4f}"
            lines.append(f"| {way} | {rule} | {figures} |")
            print(lines[-1], flush=True)
    said = f"{SECONDS:,} s of {RATE:,} impressions a second, at whose end one click in eight had not come; one trainer, one pserver."
    lines += ["", f"{said} Measured {datetime.now(timezone.utc):%Y-%m-%d}."]
    if given.write:
        PAGE.write_text(with_table(PAGE.read_text(), "docs/performance.md", "late clicks", lines))


if __name__ == "__main__":
    main()
