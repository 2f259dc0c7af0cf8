"""Days of training with decay and expiry: the table that master, trainers and pservers leave, row by row beside the formulas."""

from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from bench.days import FIRST, KEEP_VERSIONS, OF_A_PASS, Days
from bench.processes import engine_of

from pipeline.running import values_for


@pytest.mark.timeout(420)
def test_each_day_end_decays_and_expires_rows_once_whichever_process_is_lost_in_it(tmp_path: Path) -> None:
    # The formulas count each record once.
    once = {"replicas": 1, "config": {"epochs": 1}}
    values = values_for(
        tmp_path, [], "", "", trainer=once, master={"config": {"keepCheckpoints": 1, "maxPublishLoss": 1}},
        cube={"config": {"shards": 1}}, cubeTransfer={"config": {"keepVersions": KEEP_VERSIONS}},
    )  # fmt: skip
    days = Days(tmp_path, 3, values)

    def lose_a_process(day: int) -> None:
        if day == 1:
            return
        # Its checkpoint cannot be written: the table is decayed and aged, and the save is not over.
        generation = days.status.generation
        blocked = days.session.places.folder / f"store/checkpoints/{FIRST:%Y%m}0{day}-12-g{generation}"
        blocked.touch()
        days.until(lambda: any(each.error for each in days.status.pservers), "the upload fails")
        name = "ctr-pserver-0" if day == 2 else "ctr-master-0"
        pid = days.session.supervisor.pids()[name]
        (engine_of(pid) if day == 2 else psutil.Process(pid)).kill()
        if day == 2:
            days.until(lambda: days.status.generation > generation, "a recovery begins")
        blocked.unlink()

    with days.session.running():
        found = list(days.run(lose_a_process))

    assert [day.differs for day in found] == [[], [], []]
    assert [day.rows for day in found] == [day.rows_by_formula for day in found]
    assert [day.new - day.expired for day in found] == [found[0].rows, *(b.rows - a.rows for a, b in pairwise(found))]
    assert found[2].expired > OF_A_PASS
    assert abs(found[2].rows - found[1].rows) < OF_A_PASS, "the keys of the first day are still there"
    assert days.status.generation == 2
