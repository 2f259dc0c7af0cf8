"""Records a second of the training phase in the pipeline, beside the bare engine on the same file and network.

    python -m bench.training [--quick] [--rows 1600000] [--only "raw rows"|deepfm|"two trainers"]

The pipeline: `elastic-ctr local run` with one trainer and one pserver, tasks of a quarter of the rows, each loaded while
the one before it is trained; timed by the master from the first lease to the last report of the round. Bare:
`train_from_dataset` on one file of the same rows, converted by the same converter and loaded before the clock starts, in
one process against one server, in batches of the size that `auto` gives the pipeline. Runs alternate: bare, pipeline,
bare, pipeline … bare; a pipeline run is compared with the mean of its two neighbours. Once with lines of clicks, and once
with half as many raw rows of bench/features.py; then each network beside the same one in plain Paddle, which
bench/training_networks.py describes.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from bench import features
from bench.engine_beside_server import engine_beside_server, without_paddles_output
from bench.method import Results, Row, arguments, plan_of, show, summary
from bench.training_networks import QUICK_ROWS, measure_networks
from bench.training_networks import ROWS as ROWS_OF_NETWORKS
from bench.training_pipeline import COMMAND, between, pipeline
from elastic_ctr.config.data import Data
from elastic_ctr.config.feature_rules import input_of
from elastic_ctr.config.load import read_yaml
from elastic_ctr.config.model import Model, ModelInput
from elastic_ctr.config.training_settings import TrainerConfig
from elastic_ctr.formats.convert import Converter
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.training.master.passes.learning import batch_size

CLICKS, ROWS = "training in the pipeline ÷ the bare engine", "training on raw rows in the pipeline ÷ the bare engine"
_PIECE = 20_000


def bare(data: Path, rows: int, folder: Path) -> float:
    """Records a second of train_from_dataset alone, in a process of its own."""
    answer = subprocess.run(
        [sys.executable, "-m", "bench.training", "--bare", str(data), str(folder), "--rows", str(rows)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return float(answer.stdout.strip().splitlines()[-1])


def converted(data: Path, target: Path) -> ModelInput:
    """The hour as the engine's text, by the trainer's own converters."""
    parts = sorted(data.glob("2*/*/part-*"))
    settings = read_yaml(data / "values.yaml")
    if "features" in settings:
        made = features.transformer()
        with target.open("wb") as text:
            for part in parts:
                text.writelines(features.texts(part.read_bytes(), made))
        return input_of(Data.model_validate(settings["data"]), features.features())
    slots = SlotList.parse((data / "slot.conf").read_text())
    converter = Converter(slots, None)
    with target.open("wb") as text:
        for part in parts:
            text.write(converter.convert(part.read_bytes()).text)
    return ModelInput(tuple(slots))


def run_bare(data: Path, folder: Path, rows: int) -> None:
    out = without_paddles_output()
    target = folder / "bare.txt"
    given = converted(data, target)
    with engine_beside_server(Model(), given, folder) as engine:
        dataset = engine.ready(engine.preload(target, batch_size(TrainerConfig(), rows, 1, clicks=rows)), rows)
        began = time.monotonic()
        engine.train(dataset)
        speed = rows / (time.monotonic() - began)
    os.write(out, f"{speed}\n".encode())
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser)
    parser.add_argument("--rows", type=int, help="of the hour; by default 1,600,000, quick 50,000")
    parser.add_argument("--bare", nargs=2, type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    plan = plan_of(given)
    rows = given.rows or (50_000 if plan.quick else 1_600_000)
    if given.bare:
        run_bare(given.bare[0], given.bare[1], rows)
    results = Results(given.results, quick=plan.quick or bool(given.rows))
    for name, make, count in ((CLICKS, clicks, rows), (ROWS, raw_rows, rows // 2)):
        if plan.wants(name):
            with tempfile.TemporaryDirectory() as folder:
                data = Path(folder) / "data"
                make(data, count)
                results.put(measure(name, data, Path(folder), count, 1 if plan.quick else plan.repetitions))
    measure_networks(plan, results, given.rows or (QUICK_ROWS if plan.quick else ROWS_OF_NETWORKS))
    show(results.read())


def clicks(data: Path, rows: int) -> None:
    """An hour of synthetic clicks."""
    subprocess.run(
        [COMMAND, "synth", "--hours", "1", "--rows", str(rows), "--seed", "1", str(data)],
        check=True,
        capture_output=True,
    )


def raw_rows(data: Path, rows: int) -> None:
    """An hour of rows of Criteo's shape."""
    hour = data / "20200401" / "00"
    hour.mkdir(parents=True)
    with (hour / "part-0").open("wb") as lines:
        for begin in range(0, rows, _PIECE):
            lines.write(features.lines_of(features.rows_of(min(_PIECE, rows - begin), seed=begin)))
    (hour / "donefile").touch()
    values = {
        "data": {
            "source": {"url": f"file://{data.resolve()}"}, "start": "20200401/00", "end": "20200401/00",
            "format": "tsv", "label": "label", "columns": list(features.COLUMNS),
        },
        "features": features.features().model_dump(mode="json", by_alias=True, exclude_none=True),
    }  # fmt: skip
    (data / "values.yaml").write_text(yaml.safe_dump(values))


def measure(name: str, data: Path, folder: Path, rows: int, repetitions: int) -> Row:
    """The two in turn: one more of the bare engine, so that each run of the pipeline has one before it and one behind."""
    bares, pipelines = [bare(data, rows, folder)], []
    for _ in range(repetitions):
        pipelines.append(pipeline(data, rows, folder))
        bares.append(bare(data, rows, folder))
    note = (
        f"{statistics.median(pipelines):,.0f} to {statistics.median(bares):,.0f} records a second, {rows:,} of them in an hour; "
        "one trainer, one pserver, this machine's cores for both"
    )
    return summary(name, between(pipelines, bares), 0.85, note=note)


if __name__ == "__main__":
    main()
