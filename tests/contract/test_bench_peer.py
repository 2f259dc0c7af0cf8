"""The peer of bench/training: it gets the lines that the pipeline gets, and learns them as the engine does."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.rivals.plain_paddle import FEEDS
from bench.training_networks import PRESET, write

from elastic_ctr.features.synthetic import Truth

# Of a benchmark, and no change of the product reaches the peer. The engine's own steps are in test_learning.py.
pytestmark = pytest.mark.nightly

ROWS, HELD, BATCH = 12_000, 10_000, 64
# Of AUC. Asynchronous trainings of the same lines are never the same; docs/learning.md.
SAME = 0.03


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lines")
    write(folder, ROWS, HELD)
    return folder


def process(module: str, folder: Path, lines: Path, **spec: Any) -> dict[str, Any]:
    file = folder / "spec.json"
    common = {"model": {"network": "deepfm", "partitions": 4}, "batchSize": BATCH, "data": str(lines), "rows": ROWS}
    file.write_text(json.dumps({**common, **spec}))
    done = subprocess.run([sys.executable, "-m", module, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def peer(folder: Path, lines: Path, feed: str) -> dict[str, Any]:
    slots, vocabulary = PRESET.slots, PRESET.slots * PRESET.keys
    return process("bench.rivals.plain_paddle", folder, lines, feed=feed, slots=slots, vocabulary=vocabulary)


def test_the_peer_has_the_lines_of_the_pipeline_with_their_keys_numbered(lines: Path) -> None:
    [part] = (lines / "hours").glob("2*/*/part-*")
    feasigns = Truth(PRESET, 1).feasigns.reshape(-1)

    ids, clicks = np.load(lines / "train.ids.npy"), np.load(lines / "train.clicks.npy")
    rows = zip(ids.tolist(), clicks.tolist(), part.read_text().splitlines(), strict=True)
    dense = (lines / "train.dense.txt").read_text().splitlines()

    assert len(dense) == ROWS
    for (row, click, line), text in zip(rows, dense, strict=True):
        assert line == f"1 {click} " + " ".join(f"{feasigns[key]}:{slot}" for slot, key in enumerate(row))
        assert text == f"{PRESET.slots} {' '.join(map(str, row))} 1 {click}"


@pytest.mark.parametrize("feed", FEEDS)
def test_the_peer_learns_as_much_as_the_engine(feed: str, lines: Path, tmp_path: Path) -> None:
    ours = process("bench.training_networks", tmp_path, lines)
    theirs = peer(tmp_path, lines, feed)

    assert theirs["records"] == ours["records"] == ROWS
    assert ours["auc"] > 0.6
    assert abs(theirs["auc"] - ours["auc"]) < SAME


def test_the_network_alone_is_trained_without_a_table(lines: Path, tmp_path: Path) -> None:
    alone = peer(tmp_path, lines, "network")

    assert alone["auc"] is None
    assert alone["records"] == 100 * BATCH
