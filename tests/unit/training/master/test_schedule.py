from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.config.data import DataSource, split_end
from elastic_ctr.config.training_settings import MasterConfig
from elastic_ctr.training.master.calendar.schedule import (
    SavePlan,
    cut,
    order_of_records,
    order_of_tasks,
    passes,
    pick_samples,
    ranges,
    save_plan,
    splits,
    tasks_of,
)
from elastic_ctr.training.master.ledger.rows import Pass
from training.master.world import data_of


def ids(**given: Any) -> list[str]:
    return [each.id for each in passes(data_of(**given))]


# -- calendar ----------------------------------------------------------------------------------------------------------


def test_start_and_end_are_both_included() -> None:
    assert list(splits(data_of(start="20200401/22", end="20200402/01"))) == [
        "20200401/22",
        "20200401/23",
        "20200402/00",
        "20200402/01",
    ]


def test_one_hour_that_is_start_and_end_is_one_pass() -> None:
    assert ids(start="20200401/05", end="20200401/05") == ["20200401/05"]


def test_without_an_end_hours_follow_for_ever() -> None:
    coming = list(islice(passes(data_of(start="20191231/23", end=None)), 3))

    assert [each.id for each in coming] == ["20191231/23", "20200101/00", "20200101/01"]


def test_shorter_splits_have_minutes_in_their_names() -> None:
    given = data_of(start="20200401/0000", end="20200401/0045", splitInterval=15)

    assert list(splits(given)) == ["20200401/0000", "20200401/0015", "20200401/0030", "20200401/0045"]


def test_a_pass_takes_several_splits_and_is_named_after_the_last() -> None:
    found = list(passes(data_of(end="20200401/04", splitsPerPass=2)))

    assert [each.splits for each in found] == [
        ("20200401/00", "20200401/01"),
        ("20200401/02", "20200401/03"),
        ("20200401/04",),
    ]
    assert [(each.ordinal, each.id) for each in found] == [(1, "20200401/01"), (2, "20200401/03"), (3, "20200401/04")]


def test_the_pass_with_a_days_last_split_ends_the_day_even_when_it_goes_on_into_the_next() -> None:
    found = list(passes(data_of(start="20200401/21", end="20200402/02", splitsPerPass=2)))

    assert [(each.id, each.ends_day) for each in found] == [
        ("20200401/22", False),
        ("20200402/00", True),
        ("20200402/02", False),
    ]


def test_the_last_quarter_of_a_day_ends_it() -> None:
    found = list(passes(data_of(start="20200401/2330", end="20200401/2345", splitInterval=15)))

    assert [each.ends_day for each in found] == [False, True]


BERLIN = {"timeZone": "Europe/Berlin"}


def test_the_hour_that_the_clocks_leave_out_is_not_waited_for() -> None:
    assert ids(start="20200329/00", end="20200329/04", **BERLIN) == [
        "20200329/00",
        "20200329/01",
        "20200329/03",
        "20200329/04",
    ]


def test_the_hour_that_the_clocks_show_twice_is_one_folder_and_read_once() -> None:
    assert ids(start="20201025/01", end="20201025/03", **BERLIN) == ["20201025/01", "20201025/02", "20201025/03"]


def test_after_the_hour_before_one_that_is_left_out_comes_the_one_after_it() -> None:
    assert next(passes(data_of(end=None, **BERLIN), 2, "20200329/01")).id == "20200329/03"


