"""The figures of the bench that kills each role, from what was noted."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.stream_kills import (
    disk_of,
    faults,
    fresh_again,
    growth_of,
    is_flat,
    stale_already,
    stale_times,
    staleness,
    unaccounted,
)


def test_the_newest_click_that_is_known_is_of_the_last_append_within_the_versions_offsets() -> None:
    noted = [(10.0, 100.0, 1.0), (20.0, 101.0, 1.0), (30.0, 102.0, 1.0)]
    # 9 knows less than 8, which has answered already; 10 ends within an append.
    knows = {8: (0, 20), 9: (0, 10), 10: (20, 35), 11: (35, 40)}

    known = staleness(noted, {8: 103.0, 9: 104.0, 10: 105.0}, knows)

    assert known.tolist() == [[103.0, 101.0], [105.0, 102.0]]


def test_clicks_are_stale_from_the_limit_on_until_an_answer_knows_newer_ones() -> None:
    known = np.array([[100.0, 99.0], [101.0, 100.0], [125.0, 124.0], [126.0, 125.0]])

    assert stale_times(known, 130.0) == [(110.0, 125.0)]
    assert stale_times(known, 140.0) == [(110.0, 125.0), (135.0, 140.0)]
    # The answer at 125 knows clicks that are as old as that.
    assert stale_times(np.array([[100.0, 99.0], [125.0, 100.0], [127.0, 126.0]]), 130.0) == [(109.0, 127.0)]


def test_a_kill_has_what_was_stale_between_it_and_the_next_one() -> None:
    stale = [(110.0, 125.0), (150.0, 175.0)]

    assert fresh_again([100.0, 130.0, 145.0], stale, 200.0) == [25.0, 0.0, 30.0]
    # Still stale at the next kill: both have it.
    assert fresh_again([100.0, 120.0], stale[:1], 200.0) == [25.0, 5.0]
    assert stale_already([100.0, 120.0], stale[:1]) == [False, True]


@pytest.mark.parametrize(
    ("ranges", "found"),
    [
        ([(10, 20), (0, 10), (20, 30)], (0, 0)),
        ([(0, 10), (12, 30)], (2, 0)),
        ([(0, 10), (5, 30)], (0, 5)),
        ([(0, 30), (5, 10), (6, 7)], (0, 6)),
        ([(0, 20)], (10, 0)),
        ([], (30, 0)),
    ],
)
def test_each_offset_is_in_one_range_or_is_counted(ranges: list[tuple[int, int]], found: tuple[int, int]) -> None:
    assert unaccounted(ranges, 30) == found


def test_a_series_that_grows_once_it_is_filled_is_not_flat_with_or_without_teeth() -> None:
    times = [float(each) for each in range(0, 1800, 5)]
    filled = [min(4e8, 1e7 * each) for each in range(len(times))]
    # Compactions each four minutes, the last of which is not over.
    teeth = [2e8 * ((each + 70) % 240) / 240 for each in times]
    leak = [5e6 * each / 60 for each in times]
    saw, growing = np.add(filled, teeth), np.add(filled, teeth) + leak

    assert growth_of(times, filled) == pytest.approx(0, abs=1)
    assert growth_of(times, np.add(filled, leak)) == pytest.approx(5e6)
    assert is_flat("memory", growth_of(times, saw), 30, saw)
    assert not is_flat("memory", growth_of(times, growing), 30, growing)
    assert growth_of(times[:8], leak[:8]) == 0


def test_the_disk_of_a_run_is_measured_by_role(tmp_path: Path) -> None:
    for name, size in (("store/versions/1/a", 10), ("state/master/ledger.db", 20), ("state/ctr-cube-s0-0/part", 30)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)

    found = {name: size for name, size in disk_of(tmp_path) if size}

    assert found == {"store": 10, "state/master": 20, "state/ctr-cube-s0-0": 30}


@pytest.mark.parametrize(
    ("key", "said"),
    [("wrong", "3 answers were wrong"), ("missing", "3 records are in no task"), ("twice", "3 records are in two tasks"),
     ("gone", "3 records were dropped"), ("uncounted", "the ledger counts 3 clicks more or less")],
)  # fmt: skip
def test_each_fault_is_a_sentence(key: str, said: str) -> None:
    fine: dict[str, Any] = {"wrong": 0, "firstWrong": [], "unit": "records", "settled": True}
    offsets = dict.fromkeys(("missing", "twice", "gone", "uncounted"), 0)
    assert faults({**fine, "offsets": offsets}) == []

    given = {**fine, "offsets": {**offsets, **({key: 3} if key in offsets else {})}}
    given |= {key: 3} if key in fine else {}

    [sentence] = faults(given)
    assert sentence.startswith(said)
    assert len(faults({**given, "settled": False})) == 2
