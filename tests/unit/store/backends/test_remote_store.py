import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_ctr.store.backends import AlreadyPublished, NotInStore, RetryPolicy, Store, StoreError, StoreUnavailable
from store.backends.memory import MemoryRemote

pytestmark = pytest.mark.usefixtures("no_pauses")
FAULTS = st.lists(st.sampled_from([None, None, "refused", "unheard"]), max_size=12)


def store_over(remote: MemoryRemote, seconds: float = 60.0) -> Store:
    return Store(remote, RetryPolicy(seconds))


def script(remote: MemoryRemote, faults: list[str | None]) -> None:
    """One fault a call, then none."""
    left = iter(faults)
    remote.fault = lambda _: next(left, None)


def once(remote: MemoryRemote, call: str, fault: str) -> None:
    """The first such call fails so, and no other."""
    left = iter([fault])
    remote.fault = lambda name: next(left, None) if name == call else None


def test_it_is_a_store() -> None:
    assert isinstance(store_over(MemoryRemote()), Store)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FAULTS, st.booleans(), st.booleans())
def test_a_put_over_a_bad_line_is_done_once_and_whole_or_refused_for_what_stood_there(
    faults: list[str | None], stood: bool, overwrite: bool
) -> None:
    remote = MemoryRemote()
    store = store_over(remote)
    if stood:
        store.put_bytes(b"theirs", "a/b")
    script(remote, faults)

    refused = False
    try:
        store.put_bytes(b"ours, and longer", "a/b", overwrite=overwrite)
    except AlreadyPublished:
        refused = True

    assert refused == (stood and not overwrite)
    assert remote.files["a/b"][1] == (b"theirs" if refused else b"ours, and longer")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_move_that_was_done_and_not_heard_of_is_done(overwrite: bool) -> None:
    remote = MemoryRemote()
    store = store_over(remote)
    once(remote, "move", "unheard")

    store.put_bytes(b"ours", "a/b", overwrite=overwrite)

    assert {path: data for path, (_, data) in remote.files.items()} == {"a/b": b"ours"}
    assert remote._writes == 1


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_move_that_a_library_did_twice_is_done(overwrite: bool) -> None:
    class Twice(MemoryRemote):
        def move(self, source: str, target: str, *, overwrite: bool) -> None:
            super().move(source, target, overwrite=overwrite)
            super().move(source, target, overwrite=overwrite)

    remote = Twice()

    store_over(remote).put_bytes(b"ours", "a/b", overwrite=overwrite)

    assert {path: data for path, (_, data) in remote.files.items()} == {"a/b": b"ours"}
    assert remote._writes == 1


def test_a_move_that_was_refused_while_another_writer_came_first_is_already_published() -> None:
    remote = MemoryRemote()
    store = store_over(remote)

    def other_writer(name: str) -> str | None:
        if name != "move":
            return None
        remote.fault = lambda _: None
        remote.files["a/b"] = (1000, b"of equal length")
        return "refused"

    remote.fault = other_writer

    with pytest.raises(AlreadyPublished):
        store.put_bytes(b"OF EQUAL LENGTH", "a/b")

    assert {path: data for path, (_, data) in remote.files.items()} == {"a/b": b"of equal length"}


@pytest.mark.parametrize("before", ["stat", "move"])
def test_an_upload_that_is_lost_is_sent_again(before: str) -> None:
    remote = MemoryRemote()
    store = store_over(remote)

    def lose(name: str) -> str | None:
        if name == before and remote.files:
            remote.fault = lambda _: None
            remote.files.clear()
        return None

    remote.fault = lose

    store.put_bytes(b"ours", "a/b")

    assert remote._writes == 2
    assert list(remote.files) == ["a/b"]


def test_an_upload_that_arrives_short_is_never_published() -> None:
    class Torn(MemoryRemote):
        def put(self, content: object, path: str, target: str) -> None:  # noqa: ARG002
            super().put(b"our", path, target)

    remote = Torn()

    with pytest.raises(StoreUnavailable, match=r"a/b cannot be written to memory://: 3 of 4 bytes arrived"):
        store_over(remote, seconds=0).put_bytes(b"ours", "a/b")

    assert remote.files == {}


def test_the_remains_of_a_failed_put_are_swept_away() -> None:
    remote = MemoryRemote()
    store = store_over(remote, seconds=0)
    remote.fault = lambda name: "unheard" if name == "put" else None

    with pytest.raises(StoreUnavailable):
        store.put_bytes(b"ours", "a/b")

    assert remote.files == {}


def test_an_interrupted_put_makes_no_more_calls() -> None:
    remote = MemoryRemote()
    asked: list[str] = []

    def interrupted(name: str) -> str | None:
        asked.append(name)
        if name == "put":
            raise KeyboardInterrupt
        return None

    remote.fault = interrupted

    with pytest.raises(KeyboardInterrupt):
        store_over(remote).put_bytes(b"ours", "a/b")

    assert asked == ["stat", "put"]


def test_every_try_has_a_temporary_name_of_its_own() -> None:
    remote = MemoryRemote()
    store = store_over(remote)
    script(remote, [None, "unheard", None, None, None])

    store.put_bytes(b"ours", "a/b")

    assert remote._writes == 2
    assert list(remote.files) == ["a/b"]


