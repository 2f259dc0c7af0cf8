"""Hadoop's own reader must read what is written here. Needs its jars and Java; nothing is started that stays."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from contract.hadoop_world import ENVIRONMENT, HDFS, why_not
from elastic_ctr.formats.seqfile.file_writer import SequenceFileWriter

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.mark.parametrize(("records", "dim", "interval"), [(5000, 9, 102_400), (777, 1, 2000), (0, 9, 102_400)])
def test_hadoop_reads_every_record_that_was_written(tmp_path: Path, records: int, dim: int, interval: int) -> None:
    dice = np.random.default_rng(records)
    keys = dice.integers(0, 2**64, records, dtype=np.uint64)
    values = dice.normal(size=(records, dim)).astype(np.float32)
    with SequenceFileWriter(tmp_path / "ours.seq", seed="contract", sync_interval=interval) as writer:
        writer.write(keys, values)

    options = ["--dir", str(tmp_path / "hdfs"), "java"]
    dumped = subprocess.run(
        [str(HDFS / "hdfs"), *options, str(HDFS / "SeqDump.java"), f"file://{tmp_path / 'ours.seq'}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=ENVIRONMENT,
    )

    expected = [
        f"{key.astype('<u8').tobytes().hex()}\t{value.astype('<f4').tobytes().hex()}"
        for key, value in zip(keys, values, strict=True)
    ]
    assert dumped.stdout.splitlines() == expected
    assert re.search(rf"compression NONE, codec none, records {records}, syncs ", dumped.stderr)
    assert (records * (24 + 4 * dim) > interval) == ("syncs 0" not in dumped.stderr)
