from __future__ import annotations

import hashlib
import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.formats.seqfile.file_format import (
    BYTES_WRITABLE,
    ESCAPE,
    Compression,
    SequenceFileDamaged,
    header_bytes,
    sync_marker,
)
from elastic_ctr.formats.seqfile.file_reader import SequenceFileReader
from elastic_ctr.formats.seqfile.file_writer import SequenceFileWriter

GOLDEN = Path(__file__).parents[4].parent / "shared" / "hdfs" / "golden"
DUMPED = "f2e459809e1a38ac0b0e172fa3cea1b884eaff5a3112c818af11afb3d4983615"
SYNC = sync_marker(b"test")

needs_golden = pytest.mark.skipif(
    not GOLDEN.exists(), reason="needs files written by Hadoop: put them into ../shared/hdfs/golden"
)
golden_files = pytest.mark.parametrize(
    "name", ["none.seq", "none-sync2000.seq", "record-deflate.seq", "block-deflate.seq"]
)


def record(key: bytes, value: bytes) -> bytes:
    """An uncompressed record of BytesWritable pairs."""
    inner = struct.pack(">i", len(key)) + key + struct.pack(">i", len(value)) + value
    return struct.pack(">ii", len(inner), len(key) + 4) + inner


def sample(count: int = 300, dim: int = 2, interval: int = 1000) -> bytes:
    stream = io.BytesIO()
    writer = SequenceFileWriter(stream, sync=SYNC, sync_interval=interval)
    writer.write(np.arange(count, dtype=np.uint64), np.arange(count * dim, dtype=np.float32).reshape(count, dim))
    return stream.getvalue()


def read(data: bytes, **options: int | bool | str) -> list[tuple[int, list[float]]]:
    reader = SequenceFileReader(io.BytesIO(data), **options)  # type: ignore[arg-type]
    return [pair for keys, values in reader for pair in zip(keys.tolist(), values.tolist(), strict=True)]


def damage(data: bytes, **options: int | bool | str) -> str:
    with pytest.raises(SequenceFileDamaged) as told:
        read(data, name="x.seq", **options)
    assert str(told.value).startswith(f"x.seq is damaged at byte {told.value.offset}: ")
    assert 0 <= told.value.offset <= len(data)
    return str(told.value)


