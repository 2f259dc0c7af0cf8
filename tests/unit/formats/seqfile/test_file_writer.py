from __future__ import annotations

import io
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.formats.seqfile.file_reader import SequenceFileReader
from elastic_ctr.formats.seqfile.file_writer import SequenceFileWriter

GOLDEN = Path(__file__).parents[4].parent / "shared" / "hdfs" / "golden"


def golden_records() -> tuple[
    np.ndarray[tuple[int], np.dtype[np.uint64]], np.ndarray[tuple[int, int], np.dtype[np.float32]]
]:
    keys = np.arange(5000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return keys, (np.arange(45_000) / 1024 - 16).astype(np.float32).reshape(5000, 9)


def written(cuts: list[int], **options: int) -> bytes:
    keys, values = golden_records()
    stream = io.BytesIO()
    writer = SequenceFileWriter(stream, seed="s", **options)  # type: ignore[arg-type]
    edges = [0, *sorted(cuts), 5000]
    for start, end in itertools.pairwise(edges):
        writer.write(keys[start:end], values[start:end])
    writer.close()
    assert writer.records == 5000
    assert writer.bytes == len(stream.getvalue())
    return stream.getvalue()


@pytest.mark.skipif(not GOLDEN.exists(), reason="needs files written by Hadoop: put them into ../shared/hdfs/golden")
@pytest.mark.parametrize(("name", "interval"), [("none.seq", 102_400), ("none-sync2000.seq", 2000)])
def test_with_the_same_sync_marker_the_bytes_are_those_that_hadoop_wrote(name: str, interval: int) -> None:
    keys, values = golden_records()
    with SequenceFileReader(GOLDEN / name) as reader:
        sync = reader.header.sync

    stream = io.BytesIO()
    SequenceFileWriter(stream, sync=sync, sync_interval=interval).write(keys, values)

    assert stream.getvalue() == (GOLDEN / name).read_bytes()


@given(cuts=st.lists(st.integers(0, 5000), max_size=6), interval=st.sampled_from([1, 60, 61, 2000, 102_400]))
def test_the_calls_that_records_come_in_do_not_change_the_bytes(cuts: list[int], interval: int) -> None:
    assert written(cuts, sync_interval=interval) == written([], sync_interval=interval)


def test_a_seed_decides_the_bytes() -> None:
    files = []
    for seed in ("a", b"a", "b"):
        stream = io.BytesIO()
        SequenceFileWriter(stream, seed=seed)
        files.append(stream.getvalue())

    assert files[0] == files[1] != files[2]


def test_a_file_given_by_its_path_is_written_and_closed(tmp_path: Path) -> None:
    keys, values = golden_records()

    with SequenceFileWriter(tmp_path / "a.seq", seed="s") as writer:
        writer.write(keys, values)

    assert (tmp_path / "a.seq").read_bytes() == written([])


def test_values_of_another_dimension_are_refused() -> None:
    writer = SequenceFileWriter(io.BytesIO())
    writer.write(np.zeros(1, np.uint64), np.zeros((1, 9), np.float32))

    with pytest.raises(ValueError, match="vectors of 9 floats, these have 8"):
        writer.write(np.zeros(1, np.uint64), np.zeros((1, 8), np.float32))


def test_other_types_and_shapes_are_refused() -> None:
    writer = SequenceFileWriter(io.BytesIO())

    with pytest.raises(ValueError, match="not int64 and float32"):
        writer.write(np.zeros(1, np.int64), np.zeros((1, 9), np.float32))
    with pytest.raises(ValueError, match=r"keys of shape \(2,\) do not fit values of shape \(1, 9\)"):
        writer.write(np.zeros(2, np.uint64), np.zeros((1, 9), np.float32))
    with pytest.raises(ValueError, match="at least one float"):
        writer.write(np.zeros(1, np.uint64), np.zeros((1, 0), np.float32))


def test_a_sync_interval_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="sync_interval is 0"):
        SequenceFileWriter(io.BytesIO(), sync_interval=0)
