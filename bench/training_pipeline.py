"""The training phase of the pipeline, as `elastic-ctr local run` runs it and its master times it."""

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

COMMAND = str(Path(sys.executable).parent / "elastic-ctr")


def pipeline(data: Path, rows: int, folder: Path, *, trainers: int = 1, model: dict[str, Any] | None = None) -> float:
    """Records a second between the first lease and the last report of the training round, with one pserver.

    Raises RuntimeError with the words of a run that fails.
    """
    size = sum(file.stat().st_size for file in data.glob("2*/*/part-*"))
    values = {
        "trainer": {"replicas": trainers},
        "pserver": {"replicas": 1},
        "data": {"taskBytes": size // 4 + 1},
        "master": {"config": {"evaluate": False}},
        "cube": {"config": {"shards": 1}},
        **({"model": model} if model else {}),
    }
    file = folder / "bench.yaml"
    file.write_text(yaml.safe_dump(values))
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    done = subprocess.run(
        [COMMAND, "local", "run", "-f", str(data / "values.yaml"), "-f", str(file), "--dir", str(run)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the pipeline ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    with sqlite3.connect(run / "state" / "master" / "ledger.db") as ledger:
        [(raw,)] = ledger.execute("select seconds from passes where ordinal = 1").fetchall()
    return rows / float(json.loads(raw)["train"])


def between(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ratios of runs in turn, theirs first and last: each of ours to the mean of the two of theirs around it."""
    return [2 * own / (before + after) for own, (before, after) in zip(ours, pairwise(theirs), strict=True)]
