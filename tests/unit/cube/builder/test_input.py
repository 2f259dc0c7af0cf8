import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cube.parts import values_for
from elastic_ctr.cube.builder import input as builder_input
from elastic_ctr.cube.builder.input import read_blocks
from elastic_ctr.cube.dictionary.format import Keys, Values
from elastic_ctr.formats.seqfile.file_format import SequenceFileDamaged, header_bytes
from elastic_ctr.formats.seqfile.file_reader import SequenceFileReader
from elastic_ctr.formats.seqfile.file_writer import SequenceFileWriter


def _written(path: Path, count: int, dim: int, sync_interval: int = 200) -> tuple[Keys, Values]:
    keys = np.arange(count, dtype=np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)
    values = values_for(keys, dim)
    with SequenceFileWriter(path, seed="intake", sync_interval=sync_interval) as writer:
        writer.write(keys, values)
    return keys, values


def _read(path: Path, records: int, dim: int) -> tuple[list[int], bytes]:
    blocks = list(read_blocks(path, name="it", records=records, dim=dim))
    keys = [key for block, _ in blocks for key in block.tolist()]
    return keys, b"".join(values.tobytes() for _, values in blocks)


@given(st.integers(0, 300), st.integers(1, 17), st.integers(1, 900), st.integers(40, 2000), st.integers(1, 50))
def test_a_sequence_file_is_read_as_it_was_written_with_blocks_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, count: int, dim: int, sync_interval: int, chunk: int, block: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "blocks.seq"
    keys, values = _written(path, count, dim, sync_interval)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder_input, "_CHUNK", chunk)
        patch.setattr(builder_input, "BLOCK_KEYS", block)
        found = _read(path, count, dim)

    assert found == (keys.tolist(), values.tobytes())


@given(st.integers(0, 10_000), st.integers(0, 255), st.sampled_from(["change", "cut", "add"]))
def test_a_damaged_file_is_refused_as_the_reader_refuses_it(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int, damage: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.seq"
    _written(path, 40, 3)
    data = bytearray(path.read_bytes())
    at %= len(data)
    data[at:] = {"change": bytes([byte]) + data[at + 1 :], "cut": b"", "add": bytes([byte]) + data[at:]}[damage]
    path.write_bytes(data)

    with_reader: object
    try:
        with SequenceFileReader(path, name="it", expected_records=40) as reader:
            blocks = list(reader)
        with_reader = [key for keys, _ in blocks for key in keys.tolist()]
    except SequenceFileDamaged as damaged:
        with_reader = str(damaged)
    found: object
    try:
        found = _read(path, 40, 3)[0]
    except SequenceFileDamaged as damaged:
        found = str(damaged)

    assert found == with_reader


@pytest.mark.parametrize("said", [4, 6])
def test_another_number_of_records_than_expected_is_refused(tmp_path: Path, said: int) -> None:
    _written(tmp_path / "x.seq", 5, 2)

    with pytest.raises(SequenceFileDamaged, match=f"it holds 5 records, {said} were expected"):
        _read(tmp_path / "x.seq", said, 2)


def test_values_of_another_dim_come_as_they_are(tmp_path: Path) -> None:
    keys, values = _written(tmp_path / "x.seq", 5, 3)

    assert _read(tmp_path / "x.seq", 5, 2) == (keys.tolist(), values.tobytes())


def test_a_compressed_file_is_read_too(tmp_path: Path) -> None:
    head = header_bytes(bytes(16))
    codec = b"org.apache.hadoop.io.compress.DefaultCodec"
    flags = head.index(b"\x00\x00", 4)
    value = np.array([1.5, 2.5], np.float32).tobytes()
    packed = zlib.compress(struct.pack(">i", len(value)) + value)
    record = struct.pack(">iii", 12 + len(packed), 12, 8) + struct.pack("<Q", 77) + packed
    whole = head[:flags] + b"\x01\x00" + bytes([len(codec)]) + codec + head[flags + 2 :] + record
    (tmp_path / "x.seq").write_bytes(whole)

    assert _read(tmp_path / "x.seq", 1, 2) == ([77], value)


def test_a_file_that_grows_a_record_of_another_size_is_refused(tmp_path: Path) -> None:
    _written(tmp_path / "x.seq", 5, 2, sync_interval=10_000)
    _written(tmp_path / "y.seq", 5, 3, sync_interval=10_000)
    body = len(header_bytes(bytes(16)))
    both = (tmp_path / "x.seq").read_bytes() + (tmp_path / "y.seq").read_bytes()[body:]
    (tmp_path / "x.seq").write_bytes(both)

    with pytest.raises(SequenceFileDamaged, match="3 floats, those before it 2"):
        _read(tmp_path / "x.seq", 10, 2)
