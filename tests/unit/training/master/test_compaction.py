"""The log of a stream becomes a base and a checkpoint, whatever is lost meanwhile, and no save walks the table for it."""

from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.config.model import StartFrom, Table
from elastic_ctr.cube.placement import abandoned_versions, versions_to_delete
from elastic_ctr.cube.transfer.catalog import followed_by_checkpoints
from elastic_ctr.store.backends import NotInStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import CheckpointManifest
from elastic_ctr.store.versions.published_files import published_versions, read_checkpoint, read_version
from elastic_ctr.store.versions.safeguards import Hold, Refusal, write_refusal
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.ledger import key_table
from elastic_ctr.training.master.ledger.rows import CompactionRow, HoldRow
from elastic_ctr.training.master.work import publisher
from elastic_ctr.training.master.work.archiver import newest_base
from elastic_ctr.training.master.work.start_from import choose
from training.master.stream_world import StreamWorld
from training.master.world import Pserver

STREAM = {"window_ms": 100, "checkpoint_seconds": 3600, "compact_versions": 3}


def grown(folder: Path, passes: int = 3, **given: Any) -> StreamWorld:
    """A log that is as long as those that are compacted: a base and two deltas, the last of them with a checkpoint by log."""
    one = StreamWorld(folder, stream=STREAM, **given)
    for number in range(passes):
        one.now += 3
        one.append(10)
        one.done(number + 1)
    return one


def goes_on(one: StreamWorld, passes: int = 1, *, seconds: float = 0) -> None:
    """`seconds` go by before each pass."""
    done = sum(each.state == "done" for each in one.ledger.passes.all())
    for number in range(passes):
        one.now += seconds
        one.append(10)
        one.done(done + number + 1)


def all_is_answered(one: StreamWorld) -> None:
    one.until(lambda: one.in_the_table() == one.appended() and one.trained_is_answered())


def under_way(one: StreamWorld) -> CompactionRow:
    found = one.ledger.facts.compaction
    assert found is not None
    return found


def compacted_bases(one: StreamWorld) -> list[int]:
    return [each for each in published_versions(one.store) if read_version(one.store, each).compacts is not None]


def compacted_checkpoints(one: StreamWorld) -> list[CheckpointManifest]:
    return [read_checkpoint(one.store, each["name"]) for each in one.ledger.saves.checkpoints() if each["compacted"]]


def steps(one: StreamWorld) -> list[tuple[str, ...]]:
    return [save.steps for each in one.ledger.passes.all() if (save := one.ledger.saves.of(each.ordinal)) is not None]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[control.Job]:
    """The pservers do not come to the end of a compaction while the list is not empty."""
    waiting = [control.Job()]
    compact, sync = Pserver._compact, Pserver.sync

    def later(self: Pserver, job: control.Job) -> control.JobResult:
        return control.JobResult(id=job.id, error="not yet") if waiting else compact(self, job)

    def tries_again(self: Pserver) -> control.PserverOrders:
        self.results = {name: each for name, each in self.results.items() if not each.error}
        return sync(self)

    monkeypatch.setattr(Pserver, "_compact", later)
    monkeypatch.setattr(Pserver, "sync", tries_again)
    return waiting


def test_the_next_delta_changes_the_new_base_and_has_all_keys_since(tmp_path: Path) -> None:
    one = grown(tmp_path)
    before = one.ledger.saves.chain()
    goes_on(one, 3)

    [base] = compacted_bases(one)
    manifest, followed = read_version(one.store, base), read_version(one.store, before[-1])
    assert (manifest.kind, manifest.base, manifest.parent, manifest.compacts) == ("base", base, None, before[-1])
    assert (manifest.offsets, manifest.samples) == (followed.offsets, followed.samples)
    assert one.ledger.saves.chain()[0] == base
    assert one.trained_is_answered()
    # Nothing but the first base has walked the table.
    assert steps(one) == [("base", "checkpoint"), *5 * [("touched",)]]
    [checkpoint] = compacted_checkpoints(one)
    assert (checkpoint.stands_on, checkpoint.log, checkpoint.pass_ordinal) == (checkpoint.name, (), 3)
    assert one.ledger.facts.compaction is None


def test_its_base_is_archived_with_its_checkpoint_once_both_are_committed(
    tmp_path: Path, slow: list[control.Job]
) -> None:
    one = grown(tmp_path)
    [first, *_] = one.ledger.saves.chain()
    saved = next(each["name"] for each in one.ledger.saves.checkpoints() if each["base"] == each["follows"])
    assert newest_base(one.ledger.saves) == (saved, first)

    slow.clear()
    row = until_committed(one)

    assert newest_base(one.ledger.saves) == (row.name, row.version)
    version, checkpoint = choose(one.store, StartFrom(version=row.version))
    assert (version.version, checkpoint.name) == (row.version, row.name)