@pytest.mark.parametrize(
    ("zone", "day", "interval", "count"),
    [
        ("UTC", "20200329", 60, 24),
        ("Europe/Berlin", "20200329", 60, 23),
        ("Europe/Berlin", "20200329", 15, 92),
        ("Europe/Berlin", "20201025", 15, 96),
        # The folder of two hours of which one is left out holds the other.
        ("Europe/Berlin", "20200329", 120, 12),
        # Half an hour is left out there, from 2:00 on.
        ("Australia/Lord_Howe", "20201004", 60, 24),
        ("Australia/Lord_Howe", "20201004", 15, 94),
        # A day that begins at 1:00, and one that was never there.
        ("America/Sao_Paulo", "20171015", 60, 23),
        ("America/Sao_Paulo", "20171015", 1440, 1),
        ("Pacific/Apia", "20111230", 60, 0),
    ],
)
def test_every_folder_that_a_day_of_logs_has_is_asked_for_once(zone: str, day: str, interval: int, count: int) -> None:
    last = 24 * 60 - interval
    minutes = "" if interval % 60 == 0 else f"{last % 60:02d}"

    found = list(
        splits(
            data_of(start=f"{day}/00", end=f"{day}/{last // 60:02d}{minutes}", splitInterval=interval, timeZone=zone)
        )
    )

    assert len(found) == len(set(found)) == count


def test_the_last_hour_before_a_day_that_was_never_there_ends_its_day() -> None:
    found = list(passes(data_of(start="20111229/22", end="20111231/00", timeZone="Pacific/Apia")))

    assert [(each.id, each.ends_day) for each in found] == [
        ("20111229/22", False),
        ("20111229/23", True),
        ("20111231/00", False),
    ]


def test_event_times_never_go_back_when_the_clocks_do() -> None:
    given = data_of(start="20201025/0100", end="20201025/0345", splitInterval=15, **BERLIN)

    ends = [each.event_time_max for each in passes(given)]

    assert ends == sorted(set(ends))
    assert ends[-1] - ends[0] == 3 * 3600 + 45 * 60, "from 1:15 to 4:00, and an hour more in between"


@pytest.mark.parametrize(
    ("split", "zone", "utc"),
    [
        ("20200401/00", "UTC", 1585702800),
        ("20200401/00", "Asia/Shanghai", 1585674000),
        # The hour before clocks go forward ends where the hour after the gap begins.
        ("20200329/01", "Europe/Berlin", 1585443600),
        # The hour that a wall clock shows twice ends after its second time.
        ("20201025/02", "Europe/Berlin", 1603591200),
        ("20201025/01", "Europe/Berlin", 1603584000),
    ],
)
def test_event_time_is_the_end_of_a_split_in_its_time_zone(split: str, zone: str, utc: int) -> None:
    assert split_end(split, 60, zone) == utc


def test_minutes_that_the_clocks_show_twice_end_with_their_second_time() -> None:
    assert split_end("20201025/0215", 15, "Europe/Berlin") == split_end("20201025/0245", 15, "Europe/Berlin") - 30 * 60


