"""`model.startFrom` in the master: what a new ledger begins with, what it refuses, and a copy that was cut off."""

import gzip
import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.config.model import Model, StartFrom
from elastic_ctr.config.training_settings import MasterConfig
from elastic_ctr.features.statistics.document import NumberStatistics, Statistics
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.backends.source import FileSource
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import (
    CheckpointManifest,
    FileEntry,
    Origin,
    PassQuality,
    Quality,
    StreamPosition,
    VersionManifest,
)
from elastic_ctr.store.versions.published_files import published_versions, read_checkpoint, read_version
from elastic_ctr.store.versions.safeguards import Refusal, write_refusal
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.ledger.rows import StartedFrom, WindowQuality
from elastic_ctr.training.master.server import Master
from elastic_ctr.training.master.work import start_from
from training.master.world import DIM, MODEL, World, data_of, settings_of, world

SLOTS = ("a", "b")
OFFSET, SHIFT = -2.5, 0.125
ROW = b"7 1 0 0 1 1 0.5 0 0 0.9 0.99 0.1 0 0 0.9 0.99\n"


class OtherModel:
    """A store with versions and checkpoints, small enough to look at."""

    def __init__(self, folder: Path) -> None:
        self.store = FileStore(folder)

    def put(self, path: str, data: bytes, records: int = 0) -> FileEntry:
        self.store.put_bytes(data, path)
        return FileEntry(path=path, bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), records=records)

    def publish(
        self, version: int, kind: str, hour: int, parent: int | None = None, *, checkpoint: bool = True
    ) -> None:
        files = [self.put(f"{layout.model_folder(version)}/{name}", b"network") for name in layout.NETWORK]
        manifest = VersionManifest(
            version=version, kind=kind, base=version if parent is None else 1, parent=parent, pass_id=f"20200401/0{hour}",
            event_time_max=1, created_at=hour, partitions=MODEL.partitions, dim=DIM, keys=1, slots=SLOTS, sparse_dim=None,
            network="deepfm", cube_files=(), model_files=files, samples=1, auc_live=None, auc_published=None,
        )  # fmt: skip
        self.put(layout.version_manifest(version), manifest.to_json())
        if checkpoint:
            self.checkpoint(f"20200401-0{hour}-g1", version if kind == "base" else parent, hour)

    def checkpoint(self, name: str, follows: int | None, hour: int, **changes: Any) -> None:
        folder = layout.checkpoint_folder(name)
        files = [
            self.put(f"{folder}/000/part-000-{number:05d}.gz", gzip.compress(ROW if number == 3 else b""), number == 3)
            for number in range(MODEL.partitions)
        ]
        files.append(self.put(f"{folder}/001/part-000.gz", gzip.compress(b"0.1 0 0\n")))
        manifest = CheckpointManifest(
            name=name, pass_id=f"20200401/0{hour}", pass_ordinal=hour, follows_version=follows, base_version=1,
            created_at=hour, partitions=MODEL.partitions, rows={0: 0, 1: 0, 2: 0, 3: 1}, files=tuple(files),
            offset=OFFSET, shift=SHIFT, model=start_from.trained_model(MODEL, settings_of(data=data_of(slots=list(SLOTS))).input),
        ).model_copy(update=changes)  # fmt: skip
        self.put(layout.checkpoint_manifest(name), manifest.to_json())


@pytest.fixture
def other(tmp_path: Path) -> OtherModel:
    made = OtherModel(tmp_path / "other")
    made.publish(1, "base", 1)
    made.publish(2, "delta", 2, parent=1)
    made.publish(3, "delta", 3, parent=2, checkpoint=False)
    return made


class Begun:
    def __init__(self, folder: Path, other: OtherModel, *, slots: tuple[str, ...] = SLOTS, **model: Any) -> None:
        given = {"startFrom": {"store": other.store.url, "version": "latest"}, **model}
        changed = {**MODEL.model_dump(by_alias=True, exclude={"start_from"}), **given}
        (folder / "own").mkdir(exist_ok=True)
        (folder / "days").mkdir(exist_ok=True)
        self.store = FileStore(folder / "own")
        self.other = other
        self.settings = settings_of(
            data=data_of(path="/days", slots=list(slots)),
            model=Model.model_validate(changed),
            master=MasterConfig(state_dir=str(folder / "state")),
        )
        self.master = Master(self.settings, source=FileSource(folder), store=self.store)

    @property
    def ledger(self) -> Ledger:
        return self.master._ledger

    def copy(self, said: list[str] | None = None, stop: threading.Event | None = None) -> bool:
        sentences = [] if said is None else said
        copy = self.master._start_copy(self.other.store.url, lambda waits, error: sentences.append(error or waits))
        return copy.run(stop or threading.Event())

    def close(self) -> None:
        self.ledger.close()
        self.master._lock.release()