def test_deltas_go_on_while_it_is_under_way_and_none_of_their_keys_is_lost(
    tmp_path: Path, slow: list[control.Job]
) -> None:
    one = grown(tmp_path)
    goes_on(one)
    row = under_way(one)
    goes_on(one, 3, seconds=6)
    assert under_way(one) == row
    meanwhile = one.ledger.saves.chain()
    assert one.trained_is_answered()

    slow.clear()
    goes_on(one, 2)

    first = read_version(one.store, one.ledger.saves.chain()[1])
    assert (first.parent, first.base) == (row.version, row.version)
    # It is older than all that was published meanwhile: cube-transfer never builds it for itself.
    assert row.follows < row.version < meanwhile[-1] < first.version
    assert one.trained_is_answered()
    manifests = {each: read_version(one.store, each) for each in published_versions(one.store)}
    assert abandoned_versions(manifests) == ()


@pytest.mark.parametrize("damaged", [False, True])
def test_a_recovery_returns_to_what_it_has_made(tmp_path: Path, damaged: bool) -> None:
    one = grown(tmp_path)
    goes_on(one, 2)
    one.now += 6
    goes_on(one)
    one.until(lambda: len(compacted_checkpoints(one)) == 2)
    # The second one is of the same pass as the checkpoint by log that it began with.
    *_, by_log, compacted = one.ledger.saves.checkpoints()
    assert (compacted["compacted"], compacted["pass"]) == (True, by_log["pass"])
    assert by_log["stands_on"] == compacted_checkpoints(one)[0].name
    if damaged:
        one.damaged = {compacted["name"]}
    one.append(10)
    one.until_trained().work()

    one.pservers[0].restart()
    goes_on(one, 2)

    assert one.coordinator.generation == (3 if damaged else 2)
    assert one.pservers[0].fetched == (by_log if damaged else compacted)["name"]
    all_is_answered(one)


@pytest.mark.parametrize("how", ["master", "pserver", "both"])
def test_it_goes_on_after_a_loss_or_begins_again(tmp_path: Path, slow: list[control.Job], how: str) -> None:
    one = grown(tmp_path)
    goes_on(one)
    row = under_way(one)

    if how != "pserver":
        one.start_master()
    if how != "master":
        one.pservers[0].restart()
        one.append(10)
        one.until(lambda: one.coordinator.generation == 2)
        assert one.ledger.facts.compaction is None
    slow.clear()
    goes_on(one, 4, seconds=6)

    # A later one may have followed.
    bases = compacted_bases(one)
    assert (row.version in bases) == (how == "master")
    assert one.ledger.saves.chain()[0] in bases
    all_is_answered(one)


