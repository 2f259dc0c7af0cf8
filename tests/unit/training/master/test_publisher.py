from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_ctr.store.backends import StoreError
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.donefile import read_donefile
from elastic_ctr.store.versions.published_files import published_versions, read_checkpoint, read_version
from elastic_ctr.training.control import control_pb2 as control
from training.master.world import KEYS, MODEL, RECORDS, World, data_of, values_of


def watched(one: World) -> list[str]:
    """Paths in the order in which the store is written to."""
    paths: list[str] = []
    put_bytes = one.store.put_bytes

    def put(data: bytes, path: str, *, overwrite: bool = False) -> None:
        put_bytes(data, path, overwrite=overwrite)
        paths.append(path)

    one.store.put_bytes = put  # type: ignore[method-assign]
    return paths


def kinds(paths: list[str]) -> list[str]:
    return [
        "checkpoint" if p.startswith("checkpoints") else "donefile" if "donefile" in p else "version" for p in paths
    ]


def test_a_base_is_committed_before_its_checkpoint(tmp_path: Path) -> None:
    one = World(tmp_path, data_of(end="20200401/00"))
    paths = watched(one)

    one.finish()

    assert kinds(paths) == ["version", "donefile", "checkpoint"]


def test_a_delta_is_committed_after_its_checkpoint(tmp_path: Path) -> None:
    one = World(tmp_path)
    paths = watched(one)

    one.finish()

    assert kinds(paths) == ["version", "donefile", "checkpoint", "checkpoint", "version", "donefile"]


def test_the_manifest_says_what_was_published(tmp_path: Path) -> None:
    one = World(tmp_path)

    one.finish()

    base, delta = (read_version(one.store, version) for version in published_versions(one.store))
    assert (base.kind, base.base, base.parent) == ("base", base.version, None)
    assert (delta.kind, delta.base, delta.parent) == ("delta", base.version, base.version)
    assert delta.pass_id == "20200401/01"
    assert delta.event_time_max == 1585706400
    assert [entry.path for entry in delta.cube_files] == [
        layout.cube_file(delta.version, "delta", partition, MODEL.partitions) for partition in range(MODEL.partitions)
    ]
    assert delta.keys == MODEL.partitions
    assert delta.samples == 16
    assert delta.left_out == 0
    assert delta.auc_live == delta.auc_published == 0.5


def test_the_manifest_says_how_values_were_stored_when_the_sample_was_scored(tmp_path: Path) -> None:
    one = World(tmp_path, model=MODEL.model_copy(update={"values": "int8"}))
    fill, asked = one.fill, []

    def filled(task: control.Task, result: control.TaskResult) -> None:
        fill(task, result)
        if task.phase == control.SCORE:
            asked.append(task.save.values_kind)
            result.save.values_kind, result.save.quantised_diff = task.save.values_kind, 0.25

    one.fill = filled  # type: ignore[method-assign]
    one.finish()

    manifests = [read_version(one.store, version) for version in published_versions(one.store)]
    assert asked == ["int8", "int8"]
    assert [(each.values, each.quantised_diff) for each in manifests] == [("int8", 0.25)] * 2


def test_the_report_of_an_earlier_release_is_one_of_floats(tmp_path: Path) -> None:
    one = World(tmp_path)

    one.finish()

    assert {read_version(one.store, version).values for version in published_versions(one.store)} == {"float32"}


def test_donefiles_list_bases_and_deltas(tmp_path: Path) -> None:
    one = World(tmp_path)

    one.finish()

    base, delta = published_versions(one.store)
    assert [(a.id, a.key) for a in read_donefile(one.store, layout.BASE_DONEFILE).lines] == [(base, base)]
    assert [(a.id, a.key, a.input) for a in read_donefile(one.store, layout.PATCH_DONEFILE).lines] == [
        (delta, base, f"/output/ctr_cube/{delta}/delta")
    ]


def spoil(one: World, value: float) -> None:
    """The export writes something else than what was trained."""
    fill = one.fill

    def filled(task: control.Task, result: control.TaskResult) -> None:
        fill(task, result)
        if task.phase == control.SAVE and task.pass_id == "20200401/01":
            result.save.values = (values_of(KEYS) + value).astype("<f4").tobytes()

    one.fill = filled  # type: ignore[method-assign]


def test_a_version_that_is_not_what_was_trained_is_refused_and_caught_up_with_by_a_base(tmp_path: Path) -> None:
    one = World(tmp_path, data_of(end="20200401/02"))
    spoil(one, 1.0)

    one.finish()

    states = [(v["kind"], v["state"]) for v in one.ledger.saves.versions()]
    assert states == [("base", "published"), ("delta", "refused"), ("base", "published")]
    refused = one.ledger.saves.versions()[1]
    assert "the export is at fault" in refused["reason"]
    assert not one.store.exists(layout.version_manifest(refused["id"]))
    assert len(one.ledger.saves.checkpoints()) == 2


def test_a_version_whose_files_lose_too_much_is_refused(tmp_path: Path) -> None:
    one = World(tmp_path)
    fill = one.fill

    def filled(task: control.Task, result: control.TaskResult) -> None:
        fill(task, result)
        for sample in result.samples:
            sample.click = 2 * (sample.line.startswith("1:"))
        if task.phase == control.SAVE and task.save.version:
            result.save.live = b"".join((b"\0\0\x80?" if sample.click else b"\0\0\0\0") for sample in task.save.samples)
        if task.phase == control.SCORE:
            result.save.published = bytes(len(task.save.live))

    one.fill = filled  # type: ignore[method-assign]

    one.finish()

    assert [v["state"] for v in one.ledger.saves.versions()] == ["refused", "refused"]
    assert "maxPublishLoss 0.01" in one.ledger.saves.versions()[0]["reason"]
    assert published_versions(one.store) == []


Failing = Callable[[], None]


@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_crash_between_any_two_steps_ends_in_the_same_state(
    tmp_path: Path, step: int, restart: bool, moment: str
) -> None:
    one = World(tmp_path)
    put_bytes = one.store.put_bytes
    writes = 0

    def put(data: bytes, path: str, *, overwrite: bool = False) -> None:
        nonlocal writes
        writes += 1
        if moment == "after":
            put_bytes(data, path, overwrite=overwrite)
        if writes == step + 1:
            raise StoreError("the store went away")
        if moment == "before":
            put_bytes(data, path, overwrite=overwrite)

    one.store.put_bytes = put  # type: ignore[method-assign]
    crashes = 0

    def go_on() -> bool:
        return one.coordinator.finished

    for _ in range(5):
        try:
            one.until(go_on)
        except StoreError:  # noqa: PERF203 (a crash a round is what this is about)
            crashes += 1
            if restart:
                one.start_master()

    assert crashes == 1
    base, delta = published_versions(one.store)
    assert [v["id"] for v in one.ledger.saves.versions()] == [base, delta]
    assert [(v["kind"], v["state"]) for v in one.ledger.saves.versions()] == [
        ("base", "published"),
        ("delta", "published"),
    ]
    assert [a.id for a in read_donefile(one.store, layout.BASE_DONEFILE).lines] == [base]
    assert [a.id for a in read_donefile(one.store, layout.PATCH_DONEFILE).lines] == [delta]
    assert [read_checkpoint(one.store, row["name"]).follows_version for row in one.ledger.saves.checkpoints()] == [
        base,
        base,
    ]
    assert [row["follows"] for row in one.ledger.saves.checkpoints()] == [base, base]
    assert one.coordinator.generation == 1
    assert one.ledger.passes.counted()["trained"] == 4 * RECORDS
