import gzip
import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_ctr.formats.blocks import lines_in_range, open_lines
from elastic_ctr.store.backends import NotInStore, RetryPolicy, StoreError
from elastic_ctr.store.backends.source import Source
from elastic_ctr.store.backends.store import FileChanged
from store.backends.memory import MemoryRemote

pytestmark = pytest.mark.usefixtures("no_pauses")


def source_of(**files: bytes) -> tuple[Source, MemoryRemote]:
    remote = MemoryRemote()
    remote.files = {path.replace("__", "/"): (number, data) for number, (path, data) in enumerate(files.items())}
    return Source(remote, RetryPolicy()), remote


def test_a_folder_lists_its_files_with_their_bytes_by_name() -> None:
    source, remote = source_of(day__b=b"12345", day__a=b"", day__sub__x=b"1")
    faults = iter(["refused", "unheard"])
    remote.fault = lambda _: next(faults, None)

    assert source.listing("/day/").files == [("a", 0), ("b", 5)]
    assert source.listing("none").files == source.listing("day/a").files == []
    assert source.listing("/").files == []
    assert source.exists("day/b")
    assert not source.exists("/day/c")


def test_a_file_that_is_not_there_or_is_a_folder_is_named_when_it_is_opened() -> None:
    source, _ = source_of(day__b=b"1")

    with pytest.raises(NotInStore, match="day/c is not in memory://"):
        source.open("day/c")
    with pytest.raises(StoreError, match="day in memory:// cannot be read: it is a folder"):
        source.open("/day")
    with pytest.raises(StoreError, match="is not a path inside the store"):
        source.open("../day")


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=50),
    st.integers(0, 60),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=5),
    st.lists(st.integers(0, 20), max_size=8),
)
def test_a_stream_reads_and_seeks_like_a_local_file_over_a_line_that_breaks(
    data: bytes, start: int, moves: list[tuple[int, int]], breaks: list[int]
) -> None:
    source, remote = source_of(f=data)
    left = iter(breaks)
    remote.breaks_after = lambda: next(left, None)

    with source.open("f", start) as stream:
        assert stream.seekable()
        assert stream.read() == data[start:]
        for at, count in moves:
            assert stream.seek(at) == at
            assert stream.read(count) == data[at : at + count]
        assert stream.seek(0, 2) == len(data)


def test_a_file_that_is_replaced_between_its_opening_and_its_first_read_is_refused() -> None:
    """The footer of a Parquet file is where the size at the opening puts it."""
    source, remote = source_of(f=b"12345")

    with source.open("f") as stream:
        remote.files["f"] = (7, b"54321")
        with pytest.raises(FileChanged, match="f in memory:// was changed while it was read"):
            stream.read()


def test_nothing_is_read_before_it_is_wanted_and_nothing_again_after_a_seek_to_the_same_place() -> None:
    source, remote = source_of(f=bytes(range(20)))

    with source.open("f", 3) as stream:
        assert remote.reads == []
        assert stream.read(1) == b"\3"
        stream.seek(4)
        assert stream.read(3) == b"\4\5\6"
        # The first block ends here. A seek from the end, as readers of Parquet do it, passes the buffer by.
        stream.seek(-13, io.SEEK_END)
        assert stream.read(1) == b"\7"

    assert remote.reads == [3]


@pytest.mark.parametrize("name", ["f", "f.gz"])
def test_lines_of_a_range_are_read_as_of_a_local_file(name: str) -> None:
    lines = b"".join(b"%d 0 17:%d\n" % (number, number) for number in range(50))
    source, remote = source_of()
    remote.files[name] = (1, gzip.compress(lines) if name.endswith(".gz") else lines)
    left = iter([9, 21])
    remote.breaks_after = lambda: next(left, None)

    with source.open(name) as raw:
        cut = 0 if name.endswith(".gz") else 100
        blocks = list(lines_in_range(open_lines(raw, name), cut, None))

    first = lines.index(b"\n", max(cut - 1, 0)) + 1 if cut else 0
    assert b"".join(block for _, block in blocks) == lines[first:]


def test_a_fingerprint_differs_once_a_file_of_the_folder_was_written() -> None:
    source, remote = source_of(day__b=b"12345", day__a=b"")
    before = source.listing("/day/").fingerprint
    assert before == source.listing("day").fingerprint != source.listing("none").fingerprint

    remote.files["day/b"] = (99, b"54321")

    assert source.listing("day").fingerprint != before
