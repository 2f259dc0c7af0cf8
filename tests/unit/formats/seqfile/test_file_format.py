from __future__ import annotations

import io

import pytest

from elastic_ctr.formats.seqfile.file_format import (
    SequenceFileDamaged,
    header_bytes,
    read_vint,
    record_dtype,
    sync_marker,
)


def test_the_header_is_that_of_hadoop_for_bytes_writable_pairs() -> None:
    sync = bytes(range(16))

    header = header_bytes(sync)

    name = b"\x22org.apache.hadoop.io.BytesWritable"
    assert header == b"SEQ\x06" + name + name + b"\x00\x00" + b"\x00\x00\x00\x00" + sync


def test_a_sync_marker_is_sixteen_bytes_that_the_seed_decides() -> None:
    assert len(sync_marker(b"v1-17")) == 16
    assert sync_marker(b"v1-17") == sync_marker(b"v1-17") != sync_marker(b"v1-18")


def test_a_sync_marker_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes, this one has 3"):
        header_bytes(b"abc")


@pytest.mark.parametrize(
    ("data", "value"),
    [
        # From WritableUtils.writeVLong.
        ("00", 0),
        ("7f", 127),
        ("90", -112),
        ("8f80", 128),
        ("8fff", 255),
        ("8e0100", 256),
        ("8c7fffffff", 2**31 - 1),
        ("8870" + "00" * 7, 0x70 << 56),
        ("8770", -113),
        ("87ff", -256),
        ("860100", -257),
        ("847fffffff", -(2**31)),
    ],
)
def test_variable_integers_are_read_as_hadoop_writes_them(data: str, value: int) -> None:
    stream = io.BytesIO(bytes.fromhex(data) + b"rest")

    assert read_vint(stream.read) == value
    assert stream.read() == b"rest"


def test_damage_names_file_offset_and_reason() -> None:
    damage = SequenceFileDamaged("part.seq", 96, "the sync marker is not that of the header.")

    assert str(damage) == "part.seq is damaged at byte 96: the sync marker is not that of the header."
    assert (damage.name, damage.offset) == ("part.seq", 96)


def test_a_record_is_packed_as_in_the_file() -> None:
    assert record_dtype(9).itemsize == 4 + 4 + 12 + 40
    assert record_dtype(9, inner_lengths=False).itemsize == 4 + 4 + 8 + 36


def test_a_value_without_floats_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one float, not 0"):
        record_dtype(0)
