from __future__ import annotations

import gzip
import io
import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.formats.blocks import DamagedFile, lines_in_range, open_lines
from elastic_ctr.formats.convert import Converter
from elastic_ctr.formats.line import Reason
from elastic_ctr.formats.slots import SlotList

CONTENTS = st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=12).flatmap(
    lambda lines: st.sampled_from([b"\n".join(lines), b"".join(line + b"\n" for line in lines)])
)


class Trickle(io.RawIOBase):
    """Gives a few bytes at a time, as a network may, and counts what was asked of it."""

    def __init__(self, content: bytes, most: int) -> None:
        self._from = io.BytesIO(content)
        self._most = most
        self.given = 0

    def read(self, size: int = -1) -> bytes:
        read = self._from.read(self._most if size < 0 else min(size, self._most))
        self.given += len(read)
        return read

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._from.seek(offset, whence)

    def seekable(self) -> bool:
        return True


def _cut(block: bytes) -> list[bytes]:
    pieces = [piece + b"\n" for piece in block.split(b"\n")]
    pieces[-1] = pieces[-1][:-1]
    return [piece for piece in pieces if piece]


def whole_lines(content: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 0
    for line in _cut(content):
        found.append((at, line))
        at += len(line)
    return found


@given(content=CONTENTS, cuts=st.lists(st.integers(0, 150), max_size=5), chunk=st.integers(1, 40))
def test_over_any_cut_points_every_line_is_in_exactly_one_range(content: bytes, cuts: list[int], chunk: int) -> None:
    edges = [0, *sorted(cuts), None]

    found = [line for start, end in itertools.pairwise(edges) for line in lines_of(content, start or 0, end, chunk)]

    assert found == whole_lines(content)


def lines_of(content: bytes, start: int, end: int | None, chunk: int) -> list[tuple[int, bytes]]:
    found = []
    for offset, block in lines_in_range(io.BytesIO(content), start, end, chunk=chunk):
        assert content[offset : offset + len(block)] == block
        at = offset
        for line in _cut(block):
            found.append((at, line))
            at += len(line)
    return found


@given(
    content=CONTENTS,
    start=st.integers(0, 100),
    size=st.integers(0, 100),
    chunk=st.integers(1, 30),
    max_line_bytes=st.integers(1, 12),
)
def test_of_a_line_that_is_too_long_one_piece_that_is_too_long_is_left(
    content: bytes, start: int, size: int, chunk: int, max_line_bytes: int
) -> None:
    expected = [
        (at, None if len(line.removesuffix(b"\n")) > max_line_bytes else line)
        for at, line in whole_lines(content)
        if start <= at < start + size
    ]

    found = []
    for offset, block in lines_in_range(io.BytesIO(content), start, start + size, max_line_bytes, chunk):
        assert len(block) <= max_line_bytes + chunk + 65536
        at = offset
        for line in _cut(block):
            found.append((at, None if len(line.removesuffix(b"\n")) > max_line_bytes else line))
            at += len(line)

    assert found == expected


@given(content=CONTENTS, start=st.integers(0, 100), size=st.integers(0, 100), most=st.integers(1, 7))
def test_a_stream_that_gives_less_than_requested_makes_no_difference(
    content: bytes, start: int, size: int, most: int
) -> None:
    stream = Trickle(content, most)

    found = list(lines_in_range(stream, start, start + size))  # type: ignore[arg-type]

    expected = [(at, line) for at, line in whole_lines(content) if start <= at < start + size]
    assert b"".join(block for _, block in found) == b"".join(line for _, line in expected)
    assert [at for at, _ in found[:1]] == [at for at, _ in expected[:1]]


def test_a_line_of_ten_megabytes_becomes_one_refused_line_and_the_rest_goes_on() -> None:
    content = b"1 0 5:0\n" + b"1 0 " + b"7:0 " * 2_500_000 + b"\n1 1 6:0\n"
    converter = Converter(SlotList.parse([0]), None, max_line_bytes=1000)

    biggest, records, refused = 0, 0, []
    for offset, block in lines_in_range(io.BytesIO(content), 0, None, max_line_bytes=1000, chunk=65536):
        converted = converter.convert(block)
        biggest = max(biggest, len(block))
        records += converted.records
        refused += [(offset + line.offset, line.reason) for line in converted.refused]

    assert records == 2
    assert refused == [(8, Reason.TOO_LONG)]
    assert biggest <= 65536 + 1001


def test_little_more_than_the_range_is_read() -> None:
    content = b"1 0 1:0\n" * 500_000
    stream = Trickle(content, 1 << 30)

    blocks = list(lines_in_range(stream, 0, 8000))  # type: ignore[arg-type]

    assert sum(len(block) for _, block in blocks) == 8000
    assert stream.given <= 8000 + 65536


def test_an_empty_range_and_an_empty_file_have_no_lines() -> None:
    assert list(lines_in_range(io.BytesIO(b"a\nb\n"), 2, 2)) == []
    assert list(lines_in_range(io.BytesIO(b""))) == []
    assert list(lines_in_range(io.BytesIO(b"abc"), 1, 3)) == []


def test_a_stream_that_can_not_seek_can_only_be_read_from_its_beginning() -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    assert list(lines_in_range(Pipe(b"a\nb"))) == [(0, b"a\n"), (2, b"b")]
    with pytest.raises(ValueError, match="cannot seek to byte 3"):
        list(lines_in_range(Pipe(b"a\nb"), 3))


def zstd(content: bytes) -> bytes:
    return bytes(pa.compress(content, codec="zstd", asbytes=True))


COMPRESSED = pytest.mark.parametrize(("ending", "compress"), [("gz", gzip.compress), ("zst", zstd)])


@COMPRESSED
def test_a_name_that_ends_in_gz_or_zst_is_decompressed(
    tmp_path: Path, ending: str, compress: Callable[[bytes], bytes]
) -> None:
    content = b"1 0 5:0\n" * 100_000
    path = tmp_path / f"part-0.{ending}"
    path.write_bytes(compress(content))

    with open_lines(path) as opened:
        from_path = b"".join(block for _, block in lines_in_range(opened))
    stream = io.BytesIO(path.read_bytes())
    from_stream = b"".join(block for _, block in lines_in_range(open_lines(stream, f"hdfs:/part-0.{ending}")))

    assert from_path == from_stream == content
    assert not stream.closed


@COMPRESSED
def test_parts_that_were_compressed_one_by_one_are_one_file(ending: str, compress: Callable[[bytes], bytes]) -> None:
    stream = io.BytesIO(compress(b"a\n") + compress(b"b\n"))

    assert open_lines(stream, f"part-0.{ending}").read() == b"a\nb\n"


@COMPRESSED
def test_an_error_of_reading_the_source_is_not_taken_for_damage(
    ending: str, compress: Callable[[bytes], bytes]
) -> None:
    class Gone(io.BytesIO):
        def read(self, size: int = -1, /) -> bytes:  # type: ignore[override]
            if self.tell() > 1000:
                raise OSError("the node is gone")
            return super().read(min(size, 100))

    noise = random.Random(1).randbytes(100_000)

    with pytest.raises(OSError, match="the node is gone") as raised:
        open_lines(Gone(compress(noise)), f"part-0.{ending}").read()
    assert raised.type is OSError


def test_other_names_are_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "part-0"
    path.write_bytes(b"a\n")

    with open_lines(str(path)) as opened:
        assert opened.read() == b"a\n"
    stream = io.BytesIO(b"b\n")
    assert open_lines(stream, "part-1") is stream
    assert open_lines(stream) is stream


@COMPRESSED
@pytest.mark.parametrize(
    "damage", [lambda data: data[:-6], lambda data: data[: len(data) // 2], lambda data: b"no" + data]
)
def test_a_damaged_compressed_file_is_named(
    tmp_path: Path, ending: str, compress: Callable[[bytes], bytes], damage: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / f"part-0.{ending}"
    path.write_bytes(damage(compress(bytes(range(256)) * 500)))
    sentence = rf"part-0\.{ending} is damaged or cut off \(.*\); write it anew\."

    with open_lines(path) as opened, pytest.raises(DamagedFile, match=sentence):
        list(lines_in_range(opened))
    with open_lines(path) as opened, pytest.raises(DamagedFile, match=sentence):
        io.TextIOWrapper(opened, "latin-1").read()
    with open_lines(path) as opened, pytest.raises(DamagedFile, match=sentence):
        list(opened)
