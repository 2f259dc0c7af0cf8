"""Statistics that features need, and drift from them: with a real ledger, coordinator and store."""

import json
import math
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from elastic_ctr.features.statistics.collector import merged
from elastic_ctr.features.statistics.document import Statistics
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.pinned_statistics import read_statistics
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.metrics import MasterMetrics
from elastic_ctr.training.master.passes.found_data import FoundData
from elastic_ctr.training.master.training_status import status, status_of_ledger
from training.master.world import (
    LEASE,
    RECORDS,
    ROWS,
    Rows,
    World,
    collected,
    features_of,
    rows_data_of,
    world,
)

FIRST, SECOND = "20200401/00", "20200401/01"
# So many rows that their absence says something.
MANY: Rows = [(float(number), f"tag-{number % 7}") for number in range(200)]
NO_PRICE: Rows = [(float("nan"), tag) for _, tag in MANY]
PLAIN = {"price": {"type": "numeric", "transform": [], "missing": 0}}


def of_rows(folder: Path, *, data: dict[str, Any] | None = None, **given: Any) -> World:
    return world(folder, **{"data": rows_data_of(**(data or {})), "features": features_of(), **given})


def everywhere(rows: Rows, *hours: str) -> dict[str, Rows]:
    return {f"{hour}/{file}": rows for hour in hours for file in ("one", "two")}


def files_of_statistics(one: World) -> list[str]:
    return one.store.list(layout.STATISTICS)


def pinned_of(one: World) -> Statistics:
    return read_statistics(one.store, one.ledger.facts.statistics)


def phases(one: World, phase: int) -> list[str]:
    return [task for task, of, _ in one.used if of == phase]


def test_the_first_pass_is_analyzed_once_and_every_later_task_names_its_statistics(tmp_path: Path) -> None:
    one = of_rows(tmp_path)

    one.finish()

    pinned = one.ledger.facts.statistics
    assert files_of_statistics(one) == [f"{pinned}.json"]
    assert len(phases(one, control.ANALYZE)) == 2
    assert {of for _, of, used in one.used if used == ""} == {control.ANALYZE}
    assert {used for _, of, used in one.used if of != control.ANALYZE} == {pinned}
    assert {control.CHECK, control.TRAIN, control.SAVE, control.SCORE} <= {of for _, of, _ in one.used}


def test_pinned_statistics_are_those_that_all_tasks_collected_in_any_order(tmp_path: Path) -> None:
    rows = {f"{FIRST}/one": ROWS[:4], f"{FIRST}/two": ROWS[4:]}
    one = of_rows(tmp_path, rows=rows)
    # The other trainer takes the second task first.
    one.until_phase(control.ANALYZE, trainer=0)
    one.until_phase(control.ANALYZE, trainer=1)
    one.trainers[1].report()
    one.trainers[0].report()

    one.finish()

    assert pinned_of(one) == merged({path: collected(each) for path, each in rows.items()})
    assert pinned_of(one).numbers["price"].rows == RECORDS


def test_nothing_is_analyzed_where_features_need_no_statistics_and_the_first_pass_is_the_reference(
    tmp_path: Path,
) -> None:
    one = of_rows(tmp_path, features=features_of(**PLAIN))

    one.finish()

    assert phases(one, control.ANALYZE) == []
    assert {used for _, _, used in one.used} == {""}
    assert files_of_statistics(one) == [f"{one.ledger.facts.statistics}.json"]
    assert list(one.ledger.figures.drifts()) == [2]


def test_a_pass_of_rows_without_a_key_is_stopped_with_a_sentence_about_rows(tmp_path: Path) -> None:
    one = of_rows(tmp_path, keyless=(f"{FIRST}/one", f"{FIRST}/two"))

    one.until_state("stopped")

    assert one.reason().startswith(
        "none of 20 rows has a key of a feature and is short enough for a prediction, nor was there one before: no version could "
        "be checked, and nothing was trained; mend the files, or begin another model with other features"
    )


