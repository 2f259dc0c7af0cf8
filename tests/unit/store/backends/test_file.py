import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_ctr.store.backends import AlreadyPublished, FileStore, NotInStore, StoreError, StoreUnavailable


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


@settings(deadline=None)
@given(st.binary(max_size=3 << 20), st.integers(0, 4 << 20))
def test_a_file_is_read_from_any_byte_on(tmp_path_factory: pytest.TempPathFactory, data: bytes, offset: int) -> None:
    store = FileStore(tmp_path_factory.mktemp("store"))
    store.put_bytes(data, "a/b")

    assert b"".join(store.read_from("a/b", offset)) == data[offset:]


def test_a_list_is_sorted_and_marks_folders(store: FileStore) -> None:
    for path in ("x/b", "x/a", "x/c/d", "x/c/e/f"):
        store.put_bytes(b"", path)

    assert store.list("x") == ["a", "b", "c/"]
    assert list(store.walk("x")) == ["x/a", "x/b", "x/c/d", "x/c/e/f"]
    assert store.list("nowhere") == store.list("x/a") == []


def test_a_file_being_put_is_not_listed(store: FileStore) -> None:
    store.put_bytes(b"", "x/a")
    (store.root / "x" / ".part-unfinished").write_bytes(b"half")

    assert store.list("x") == ["a"]
    assert list(store.walk("x")) == ["x/a"]


def test_a_sweep_deletes_the_remains_of_cut_off_puts_and_nothing_else(store: FileStore) -> None:
    for path in ("x/a", "x/.hidden", "x/y/b"):
        store.put_bytes(b"", path)
    for left in ("x/.part-0011223344556677", "x/y/.part-8899aabbccddeeff"):
        (store.root / left).write_bytes(b"half")

    store.sweep("x")
    store.sweep("nowhere")

    there = sorted(str(file.relative_to(store.root)) for file in store.root.rglob("*") if file.is_file())
    assert there == ["x/.hidden", "x/a", "x/y/.part-8899aabbccddeeff", "x/y/b"]