@pytest.mark.parametrize(
    ("zone", "day", "interval"),
    [
        ("Pacific/Chatham", "20260927", 60),
        ("Pacific/Chatham", "20260927", 30),
        ("Europe/Berlin", "20260329", 45),
        ("Europe/Berlin", "20260329", 16),
        ("Antarctica/Troll", "20260329", 120),
    ],
)
def test_event_times_go_on_where_a_split_ends_in_what_the_clocks_leave_out(zone: str, day: str, interval: int) -> None:
    data = data_of(start=f"{day}/00", end=None, splitInterval=interval, timeZone=zone)

    ends = [split_end(split, interval, zone) for split in islice(splits(data), 1440 // interval - 4)]

    assert ends == sorted(set(ends))


def test_the_event_time_of_a_pass_is_that_of_its_last_split() -> None:
    [one] = passes(data_of(start="20200401/00", end="20200401/01", splitsPerPass=2))

    assert one.event_time_max == split_end("20200401/01", 60, "UTC")


# -- what is saved -----------------------------------------------------------------------------------------------------


def plan(ordinal: int = 1, *, ends_day: bool = False, config: dict[str, Any] | None = None, **given: Any) -> SavePlan:
    one = Pass(ordinal, "20200401/00", ("20200401/00",), 0, ends_day)
    state = {"records": 10, "has_base": True, "base_due": False, "is_last": False, **given}
    return save_plan(one, MasterConfig.model_validate(config or {}), **state)


def test_the_first_pass_publishes_a_base_and_its_checkpoint_after_it() -> None:
    assert plan(has_base=False) == SavePlan(("base", "checkpoint"), "base")


def test_each_later_pass_takes_its_checkpoint_before_its_delta() -> None:
    assert plan(2) == SavePlan(("checkpoint", "delta"), "delta")


@pytest.mark.parametrize(("ordinal", "steps"), [(2, ("delta",)), (3, ("checkpoint", "delta")), (4, ("delta",))])
def test_every_third_pass_has_a_checkpoint_when_so_told(ordinal: int, steps: tuple[str, ...]) -> None:
    assert plan(ordinal, config={"checkpointPerPass": 3}).steps == steps


def test_every_second_pass_has_a_delta_when_so_told() -> None:
    assert [plan(n, config={"deltaPerPass": 2}).kind for n in (2, 3, 4)] == ["delta", None, "delta"]


@pytest.mark.parametrize("has_base", [True, False])
def test_a_day_end_shrinks_publishes_a_base_ages_and_takes_a_checkpoint_in_this_order(has_base: bool) -> None:
    assert plan(24, ends_day=True, has_base=has_base) == SavePlan(("shrink", "base", "batch", "checkpoint"), "base")


def test_an_empty_hour_saves_nothing() -> None:
    assert plan(records=0) == SavePlan((), None)


def test_a_day_of_nothing_but_empty_hours_publishes_nothing() -> None:
    assert plan(24, ends_day=True, records=0, has_base=False) == SavePlan((), None)


def test_the_last_pass_is_saved_whatever_the_intervals() -> None:
    config = {"checkpointPerPass": 5, "deltaPerPass": 5}

    assert plan(3, is_last=True, config=config) == SavePlan(("checkpoint", "delta"), "delta")


def test_a_refused_version_is_caught_up_with_by_a_base() -> None:
    assert plan(3, base_due=True) == SavePlan(("base", "checkpoint"), "base")


def test_without_a_first_base_there_are_only_checkpoints_until_the_day_ends() -> None:
    config = {"firstBase": False}

    assert plan(2, has_base=False, config=config) == SavePlan(("checkpoint",), None)
    assert plan(24, has_base=False, ends_day=True, config=config).kind == "base"
    assert plan(3, has_base=False, is_last=True, config=config).kind == "base"


@given(
    st.integers(1, 100),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 5]),
    st.integers(1, 4),
    st.integers(1, 4),
    st.booleans(),
)
def test_a_base_is_always_followed_by_a_checkpoint_and_a_delta_always_stands_on_a_base(
    ordinal: int,
    ends_day: bool,
    has_base: bool,
    base_due: bool,
    is_last: bool,
    records: int,
    checkpoints: int,
    deltas: int,
    first_base: bool,
) -> None:
    config = {"checkpointPerPass": checkpoints, "deltaPerPass": deltas, "firstBase": first_base}

    found = plan(
        ordinal,
        ends_day=ends_day,
        has_base=has_base,
        base_due=base_due,
        is_last=is_last,
        records=records,
        config=config,
    )

    steps = found.steps
    assert len(set(steps)) == len(steps)
    assert (found.kind in steps) if found.kind else not {"base", "delta"} & set(steps)
    if "base" in steps:
        assert steps[-1] == "checkpoint"
    if "delta" in steps:
        assert has_base
        assert steps[-1] == "delta"


