import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cube.published import RemoteStore
from elastic_ctr.cube.agent import cache as module
from elastic_ctr.cube.agent.cache import Cache, FetchStopped
from elastic_ctr.store.backends import FileStore, NotInStore, StoreError
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import DictionaryManifest, ManifestDamaged, OverlayBelow, digest_of
from elastic_ctr.store.versions.published_files import publish
from waiting import Clock

DATA = bytes(range(256)) * 1000


def put_dictionary(store: FileStore, work: Path, version: int, full: int | None = None) -> DictionaryManifest:
    work.mkdir(exist_ok=True)
    files = []
    for partition in range(2):
        (work / "part").write_bytes(bytes([version, partition]) + DATA)
        files.append(publish(store, work / "part", layout.dictionary_part(version, partition)))
    manifest = DictionaryManifest(
        version=version, kind="full" if full is None else "overlay", full_version=full or version,
        base=full or version, parent=full, partitions=2, dim=2, keys=0, files=tuple(files),
    )  # fmt: skip
    store.put_bytes(manifest.to_json(), layout.dictionary_manifest(version))
    return manifest


class Counting(RemoteStore):
    """Remembers from where parts were read, and may stop in the middle."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.offsets: list[int] = []
        self.cut_after: int | None = None

    def read_from(self, path: str, offset: int = 0) -> Iterator[bytes]:
        if path.endswith(".dict"):
            self.offsets.append(offset)
        for sent, block in enumerate(super().read_from(path, offset)):
            step = 65536
            for start in range(0, len(block), step):
                if self.cut_after is not None and sent * len(block) + start >= self.cut_after:
                    raise StoreError("the connection was lost")
                yield block[start : start + step]


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


def cache_of(store: FileStore, tmp_path: Path) -> Cache:
    return Cache(store, tmp_path / "cache", 1e12)


def test_an_overlay_comes_with_the_full_part_below_it(store: FileStore, tmp_path: Path) -> None:
    put_dictionary(store, tmp_path / "work", 7)
    put_dictionary(store, tmp_path / "work", 8, full=7)

    full, overlay = cache_of(RemoteStore(store.root), tmp_path).parts(8, 0)

    assert overlay is not None
    assert full.read_bytes() == b"\x07\x00" + DATA
    assert overlay.read_bytes() == b"\x08\x00" + DATA


def test_a_fetched_part_needs_no_store_after_a_restart(store: FileStore, tmp_path: Path) -> None:
    put_dictionary(store, tmp_path / "work", 7)
    put_dictionary(store, tmp_path / "work", 8, full=7)
    remote = RemoteStore(store.root)
    cache_of(remote, tmp_path).parts(8, 0)
    store.delete("output")

    again = cache_of(remote, tmp_path)

    assert again.cached_partitions(8) == {0}
    assert again.parts(8, 0)[0].exists()
    with pytest.raises(NotInStore):
        again.parts(8, 1)


def test_a_fetch_that_was_cut_off_goes_on_where_it_was(store: FileStore, tmp_path: Path) -> None:
    put_dictionary(store, tmp_path / "work", 7)
    remote = Counting(store.root)
    remote.cut_after = 100_000

    with pytest.raises(StoreError, match="the connection was lost"):
        cache_of(remote, tmp_path).parts(7, 0)
    remote.cut_after = None
    cache = cache_of(remote, tmp_path)
    [full] = cache.parts(7, 0)

    assert full.read_bytes() == b"\x07\x00" + DATA
    assert remote.offsets == [0, 131072]
    assert cache.fetched_bytes == len(full.read_bytes()) - 131072


def _writes() -> int:
    """Calls of write by this process so far."""
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["syscw"])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts calls of write by Linux")
def test_a_part_that_comes_in_small_pieces_is_written_in_large_ones(store: FileStore, tmp_path: Path) -> None:
    """The kernel can keep what is written together in huge pages, in which records are found faster."""
    data = bytes(16 << 20)
    (tmp_path / "part").write_bytes(data)
    file = publish(store, tmp_path / "part", layout.dictionary_part(7, 0))
    manifest = DictionaryManifest(
        version=7, kind="full", full_version=7, base=7, parent=None, partitions=1, dim=2, keys=0, files=(file,)
    )
    store.put_bytes(manifest.to_json(), layout.dictionary_manifest(7))
    remote = Counting(store.root)

    before = _writes()
    [full] = cache_of(remote, tmp_path).parts(7, 0)
    taken = _writes() - before

    assert full.read_bytes() == data
    assert taken < 32, "256 pieces of 64 KB came"


class Breaking(FileStore):
    """Ends every read early, without an error."""

    def read_from(self, path: str, offset: int = 0) -> Iterator[bytes]:
        yield next(super().read_from(path, offset))[:1000]


def test_a_read_that_ends_early_goes_on_at_the_next_try(store: FileStore, tmp_path: Path) -> None:
    put_dictionary(store, tmp_path / "work", 7)

    with pytest.raises(StoreError, match=r"ended after 1000 of 256002 bytes"):
        cache_of(Breaking(store.root), tmp_path).parts(7, 0)

    assert cache_of(store, tmp_path).parts(7, 0)[0].read_bytes() == b"\x07\x00" + DATA


@pytest.mark.parametrize("kind", [FileStore, RemoteStore])
def test_a_part_that_is_cut_short_in_the_store_is_damaged(
    store: FileStore, tmp_path: Path, kind: type[FileStore]
) -> None:
    put_dictionary(store, tmp_path / "work", 7)
    path = store.root / layout.dictionary_part(7, 0)
    path.write_bytes(path.read_bytes()[:1000])

    with pytest.raises(ManifestDamaged, match=r"part-00000\.dict in .* is not what the dictionary's manifest says"):
        cache_of(kind(store.root), tmp_path).parts(7, 0)


@pytest.mark.parametrize("kind", [FileStore, RemoteStore])
def test_a_damaged_part_is_named_and_not_kept_and_a_mended_one_is_taken(
    store: FileStore, tmp_path: Path, kind: type[FileStore]
) -> None:
    put_dictionary(store, tmp_path / "work", 7)
    path = store.root / layout.dictionary_part(7, 0)
    right = path.read_bytes()
    path.write_bytes(right[:-1] + b"\x00")
    cache = cache_of(kind(store.root), tmp_path)

    with pytest.raises(ManifestDamaged, match=r"part-00000\.dict in .* is not what the dictionary's manifest says"):
        cache.parts(7, 0)
    assert [each.name for each in (tmp_path / "cache" / "7").iterdir()] == ["manifest.json"]
    path.write_bytes(right)

    assert cache.parts(7, 0)[0].read_bytes() == right


def test_a_cached_part_shares_no_inode_with_the_store(store: FileStore, tmp_path: Path) -> None:
    put_dictionary(store, tmp_path / "work", 7)

    [full] = cache_of(store, tmp_path).parts(7, 0)
    full.write_bytes(b"damaged")

    assert (store.root / layout.dictionary_part(7, 0)).read_bytes() == b"\x07\x00" + DATA
    assert cache_of(store, tmp_path).parts(7, 0)[0].read_bytes() == b"\x07\x00" + DATA


def test_a_part_that_went_bad_on_this_disk_is_fetched_again(store: FileStore, tmp_path: Path) -> None:
    put_dictionary(store, tmp_path / "work", 7)
    remote = RemoteStore(store.root)
    [full] = cache_of(remote, tmp_path).parts(7, 0)
    full.write_bytes(full.read_bytes()[:-1] + b"\x00")

    [again] = cache_of(remote, tmp_path).parts(7, 0)

    assert again.read_bytes() == b"\x07\x00" + DATA


def test_a_part_that_the_server_refused_is_read_again(store: FileStore, tmp_path: Path) -> None:
    put_dictionary(store, tmp_path / "work", 7)
    cache = cache_of(RemoteStore(store.root), tmp_path)
    [full] = cache.parts(7, 0)
    found = full.stat()
    full.write_bytes(full.read_bytes()[:-1] + b"\x00")
    os.utime(full, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert cache.parts(7, 0)[0].read_bytes()[-1] == 0

    cache.invalidate(7, [0])

    assert cache.parts(7, 0)[0].read_bytes() == b"\x07\x00" + DATA


def test_files_that_no_needed_version_stands_on_are_deleted(store: FileStore, tmp_path: Path) -> None:
    for version, full in ((5, None), (6, None), (7, None), (8, 7)):
        put_dictionary(store, tmp_path / "work", version, full)
    cache = cache_of(store, tmp_path)
    for version in (5, 6, 8):
        cache.parts(version, 0)

    assert sorted(cache.forget([6, 8])) == [5]
    assert sorted(each.name for each in (tmp_path / "cache").iterdir()) == ["6", "7", "8"]
    assert store.exists(layout.dictionary_part(5, 0))


def test_nothing_is_deleted_while_it_is_not_known_what_a_version_stands_on(store: FileStore, tmp_path: Path) -> None:
    put_dictionary(store, tmp_path / "work", 5)
    cache = cache_of(store, tmp_path)
    cache.parts(5, 0)

    assert cache.forget([6]) == []


def test_an_agent_that_ends_leaves_what_it_has_fetched_for_the_next_start(store: FileStore, tmp_path: Path) -> None:
    put_dictionary(store, tmp_path / "work", 7)
    cache = cache_of(Counting(store.root), tmp_path)
    cache.stopped.set()

    with pytest.raises(FetchStopped):
        cache.parts(7, 0)

    assert (tmp_path / "cache" / "7" / "part-00000.part").exists()


class Waiting(threading.Event):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.now += timeout or 0.0
        return False


def test_fetching_keeps_to_its_bytes_a_second(store: FileStore, tmp_path: Path) -> None:
    put_dictionary(store, tmp_path / "work", 7)
    clock = Clock(0.0)
    cache = Cache(RemoteStore(store.root), tmp_path / "cache", 100_000, clock)
    cache.stopped = Waiting(clock)

    cache.parts(7, 0)

    assert clock.now == pytest.approx(256_002 / 100_000)


def test_a_fetched_file_that_cannot_be_read_back_is_fetched_anew(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_dictionary(store, tmp_path / "work", 7)
    remote = Counting(store.root)
    cache = cache_of(remote, tmp_path)

    def lost(path: Path) -> tuple[int, str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(module, "digest_of", lost)
        with pytest.raises(OSError, match="Input/output error"):
            cache.parts(7, 0)

    [own] = cache.parts(7, 0)
    assert remote.offsets == [0, 0]
    assert own.read_bytes() == bytes([7, 0]) + DATA


def test_a_file_that_the_disk_has_lost_is_fetched_anew(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_dictionary(store, tmp_path / "work", 7)
    remote = Counting(store.root)
    cache = cache_of(remote, tmp_path)
    [own] = cache.parts(7, 0)

    def read(path: Path) -> tuple[int, str]:
        if path == own:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return digest_of(path)

    monkeypatch.setattr(module, "digest_of", read)
    # A lost sector changes neither size nor time: it is the server that finds it.
    cache.invalidate(7, [0])

    assert cache.parts(7, 0) == (own,)

    assert remote.offsets == [0, 0]
    assert own.read_bytes() == bytes([7, 0]) + DATA


def put_fold(store: FileStore, work: Path, version: int) -> None:
    """Other full parts of the version, beside its own."""
    work.mkdir(exist_ok=True)
    files = []
    for partition in range(2):
        (work / "part").write_bytes(bytes([100 + version, partition]) + DATA)
        files.append(publish(store, work / "part", layout.dictionary_part(version, partition)))
    fold = DictionaryManifest(
        version=version, kind="full", full_version=version, base=5, parent=5, partitions=2, dim=2, keys=0, files=tuple(files), folded=True,
    )  # fmt: skip
    store.put_bytes(fold.to_json(), layout.dictionary_fold(version))


def test_a_fold_that_is_fetched_beforehand_is_not_fetched_again(store: FileStore, tmp_path: Path) -> None:
    remote, work = Counting(store.root), tmp_path / "work"
    put_dictionary(store, work, 5)
    put_overlay(store, work, 6)
    put_fold(store, work, 6)
    later = put_overlay(store, work, 7).model_copy(update={"full_version": 6, "folded": True})
    store.delete(layout.dictionary_manifest(7))
    store.put_bytes(later.to_json(), layout.dictionary_manifest(7))
    cache = cache_of(remote, tmp_path)

    assert cache.fetch_ahead(6, [0, 1], lambda: False)
    assert cache.forget([5], ahead=6) == []
    fetched = len(remote.offsets)
    full, _ = cache.parts(7, 1)

    assert (full.read_bytes()[:2], fetched, remote.offsets[fetched:]) == (b"\x6a\x01", 2, [0])
    assert sorted(cache.forget([5])) == [6, 7]


def test_other_work_goes_before_a_fold_and_what_was_fetched_of_it_stays(store: FileStore, tmp_path: Path) -> None:
    remote, work = Counting(store.root), tmp_path / "work"
    put_dictionary(store, work, 5)
    put_overlay(store, work, 6)
    put_fold(store, work, 6)
    cache = cache_of(remote, tmp_path)
    blocks = iter([False, False, True])

    assert not cache.fetch_ahead(6, [0, 1], lambda: next(blocks))
    [partial] = (tmp_path / "cache" / "6").glob("*.part")
    got = partial.stat().st_size
    assert not cache.fetch_ahead(6, [0, 1], lambda: True)
    assert cache.fetch_ahead(6, [0, 1], lambda: False)

    assert 0 < got < 2 + len(DATA)
    assert remote.offsets == [0, got, 0]


def put_overlay(
    store: FileStore, work: Path, version: int, below: DictionaryManifest | None = None
) -> DictionaryManifest:
    """Over the full parts of version 5."""
    (work / "overlay").write_bytes(bytes([version]) + DATA)
    entry = publish(store, work / "overlay", layout.dictionary_overlay(version))
    manifest = DictionaryManifest(
        version=version, kind="overlay", full_version=5, base=5, parent=version - 1, partitions=2, dim=2, keys=0, files=(entry,),
        below=None if below is None else OverlayBelow(version=below.version, file=below.files[0]),
    )  # fmt: skip
    store.put_bytes(manifest.to_json(), layout.dictionary_manifest(version))
    return manifest


def test_an_overlay_below_is_fetched_once_and_stays_while_another_lies_over_it(
    store: FileStore, tmp_path: Path
) -> None:
    remote, work = Counting(store.root), tmp_path / "work"
    put_dictionary(store, work, 5)
    below = put_overlay(store, work, 6)
    manifests = [put_overlay(store, work, version, below) for version in (7, 8)]
    cache = cache_of(remote, tmp_path)

    for manifest in manifests:
        cache.fetch_overlays(manifest)
        for partition in range(2):
            layers = cache.parts(manifest.version, partition)
            assert [layer.read_bytes()[0] for layer in layers] == [5, 6, manifest.version]
        assert cache.cached_partitions(manifest.version) == {0, 1}

    assert len(remote.offsets) == 2 + 1 + 2
    assert cache.forget({8}) == [7]
    assert cache.parts(8, 0)[1].exists()
    cache.parts(8, 0)[1].write_bytes(b"damaged")
    cache.invalidate(8, [0])
    assert cache.parts(8, 0)[1].read_bytes()[:1] == b"\x06"
    assert sorted(cache.forget({5})) == [6, 8]
