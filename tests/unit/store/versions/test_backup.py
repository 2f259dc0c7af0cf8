"""Backups: which files they have, in which order these are written, and what a restore refuses."""

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.store.backends import FileStore, Store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.backup import (
    CLICKS,
    LEDGER,
    RELEASE,
    BackedUp,
    BackupRefused,
    Overtaken,
    Part,
    State,
    back_up,
    read_backup,
)
from elastic_ctr.store.versions.manifest import CheckpointManifest, DictionaryManifest, FileEntry, VersionManifest
from elastic_ctr.store.versions.restore import RestoredDatabase, restore


class Killed(BaseException):
    """The process ends here."""


class Mortal(FileStore):
    """A store whose caller is killed in a write, before or after it has happened."""

    left: int | None = None

    def _dies(self) -> bool:
        if self.left is None:
            return False
        self.left -= 1
        return self.left < 0

    def put(self, source: Path, path: str, *, overwrite: bool = False) -> None:
        if self._dies():
            raise Killed
        super().put(source, path, overwrite=overwrite)

    def put_bytes(self, data: bytes, path: str, *, overwrite: bool = False) -> None:
        if self._dies():
            raise Killed
        super().put_bytes(data, path, overwrite=overwrite)

    def delete(self, path: str) -> None:
        if self._dies():
            raise Killed
        super().delete(path)


def database(file: Path, text: str, schema: int = 1) -> Path:
    """A file of SQLite with this text in it."""
    file.unlink(missing_ok=True)
    with closing(sqlite3.connect(file)) as made, made:
        made.execute("create table texts (text)")
        made.execute("insert into texts values (?)", (text,))
        made.execute(f"pragma user_version = {schema}")
    return file