def test_a_local_file_is_read_anew_for_every_try(tmp_path: Path) -> None:
    remote = MemoryRemote()
    store = store_over(remote)
    (tmp_path / "file").write_bytes(b"0123456789")
    once(remote, "put", "refused")

    store.put(tmp_path / "file", "a/b")

    assert store.get_bytes("a/b") == b"0123456789"


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere cannot be published as a/b: No such file"):
        store_over(MemoryRemote()).put(tmp_path / "nowhere", "a/b")


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60), st.integers(0, 70), st.lists(st.integers(0, 40), max_size=6), st.booleans())
def test_a_read_that_breaks_off_goes_on_where_it_was(data: bytes, start: int, breaks: list[int], ignores: bool) -> None:
    remote = MemoryRemote()
    remote.ignores_start = ignores
    store = store_over(remote)
    store.put_bytes(data, "a")
    left = iter(breaks)
    remote.breaks_after = lambda: next(left, None)

    assert b"".join(store.read_from("a", start)) == data[start:]


def test_a_file_that_is_replaced_in_the_middle_of_a_read_is_noticed() -> None:
    remote = MemoryRemote()
    store = store_over(remote)
    store.put_bytes(b"aaaaaaaa", "a")
    left = iter([4])
    remote.breaks_after = lambda: next(left, None)
    blocks = store.read_from("a")

    assert next(blocks) == b"aaaa"
    store.put_bytes(b"bbbbbbbb", "a", overwrite=True)

    with pytest.raises(StoreError, match="a in memory:// was changed while it was read; read it again"):
        next(blocks)


def test_a_donefile_that_is_replaced_while_it_is_read_is_read_again() -> None:
    remote = MemoryRemote()
    store = store_over(remote)
    store.put_bytes(b"old, and long", "donefile")
    numbers = iter([2, 3])

    def replaced() -> int | None:
        number = next(numbers, None)
        if number is not None:
            remote.files["donefile"] = (number, b"new and longer")
        return 4 if number is not None else None

    remote.breaks_after = replaced

    assert store.get_bytes("donefile") == b"new and longer"


def test_a_read_that_is_given_up_lets_go_of_its_answer() -> None:
    remote = MemoryRemote()
    closed = []

    def blocks(data: bytes) -> Iterator[bytes]:
        try:
            yield from [data[:1], data[1:]]
        finally:
            closed.append(True)

    remote._blocks = blocks  # type: ignore[method-assign]
    store = store_over(remote)
    store.put_bytes(b"abc", "a")
    reading = store.read_from("a")
    next(reading)

    reading.close()  # type: ignore[attr-defined]

    assert closed == [True]


def test_patience_begins_anew_when_bytes_came_and_ends_when_none_do(tmp_path: Path) -> None:
    remote = MemoryRemote()
    store = store_over(remote, seconds=0)
    store.put_bytes(bytes(range(40)), "a")
    remote.breaks_after = lambda: 0

    with pytest.raises(StoreUnavailable, match="the line broke"):
        store.get("a", tmp_path / "a")
    assert list(tmp_path.iterdir()) == []

    remote.breaks_after = lambda: 4
    store.get("a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == bytes(range(40))


def test_a_list_shows_no_file_that_is_being_put() -> None:
    remote = MemoryRemote()
    store = store_over(remote)
    for path in ("x/b", "x/a", "x/c/d", "x/.part-17"):
        remote.files[path] = (1, b"")

    assert store.list("x") == ["a", "b", "c/"]
    assert list(store.walk("x")) == ["x/a", "x/b", "x/c/d"]
    assert store.list("x/a") == store.list("nowhere") == []


def test_a_call_is_repeated_until_it_is_answered() -> None:
    remote = MemoryRemote()
    store = store_over(remote)
    store.put_bytes(b"12345", "x/a")
    for ask, answer in (
        (lambda: store.size("x/a"), 5),
        (lambda: store.exists("x/b"), False),
        (lambda: store.exists("x"), True),
        (lambda: store.modified_at("x/a"), 1.0),
        (lambda: store.list("x"), ["a"]),
        (lambda: store.get_bytes("x/a"), b"12345"),
        (lambda: store.delete("x/a"), None),
    ):
        script(remote, ["refused", "unheard"])
        assert ask() == answer
    with pytest.raises(NotInStore):
        store.size("x/a")


def test_the_whole_store_is_not_deleted_and_a_folder_has_no_size() -> None:
    store = store_over(MemoryRemote())
    store.put_bytes(b"", "a/b")

    with pytest.raises(StoreError, match="is the whole of memory://, which is not deleted"):
        store.delete(".")
    with pytest.raises(StoreError, match="a in memory:// is a folder"):
        store.size("a")


def test_no_file_has_a_path_on_this_machine() -> None:
    assert store_over(MemoryRemote()).local_path("a") is None


def test_a_local_file_is_sent_as_a_stream_and_not_read_into_memory(tmp_path: Path) -> None:
    seen: list[object] = []

    class Looking(MemoryRemote):
        def put(self, content: object, path: str, target: str) -> None:
            seen.append(content)
            super().put(content, path, target)  # type: ignore[arg-type]

    (tmp_path / "file").write_bytes(b"123")

    store_over(Looking()).put(tmp_path / "file", "a")

    assert isinstance(seen[0], io.BufferedReader)
