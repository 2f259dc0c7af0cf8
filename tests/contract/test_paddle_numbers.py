"""The numbers of a record, as Paddle reads them of the text that the converter writes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from elastic_ctr.features.record_text import record_text
from elastic_ctr.features.transforms.transformer import Transformed

READER = Path(__file__).with_name("paddle_numbers.py")


def test_paddle_reads_every_number_to_the_bit(tmp_path: Path) -> None:
    largest, tiniest = np.finfo(np.float32).max, np.float32(1e-45)
    edges = [0.0, -0.0, 1.0, -1.0, 1e-7, -1e-7, 0.1, largest, -largest, tiniest, np.finfo(np.float32).tiny, 16777217.0]
    dice = np.random.default_rng(7)
    bits = dice.integers(0, 2**32, 36, np.uint32).view(np.float32)
    numbers = np.array([*edges, *bits[np.isfinite(bits)]], np.float32)
    numbers = numbers[: len(numbers) // 4 * 4].reshape(-1, 4)
    rows = len(numbers)
    keys, lengths = np.array([2**64 - 2] * rows, np.uint64), np.array([1, 0] * rows, np.int64)
    shows = np.ones(rows, np.int64)
    text, _ = record_text(Transformed(keys, lengths, numbers, *np.zeros((2, 0), np.int64)), shows, shows)
    (tmp_path / "records.txt").write_bytes(text)

    command = [sys.executable, str(READER), str(tmp_path / "records.txt"), "4", "2"]
    read = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout)

    assert read == numbers.view(np.uint32).tolist()