@pytest.fixture
def begun(tmp_path: Path, other: OtherModel) -> Iterator[Begun]:
    made = Begun(tmp_path, other)
    yield made
    made.close()


def test_latest_is_the_newest_version_that_has_a_checkpoint_and_its_offset_comes_along(begun: Begun) -> None:
    assert begun.copy()

    facts = begun.ledger.facts
    assert facts.started_from is not None
    assert (facts.started_from.version, facts.started_from.dense, facts.offset, facts.started_from.shift) == (
        2,
        True,
        OFFSET,
        SHIFT,
    )
    manifest = read_checkpoint(begun.store, facts.started_from.name)
    assert manifest.rows == {0: 0, 1: 0, 2: 0, 3: 1}
    assert [entry.path.split("/", 2)[2] for entry in manifest.files if "/001/" in entry.path] == ["001/part-000.gz"]
    assert begun.master._coordinator._generations.last_checkpoint == facts.started_from.name
    assert not begun.master._coordinator._generations.take_over


def test_the_dense_part_of_another_network_is_left_out_and_its_network_copied(
    tmp_path: Path, other: OtherModel
) -> None:
    begun = Begun(tmp_path, other, slots=("b", "c"))
    assert begun.copy()

    started = begun.ledger.facts.started_from
    assert started is not None
    manifest = read_checkpoint(begun.store, started.name)
    assert {entry.path.split("/")[2] for entry in manifest.files} == {"000", "network"}
    assert begun.master._coordinator._generations.take_over == started.name
    begun.close()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"embeddingDim": 5}, "embeddingDim 2 there, 5 here"),
        ({"partitions": 6}, "partitions 4 there, 6 here"),
        ({"sparseDim": 1000}, "sparseDim null there, 1000 here"),
        ({"table": {"embedx": {"name": "adagrad"}}}, "table.embedx.name adam there, adagrad here"),
    ],
)
def test_another_table_is_refused_and_the_corrected_settings_start(
    tmp_path: Path, other: OtherModel, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match="has another table") as refused:
        Begun(tmp_path, other, **changes)
    assert sentence in str(refused.value)

    begun = Begun(tmp_path, other)
    assert begun.copy()
    begun.close()


def test_a_version_that_is_gone_or_has_no_checkpoint_is_named_with_those_that_have(
    tmp_path: Path, other: OtherModel
) -> None:
    url = other.store.url
    with pytest.raises(ValueError, match=r"version 9 is not in .*; the newest there are 1, 2, 3"):
        Begun(tmp_path, other, startFrom={"store": url, "version": 9})
    with pytest.raises(ValueError, match=r"version 3 in .* has its checkpoint no more; 2, 1 have one"):
        Begun(tmp_path, other, startFrom={"store": url, "version": 3})
    with pytest.raises(ValueError, match="has no version"):
        Begun(tmp_path, OtherModel(tmp_path / "empty"))


def test_a_checkpoint_in_mid_pass_is_of_no_version(tmp_path: Path, other: OtherModel) -> None:
    other.checkpoint("20200401-03-g1", 2, 3, mid=True)

    begun = Begun(tmp_path, other)

    assert begun.ledger.facts.started_from is not None
    assert begun.ledger.facts.started_from.version == 2
    begun.close()


def test_a_copy_that_was_cut_off_goes_on_with_the_next_master(tmp_path: Path, other: OtherModel, begun: Begun) -> None:
    stop = threading.Event()
    stop.set()
    assert not begun.copy(stop=stop)
    started = begun.ledger.facts.started_from
    assert started is not None
    begun.close()
    folder = layout.checkpoint_folder("20200401-02-g1")
    data = other.store.get_bytes(f"{folder}/000/part-000-00003.gz")
    begun.store.put_bytes(data, f"{layout.checkpoint_folder(started.name)}/000/part-000-00003.gz")
    other.publish(4, "base", 4)

    again = Begun(tmp_path, other)
    assert again.copy()

    assert again.ledger.facts.started_from == started.model_copy(update={"copied": True})
    assert read_checkpoint(again.store, started.name).rows[3] == 1
    again.close()


