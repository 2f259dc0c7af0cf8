import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_ctr.config.addresses import is_stream
from elastic_ctr.formats.blocks import lines_in_range
from elastic_ctr.sources.streams.followed_folder import FollowedFolder
from elastic_ctr.sources.streams.interface import Kept
from elastic_ctr.sources.streams.open import open_stream
from elastic_ctr.store.backends import NotInStore, StoreError

some_lines = st.lists(st.binary(max_size=30).map(lambda text: text.replace(b"\n", b"x") + b"\n"), max_size=8)


def lines_of(stream: FollowedFolder, partition: str, start: int, stop: int) -> list[bytes]:
    lines = stream.read(partition, start, stop)
    with lines.raw as raw:
        blocks = [block for _, block in lines_in_range(raw, lines.start, lines.stop)]
    return b"".join(blocks).splitlines(keepends=True)


def test_each_file_with_a_whole_line_is_a_partition_of_its_whole_lines(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\ntwo\nthr")
    (tmp_path / "b").write_bytes(b"")
    (tmp_path / ".hidden").write_bytes(b"x\n")
    (tmp_path / "folder").mkdir()

    assert FollowedFolder(tmp_path).partitions() == {"a": Kept(0, 8)}


def test_compressed_files_are_no_partitions_and_a_name_that_is_no_text_is_named(tmp_path: Path) -> None:
    for name in ("clicks", "clicks.1.gz", "old.zst"):
        (tmp_path / name).write_bytes(b"a\n")
    stream = FollowedFolder(tmp_path)
    assert stream.partitions() == {"clicks": Kept(0, 2)}

    (tmp_path / os.fsdecode(b"cl\xffcks")).touch()
    with pytest.raises(StoreError, match=r"has a file 'cl.*cks', whose name is no text: rename it"):
        stream.partitions()


@settings(max_examples=50)
@given(pieces=st.lists(st.tuples(some_lines, st.binary(max_size=5)), min_size=1, max_size=6), cut=st.integers(1, 40))
def test_each_appended_line_is_read_once_wherever_ranges_are_cut(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[list[bytes], bytes]], cut: int
) -> None:
    folder = tmp_path_factory.mktemp("log")
    file, stream, following, found = folder / "log", FollowedFolder(folder), 0, []
    written = b""
    for lines, half in pieces:
        # A look may come in the middle of a line.
        for piece in (half, b"".join(lines)):
            with file.open("ab") as out:
                out.write(piece)
            written += piece
            end = stream.partitions().get("log", Kept(0, 0)).end
            assert end == written.rfind(b"\n") + 1
            while following < end:
                stop = min(end, following + cut)
                found += lines_of(stream, "log", following, stop)
                following = stop

    assert b"".join(found) == written[: written.rfind(b"\n") + 1]


def test_a_long_line_is_waited_for_and_read_whole(tmp_path: Path) -> None:
    stream, file = FollowedFolder(tmp_path), tmp_path / "log"
    long = b"x" * 100_000 + b"\n"
    file.write_bytes(b"first\n" + long[:50_000])
    assert stream.partitions()["log"] == Kept(0, 6)

    file.write_bytes(b"first\n" + long)

    assert stream.partitions()["log"] == Kept(0, 6 + len(long))
    assert lines_of(stream, "log", 6, 6 + len(long)) == [long]


def test_a_folder_or_file_that_is_gone_and_a_file_that_was_cut_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotInStore, match=r"the folder .*/absent does not exist: is data.source.url right\?"):
        FollowedFolder(tmp_path / "absent").partitions()
    stream, file = FollowedFolder(tmp_path), tmp_path / "log"
    file.write_bytes(b"one\ntwo\n")
    stream.partitions()
    with pytest.raises(NotInStore, match="other is not in file"):
        stream.read("other", 0, 4)

    os.truncate(file, 4)

    with pytest.raises(StoreError, match="has 4 bytes where it had 8: a followed file may only grow"):
        stream.read("log", 4, 8)


@pytest.mark.parametrize(
    ("url", "stream"),
    [
        ("file:///logs?follow", True),
        ("kafka://a:9092,b:9092/clicks", True),
        ("file:///logs", False),
        ("hdfs://namenode:9000/logs", False),
    ],
)
def test_an_address_says_whether_it_is_of_a_stream(url: str, stream: bool) -> None:
    assert is_stream(url) is stream
    if not stream:
        with pytest.raises(StoreError, match="is no stream; give kafka"):
            open_stream(url)


def test_a_topic_needs_a_broker_and_a_name() -> None:
    for url in ("kafka://broker:9092", "kafka://broker:9092/a/b", "kafka:///topic"):
        with pytest.raises(StoreError, match="is no stream; give kafka"):
            open_stream(url)
