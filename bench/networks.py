"""What each network learns of the same lines, how fast and how large it is: the table in docs/models.md.

    python -m bench.networks [--quick] [--only dcn-v2,lr] [--data pairwise] [--rows 1600000] [--write]

Lines of a known truth, made as `elastic-ctr synth --preset` makes them: `easy` without interactions, `pairwise` and `third-order` with
them. A network is trained by the trainer's own engine, a process beside one pserver, on one file of lines, and then predicts
50,000 other lines of the same truth. `share` is (AUC - 0.5) over (AUC of the truth - 0.5). Speed is that of the training alone. --write puts
the tables into docs/models.md, with those of --only and --data in the place of older ones.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from bench.engine_beside_server import engine_beside_server, without_paddles_output
from bench.method import FOLDER
from bench.page import with_table
from elastic_ctr.config.model import Model, ModelInput
from elastic_ctr.config.networks import NETWORKS, WITHOUT_LAYERS
from elastic_ctr.features.synthetic import PRESETS, Truth
from elastic_ctr.formats.convert import Converter
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.training.model.evaluation import auc_of_histogram, weighted_auc

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
RESULTS = FOLDER / "networks.json"
DATA = ("easy", "pairwise", "third-order")
ROWS, QUICK_ROWS, HELD = 1_600_000, 200_000, 50_000
SEED = 1
# How all of them are trained: the same for each, and in this place alone.
TRAINING: dict[str, Any] = {"batch_size": 512, "epochs": 1, "threads": 1, "gradient_merge": 2}
MODEL: dict[str, Any] = {"embeddingDim": 9, "partitions": 4}
LAYERS = {"layers": [128, 64]}
# Beside LAYERS: what a network has that the others have not.
OWN: dict[str, dict[str, Any]] = {"final-mlp": {"layers": [128, 64], "secondLayers": [64]}, "autoint": {"layers": []}}
# Between a network and lr: at least with interactions, at most without.
GAIN, LOSS = 0.02, 0.002
WITH_INTERACTIONS = ("dcn-v2", "xdeepfm", "final-mlp")


def settings_of(name: str) -> dict[str, Any]:
    if name in WITHOUT_LAYERS:
        return {"name": name}
    return {"name": name, **OWN.get(name, LAYERS)}


def written(data: str, rows: int, folder: Path) -> float:
    """The lines as the engine's text, in train.txt and held.txt, and slot.conf. The AUC of the truth on those held out."""
    truth = Truth(PRESETS[data], SEED)
    (folder / "slot.conf").write_text(truth.slots.text())
    converter = Converter(truth.slots, None)
    best = 0.5
    for name, count, seed in (("train", rows, 1), ("held", HELD, 2)):
        lines = truth.draw(count, np.random.default_rng([SEED, seed]))
        (folder / f"{name}.txt").write_bytes(converter.convert(truth.text(lines)).text)
        best = weighted_auc(lines.probabilities, lines.clicks, np.ones(count)) or 0.5
    return best


def measured(name: str, folder: Path, rows: int) -> dict[str, Any]:
    """In a process of its own."""
    scratch = folder / name
    scratch.mkdir()
    command = [sys.executable, "-m", "bench.networks", "--one", name, str(folder), "--rows", str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} was not trained: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def run_one(name: str, folder: Path, rows: int) -> None:
    out = without_paddles_output()
    model = Model.model_validate({**MODEL, "network": settings_of(name)})
    given = ModelInput(tuple(SlotList.parse((folder / "slot.conf").read_text())))
    threads, merge, batch_size = TRAINING["threads"], TRAINING["gradient_merge"], TRAINING["batch_size"]
    with engine_beside_server(model, given, folder / name, threads=threads, gradient_merge=merge) as engine:
        held = engine.ready(engine.preload(folder / "held.txt", batch_size), HELD)
        train = engine.ready(engine.preload(folder / "train.txt", batch_size), rows)
        seconds, aucs = 0.0, []
        for _ in range(TRAINING["epochs"]):
            began = time.monotonic()
            engine.train(train)
            engine.flush()
            seconds += time.monotonic() - began
            aucs.append(auc_of_histogram(*engine.predict(held)) or 0.5)
        dense = sum(math.prod(value.shape) for value in engine._first_values.values())  # noqa: SLF001
    found = {"aucs": aucs, "seconds": seconds, "recordsPerSecond": rows * TRAINING["epochs"] / seconds, "dense": dense}
    os.write(out, f"{json.dumps(found)}\n".encode())
    os._exit(0)


