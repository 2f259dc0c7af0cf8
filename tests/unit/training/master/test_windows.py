import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.sources.streams.interface import Kept
from elastic_ctr.training.master.calendar.stream_schedule import (
    cut_window,
    first_offsets,
    lag_of,
    pieces,
    ranges_in,
    text_of,
)

names = st.sampled_from(["a", "b", "topic/0", "with:colon-1"])
partitions = st.dictionaries(
    names, st.tuples(st.integers(0, 50), st.integers(0, 500)).map(lambda t: Kept(t[0], t[0] + t[1]))
)


@given(kept=partitions, limit=st.integers(1, 300))
def test_windows_until_the_end_have_every_offset_once_and_none_is_larger_than_asked_for(
    kept: dict[str, Kept], limit: int
) -> None:
    following = first_offsets(kept, None, "earliest")
    found: dict[str, list[int]] = {name: [] for name in kept}
    while (window := cut_window(kept, following, limit)).size:
        # Shares are rounded up.
        assert window.size < limit + len(kept)
        assert window.gone == 0
        for name, start, stop in window.ranges:
            assert start == following[name]
            found[name] += range(start, stop)
            following[name] = stop

    assert found == {name: list(range(each.first, each.end)) for name, each in kept.items()}
    assert lag_of(kept, following) == 0


def test_offsets_that_the_stream_keeps_no_more_are_counted_and_passed_over() -> None:
    window = cut_window({"a": Kept(70, 100), "b": Kept(0, 10)}, {"a": 20, "b": 5}, 1000)

    assert window.ranges == [("a", 70, 100), ("b", 5, 10)]
    assert window.gone == 50


def test_a_partition_that_ends_before_what_was_read_is_named() -> None:
    with pytest.raises(
        ValueError, match="a of the stream ends at offset 10, and passes have read it up to 20: it was created anew"
    ):
        cut_window({"a": Kept(0, 10)}, {"a": 20}, 1000)


def test_latest_is_the_ends_at_the_start_and_a_partition_that_comes_later_is_read_from_its_first_offset() -> None:
    kept = {"a": Kept(3, 10)}

    begun = first_offsets(kept, None, "latest")
    later = first_offsets({**kept, "b": Kept(2, 5)}, begun, "latest")

    assert begun == {"a": 10}
    assert first_offsets(kept, {}, "latest") == {"a": 3}, "the stream was empty at the start"
    assert later == {"a": 10, "b": 2}


def test_a_partition_that_nobody_can_read_waits_and_the_others_go_on() -> None:
    kept = {"a": Kept(0, 10), "b": Kept(0, 8, away=True), "new": Kept(0, 0, away=True)}
    following = first_offsets(kept, {"a": 4, "b": 5}, "latest")

    assert following == {"a": 4, "b": 5}, "where the new one begins is known once it is there"
    assert cut_window(kept, following, 1000).ranges == [("a", 4, 10)]
    assert lag_of(kept, following) == 9
    # A broker that has forgotten what it was last seen with says so once it is there.
    assert cut_window({"b": Kept(0, 0, away=True)}, {"b": 5}, 1000).size == 0


@given(
    ranges=st.lists(st.tuples(names, st.integers(0, 10**6), st.integers(1, 10**6)), max_size=4),
    tasks=st.integers(1, 8),
    least=st.integers(1, 10**5),
)
def test_pieces_are_the_same_offsets_and_none_is_smaller_than_asked_for(
    ranges: list[tuple[str, int, int]], tasks: int, least: int
) -> None:
    whole = [(name, start, start + size) for name, start, size in ranges]

    found = pieces(whole, tasks, least)

    assert len(found) <= len(whole) + tasks
    for name, start, stop in whole:
        at = start
        while at < stop:
            _, first, last = found.pop(0)
            assert first == at
            assert last - first >= min(least, stop - start)
            at = last
        assert at == stop, name
    assert not found


@given(st.lists(st.tuples(names, st.integers(0, 2**60), st.integers(0, 2**60)), max_size=4))
def test_ranges_are_read_as_they_were_written(ranges: list[tuple[str, int, int]]) -> None:
    assert ranges_in(tuple(text_of(ranges))) == ranges