def test_it_is_given_up_after_a_time_and_when_its_files_are_gone(
    tmp_path: Path, slow: list[control.Job], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = grown(tmp_path)
    goes_on(one)
    late = under_way(one)
    one.now += one.config.save_timeout_seconds + 1
    one.until(lambda: one.ledger.facts.compaction != late)
    assert f"the compaction of {late.log_of} is given up: it takes longer than saveTimeoutSeconds" in caplog.text
    one.now += 6
    goes_on(one, 2)
    gone = under_way(one)

    def read(_: object, name: str) -> CheckpointManifest:
        raise NotInStore(f"checkpoint {name} is not in the store")

    with monkeypatch.context() as patch:
        patch.setattr(publisher, "read_checkpoint", read)
        slow.clear()
        one.until(lambda: one.ledger.facts.compaction != gone)
    assert f"the compaction of {gone.log_of} is given up: " in caplog.text
    assert one.trained_is_answered()


@pytest.mark.parametrize("table", [Table(base_threshold=0.5), Table(delta_keep_days=3)], ids=["threshold", "days"])
def test_a_table_whose_base_leaves_keys_out_is_not_compacted(tmp_path: Path, table: Table) -> None:
    one = grown(tmp_path)
    one.settings = one.settings.model_copy(update={"model": one.settings.model.model_copy(update={"table": table})})
    one.ledger.set_facts(compaction=None)
    one.coordinator.saves.compaction._settings = one.settings
    one.now += 6
    goes_on(one, 3)

    assert one.ledger.facts.compaction is None
    assert len(one.ledger.saves.chain()) == 6


def test_the_checkpoint_that_is_compacted_is_kept(tmp_path: Path, slow: list[control.Job]) -> None:
    one = grown(tmp_path)
    goes_on(one)
    row = under_way(one)
    goes_on(one, 4, seconds=6)

    assert read_checkpoint(one.store, row.log_of).name == row.log_of
    slow.clear()
    goes_on(one, 2)
    one.now += 6
    goes_on(one, 2)
    assert row.log_of not in [each["name"] for each in one.ledger.saves.checkpoints()]


def until_committed(one: StreamWorld) -> CompactionRow:
    def committed() -> bool:
        row = one.ledger.facts.compaction
        return row is not None and row.committed_at is not None

    one.until(committed)
    return under_way(one)


def test_a_version_that_is_refused_while_it_is_under_way_is_in_no_base(tmp_path: Path, slow: list[control.Job]) -> None:
    one = grown(tmp_path)
    goes_on(one)
    row = under_way(one)
    write_refusal(one.store, Refusal(version=row.follows, reason="scores differ", refused_at=0))
    goes_on(one, 2)
    slow.clear()
    goes_on(one, 3)

    base = read_version(one.store, one.ledger.saves.chain()[0])
    assert base.compacts is None
    assert base.version > row.version
    assert row.version not in compacted_bases(one)
    all_is_answered(one)


def test_a_refusal_that_is_found_when_it_would_be_adopted_counts(tmp_path: Path, slow: list[control.Job]) -> None:
    one = grown(tmp_path)
    goes_on(one)
    slow.clear()
    row = until_committed(one)
    write_refusal(one.store, Refusal(version=row.follows, reason="scores differ", refused_at=0))
    goes_on(one, 3)

    base = read_version(one.store, one.ledger.saves.chain()[0])
    assert base.compacts is None
    assert base.version > row.version
    assert one.ledger.facts.compaction is None
    all_is_answered(one)


def test_one_that_was_begun_before_a_day_ended_is_not_adopted_behind_it(
    tmp_path: Path, slow: list[control.Job]
) -> None:
    one = StreamWorld(tmp_path, stream=STREAM)
    one.now = 1_600_041_500
    for number in range(3):
        one.now += 3
        one.append(10)
        one.done(number + 1)
    goes_on(one)
    row = under_way(one)
    one.now += 120
    goes_on(one, 3)
    slow.clear()
    goes_on(one, 3)

    assert ("shrink", "base", "batch", "checkpoint") in steps(one)
    assert row.version not in one.ledger.saves.chain()
    assert read_version(one.store, one.ledger.saves.chain()[0]).compacts is None
    all_is_answered(one)


def test_one_whose_base_is_gone_before_it_is_adopted_makes_room_for_another(
    tmp_path: Path, slow: list[control.Job]
) -> None:
    one = grown(tmp_path)
    goes_on(one)
    slow.clear()
    row = until_committed(one)
    one.store.delete(layout.version_manifest(row.version))
    goes_on(one, 8, seconds=200)

    assert row.version not in one.ledger.saves.chain()
    assert one.ledger.saves.chain()[0] in compacted_bases(one)
    all_is_answered(one)


def test_no_retention_deletes_what_is_committed_and_not_adopted(tmp_path: Path, slow: list[control.Job]) -> None:
    one = grown(tmp_path)
    goes_on(one, 6)
    slow.clear()
    row = until_committed(one)
    one.ledger.set_facts(
        hold=HoldRow(hold=Hold(number=1, suspects=None, reason="worse", held_at=one.now), since=1, announced=True)
    )
    goes_on(one, 3, seconds=901)

    # Held, the table is saved each fifteen minutes, however seldom it is saved else.
    assert steps(one)[-3:] == 3 * [("checkpoint",)]
    assert row.name in [each["name"] for each in one.ledger.saves.checkpoints()]
    manifests = {each: read_version(one.store, each) for each in published_versions(one.store)}
    followed = followed_by_checkpoints(one.store)
    assert row.version not in versions_to_delete(manifests, {}, followed.parents | followed.log, 5)


def test_a_kill_between_its_manifests_leaves_the_base_to_the_checkpoint_that_names_it(
    tmp_path: Path, slow: list[control.Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kill(BaseException):
        pass

    one = grown(tmp_path)
    goes_on(one, 6)
    row = under_way(one)
    put = one.store.put_bytes

    def killed(data: bytes, path: str, **given: Any) -> None:
        put(data, path, **given)
        if row.name in path or path == layout.version_manifest(row.version):
            raise Kill

    for manifests in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(one.store, "put_bytes", killed)
            slow.clear()
            with pytest.raises(Kill):
                goes_on(one)
        there = {each: read_version(one.store, each) for each in published_versions(one.store)}
        followed = followed_by_checkpoints(one.store)
        assert (row.version in there) == (manifests == 2)
        assert row.version not in versions_to_delete(there, {}, followed.parents | followed.log, 5)
        one.start_master()
    goes_on(one, 3)

    assert row.version in compacted_bases(one)
    all_is_answered(one)


def test_many_keys_end_it_before_they_are_forgotten(
    tmp_path: Path, slow: list[control.Job], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Of more tasks than come between two checkpoints by log, and of fewer than these here.
    monkeypatch.setattr(key_table, "_MOST_BYTES", 200)
    one = grown(tmp_path)
    goes_on(one)
    row = under_way(one)
    goes_on(one, 20, seconds=6)

    assert one.ledger.facts.compaction != row
    assert f"the compaction of {row.log_of} is given up: the keys trained since have more than" in caplog.text
    assert {*steps(one)} == {("base", "checkpoint"), ("touched",)}
    assert [each["kind"] for each in one.ledger.saves.versions()].count("base") == 1
    slow.clear()
    all_is_answered(one)


def test_checkpoints_that_a_compaction_needs_are_not_superseded() -> None:
    def row(name: str, ordinal: int, stands_on: str = "") -> dict[str, Any]:
        return {"name": name, "pass": ordinal, "mid": None, "stands_on": stands_on}

    rows = [row("s-0", 1), row("log-500", 500, "s-0"), row("s-505", 505)]

    assert publisher.superseded(rows, 1) == ["log-500", "s-0"]
    assert publisher.superseded(rows, 1, ["log-500", "s-0"]) == []