def test_lines_of_feasigns_have_no_statistics(tmp_path: Path) -> None:
    one = world(tmp_path)

    one.finish()

    assert (one.ledger.facts.statistics, files_of_statistics(one), one.ledger.figures.drifts()) == ("", [], {})


def test_the_task_of_a_trainer_lost_in_the_middle_of_the_analysis_goes_to_another(tmp_path: Path) -> None:
    one = of_rows(tmp_path)
    lost = one.until_phase(control.ANALYZE)

    one.trainers.remove(lost)
    one.now += LEASE
    one.finish()

    assert one.ledger.passes.counted()["repeated"] == 0
    assert pinned_of(one).numbers["price"].rows == 2 * RECORDS


def test_a_master_that_restarts_in_the_middle_of_the_analysis_keeps_what_was_collected(tmp_path: Path) -> None:
    one = of_rows(tmp_path)
    held = one.until_phase(control.ANALYZE, trainer=1)
    one.until_phase(control.ANALYZE, trainer=0).report()

    one.start_master()
    assert not held.report().rejoin
    one.finish()

    assert len(phases(one, control.ANALYZE)) == 2
    assert pinned_of(one).numbers["price"].rows == 2 * RECORDS


def test_a_master_that_ended_between_the_file_and_the_ledger_pins_the_same_statistics_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = of_rows(tmp_path)
    one.until_state("analyzing")
    with monkeypatch.context() as crash:
        crash.setattr(FoundData, "statistics_pinned", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            one.finish()
    assert len(files_of_statistics(one)) == 1

    one.start_master()
    one.finish()

    assert files_of_statistics(one) == [f"{one.ledger.facts.statistics}.json"]


def test_a_recovery_in_the_middle_of_the_analysis_or_after_it_changes_no_statistics(tmp_path: Path) -> None:
    one = of_rows(tmp_path)
    one.until_phase(control.ANALYZE).report()
    one.pservers[0].lost = True
    one.until(lambda: one.coordinator.generation == 2)
    one.until_phase(control.TRAIN)
    pinned = one.ledger.facts.statistics
    one.pservers[0].lost = True
    one.until(lambda: one.coordinator.generation == 3)

    one.finish()

    assert one.ledger.facts.statistics == pinned
    assert pinned_of(one).numbers["price"].rows == 2 * RECORDS
    assert {used for _, of, used in one.used if of != control.ANALYZE} == {pinned}


def test_too_many_refused_lines_stop_the_analysis_and_nothing_is_pinned(tmp_path: Path) -> None:
    one = of_rows(tmp_path, refused={f"{FIRST}/one": 5})

    one.until_state("stopped")

    assert "5 of 25 lines were refused, more than data.maxRefusedShare" in one.reason()
    assert files_of_statistics(one) == []


def test_a_pass_stopped_in_its_analysis_is_analyzed_anew_when_it_is_taken_up_again(tmp_path: Path) -> None:
    one = of_rows(tmp_path, refused={f"{FIRST}/one": 5})
    one.until_state("stopped")

    one.refused = {}
    one.start_master()
    one.finish()

    assert len(phases(one, control.ANALYZE)) == 4
    assert one.ledger.passes.counts(1)["refused"] == 0


def test_statistics_of_a_pass_that_was_stopped_before_anything_was_saved_are_made_anew(tmp_path: Path) -> None:
    one = of_rows(tmp_path)
    one.until_phase(control.TRAIN)
    before = one.ledger.facts.statistics
    for _ in range(3):
        one.until_phase(control.TRAIN).report(error="the file is gone")
    one.until_state("stopped")

    one.rows = everywhere(MANY, FIRST)
    one.coordinator.retry(FIRST)
    one.finish()

    assert one.ledger.facts.statistics != before
    trained = [used for _, of, used in one.used if of == control.TRAIN and used != before]
    assert len(trained) == 4


def test_statistics_that_a_version_was_made_with_stay_when_its_pass_is_taken_up_again(tmp_path: Path) -> None:
    one = of_rows(tmp_path)
    one.until(lambda: len(one.ledger.saves.checkpoints()) == 1)
    before = one.ledger.facts.statistics
    one.until_phase(control.CHECK)
    for _ in range(3):
        one.until_phase(control.CHECK).report(error="the file is gone")
    one.until_state("stopped")

    one.coordinator.retry(SECOND)
    one.finish()

    assert one.ledger.facts.statistics == before


def test_a_first_pass_without_rows_leaves_the_analysis_to_the_next_one(tmp_path: Path) -> None:
    empty = {f"{FIRST}/{file}": 0 for file in ("one", "two")}
    one = of_rows(tmp_path, records=empty, rows=everywhere([], FIRST))

    one.finish()

    assert one.ledger.facts.statistics_of == 2
    assert len(one.ledger.saves.versions()) == 1


def test_given_statistics_are_pinned_at_the_first_start_and_nothing_is_analyzed(tmp_path: Path) -> None:
    given = merged({"x": collected(MANY)})
    one = of_rows(tmp_path, given_statistics=given.to_json())

    one.finish()

    assert phases(one, control.ANALYZE) == []
    assert {used for _, _, used in one.used} == {given.digest}
    assert files_of_statistics(one) == [f"{given.digest}.json"]
    assert list(one.ledger.figures.drifts()) == [1, 2]


def test_a_drift_that_the_ledger_has_dropped_is_shown_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_ctr.training.master.ledger.ledger._DRIFTS", 1)
    one = of_rows(tmp_path, given_statistics=merged({"x": collected(MANY)}).to_json())
    one.until(lambda: one.ledger.passes.last_done() == 1)
    [first, _] = status(one.coordinator).passes
    assert first.drift

    one.finish()

    shown = status(one.coordinator).passes
    assert [bool(each.drift) for each in shown] == [False, True]
    assert shown == status_of_ledger(one.ledger).passes


def test_other_statistics_than_the_pinned_ones_are_refused_and_the_same_or_none_are_not(tmp_path: Path) -> None:
    one = of_rows(tmp_path)
    one.finish()
    pinned = one.ledger.facts.statistics

    one.given_statistics = merged({"x": collected(MANY)}).to_json()
    with pytest.raises(ValueError, match=rf"statistics was {pinned} .* leave statistics out, give output/statistics/"):
        one.start_master()

    one.given_statistics = one.store.get_bytes(layout.statistics_file(pinned)).decode()
    one.start_master()
    assert one.ledger.facts.statistics == pinned


def test_statistics_given_in_the_middle_of_an_analysis_end_it(tmp_path: Path) -> None:
    given = merged({"x": collected(MANY)})
    one = of_rows(tmp_path)
    holder = one.until_phase(control.ANALYZE)

    one.given_statistics = given.to_json()
    one.start_master()
    one.coordinator.tick()

    assert holder.report().rejoin
    one.finish()
    assert {used for _, of, used in one.used if of == control.TRAIN} == {given.digest}


def test_a_file_of_statistics_that_was_changed_by_hand_is_refused_with_its_name(tmp_path: Path) -> None:
    one = of_rows(tmp_path)
    one.until_state("training")
    path = layout.statistics_file(one.ledger.facts.statistics)
    one.store.put_bytes(b"{}", path, overwrite=True)

    with pytest.raises(ValueError, match=rf"{path} in file://.* was changed since it was pinned; put the file back"):
        one.finish()


def test_a_later_pass_is_compared_with_the_pinned_statistics_by_column(tmp_path: Path) -> None:
    later = [(price + 1000, "green") for price, _ in MANY]
    one = of_rows(tmp_path, rows={**everywhere(MANY, FIRST), **everywhere(later, SECOND)})

    one.finish()

    drift = one.ledger.figures.drifts()[2]
    by_column = {each.column: each for each in drift.columns}
    assert drift.rows == 400
    assert (by_column["tag"].pinned_unseen, by_column["tag"].unseen) == (0, 1)
    assert all((each.psi or 0) > 1 for each in drift.columns)
    shown = status(one.coordinator).to_dict()
    assert shown["drift"]["pass"] == SECOND
    assert {each["column"] for each in shown["drift"]["columns"]} == {"price", "tag"}
    assert [each["drift"] and each["drift"][0]["column"] for each in shown["passes"]] == [
        None,
        drift.worst(1)[0].column,
    ]
    json.dumps(shown, allow_nan=False)


def test_the_same_data_does_not_drift(tmp_path: Path) -> None:
    one = of_rows(tmp_path, rows=everywhere(MANY, FIRST, SECOND))

    one.finish()

    assert [each.psi for each in one.ledger.figures.drifts()[2].columns] == pytest.approx([0, 0])


def test_pinned_statistics_of_more_columns_and_steps_than_the_features_have_stop_no_pass(tmp_path: Path) -> None:
    found = merged({"x": collected(MANY)})
    given = Statistics(
        texts={**found.texts, "tags[|]": found.texts["tag"]},
        numbers={**found.numbers, "price:log1p": found.numbers["price"]},
    )
    one = of_rows(tmp_path, rows=everywhere(MANY, FIRST, SECOND), given_statistics=given.to_json())

    one.finish()

    assert [each.column for each in one.ledger.figures.drifts()[1].columns] == ["tag", "price"]


def test_a_column_that_vanishes_stops_its_pass_before_it_is_trained(tmp_path: Path) -> None:
    one = of_rows(tmp_path, rows={**everywhere(MANY, FIRST), **everywhere(NO_PRICE, SECOND)})

    one.until_state("stopped")

    assert one.reason().startswith(
        "columns have vanished: more than data.maxMissingShare 0.99 of 400 rows have no value in price (0.0% before); nothing was "
        "trained: mend the files or raise the share"
    )
    assert one.ledger.passes.counts(2)["trained"] == 0


def test_a_pass_with_a_vanished_column_is_trained_once_its_files_are_mended_or_the_share_is_1(tmp_path: Path) -> None:
    one = of_rows(tmp_path, rows={**everywhere(MANY, FIRST), **everywhere(NO_PRICE, SECOND)})
    one.until_state("stopped")

    one.data = rows_data_of(max_missing_share=1)
    one.start_master()
    one.finish()

    assert [each.missing for each in one.ledger.figures.drifts()[2].columns] == [0, 1]


def test_few_rows_without_a_value_stop_nothing(tmp_path: Path) -> None:
    few = [(float("nan"), "red")] * 10
    one = of_rows(tmp_path, rows={**everywhere(MANY, FIRST), **everywhere(few, SECOND)})

    one.finish()

    assert [each.missing for each in one.ledger.figures.drifts()[2].columns] == [0, 1]


def test_a_column_that_was_mostly_empty_before_may_be_empty(tmp_path: Path) -> None:
    sparse = [(price if number % 3 == 0 else float("nan"), tag) for number, (price, tag) in enumerate(MANY)]
    one = of_rows(tmp_path, rows={**everywhere(sparse, FIRST), **everywhere(NO_PRICE, SECOND)})

    one.finish()

    assert one.ledger.figures.drifts()[2].worst(1)[0].column == "price"


def test_a_file_that_lacks_a_column_stops_the_pass_at_once_with_the_sentence_of_its_reader(tmp_path: Path) -> None:
    one = of_rows(tmp_path)
    sentence = f"{FIRST}/one lacks the column 'price'; it has 'tag'."

    one.until_phase(control.ANALYZE).report(error=sentence, columns_refused=True)

    assert one.reason().startswith(
        f"{FIRST}/one lacks the column 'price'; it has 'tag'; nothing of the file is dropped: mend it;"
    )
    assert [task.failures for task in one.ledger.tasks.of(1) if task.state == "parked"] == [1]
    one.coordinator.retry(FIRST)
    one.finish()


def test_of_a_large_pass_only_some_tasks_are_sampled_for_its_drift(tmp_path: Path) -> None:
    files = [f"file-{number:02d}" for number in range(40)]
    one = of_rows(tmp_path, files=files, data={"end": SECOND})

    one.finish()

    assert one.ledger.figures.drifts()[2].rows == 16 * RECORDS
    assert len(phases(one, control.ANALYZE)) == 40


def test_collected_statistics_are_dropped_once_they_are_merged(tmp_path: Path) -> None:
    one = of_rows(tmp_path)

    one.finish()

    assert [one.ledger.tasks.collected_records(ordinal) for ordinal in (1, 2)] == [None, None]


def test_merging_holds_one_series_of_one_part_in_memory_however_many_parts_a_pass_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = of_rows(tmp_path, files=[f"file-{number:02d}" for number in range(20)])
    read, held, most = one.coordinator.found.collected_series, [], 0

    def watched(task: str, place: int) -> memoryview:
        nonlocal most
        series = np.frombuffer(read(task, place), np.uint8).copy()
        held.append(weakref.ref(series))
        most = max(most, sum(each() is not None for each in held))
        return series.data

    with monkeypatch.context() as patch:
        patch.setattr(one.coordinator.found, "collected_series", watched)
        one.until_state("checking")

    assert (len(held), most) == (20 * 2, 1)


def test_a_pass_that_is_begun_anew_while_it_is_merged_is_merged_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = of_rows(tmp_path)
    read = one.coordinator.found.collected_series

    def dropped(task: str, place: int) -> bytes:
        if place:
            one.ledger.tasks.drop_collected(1)
        return read(task, place)

    monkeypatch.setattr(one.coordinator.found, "collected_series", dropped)
    with pytest.raises(
        ValueError, match=r"what task .* collected was dropped: its pass was begun anew; it is merged once"
    ):
        one.until_state("checking")
    assert one.ledger.facts.statistics == ""


def test_a_task_whose_statistics_are_damaged_has_failed_and_goes_to_a_trainer_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = of_rows(tmp_path)
    holder = one.until_phase(control.ANALYZE)
    assert holder.task is not None
    path = holder.task.path

    with monkeypatch.context() as patch:
        patch.setattr("training.master.world.collected", lambda rows: collected(rows)[:-1])
        holder.report()

    [task] = [each for each in one.ledger.tasks.of(1) if each.path == path]
    assert (task.state, task.failures) == ("todo", 1)
    one.finish()
    assert pinned_of(one).numbers["price"].rows == 2 * RECORDS


def test_a_vocabulary_of_fewer_values_than_its_top_is_a_warning_when_statistics_are_pinned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tag = {"type": "categorical", "vocabulary": {"top": 5}}
    long: Rows = [(1.0, "x" * 300), *ROWS]
    one = of_rows(tmp_path, features=features_of(tag=tag), rows=everywhere(long, FIRST))
    one.until_state("checking")
    given = of_rows(tmp_path / "given", features=features_of(tag=tag), given_statistics=pinned_of(one).to_json())

    warned = [
        each.message
        for each in caplog.records
        if each.message.startswith("features.tag: vocabulary.top is 5, and the statistics list 2")
    ]
    assert len(warned) == 2
    assert given.ledger.facts.statistics == one.ledger.facts.statistics


def test_the_drift_of_the_last_checked_pass_is_a_gauge_of_each_column(tmp_path: Path) -> None:
    later = [(price, "green") for price, _ in MANY]
    one = of_rows(tmp_path, rows={**everywhere(MANY, FIRST), **everywhere(later, SECOND)})
    one.finish()

    gauges = {metric.name: metric for metric in MasterMetrics(one.coordinator).collect()}

    def values(name: str) -> dict[str, float]:
        return {each.labels["column"]: each.value for each in gauges[f"elastic_ctr_master_{name}"].samples}

    assert values("feature_psi")["tag"] > 1
    assert values("feature_psi")["price"] == pytest.approx(0)
    assert values("feature_missing_share") == {"tag": 0, "price": 0}
    assert values("feature_unseen_share")["tag"] == 1
    assert math.isnan(values("feature_unseen_share")["price"])


def test_without_a_compared_pass_the_gauges_have_no_column(tmp_path: Path) -> None:
    one = world(tmp_path)

    drift = [each for each in MasterMetrics(one.coordinator).collect() if "feature" in each.name]

    assert [each.samples for each in drift] == [[], [], []]
