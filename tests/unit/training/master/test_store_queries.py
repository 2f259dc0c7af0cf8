from pathlib import Path

import pytest

from elastic_ctr.store.backends import FileStore, NotInStore, StoreUnavailable
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import CheckpointManifest, FileEntry
from elastic_ctr.store.versions.safeguards import Refusal, read_refusals, write_refusal
from elastic_ctr.training.master.generations import store_queries
from elastic_ctr.training.master.generations.store_queries import Pending, StoreQueries
from waiting import Clock


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    made = FileStore(tmp_path)
    made.put_bytes(b"", layout.version_manifest(7))
    return made


def test_a_query_is_answered_once_the_store_was_read_and_the_next_one_reads_it_anew(store: FileStore) -> None:
    questions = StoreQueries(store)
    with pytest.raises(Pending):
        questions.published()

    questions.ask()
    store.put_bytes(b"", layout.version_manifest(8))

    assert questions.published() == ([7], {})
    with pytest.raises(Pending):
        questions.published()
    questions.ask()
    assert questions.published().versions == [7, 8]


def test_an_answer_that_was_not_taken_in_time_is_dropped(store: FileStore) -> None:
    clock = Clock(0.0)
    questions = StoreQueries(store, clock)
    with pytest.raises(Pending):
        questions.published()
    questions.ask()

    clock.now = 11.0

    with pytest.raises(Pending):
        questions.published()


def test_an_expected_query_reads_the_store_anew_each_time_and_is_taken_at_once(store: FileStore) -> None:
    clock = Clock(0.0)
    questions = StoreQueries(store, clock)

    questions.expect_published()
    assert questions.ask()
    store.put_bytes(b"", layout.version_manifest(8))
    questions.expect_published()

    # While publishing was held nobody took the first answer, which is old by now.
    assert questions.ask()
    assert questions.published().versions == [7, 8]
    questions.expect_published()
    questions.ask()
    clock.now = 11.0
    with pytest.raises(Pending):
        questions.published()


def test_a_version_that_is_refused_while_the_store_is_read_is_in_the_answer_of_a_query_expected_since(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = StoreQueries(store)

    def refused_just_behind(store: FileStore) -> dict[int, str]:
        found = read_refusals(store)
        monkeypatch.setattr(store_queries, "read_refusals", read_refusals)
        write_refusal(store, Refusal(version=7, reason="its values differ", refused_at=0.0))
        questions.expect_published()
        return found

    monkeypatch.setattr(store_queries, "read_refusals", refused_just_behind)
    questions.expect_published()
    assert questions.ask()

    with pytest.raises(Pending):
        questions.published()
    assert questions.ask()
    assert questions.published() == ([7], {7: "its values differ"})


def test_a_query_that_is_repeated_while_the_store_is_read_is_answered(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = StoreQueries(store)

    def asked_meanwhile(store: FileStore) -> dict[int, str]:
        with pytest.raises(Pending):
            questions.published()
        return read_refusals(store)

    monkeypatch.setattr(store_queries, "read_refusals", asked_meanwhile)
    with pytest.raises(Pending):
        questions.published()

    assert questions.ask()
    assert questions.published().versions == [7]


def test_a_store_that_is_away_leaves_the_question_open(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    questions = StoreQueries(store)

    def away(_: str) -> list[str]:
        raise StoreUnavailable("it is away")

    with pytest.raises(Pending):
        questions.published()
    with monkeypatch.context() as patched:
        patched.setattr(store, "list", away)
        with pytest.raises(StoreUnavailable):
            questions.ask()
    with pytest.raises(Pending):
        questions.published()
    questions.ask()

    assert questions.published() == ([7], {})


def test_the_rows_of_a_checkpoint_are_its_manifests(store: FileStore) -> None:
    questions = StoreQueries(store)
    with pytest.raises(Pending):
        questions.rows_of("c-g1")
    with pytest.raises(NotInStore):
        questions.ask()
    manifest = CheckpointManifest(
        name="c-g1", pass_id="20200401/00", pass_ordinal=0, follows_version=None, base_version=None, created_at=0.0,
        partitions=2, rows={0: 5, 1: 6}, files=(),
    )  # fmt: skip
    store.put_bytes(manifest.to_json(), layout.checkpoint_manifest("c-g1"))

    questions.ask()

    assert questions.rows_of("c-g1") == {0: 5, 1: 6}


def test_the_store_is_not_read_without_a_query(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "list", None)

    StoreQueries(store).ask()


def test_a_checkpoint_is_whole_when_every_file_of_its_manifest_is_there_with_its_size(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for name in ("new", "middle", "old"):
        entry = FileEntry(path=f"{layout.checkpoint_folder(name)}/000/part-0", bytes=3, sha256="0" * 64)
        store.put_bytes(b"abc", entry.path)
        manifest = CheckpointManifest(
            name=name, pass_id="p", pass_ordinal=1, follows_version=None, base_version=None, created_at=1.0,
            partitions=1, rows={0: 1}, files=(entry,),
        )  # fmt: skip
        store.put_bytes(manifest.to_json(), layout.checkpoint_manifest(name))
    store.put_bytes(b"ab", f"{layout.checkpoint_folder('new')}/000/part-0", overwrite=True)
    store.put_bytes(b"{", layout.checkpoint_manifest("middle"), overwrite=True)
    questions = StoreQueries(store)

    def whole(*names: str) -> str:
        with pytest.raises(Pending):
            questions.whole_checkpoint(names)
        questions.ask()
        return questions.whole_checkpoint(names)

    assert whole("new", "middle", "old") == "old"
    assert whole("new", "middle", "lost") == ""