def test_a_damaged_file_is_named_and_the_copy_goes_on_once_it_is_back(
    other: OtherModel, begun: Begun, monkeypatch: Any
) -> None:
    monkeypatch.setattr(start_from, "_AGAIN_SECONDS", 0.01)
    file = other.store.root / layout.checkpoint_folder("20200401-02-g1") / "000/part-000-00003.gz"
    whole, said = file.read_bytes(), []
    file.write_bytes(whole[:-1] + b"?")

    def mend(sentence: str) -> None:
        said.append(sentence)
        if "is not what its manifest says" in sentence:
            file.write_bytes(whole)

    copy = begun.master._start_copy(other.store.url, lambda waits, error: mend(error or waits))
    assert copy.run(threading.Event())

    assert any("part-000-00003.gz" in each and "put the file back" in each for each in said)


def deleted_by_retention(other: OtherModel) -> None:
    """The checkpoint of versions 2 and 3; a newer version with its own is there."""
    other.publish(4, "base", 4, checkpoint=False)
    other.checkpoint("20200401-04-g1", 4, 4, offset=OFFSET - 1)
    other.store.delete(layout.checkpoint_manifest("20200401-02-g1"))
    other.store.delete(layout.checkpoint_folder("20200401-02-g1"))


def cut_off(begun: Begun, other: OtherModel) -> StartedFrom:
    """A copy of version 2 of which one file is there."""
    started = begun.ledger.facts.started_from
    assert started is not None
    path = f"{layout.checkpoint_folder('20200401-02-g1')}/000/part-000-00003.gz"
    copied = f"{layout.checkpoint_folder(started.name)}/000/part-000-00003.gz"
    begun.store.put_bytes(other.store.get_bytes(path), copied)
    return started


def test_latest_is_chosen_again_when_the_checkpoint_is_gone_before_it_is_copied(
    other: OtherModel, begun: Begun
) -> None:
    before = cut_off(begun, other)
    deleted_by_retention(other)

    assert begun.copy()

    facts = begun.ledger.facts
    assert facts.started_from is not None
    assert (facts.started_from.version, facts.offset, facts.started_from.copied) == (4, OFFSET - 1, True)
    assert begun.store.exists(layout.checkpoint_manifest(facts.started_from.name))
    assert begun.store.list(layout.checkpoint_folder(before.name)) == []
    assert begun.master._coordinator._generations.last_checkpoint == facts.started_from.name


def test_latest_waits_while_nothing_is_there_to_be_chosen(other: OtherModel, begun: Begun, monkeypatch: Any) -> None:
    monkeypatch.setattr(start_from, "_AGAIN_SECONDS", 0.01)
    before, said = begun.ledger.facts, []
    for name in ("20200401-01-g1", "20200401-02-g1"):
        other.store.delete(layout.checkpoint_manifest(name))

    def publish(sentence: str) -> None:
        said.append(sentence)
        if "no version" in sentence and not other.store.exists(layout.version_manifest(4)):
            assert begun.ledger.facts == before
            other.publish(4, "base", 4)

    assert begun.master._start_copy(other.store.url, lambda waits, error: publish(error or waits)).run(
        threading.Event()
    )

    assert any("no version in" in each and "keepCheckpoints" in each for each in said)
    assert begun.master.status().to_dict()["startedFrom"]["version"] == 4


def test_a_named_version_whose_checkpoint_is_gone_names_the_way_out_which_works(
    tmp_path: Path, other: OtherModel
) -> None:
    url = other.store.url
    begun, stop, said = Begun(tmp_path, other, startFrom={"store": url, "version": 2}), threading.Event(), []
    cut_off(begun, other)
    deleted_by_retention(other)

    def end(sentence: str) -> None:
        said.append(sentence)
        stop.set()

    assert not begun.master._start_copy(url, lambda waits, error: end(error or waits)).run(stop)
    assert "20200401-02-g1" in said[-1]
    assert "set model.startFrom.version to latest or to another version and restart the master" in said[-1]
    begun.close()

    for version, expected in ((1, 1), ("latest", 1), (4, 4)):
        again = Begun(tmp_path, other, startFrom={"store": url, "version": version})
        started = again.master.status().to_dict()["startedFrom"]
        assert (started["version"], started["ignored"]) == (expected, "")
        if version == 4:
            assert again.copy()
        again.close()