# -- cutting -----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**7), st.integers(1, 10**6))
def test_ranges_cover_a_file_once_and_none_is_empty(size: int, task_bytes: int) -> None:
    task_bytes = max(task_bytes, size // 1000 + 1)

    ranges = cut(size, task_bytes, whole=False)

    assert ranges[0][0] == 0
    assert ranges[-1][1] == 0
    edges = [start for start, _ in ranges] + [size]
    assert [stop for _, stop in ranges[:-1]] == edges[1:-1]
    lengths = [b - a for a, b in pairwise(edges)]
    assert max(lengths) <= task_bytes
    if len(ranges) > 1:
        assert max(lengths) - min(lengths) <= 1
        assert min(lengths) > 0


def test_a_file_that_cannot_be_cut_is_one_task() -> None:
    assert cut(10**9, 10, whole=True) == [(0, 0)]


@given(st.lists(st.integers(0, 6), max_size=8), st.integers(1, 20))
def test_sample_lines_are_taken_evenly_over_the_tasks(offered: list[int], wanted: int) -> None:
    taken = pick_samples([list(range(lines)) for lines in offered], wanted)

    assert len(taken) == len(set(taken)) == min(wanted, sum(offered))
    assert all(0 <= position < offered[task] for task, position in taken)
    counts = {task: sum(1 for t, _ in taken if t == task) for task in range(len(offered))}
    for task, count in counts.items():
        if count < offered[task]:
            assert count >= max(counts.values()) - 1


DATA = data_of(path="/logs")


def test_tasks_are_ranges_of_files_in_order_and_an_empty_file_has_none() -> None:
    assert ranges({"b": 25, "a": 10, "c": 0, "d.gz": 100, "e.zst": 100}, 10) == [
        ("a", 0, 0),
        ("b", 0, 8),
        ("b", 8, 16),
        ("b", 16, 0),
        ("d.gz", 0, 0),
        ("e.zst", 0, 0),
    ]


def test_small_files_share_a_task_up_to_a_size_and_every_part_is_in_one_task() -> None:
    megabytes = {"a": 1, "b": 3, "c": 4, "d": 1, "e": 20, "f": 150, "g.gz": 3, "h": 5}
    files = {name: size << 20 for name, size in megabytes.items()}
    parts = ranges(files, 64 << 20)

    tasks = tasks_of(parts, files, 64 << 20)

    assert [part for task in tasks for part in task] == parts
    assert [[path for path, *_ in task] for task in tasks] == [
        ["a", "b", "c"],
        ["d"],
        ["e"],
        *[["f"]] * 3,
        ["g.gz", "h"],
    ]
    # No larger than a task may be.
    assert all(len(task) == 1 for task in tasks_of(ranges(files, 1 << 20), files, 1 << 20))
    many = {f"part-{number:03}": 40_000 for number in range(333)}
    assert [len(task) for task in tasks_of(ranges(many, 64 << 20), many, 64 << 20)] == [209, 124]


def test_tasks_are_shuffled_by_a_seed_and_none_is_lost() -> None:
    files = {f"part-{number}": 100 for number in range(20)}
    in_order = ranges(files, 10)

    shuffled = ranges(files, 10, "1 20200401/00")

    assert sorted(shuffled) == sorted(in_order)
    assert shuffled == ranges(files, 10, "1 20200401/00")
    assert in_order != shuffled != ranges(files, 10, "1 20200401/01")


def test_tasks_and_records_are_shuffled_unless_told_otherwise_and_those_of_a_stream_are_not() -> None:
    stream = DATA.model_copy(update={"source": DataSource(url="kafka://broker:9092/clicks")})

    assert order_of_tasks(DATA, 1, "20200401/00") == order_of_tasks(DATA, 1, "20200401/00")
    assert len({order_of_tasks(DATA, seed, one) for seed in (1, 2) for one in ("20200401/00", "20200401/01")}) == 4
    # The same wherever a task is converted.
    assert order_of_records(DATA, 1, "a", 0) == order_of_records(DATA, 1, "a", 0) != 0
    seeds = {order_of_records(DATA, seed, path, start) for seed in (1, 2) for path in "ab" for start in (0, 8)}
    assert len(seeds) == 8
    in_order = DATA.model_copy(update={"shuffle": False})
    assert (order_of_tasks(in_order, 1, "20200401/00"), order_of_records(in_order, 1, "a", 0)) == (None, 0)
    assert order_of_records(stream, 1, "a", 0) == 0