class Release:
    """The store of a release, small enough to look at, and the state of its roles."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = FileStore(folder / "store")
        self.target: Store = FileStore(folder / "backup")
        folder.mkdir(parents=True)
        self.checkpoints: tuple[str, ...] = ()
        self.live, self.newest, self.id, self.schema = 0, 0, "release1", 1
        self.clicks = ""
        self.said: list[str] = []

    def put(self, path: str) -> FileEntry:
        data = f"bytes of {path}".encode()
        self.store.put_bytes(data, path)
        return FileEntry(path=path, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

    def publish(self, version: int, parent: int | None = None, base: int | None = None) -> None:
        """A version whose dictionary has full parts if it is a base, else an overlay over those of the base."""
        base = base or version
        kind = "base" if parent is None else "delta"
        manifest = VersionManifest(
            version=version, kind=kind, base=base, parent=parent, pass_id="p", event_time_max=0, created_at=0.0, partitions=1,
            dim=2, keys=1, slots=(), sparse_dim=None, network="n", samples=0, auc_live=None, auc_published=None,
            cube_files=(self.put(layout.cube_file(version, kind, 0, 1)),),
            model_files=(self.put(layout.sample_file(version)),),
        )  # fmt: skip
        self.store.put_bytes(manifest.to_json(), layout.version_manifest(version))
        dictionary = DictionaryManifest(
            version=version, kind="full" if parent is None else "overlay", full_version=base, base=base, parent=parent,
            partitions=1, dim=2, keys=1, files=(self.put(layout.dictionary_part(version, 0)),),
        )  # fmt: skip
        self.store.put_bytes(dictionary.to_json(), layout.dictionary_manifest(version))
        self.live = self.newest = version

    def checkpoint(self, name: str) -> None:
        manifest = CheckpointManifest(
            name=name, pass_id="p", pass_ordinal=1, follows_version=self.live or None, base_version=None, created_at=0.0,
            partitions=1, rows={0: 1}, files=(self.put(f"{layout.checkpoint_folder(name)}/000/part"),),
        )  # fmt: skip
        self.store.put_bytes(manifest.to_json(), layout.checkpoint_manifest(name))
        self.checkpoints = (name,)

    def state(self) -> State:
        files: dict[Part, Path] = {LEDGER: self.folder / LEDGER, RELEASE: self.folder / RELEASE}
        database(files[LEDGER], f"ledger at {self.newest} with {self.checkpoints}", self.schema)
        files[RELEASE].write_text(f"release at {self.newest}")
        if self.clicks:
            files[CLICKS] = database(self.folder / CLICKS, self.clicks)
        return State(self.id, self.live or None, self.newest, self.checkpoints, files)

    def back_up(self, state: Callable[[], State] | None = None) -> BackedUp:
        scratch = self.folder / "scratch"
        scratch.mkdir(exist_ok=True)
        return back_up(self.store, self.target, state or self.state, scratch, "1.0", self.said.append)


class Empty:
    """A release that has only been made."""

    def __init__(self, folder: Path) -> None:
        self.store = Mortal(folder / "store")
        self.ledger = folder / "master" / "ledger.db"
        self.clicks = folder / "intake" / "clicks.db"
        self.scratch = folder / "master" / "backup"
        self.scratch.mkdir(parents=True)

    def restore(self, backup: Store) -> None:
        places: dict[Part, RestoredDatabase] = {
            LEDGER: RestoredDatabase(self.ledger, 1),
            CLICKS: RestoredDatabase(self.clicks, 1),
        }
        restore(backup, self.store, places, self.scratch, lambda _: None)

    def files(self) -> dict[str, bytes]:
        return contents(self.store)


def contents(store: FileStore) -> dict[str, bytes]:
    return {path: store.get_bytes(path) for top in ("output", "checkpoints") for path in store.walk(top)}


@pytest.fixture
def release(tmp_path: Path) -> Release:
    made = Release(tmp_path / "release")
    made.checkpoint("a-g1")
    made.publish(10)
    made.publish(11, parent=10, base=10)
    made.put(layout.statistics_file("d"))
    made.put(layout.refusal(9))
    return made


@pytest.fixture
def empty(tmp_path: Path) -> Empty:
    return Empty(tmp_path / "empty")


def test_a_restored_release_has_every_published_file_the_ledger_and_the_release_document(
    release: Release, empty: Empty
) -> None:
    done = release.back_up()
    empty.restore(release.target)

    found = empty.files()
    assert found.pop(layout.RESTORED) == (release.folder / RELEASE).read_bytes()
    assert found == contents(release.store)
    assert empty.ledger.read_bytes() == (release.folder / LEDGER).read_bytes()
    assert (done.manifest.live, done.manifest.checkpoint) == (11, "a-g1")


def test_the_next_backup_copies_what_is_new_and_deletes_what_is_no_longer_needed(
    release: Release, empty: Empty
) -> None:
    release.back_up()
    assert release.back_up().files == 0

    release.publish(12, parent=11, base=10)
    release.store.delete(layout.checkpoint_folder("a-g1"))
    release.checkpoint("b-g1")
    done = release.back_up()

    # Two files and two manifests of the version, its part, the checkpoint's two files, ledger and release document.
    assert done.files == 9
    assert not [path for path in release.target.walk("backup") if "a-g1" in path]
    assert len(list(release.target.walk("backup/state"))) == 2
    empty.restore(release.target)
    assert empty.files().keys() - {layout.RESTORED} == contents(release.store).keys()


def test_a_version_that_the_ledger_does_not_know_yet_is_left_out(release: Release) -> None:
    state = release.state()
    release.publish(12, parent=11, base=10)

    manifest = release.back_up(lambda: state).manifest

    assert not [each.path for each in (*manifest.files, *manifest.manifests) if "/12" in each.path]


def test_a_version_that_retention_deletes_meanwhile_is_left_out_with_those_that_stand_on_it(release: Release) -> None:
    release.publish(12, parent=11, base=10)
    release.publish(20)
    release.store.delete(layout.cube_folder(11, "delta"))

    manifest = release.back_up().manifest

    versions = {each.path for each in manifest.manifests if each.path.startswith(layout.VERSIONS)}
    assert versions == {layout.version_manifest(10), layout.version_manifest(20)}


def test_a_backup_begins_again_where_retention_deletes_the_checkpoint_of_the_copied_ledger(
    release: Release, empty: Empty
) -> None:
    before = release.state()
    release.store.delete(layout.checkpoint_folder("a-g1"))
    release.checkpoint("b-g1")
    states = [before]

    done = release.back_up(lambda: states.pop() if states else release.state())

    assert done.manifest.checkpoint == "b-g1"
    assert "the backup begins again with a newer state" in release.said[0]
    empty.restore(release.target)
    assert b"b-g1" in empty.ledger.read_bytes()


def test_a_backup_whose_live_version_is_gone_each_time_fails_and_has_no_manifest(release: Release) -> None:
    release.store.delete(layout.dictionary_folder(11))

    with pytest.raises(Overtaken, match="output/ctr_dict/11"):
        release.back_up()

    assert not release.target.exists("backup/manifest.json")


def killed_at(store: Mortal, write: int, work: Callable[[], object]) -> bool:
    store.left = write
    try:
        work()
    except Killed:
        return True
    finally:
        store.left = None
    return False


def test_a_backup_that_is_killed_in_any_write_is_refused_or_the_one_before_and_the_next_one_is_whole(
    tmp_path: Path,
) -> None:
    write = 0
    while True:
        release = Release(tmp_path / f"release{write}")
        release.target = target = Mortal(tmp_path / f"release{write}/backup")
        release.checkpoint("a-g1")
        release.publish(10)
        # Every second time there is a complete backup already.
        if write % 2:
            release.back_up()
            release.publish(11, parent=10, base=10)
        killed = killed_at(target, write // 2, release.back_up)

        if write % 2 == 0 and killed and not release.target.exists("backup/manifest.json"):
            with pytest.raises(BackupRefused, match="has no complete backup"):
                Empty(tmp_path / f"refused{write}").restore(release.target)
        else:
            earlier = Empty(tmp_path / f"earlier{write}")
            earlier.restore(release.target)
            assert layout.version_manifest(10) in earlier.files()
        assert release.back_up().manifest.live == release.live
        whole = Empty(tmp_path / f"whole{write}")
        whole.restore(release.target)
        assert whole.files().keys() - {layout.RESTORED} == contents(release.store).keys()
        if not killed and write > 1:
            break
        write += 1
    assert write > 20


def test_a_restore_that_is_killed_in_any_write_has_no_ledger_and_is_finished_by_the_next(
    release: Release, tmp_path: Path
) -> None:
    release.back_up()
    write, killed = 0, True
    while killed:
        empty = Empty(tmp_path / f"empty{write}")
        killed = killed_at(empty.store, write, lambda empty=empty: empty.restore(release.target))  # type: ignore[misc]
        assert empty.ledger.exists() != killed
        empty.restore(release.target)
        assert empty.files().keys() - {layout.RESTORED} == contents(release.store).keys()
        assert empty.ledger.exists()
        write += 1
    assert write > 10


def test_a_restore_writes_files_first_then_the_release_document_then_checkpoints_dictionaries_and_versions(
    release: Release, empty: Empty, monkeypatch: pytest.MonkeyPatch
) -> None:
    release.back_up()
    written: list[str] = []
    put = FileStore.put

    def watched(self: FileStore, source: Path, path: str, *, overwrite: bool = False) -> None:
        written.append(path)
        put(self, source, path, overwrite=overwrite)

    monkeypatch.setattr(FileStore, "put", watched)

    empty.restore(release.target)

    manifests = [path for path in written if path.endswith(".json")]
    assert written[-len(manifests) - 1 :] == [*manifests, empty.ledger.name]
    assert manifests == [
        layout.RESTORED,
        layout.checkpoint_manifest("a-g1"),
        *(layout.dictionary_manifest(version) for version in (10, 11)),
        *([layout.refusal(9), layout.statistics_file("d")]),
        *(layout.version_manifest(version) for version in (10, 11)),
    ]


@pytest.mark.parametrize("damage", [None, b"", b"other bytes"])
def test_a_backup_without_one_of_its_files_is_refused_before_anything_is_written(
    release: Release, empty: Empty, damage: bytes | None
) -> None:
    release.back_up()
    file = release.folder / "backup" / "backup/files" / layout.dictionary_part(11, 0)
    file.unlink() if damage is None else file.write_bytes(damage)

    with pytest.raises(BackupRefused, match=r"output/ctr_dict/11/part-00000\.dict.* nothing is restored"):
        empty.restore(release.target)

    assert not empty.files()


@pytest.mark.parametrize("path", [f"files/{layout.dictionary_part(11, 0)}", LEDGER, RELEASE])
def test_a_backup_with_a_changed_byte_is_refused_before_anything_is_written(
    release: Release, empty: Empty, path: str
) -> None:
    places: dict[str, str] = {name: f"state/{each.sha256}" for name, each in release.back_up().manifest.state.items()}
    file = release.folder / "backup/backup" / places.get(path, path)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)

    with pytest.raises(
        BackupRefused, match="has another checksum than the backup names: it is damaged, and nothing is restored"
    ):
        empty.restore(release.target)

    assert not empty.files()
    assert not empty.ledger.exists()


def changed(release: Release, change: Callable[[dict[str, Any]], object]) -> None:
    """Write another manifest of the backup."""
    file = release.folder / "backup/backup/manifest.json"
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda it: it["state"].pop("ledger"), "it names no ledger"),
        (lambda it: it["state"].update(ledgeq=it["state"].pop("release")), "state.ledgeq"),
        (lambda it: it["files"][0].update(path="output/../../../etc/crontab"), "'output/../../../etc/crontab' is not a path of"),
        (lambda it: it["files"][0].update(path="/etc/crontab"), "'/etc/crontab' is not a path of"),
        (lambda it: it["files"][0].update(path="scores/a"), "'scores/a' is not a path of"),
        (lambda it: it["manifests"][0].update(path="output/"), "'output/' is not a path of"),
    ],
)  # fmt: skip
def test_a_manifest_that_no_backup_has_is_refused_before_anything_is_written(
    release: Release, empty: Empty, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    release.back_up()
    changed(release, change)

    with pytest.raises(BackupRefused) as refused:
        empty.restore(release.target)

    assert "backup/manifest.json in file://" in str(refused.value)
    assert reason in str(refused.value)
    assert not empty.files()


@pytest.mark.parametrize("size", [0, 700])
def test_a_manifest_that_is_cut_off_is_refused(release: Release, empty: Empty, size: int) -> None:
    release.back_up()
    file = release.folder / "backup/backup/manifest.json"
    file.write_bytes(file.read_bytes()[:size])

    with pytest.raises(BackupRefused, match=r"backup/manifest\.json in .* is damaged"):
        empty.restore(release.target)


def test_a_ledger_of_a_newer_release_is_refused_before_anything_is_written(release: Release, empty: Empty) -> None:
    release.schema = 2
    release.back_up()

    with pytest.raises(BackupRefused, match=r"the ledger .* number 2 .* up to 1: restore it with release 1\.0, which"):
        empty.restore(release.target)

    assert not empty.files()


def test_a_file_of_an_interrupted_backup_with_other_bytes_is_copied_again(release: Release, empty: Empty) -> None:
    """A release that was restored trains passes again, whose files may have the names and sizes of lost ones."""
    file = release.folder / "backup/backup/files" / layout.dictionary_part(11, 0)
    file.parent.mkdir(parents=True)
    content = release.store.get_bytes(layout.dictionary_part(11, 0))
    file.write_bytes(b"X" + content[1:])

    release.back_up()

    assert file.read_bytes() == content
    empty.restore(release.target)


def test_a_backup_reads_no_file_again_that_it_or_the_complete_one_before_it_has_copied(
    release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, read, read_from = release.state(), set[str](), Store.read_from
    part = layout.dictionary_part(11, 0)
    release.store.delete(layout.checkpoint_folder("a-g1"))
    release.checkpoint("b-g1")
    states = [old]

    def watched(self: Store, path: str, offset: int = 0) -> Iterator[bytes]:
        read.add(path)
        return read_from(self, path, offset)

    monkeypatch.setattr(Store, "read_from", watched)

    # Begins again, because the checkpoint of the first state is gone.
    release.back_up(lambda: states.pop() if states else release.state())
    release.back_up()

    assert release.said
    assert release.target.exists(f"backup/files/{part}")
    assert f"backup/files/{part}" not in read


def test_a_file_of_an_interrupted_restore_with_other_bytes_is_restored_again(release: Release, empty: Empty) -> None:
    release.back_up()
    document = (release.folder / RELEASE).read_bytes()
    empty.store.put_bytes(b"X" + document[1:], layout.RESTORED)
    path = layout.dictionary_part(11, 0)
    empty.store.put_bytes(b"X" + release.store.get_bytes(path)[1:], path)

    empty.restore(release.target)

    assert empty.files().pop(layout.RESTORED) == document
    assert empty.store.get_bytes(path) == release.store.get_bytes(path)


def test_the_log_of_a_lost_ledger_is_not_played_into_the_restored_one(release: Release, empty: Empty) -> None:
    release.back_up()
    with closing(sqlite3.connect(empty.ledger)) as lost:
        lost.execute("pragma journal_mode = wal")
        lost.execute("create table texts (text)")
        log = empty.ledger.with_name("ledger.db-wal")
        kept = log.read_bytes()
    empty.ledger.unlink()
    log.write_bytes(kept)

    empty.restore(release.target)

    with closing(sqlite3.connect(empty.ledger)) as restored:
        assert restored.execute("select text from texts").fetchone() == ("ledger at 11 with ('a-g1',)",)


def test_another_log_of_clicks_is_not_overwritten(release: Release, empty: Empty) -> None:
    release.clicks = "clicks of the backup"
    release.back_up()
    empty.clicks.parent.mkdir()
    database(empty.clicks, "newer clicks")
    before = empty.clicks.read_bytes()

    with pytest.raises(BackupRefused, match=r"clicks\.db is there already, so this release is not empty"):
        empty.restore(release.target)

    assert empty.clicks.read_bytes() == before
    assert not empty.files()
    empty.clicks.write_bytes((release.folder / CLICKS).read_bytes())
    empty.restore(release.target)
    assert empty.ledger.exists()


def test_files_beside_a_backup_stay(release: Release) -> None:
    release.target.put_bytes(b"notes", "backup/readme.txt")
    release.target.put_bytes(b"left", "backup/files/output/left")

    release.back_up()

    assert release.target.exists("backup/readme.txt")
    assert not release.target.exists("backup/files/output/left")


def test_a_restore_that_is_repeated_changes_nothing(release: Release, empty: Empty) -> None:
    release.back_up()
    empty.restore(release.target)
    before = {path: path.stat().st_mtime_ns for path in empty.store.root.rglob("*")}

    empty.restore(release.target)

    assert {path: path.stat().st_mtime_ns for path in empty.store.root.rglob("*")} == before


def test_a_release_that_is_not_empty_is_refused(release: Release, empty: Empty) -> None:
    release.back_up()
    empty.store.put_bytes(b"", layout.version_manifest(7))
    with pytest.raises(BackupRefused, match=r"has output/versions/7\.json, which is not of the backup"):
        empty.restore(release.target)

    empty.store.delete(layout.version_manifest(7))
    empty.ledger.write_text("trained on")
    with pytest.raises(BackupRefused, match=r"ledger\.db is there already"):
        empty.restore(release.target)


def test_the_address_of_another_releases_backup_is_refused(release: Release) -> None:
    release.back_up()
    release.id = "release2"

    with pytest.raises(BackupRefused, match="has the backup of another release"):
        release.back_up()


def test_a_backup_of_a_newer_release_is_refused_with_the_way_out(release: Release, empty: Empty) -> None:
    release.back_up()
    changed(release, lambda it: it.update(schemaNumber=2, unknown=1))

    with pytest.raises(BackupRefused, match="has schema number 2 and this release knows up to 1: restore it with"):
        read_backup(release.target)


def _paths(entries: Sequence[FileEntry]) -> list[str]:
    return [each.path for each in entries]


def test_the_live_version_and_the_checkpoint_are_copied_before_all_others(release: Release) -> None:
    release.publish(12, parent=11, base=10)
    release.live = 11

    manifest = release.back_up().manifest

    assert _paths(manifest.manifests)[:4] == [
        layout.dictionary_manifest(10),
        layout.dictionary_manifest(11),
        layout.version_manifest(11),
        layout.checkpoint_manifest("a-g1"),
    ]