@pytest.mark.parametrize(
    ("url", "following"),
    [
        ("kafka://broker:9092/clicks", {"0": 40, "1": 7}),
        ("kafka://other:9092/clicks", None),
        ("kafka://broker:9092/shows", None),
        ("file:///clicks?follow", None),
    ],
)
def test_a_stream_goes_on_behind_what_the_other_model_has_learned(
    tmp_path: Path, other: OtherModel, url: str, following: dict[str, int] | None
) -> None:
    other.publish(4, "base", 4, checkpoint=False)
    position = StreamPosition(url="kafka://broker:9092/clicks", following={"0": 40, "1": 7})
    other.checkpoint("20200401-04-g1", 4, 4, stream=position)
    settings = settings_of(
        data=data_of(slots=list(SLOTS), source={"url": url}, start="latest", end=None),
        model=MODEL.model_copy(update={"start_from": StartFrom(version="latest")}),
    )
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        with ledger:
            start_from.begin(ledger, settings, FileStore(tmp_path / "own"), other.store, 1)
        begins = ledger.facts.stream

    assert (None if begins is None else begins.following) == following


def test_windows_of_the_other_model_are_those_of_its_versions_that_were_not_refused(other: OtherModel) -> None:
    """The newest first; a version of hours, or without figures, is none."""
    figures = {"logloss": 0.5, "predicted_ctr": 0.2, "observed_ctr": 0.2, "bucket_error": None, "mae": 0.3, "rmse": 0.4}
    for version, auc in ((11, 0.81), (12, 0.5), (13, 0.82), (14, None)):
        before = Quality(shows=100, clicks=20, auc=auc, calibration=1.1, **figures)
        manifest = read_version(other.store, 1).model_copy(
            update={"version": version, "offsets": {"0": (version, version + 1)}, "quality": PassQuality(before=before)}
        )
        other.put(layout.version_manifest(version), manifest.to_json())
    write_refusal(other.store, Refusal(version=12, reason="it was worse", refused_at=1.0))

    assert start_from.windows_of(other.store) == (WindowQuality(100, 20, 0.82, 1.1), WindowQuality(100, 20, 0.81, 1.1))


def test_a_new_ledger_gives_no_version_again_that_an_older_master_has_begun(tmp_path: Path, other: OtherModel) -> None:
    """It was ended before it had written the manifest, and a stream's ids run ahead of the clock."""
    begun = 99_999_999_999
    (tmp_path / "own").mkdir()
    FileStore(tmp_path / "own").put_bytes(b"", f"{layout.model_folder(begun)}/network.pdiparams")

    one = Begun(tmp_path, other)

    assert one.ledger.facts.last_version == begun
    one.close()


def test_a_ledger_that_began_with_another_store_gives_none_of_its_names_again(
    tmp_path: Path, other: OtherModel
) -> None:
    """It may go on with the archive that it began with."""
    begun = 99_999_999_999
    other.store.put_bytes(b"", f"{layout.model_folder(begun)}/network.pdiparams")
    other.checkpoint("20200401-03-g7", 3, 3)

    one = Begun(tmp_path, other)

    assert (one.ledger.facts.last_version, one.ledger.facts.generation) == (begun, 8)
    one.close()


def test_a_stream_whose_store_is_lost_gives_ids_above_those_that_pods_may_still_have(
    tmp_path: Path, other: OtherModel
) -> None:
    """Two versions in each window since the base was made, which was after its id was given."""
    other.publish(4, "base", 4, checkpoint=False)
    url = "kafka://broker:9092/clicks"
    other.checkpoint("20200401-04-g1", 4, 4, stream=StreamPosition(url=url, following={"0": 40}))
    made = time.time() - 600
    manifest = read_version(other.store, 4).model_copy(update={"created_at": made})
    other.store.put_bytes(manifest.to_json(), layout.version_manifest(4), overwrite=True)
    stream = {"source": {"url": url}, "start": "latest", "end": None, "stream": {"windowMs": 500}}
    settings = settings_of(
        data=data_of(slots=list(SLOTS), **stream),
        model=MODEL.model_copy(update={"start_from": StartFrom(version="latest")}),
    )
    with closing(Ledger(tmp_path / "ledger.db")) as ledger:
        with ledger:
            start_from.begin(ledger, settings, FileStore(tmp_path / "own"), other.store, 1)
        last = ledger.facts.last_version

    seconds = 600 + settings.master.save_timeout_seconds
    assert 4 + 4 * seconds <= last < 4 + 4 * (seconds + 60)


