"""What a pass teaches, over its size: what `auto` chooses beside fixed choices.

    python -m bench.learning [--quick] [--sizes 5000,100000] [--data easy] [--write]

One pass of lines of a known truth, made as `elastic-ctr synth --preset` makes them, is learned by the trainer's own engine beside one
pserver: with the batch sizes and epochs that the master would choose (`auto`), in one epoch of them, in one epoch of batches of 512, and
in one of 512 with the gradients of 13 batches merged, as Paddle has it by itself. 50,000 other lines of the same truth are then predicted,
shifted by what the master would shift. `share` is (AUC - 0.5) over (AUC of the truth - 0.5), `logloss` the ratio to that of the truth.
--write puts the table into docs/learning.md.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.engine_beside_server import engine_beside_server, without_paddles_output
from bench.page import with_table
from elastic_ctr.config.model import Model, ModelInput
from elastic_ctr.config.training_settings import TrainerConfig
from elastic_ctr.features.synthetic import PRESETS, Truth
from elastic_ctr.formats.convert import Converter
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.training.master.passes.learning import batch_size, calibrating_shift, goes_on, log_odds
from elastic_ctr.training.model.evaluation import quality_of_histogram, quality_of_scores

PAGE = Path(__file__).parents[1] / "docs" / "learning.md"
SIZES = (5_000, 20_000, 100_000, 500_000, 5_000_000)
DATA = ("easy", "sparse")
HELD, SEED = 50_000, 1


class Way(NamedTuple):
    """How a pass is learned."""

    trainer: TrainerConfig
    said: str


WAYS = {
    "auto": Way(TrainerConfig(), "auto"),
    "one epoch": Way(TrainerConfig(epochs=1), "one epoch of auto"),
    "512": Way(TrainerConfig(batch_size=512, epochs=1), "one epoch of 512"),
    "Paddle's": Way(TrainerConfig(batch_size=512, epochs=1, gradient_merge=13), "one epoch of 512, 13 merged"),
}


def sizes_of_epochs(trainer: TrainerConfig, records: int) -> list[int]:
    """The batch size of each epoch, as the master decides on them where clicks are not rare."""
    found: list[int] = []
    while goes_on(trainer, records, [1.0, *[None] * len(found)], clicks=records):
        found.append(batch_size(trainer, records, len(found) + 1, clicks=records))
    return found


def written(data: str, rows: int, folder: Path) -> dict[str, float]:
    """The lines as the engine's text, and slot.conf. AUC and logloss of the truth on those held out, and its first click rate."""
    truth = Truth(PRESETS[data], SEED)
    (folder / "slot.conf").write_text(truth.slots.text())
    converter = Converter(truth.slots, None)
    clicks = 0
    with (folder / "train.txt").open("wb") as out:
        for number, start in enumerate(range(0, rows, 500_000)):
            lines = truth.draw(min(500_000, rows - start), np.random.default_rng([SEED, 1, number]))
            clicks += int(lines.clicks.sum())
            out.write(converter.convert(truth.text(lines)).text)
    held = truth.draw(HELD, np.random.default_rng([SEED, 2]))
    (folder / "held.txt").write_bytes(converter.convert(truth.text(held)).text)
    best = quality_of_scores(held.probabilities, held.clicks, np.ones(HELD))
    if best is None or best.auc is None:
        raise AssertionError("there are clicks among so many lines")
    return {"auc": best.auc, "logloss": best.logloss, "offset": log_odds(clicks, rows)}


def run_one(way: str, folder: Path, rows: int, offset: float) -> None:
    """In a process of its own."""
    out = without_paddles_output()
    numbers = folder / "numbers.conf"
    names = tuple(numbers.read_text().split()) if numbers.exists() else ()
    given = ModelInput(tuple(SlotList.parse((folder / "slot.conf").read_text())), numbers=names)
    trainer = WAYS[way].trainer
    sizes = sizes_of_epochs(trainer, rows)
    with engine_beside_server(Model(), given, folder / way, gradient_merge=trainer.gradient_merge) as engine:
        engine.set_offset(offset)
        seconds = 0.0
        for size in sizes:
            train = engine.ready(engine.preload(folder / "train.txt", size), rows)
            began = time.monotonic()
            engine.train(train)
            engine.flush()
            seconds += time.monotonic() - began
            train.release_memory()
        shift = calibrating_shift(*engine.predict(engine.ready(engine.preload(folder / "train.txt", 512), rows)))
        engine.set_offset(offset + shift)
        found = quality_of_histogram(*engine.predict(engine.ready(engine.preload(folder / "held.txt", 512), HELD)))
    assert found is not None
    said = {"auc": found.auc, "logloss": found.logloss, "calibration": found.calibration, "seconds": seconds}
    os.write(out, f"{json.dumps({**said, 'batchSizes': sizes})}\n".encode())
    os._exit(0)


def measured(way: str, folder: Path, rows: int, offset: float) -> dict[str, Any]:
    # Of a run before.
    shutil.rmtree(folder / way, ignore_errors=True)
    (folder / way).mkdir()
    command = [sys.executable, "-m", "bench.learning", "--one", way, str(folder), str(rows), str(offset)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{way} of {rows} rows was not learned: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def row_of(data: str, rows: int, way: str, found: dict[str, Any], truth: dict[str, float]) -> str:
    sizes = ", ".join(map(str, found["batchSizes"]))
    share = (found["auc"] - 0.5) / (truth["auc"] - 0.5)
    figures = (
        f"{found['auc']:.4f} | {share:.3f} | {found['logloss'] / truth['logloss']:.4f} | {found['calibration']:.3f}"
    )
    return f"| {data} | {rows:,} | {WAYS[way].said} | {sizes} | {figures} | {found['seconds']:.1f} |"


def page(text: str, lines: list[str]) -> str:
    """docs/learning.md with this table."""
    return with_table(text, "docs/learning.md", "learning", lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the two smallest sizes")
    parser.add_argument("--sizes", help="rows of the pass, separated by commas")
    parser.add_argument("--data", default=",".join(DATA), help="these truths")
    parser.add_argument("--ways", default=",".join(WAYS), help="these ways to learn")
    parser.add_argument("--write", action="store_true", help="put the table into docs/learning.md")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        run_one(given.one[0], Path(given.one[1]), int(given.one[2]), float(given.one[3]))
    sizes = [int(size) for size in given.sizes.split(",")] if given.sizes else SIZES[: 2 if given.quick else None]
    lines = [
        "| data | rows of the pass | learned by | batches of | AUC | share | logloss | calibration | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for data in given.data.split(","):
        for rows in sizes:
            with tempfile.TemporaryDirectory() as place:
                truth = written(data, rows, Path(place))
                for way in given.ways.split(","):
                    found = measured(way, Path(place), rows, truth["offset"])
                    lines.append(row_of(data, rows, way, found, truth))
                    print(lines[-1], flush=True)
    lines += ["", f"{HELD:,} lines held out; one trainer, one pserver. Measured {datetime.now(timezone.utc):%Y-%m-%d}."]
    if given.write:
        PAGE.write_text(page(PAGE.read_text(), lines))


if __name__ == "__main__":
    main()