@needs_golden
@golden_files
def test_the_files_of_hadoop_are_read_as_arrays(name: str) -> None:
    with SequenceFileReader(GOLDEN / name, expected_records=5000) as reader:
        blocks = list(reader)

    keys, values = np.concatenate([keys for keys, _ in blocks]), np.concatenate([values for _, values in blocks])
    assert keys.dtype == np.uint64
    assert values.dtype == np.float32
    assert (keys == np.arange(5000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).all()
    assert (values == (np.arange(45_000) / 1024 - 16).reshape(5000, 9)).all()


@needs_golden
@golden_files
def test_the_files_of_hadoop_are_dumped_as_hadoop_dumps_them(name: str) -> None:
    with SequenceFileReader(GOLDEN / name, expected_records=5000) as reader:
        text = "".join(f"{key.hex()}\t{value.hex()}\n" for key, value in reader.records())

    assert hashlib.sha256(text.encode()).hexdigest() == DUMPED


@needs_golden
def test_the_headers_of_hadoop_say_what_is_in_the_files() -> None:
    found = {}
    for path in GOLDEN.glob("*.seq"):
        with SequenceFileReader(path) as reader:
            found[path.name] = (reader.header.compression, reader.header.codec, reader.header.key_class)

    codec = "org.apache.hadoop.io.compress.DefaultCodec"
    assert found == {
        "none.seq": (Compression.NONE, None, BYTES_WRITABLE),
        "none-sync2000.seq": (Compression.NONE, None, BYTES_WRITABLE),
        "record-deflate.seq": (Compression.RECORD, codec, BYTES_WRITABLE),
        "block-deflate.seq": (Compression.BLOCK, codec, BYTES_WRITABLE),
    }


@needs_golden
@golden_files
def test_a_file_of_hadoop_that_is_cut_off_is_damaged_or_misses_records(name: str) -> None:
    data = (GOLDEN / name).read_bytes()

    for size in [*range(0, 200, 7), *range(200, len(data), 9973), len(data) - 1]:
        with pytest.raises(SequenceFileDamaged):
            read(data[:size], expected_records=5000)


@given(
    keys=st.lists(st.integers(0, 2**64 - 1), max_size=200),
    dim=st.integers(1, 12),
    interval=st.integers(1, 3000),
    seed=st.integers(0, 1000),
)
def test_a_sequence_file_is_read_as_it_was_written(keys: list[int], dim: int, interval: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(len(keys), dim)).astype(np.float32)
    stream = io.BytesIO()
    SequenceFileWriter(stream, sync_interval=interval).write(np.array(keys, dtype=np.uint64), values)

    found = read(stream.getvalue(), expected_records=len(keys))

    assert found == list(zip(keys, values.tolist(), strict=True))


def test_a_record_whose_bytes_look_like_a_sync_marker_is_read() -> None:
    stream = io.BytesIO()
    keys = np.full(3, 2**64 - 1, dtype=np.uint64)
    SequenceFileWriter(stream, sync=SYNC).write(keys, np.frombuffer(ESCAPE * 3, dtype=np.float32).reshape(3, 1))

    assert [key for key, _ in read(stream.getvalue())] == [2**64 - 1] * 3


def test_records_of_any_length_are_read_as_bytes() -> None:
    pairs = [(b"", b""), (b"k", b"v" * 1000), (b"key", b"")]
    data = header_bytes(SYNC) + b"".join(record(*pair) for pair in pairs)

    assert list(SequenceFileReader(io.BytesIO(data), expected_records=3).records()) == pairs


def test_the_layout_of_the_old_cube_builder_is_read_without_inner_lengths() -> None:
    body = b"".join(struct.pack(">iiQ", 16, 8, 0)[:8] + struct.pack("<Qff", i, i, -i) for i in range(5))
    data = header_bytes(SYNC) + body[:48] + ESCAPE + SYNC + body[48:]

    assert read(data, inner_lengths=False) == [(i, [i, -i]) for i in range(5)]
    assert list(SequenceFileReader(io.BytesIO(data), inner_lengths=False).records())[1] == (
        struct.pack("<Q", 1),
        struct.pack("<ff", 1, -1),
    )
    assert "without inner lengths" in damage(data)


def test_a_file_without_records_is_empty() -> None:
    assert read(header_bytes(SYNC), expected_records=0) == []
    assert read(header_bytes(SYNC) + ESCAPE + SYNC) == []


def test_a_file_cut_at_any_byte_is_never_silently_shorter() -> None:
    data = sample(60, interval=500)

    for size in range(len(data)):
        damage(data[:size], expected_records=60)


@given(at=st.integers(0, len(sample()) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_is_damage_or_changes_one_record_at_most(at: int, bit: int) -> None:
    data = bytearray(sample())
    data[at] ^= 1 << bit

    try:
        found = read(bytes(data), expected_records=300)
    except SequenceFileDamaged:
        return
    differ = sum(a != b for a, b in zip(found, read(sample()), strict=True))
    assert differ <= 1


@needs_golden
@given(at=st.integers(0, 110_561), bit=st.integers(0, 7))
def test_a_flipped_bit_in_a_compressed_block_is_damage_or_changes_nothing(at: int, bit: int) -> None:
    data = bytearray((GOLDEN / "block-deflate.seq").read_bytes())
    data[at] ^= 1 << bit

    try:
        found = len(read(bytes(data), expected_records=5000))
    except SequenceFileDamaged:
        return
    assert found == 5000


HEADER = header_bytes(SYNC)
FLAGS = HEADER.index(b"\x00\x00")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "the file ends after 0 of the 4 bytes"),
        (b"PK\x03\x04", "it is not a SequenceFile"),
        (b"SEQ\x05" + HEADER[4:], "version 5; only version 6 is read"),
        (HEADER.replace(b"BytesWritable", b"BytesWritablE", 1), "not BytesWritable pairs"),
        (HEADER[:FLAGS] + b"\x00\x01" + HEADER[FLAGS + 2 :], "compression flags are 0001"),
        (
            HEADER[:FLAGS] + b"\x01\x00" + b"\x03abc" + HEADER[FLAGS + 2 :],
            "its codec is abc; write it with DefaultCodec",
        ),
        (HEADER[:FLAGS] + b"\x00\x00" + b"\xff" * 4 + SYNC, "claims -1 metadata entries"),
        (HEADER[:4] + b"\x8c\x7f\xff\xff\xff", "a name of 2147483647 bytes is too long"),
        (HEADER[:4] + b"\x02\xff\xfe", "a name is not UTF-8"),
        (HEADER[:-1], "the file ends after 15 of the 16 bytes"),
        (HEADER + b"\x00", "the file ends after 1 of the 4 bytes"),
        (HEADER + b"\x00\x00\x00\x10", "the file ends within the lengths of a record"),
        (HEADER + ESCAPE + SYNC[:-1] + b"\x00", "the sync marker is not that of the header"),
        (HEADER + ESCAPE + SYNC[:-1], "the file ends after 19 of the 20 bytes"),
        (HEADER + record(b"k" * 7, b"v" * 8), "the key of the record has 11 bytes, not 12"),
        (HEADER + record(b"k" * 8, b"v" * 7), "does not hold a vector of float32"),
        (HEADER + record(b"k" * 8, b""), "does not hold a vector of float32"),
        (HEADER + record(b"k" * 8, b"v" * 8) + record(b"k" * 8, b"v" * 12), "has 3 floats, those before it 2"),
        (HEADER + record(b"k" * 8, b"v" * 8).replace(b"\x00\x00\x00\x08k", b"\x00\x00\x00\x09k"), "inner lengths"),
        (HEADER + b"\x7f\xff\xff\xff\x00\x00\x00\x0c", "does not hold a vector of float32"),
        (HEADER + record(b"k" * 8, b"v" * 8)[:-1], "the file ends after 31 of the 32 bytes"),
    ],
)
def test_a_damaged_file_is_named_with_byte_and_reason(data: bytes, told: str) -> None:
    assert told in damage(data)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"\x00\x00\x00\x04\x00\x00\x00\x05", "a record of 4 bytes cannot have a key of 5"),
        (b"\x7f\xff\xff\xff\x00\x00\x00\x05", "a record of 2147483647 bytes cannot"),
        (b"\x00\x00\x00\x08\xff\xff\xff\xff", "cannot have a key of -1"),
        (struct.pack(">iii", 8, 4, 1) + struct.pack(">i", 0), "the inner length of 4 bytes of key or value is wrong"),
    ],
)
def test_a_damaged_record_of_any_length_is_named_with_byte_and_reason(body: bytes, told: str) -> None:
    with pytest.raises(SequenceFileDamaged, match=told):
        list(SequenceFileReader(io.BytesIO(HEADER + body)).records())