def test_an_existing_ledger_ignores_another_wish_and_says_so(tmp_path: Path, other: OtherModel, begun: Begun) -> None:
    assert begun.copy()
    assert begun.master.status().to_dict()["startedFrom"]["ignored"] == ""
    begun.close()

    again = Begun(tmp_path, other, startFrom={"store": other.store.url, "version": 1})

    started = again.master.status().to_dict()["startedFrom"]
    assert started["version"] == 2
    assert "is ignored: this training began with version 2" in started["ignored"]
    again.close()


def begun_world(folder: Path) -> World:
    """A whole training whose ledger has begun with a copy: a table in which a record of before was trained five times."""
    one = world(folder)
    started = StartedFrom(store="file:///other", version=1, checkpoint="c", name="start-1-g1", dense=False, shift=SHIFT)
    manifest = CheckpointManifest(
        name=started.name, pass_id="20200331/23", pass_ordinal=0, follows_version=None, base_version=None, created_at=1,
        partitions=MODEL.partitions, rows=dict.fromkeys(range(MODEL.partitions), 5), files=(),
        origin=Origin(store=started.store, version=1, checkpoint="c", dense=False),
    )  # fmt: skip
    one.store.put_bytes(manifest.to_json(), layout.checkpoint_manifest(started.name))
    one.checkpoints[started.name] = {"before": 5}
    one.ledger.set_facts(started_from=started, offset=OFFSET)
    one.coordinator.found.start_copied()
    return one


def test_a_server_lost_before_the_first_save_is_a_recovery_to_where_the_model_began(tmp_path: Path) -> None:
    one = begun_world(tmp_path)
    one.until_phase(control.TRAIN).report()

    one.pservers[0].restart()
    one.pservers[0].sync()

    assert one.coordinator._generations.take_over == "start-1-g1"
    one.finish()
    counted = one.ledger.passes.counted()
    assert counted["trained"] == counted["records"]
    assert counted["rolledBack"] > 0
    assert one.trained().pop("before") == 5
    assert set(one.trained().values()) == {1}
    assert one.coordinator._generations.take_over == ""


def test_the_first_version_is_a_base_and_what_is_predicted_before_it_has_the_old_calibration(tmp_path: Path) -> None:
    one = begun_world(tmp_path)

    one.finish()

    first = read_version(one.store, published_versions(one.store)[0])
    assert (first.kind, first.parent) == ("base", None)
    manifest = read_checkpoint(one.store, one.ledger.saves.checkpoints()[-1]["name"])
    assert (manifest.offset, manifest.mid, manifest.origin) == (OFFSET, False, None)
    assert one.ledger.facts.offset == OFFSET


def test_checkpoints_of_the_old_model_stay_until_the_new_one_has_committed_its_own(tmp_path: Path) -> None:
    one = begun_world(tmp_path)
    older = CheckpointManifest(
        name="20200331-22-g1", pass_id="20200331/22", pass_ordinal=9, follows_version=None, base_version=None, created_at=0.5,
        partitions=MODEL.partitions, rows={}, files=(),
    )  # fmt: skip
    one.store.put_bytes(older.to_json(), layout.checkpoint_manifest(older.name))
    one.publisher.begin()
    assert one.store.exists(layout.checkpoint_manifest(older.name))

    one.finish()

    assert not one.store.exists(layout.checkpoint_manifest(older.name))


def number(mean: float) -> NumberStatistics:
    return NumberStatistics(
        rows=4097, missing=0, distinct=1, min=mean, max=mean, mean=mean, deviation=0, quantiles=(mean,) * 4097
    )


def test_series_that_the_old_model_has_keep_its_statistics() -> None:
    old = Statistics(texts={}, numbers={"price": number(1), "gone": number(2)})
    new = Statistics(texts={}, numbers={"price": number(3), "age": number(4)})

    kept = start_from.kept_series(old, new)

    assert {name: each.mean for name, each in kept.numbers.items()} == {"price": 1, "age": 4}