def tables(results: dict[str, Any]) -> list[str]:
    """The document's tables."""
    rows = results["rows"]
    lines = [
        "| network | "
        + " | ".join(f"AUC, share: {data}" for data in DATA)
        + " | seconds | records/s | dense parameters |",
        "|---|" + "---|" * (len(DATA) + 3),
    ]
    for name in NETWORKS:
        own = {data: rows[data][name] for data in DATA if name in rows.get(data, {})}
        if not own:
            continue
        cells = []
        for data in DATA:
            auc, truth = own.get(data, {}).get("auc"), rows.get(data, {}).get("truth", {}).get("auc")
            cells.append("" if auc is None else f"{auc:.4f}, {(auc - 0.5) / (truth - 0.5):.2f}")
        seconds = float(np.median([each["seconds"] for each in own.values()]))
        speed = float(np.median([each["recordsPerSecond"] for each in own.values()]))
        size = next(iter(own.values()))["dense"]
        lines.append(f"| {name} | {' | '.join(cells)} | {seconds:.0f} | {speed:,.0f} | {size:,} |")
    truths = [f"{rows[data]['truth']['auc']:.4f}, 1" if data in rows else "" for data in DATA]
    lines += [f"| the truth | {' | '.join(truths)} | | | |", ""]
    lines += [f"{line}" for line in verdicts(rows)]
    return [*lines, "", results["about"]]


def verdicts(rows: dict[str, Any]) -> list[str]:
    """How the goals stand, one a line."""
    found = []
    for data in ("pairwise", "third-order"):
        for name in WITH_INTERACTIONS:
            if {name, "lr"} <= rows.get(data, {}).keys():
                gain = rows[data][name]["auc"] - rows[data]["lr"]["auc"]
                found.append(f"- {data}: {name} is {gain:+.4f} from lr; goal +{GAIN}, {said(gain >= GAIN)}")
    easy = rows.get("easy", {})
    if "lr" in easy:
        worst = min((easy[name]["auc"] - easy["lr"]["auc"], name) for name in easy if name not in ("truth", "lr"))
        found.append(
            f"- easy: the worst is {worst[1]}, {worst[0]:+.4f} from lr; goal -{LOSS}, {said(worst[0] >= -LOSS)}"
        )
    return found


def said(holds: bool) -> str:
    return "holds" if holds else "MISSED"


def page(text: str, results: dict[str, Any]) -> str:
    """The text of docs/models.md with the tables of these results. Raises ValueError for those of a quick run."""
    if results["quick"]:
        raise ValueError("these results are of a quick run; run without --quick")
    return with_table(text, "docs/models.md", "networks", tables(results))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few lines: does it run, and roughly how")
    parser.add_argument("--only", default=",".join(NETWORKS), help="these networks")
    parser.add_argument("--data", default=",".join(DATA), help="these truths")
    parser.add_argument("--rows", type=int, help=f"lines to train on; by default {ROWS:,}, quick {QUICK_ROWS:,}")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/models.md")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    rows = given.rows or (QUICK_ROWS if given.quick else ROWS)
    if given.one:
        run_one(given.one[0], Path(given.one[1]), rows)
    quick = given.quick or rows < ROWS
    results: dict[str, Any] = {"quick": quick, "rows": {}}
    if given.results.exists() and (older := json.loads(given.results.read_text()))["quick"] == quick:
        results = older
    results["about"] = (
        f"{rows:,} lines, epochs: {TRAINING['epochs']}, batches of {TRAINING['batch_size']}, {TRAINING['threads']} thread, "
        f"embeddingDim {MODEL['embeddingDim']}, layers {LAYERS['layers']}; {HELD:,} lines held out. Measured {datetime.now(timezone.utc):%Y-%m-%d}."
    )
    for data in given.data.split(","):
        with tempfile.TemporaryDirectory() as place:
            mine = results["rows"].setdefault(data, {})
            mine["truth"] = {"auc": written(data, rows, Path(place))}
            for name in given.only.split(","):
                found = measured(name, Path(place), rows)
                mine[name] = {**found, "auc": found["aucs"][-1]}
                epochs = " ".join(f"{auc:.4f}" for auc in found["aucs"])
                print(
                    f"{data} {name}: AUC by epoch {epochs} of {mine['truth']['auc']:.4f}, {found['recordsPerSecond']:,.0f} records/s, "
                    f"{found['dense']:,} dense parameters",
                    file=sys.stderr,
                )
                given.results.parent.mkdir(parents=True, exist_ok=True)
                given.results.write_text(json.dumps(results, indent=1))
    print("\n".join(tables(results)))
    if given.write:
        PAGE.write_text(page(PAGE.read_text(), results))


if __name__ == "__main__":
    main()