def test_a_deleted_folder_is_gone_with_its_content_and_deleting_again_succeeds(store: FileStore) -> None:
    store.put_bytes(b"", "x/c/d")

    for _ in range(2):
        store.delete("x")

    assert not store.exists("x/c/d")
    assert not store.exists("x")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_cannot_be_reached_is_an_error_of_the_store(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    def stale(path: object, *_: object, **__: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    (tmp_path / "source").touch()
    for call in ("stat", "mkdir"):
        monkeypatch.setattr(os, call, stale)

    with pytest.raises(StoreError, match=r"x/a cannot be written to file://.*: Stale file handle"):
        store.put_bytes(b"", "x/a", overwrite=overwrite)
    with pytest.raises(StoreError, match=r"x/a cannot be written to file://.*: Stale file handle"):
        store.put(tmp_path / "source", "x/a", overwrite=overwrite)


def test_a_file_in_a_folders_place_is_an_error_of_the_store_and_nothing_is_published(store: FileStore) -> None:
    store.put_bytes(b"", "x")

    with pytest.raises(StoreError, match="x/a cannot be written to") as failed:
        store.put_bytes(b"", "x/a")

    assert not isinstance(failed.value, AlreadyPublished)


def test_size_and_time_are_the_files(store: FileStore) -> None:
    store.put_bytes(b"12345", "a")
    os.utime(store.root / "a", (7, 7))

    assert store.size("a") == 5
    assert store.modified_at("a") == 7
    assert store.local_path("a") == store.root / "a"


def test_a_published_file_may_be_read_by_every_role(store: FileStore) -> None:
    store.put_bytes(b"", "a")

    assert (store.root / "a").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("ask", ["get_bytes", "size", "modified_at"])
def test_a_missing_file_is_named(store: FileStore, ask: str) -> None:
    with pytest.raises(NotInStore, match=r"a/b is not in file://"):
        getattr(store, ask)("a/b")


def test_a_missing_source_is_named(store: FileStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot be published as a/b"):
        store.put(tmp_path / "nowhere", "a/b")


def test_a_failed_get_leaves_nothing(store: FileStore, tmp_path: Path) -> None:
    with pytest.raises(NotInStore):
        store.get("a", tmp_path / "new" / "target")

    assert list((tmp_path / "new").iterdir()) == []


def test_a_second_put_changes_nothing(store: FileStore) -> None:
    store.put_bytes(b"first", "a")

    with pytest.raises(AlreadyPublished, match="published files are never changed"):
        store.put_bytes(b"second", "a")

    assert store.get_bytes("a") == b"first"


def test_a_folder_that_cannot_be_looked_at_is_a_store_error_and_not_an_empty_one(store: FileStore) -> None:
    store.root.mkdir()
    (store.root / "loop").symlink_to("loop")

    with pytest.raises(StoreError, match="loop cannot be listed"):
        store.list("loop")


PASSING = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there",
    errno.EROFS: "mount it for writing again",
    errno.EIO: "mend the disk",
    errno.ESTALE: "bring its file server back",
    errno.ETIMEDOUT: "bring its file server back",
}


@pytest.mark.parametrize("code", PASSING)
def test_a_disk_that_takes_nothing_for_a_moment_is_unavailable_and_to_be_tried_again(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def full(_: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            StoreUnavailable, match=rf"a/b cannot be written to .*; {PASSING[code]}, and it is tried again"
        ):
            store.put_bytes(b"x", "a/b")
    assert not store.exists("a/b")

    store.put_bytes(b"x", "a/b")

    assert store.list("a") == ["b"]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM])
def test_a_folder_that_may_not_be_written_any_more_is_unavailable_and_to_be_tried_again(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def forbidden(_: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", forbidden)
        with pytest.raises(StoreError) as first:
            store.put_bytes(b"x", "a")
        patch.undo()
        store.put_bytes(b"x", "b")
        patch.setattr(os, "fsync", forbidden)
        with pytest.raises(StoreUnavailable, match="allow this user to write there again, and it is tried again"):
            store.put_bytes(b"x", "c")

    # A folder of somebody else is a wrong setting.
    assert not isinstance(first.value, StoreUnavailable)


def test_a_file_that_the_disk_cannot_read_is_not_waited_for(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be damaged for good, and another copy or checkpoint is there."""
    store.put_bytes(b"x", "a")

    def unreadable(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "open", unreadable)
    with pytest.raises(StoreError, match="a cannot be read from") as failed:
        store.get_bytes("a")

    assert not isinstance(failed.value, StoreUnavailable)


@pytest.mark.parametrize("target", ["nowhere", "file/below", "link"])
def test_a_link_that_leads_nowhere_hides_nothing_beside_it(store: FileStore, target: str) -> None:
    store.put_bytes(b"x", "folder/file")
    (store.root / "folder/link").symlink_to(target)

    assert store.list("folder") == ["file"]


def test_the_newest_change_is_that_of_the_newest_file_at_any_depth_and_a_put_under_way_counts(store: FileStore) -> None:
    for second, path in ((1_000, "x/a"), (3_000, "x/c/d"), (2_000, "x/e")):
        store.put_bytes(b"", path)
        os.utime(store.root / path, (second, second))

    assert store.newest("x") == 3_000
    (store.root / "x" / ".part-unfinished").touch()
    os.utime(store.root / "x" / ".part-unfinished", (4_000, 4_000))
    assert store.newest("x") == 4_000
    assert store.newest("nowhere") == 0


def test_an_empty_folder_is_as_old_as_itself(store: FileStore) -> None:
    (store.root / "x").mkdir(parents=True)
    os.utime(store.root / "x", (5_000, 5_000))

    assert store.newest("x") == 5_000
