"""Rows, new and expired of each pserver, from the counts of a save to the status."""

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.generations.checkpoint_files import parts_after
from elastic_ctr.training.master.ledger.rows import TablePart
from elastic_ctr.training.master.metrics import MasterMetrics
from elastic_ctr.training.master.training_status import status
from training.master.world import World, data_of, world

DAY_END = ("shrink", "base", "batch", "checkpoint")
HOUR = ("checkpoint", "delta")


def written(rows: int, size: int) -> list[control.JobResult]:
    """A checkpoint of two partitions, with its dense part, and a delta."""
    files = [
        control.File(path="checkpoints/a-g1/000/part-000-00000.gz", bytes=size - 1, records=rows - 1),
        control.File(path="checkpoints/a-g1/000/part-000-00001.gz", bytes=1, records=1),
        control.File(path="checkpoints/a-g1/001/part-000.gz", bytes=999),
    ]
    delta = control.JobResult(id="1-1-delta-7", files=[control.File(path="versions/7/a", bytes=77, records=77)])
    return [control.JobResult(id="1-1-checkpoint", files=files, rows={0: rows - 1, 1: 1}), delta]


RESULTS = [written(10, 500), written(20, 900)]


@pytest.mark.parametrize(
    ("steps", "before", "counted", "found"),
    [
        (DAY_END, (4, 5), (12, 20), [(10, 8, 2, 500), (20, 15, 0, 900)]),
        (HOUR, (4, 5), (10, 20), [(10, 6, 0, 500), (20, 15, 0, 900)]),
        # Without a count of its own, the checkpoint of a save without a shrink has what was there before it.
        (HOUR, (4, 5), (), [(10, 6, 0, 500), (20, 15, 0, 900)]),
        (DAY_END, (4, 5), (), [(10, None, None, 500), (20, None, None, 900)]),
        # The first save after an upgrade of the master, and one whose rows before were of fewer pservers.
        (DAY_END, (), (12, 20), [(10, None, 2, 500), (20, None, 0, 900)]),
        (DAY_END, (4,), (12, 20), [(10, 8, 2, 500), (20, None, 0, 900)]),
        (("delta",), (4, 5), (10, 20), [(10, 6, 0, None), (20, 15, 0, None)]),
        (("delta",), (4, 5), (), []),
    ],
)
def test_new_and_expired_follow_from_the_counts_and_are_none_where_one_is_missing(
    steps: tuple[str, ...], before: tuple[int, ...], counted: tuple[int, ...], found: list[Any]
) -> None:
    parts = parts_after(steps, before, counted, RESULTS)

    assert [tuple(part.model_dump().values()) for part in parts] == found


def tables(one: World) -> list[Any]:
    """Rows, new, expired, bytes of each pserver, by pass."""
    shown = status(one.coordinator).to_dict()["passes"]
    return [each["table"] and [tuple(part.values()) for part in each["table"]] for each in shown]


def test_a_pass_has_the_rows_of_each_pserver_after_its_save(tmp_path: Path) -> None:
    one = World(tmp_path)
    one.finish()

    assert tables(one) == [[(4, 4, 0, 2)] * 2, [(8, 4, 0, 2)] * 2]


def test_a_day_end_says_what_expired(tmp_path: Path) -> None:
    one = World(tmp_path, data_of(start="20200401/23", end="20200401/23"), counted=(9, 4))
    one.finish()

    assert tables(one) == [[(4, 9, 5, 2), (4, 4, 0, 2)]]


def test_a_recovery_forgets_the_rows_of_the_passes_that_it_takes_back_and_counts_from_what_it_loaded(
    tmp_path: Path,
) -> None:
    one = World(tmp_path, data_of(end="20200401/02"))
    one.until(lambda: len(one.ledger.saves.tables(1)) == 2 and one.coordinator.saves.due() is not None)
    one.ledger.saves.set_table(3, (TablePart(rows=1, new=1, expired=1, bytes=1),))
    one.pservers[0].restart()
    one.pservers[0].sync()
    again = one.ledger.saves.tables(1)
    one.finish()

    assert list(again) == [1]
    assert tables(one) == [[(4, 4, 0, 2)] * 2, [(8, 4, 0, 2)] * 2, [(12, 4, 0, 2)] * 2]


def test_pservers_of_another_number_go_on_from_the_rows_that_they_loaded(tmp_path: Path) -> None:
    one = World(tmp_path)
    one.until(lambda: len(one.ledger.saves.tables(1)) == 1)
    one.until_phase(control.TRAIN)
    one.replace("second", 1)
    one.finish()

    assert tables(one) == [[(4, 4, 0, 2)] * 2, [(16, 8, 0, 4)]]


def test_a_ledger_of_an_earlier_release_has_no_rows_and_the_next_save_counts_them(tmp_path: Path) -> None:
    one = World(tmp_path)
    one.until(lambda: len(one.ledger.saves.tables(1)) == 1)
    one.until_phase(control.TRAIN)
    one.ledger.db.execute("drop table table_rows")
    one.ledger.db.execute("pragma user_version = 0")
    one.ledger.db.execute("update facts set value = json_remove(value, '$.table_rows')")
    one.start_master()
    before = tables(one)
    one.finish()

    assert before == [None, None]
    assert tables(one) == [None, [(8, None, 0, 2)] * 2]


def test_the_metrics_are_of_the_last_save_and_what_is_not_known_is_no_number(tmp_path: Path) -> None:
    one = world(tmp_path, data=data_of(start="20200401/23", end="20200401/23"))
    registry = CollectorRegistry()
    registry.register(MasterMetrics(one.coordinator))
    before = generate_latest(registry).decode()
    one.finish()
    lines = generate_latest(registry).decode().splitlines()

    assert "elastic_ctr_master_table_rows{" not in before
    for line in (
        'elastic_ctr_master_table_rows{pserver="1"} 4.0', 'elastic_ctr_master_table_expired_rows{pserver="0"} NaN',
        'elastic_ctr_master_table_bytes{pserver="0"} 2.0', 'elastic_ctr_master_pserver_memory_bytes{pserver="1"} 0.0',
    ):  # fmt: skip
        assert line in lines