def block_header() -> bytes:
    codec = b"org.apache.hadoop.io.compress.DefaultCodec"
    return HEADER[:FLAGS] + b"\x01\x01" + bytes([len(codec)]) + codec + HEADER[FLAGS + 2 :]


def block(count: int, *parts: bytes) -> bytes:
    packed = [zlib.compress(part) for part in parts]
    return ESCAPE + SYNC + bytes([count]) + b"".join(bytes([len(part)]) + part for part in packed)


PAIR = (b"\x0c", b"\x00\x00\x00\x08" + b"k" * 8, b"\x08", b"\x00\x00\x00\x04" + b"v" * 4)


def test_a_block_is_read_record_by_record() -> None:
    data = block_header() + block(2, PAIR[0] * 2, PAIR[1] * 2, PAIR[2] * 2, PAIR[3] * 2) + block(1, *PAIR)

    assert list(SequenceFileReader(io.BytesIO(data), expected_records=3).records()) == [(b"k" * 8, b"v" * 4)] * 3


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"\x00" * 8, "a block does not begin with a sync marker"),
        (block(2, *PAIR), "cannot hold 2 records"),
        (block(1, PAIR[0], PAIR[1] + b"k", PAIR[2], PAIR[3]), "holds more than its records"),
        (block(1, b"\x0d", *PAIR[1:]), "a length of 13 does not fit into the block"),
        (block(1, b"\x0c\x0c", *PAIR[1:]), "holds more than its records"),
        (block(1, b"\x8f", *PAIR[1:]), "fewer lengths than its 1 records"),
        (block(1, *PAIR)[:-1], "the file ends after"),
        (ESCAPE + SYNC + b"\x01\x8c\x7f\xff\xff\xff", "a block cannot hold 2147483647 bytes"),
        (ESCAPE + SYNC + b"\x01\x04abcd", "cannot be decompressed"),
        (ESCAPE + SYNC + b"\x01\x04" + zlib.compress(b"abc")[:4], "cut off or too long"),
    ],
)
def test_a_damaged_block_is_named_with_byte_and_reason(body: bytes, told: str) -> None:
    assert told in damage(block_header() + body)


def compressed_record(floats: int) -> bytes:
    key = b"\x00\x00\x00\x08" + b"k" * 8
    value = zlib.compress(struct.pack(">i", 4 * floats) + bytes(4 * floats))
    return struct.pack(">ii", len(key) + len(value), len(key)) + key + value


def test_the_first_compressed_record_of_another_size_ends_the_file() -> None:
    header = block_header().replace(b"\x01\x01", b"\x01\x00", 1)
    whole, other = compressed_record(1), compressed_record(3)

    assert len(read(header + whole * 3)) == 3
    # What stands behind it is not read.
    assert "a record of 8 and 12 bytes is not a u64 and 1 floats" in damage(header + whole + other + other[:-1])


def test_a_stream_may_give_a_few_bytes_at_a_time() -> None:
    class Trickle(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(size, 13) if size is not None and size >= 0 else 13)

    found = [key for keys, _ in SequenceFileReader(Trickle(sample())) for key in keys.tolist()]

    assert found == list(range(300))


def test_another_number_of_records_than_expected_is_damage() -> None:
    assert "it holds 300 records, 301 were expected" in damage(sample(), expected_records=301)
    assert "it holds 300 records, 299 were expected" in damage(sample(), expected_records=299)


def test_metadata_is_kept() -> None:
    data = HEADER[: FLAGS + 2] + b"\x00\x00\x00\x01\x01a\x02bc" + SYNC

    assert SequenceFileReader(io.BytesIO(data)).header.metadata == {"a": "bc"}
