from pathlib import Path

import pytest

from elastic_ctr.runtime.status.master_status import CurrentPass
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.training_status import status
from training.master.world import RECORDS, World, data_of


def test_before_anything_joined_it_is_not_ready(tmp_path: Path) -> None:
    shown = status(World(tmp_path).coordinator)

    assert (shown.generation, shown.ready, shown.finished) == (1, False, False)
    assert (shown.pservers, shown.trainers, shown.passes, shown.current) == ((), (), (), None)


def test_a_pass_under_way_shows_its_stage_and_its_tasks(tmp_path: Path) -> None:
    one = World(tmp_path)
    one.until_phase(control.TRAIN)

    shown = status(one.coordinator)

    assert shown.current == CurrentPass(id="20200401/00", state="training", epoch=1, reason="")
    [each] = shown.passes
    assert (each.records, each.tasks, each.version, each.kind) == (2 * RECORDS, 2, None, None)
    assert [p.serving for p in shown.pservers] == [True, True]
    assert [t.name for t in shown.trainers] == ["local-trainer-0", "local-trainer-1"]


def test_a_finished_run_shows_its_versions(tmp_path: Path) -> None:
    one = World(tmp_path)
    one.finish()

    shown = status(one.coordinator)

    assert shown.finished
    assert shown.current is None
    assert [(p.kind, p.keys) for p in shown.passes] == [("base", 4), ("delta", 4)]
    assert [p.version for p in shown.passes] == [v.id for v in shown.versions]
    assert shown.ledger.trained == 4 * RECORDS


def test_a_long_run_is_looked_at_with_as_many_queries_as_a_short_one(tmp_path: Path) -> None:
    queries: dict[str, int] = {}
    for end in ("20200401/01", "20200401/12"):
        one = World(tmp_path / end, data_of(end=end))
        one.finish()
        asked: list[str] = []
        one.ledger.db.set_trace_callback(asked.append)

        shown = status(one.coordinator)

        queries[end] = len(asked)
        assert [each.seconds.keys() >= {"train"} for each in shown.passes] == [True] * len(one.ledger.passes.all())
        assert {each.records for each in shown.passes} == {2 * RECORDS}
    assert len(set(queries.values())) == 1


def test_the_documents_of_a_pass_that_is_done_are_built_once(tmp_path: Path) -> None:
    one = World(tmp_path)
    one.finish()

    first, second = (status(one.coordinator).passes for _ in range(2))

    for before, again in zip(first, second, strict=True):
        assert before.quality.after
        assert again is before


def test_figures_that_a_recovery_takes_back_are_shown_no_more(tmp_path: Path) -> None:
    one = World(tmp_path)
    one.finish()
    before = status(one.coordinator)
    assert all(each.quality.after and each.learning.epochs == 1 for each in before.passes)

    one.ledger.roll_back(0)

    after = status(one.coordinator)
    assert [each.quality.after for each in after.passes] == [None, None]
    assert [each.quality.before for each in after.passes] == [x.quality.before for x in before.passes]
    assert [(each.learning.epochs, each.learning.shift) for each in after.passes] == 2 * [(0, None)]
    assert after.ledger.trained == 0
    assert after.ledger.to_dict() == one.ledger.passes.counted()


def test_a_training_that_hands_over_is_named(tmp_path: Path) -> None:
    one = World(tmp_path, handover_seconds=60)
    one.until_phase(control.TRAIN)
    assert status(one.coordinator).handover is None

    one.replace("ctr-train-b", 3)

    assert status(one.coordinator).handover == "local"


def test_passes_that_are_not_shown_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_ctr.training.master.training_status._SHOWN_PASSES", 1)
    one = World(tmp_path)
    one.finish()

    shown = status(one.coordinator)

    assert (len(shown.passes), shown.earlier_passes) == (1, 1)
