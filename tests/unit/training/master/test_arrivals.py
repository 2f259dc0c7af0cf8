"""When the records of a stream came: of looks at what it has, and of what passes take."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.store.versions.manifest import Arrival
from elastic_ctr.training.master.calendar.stream_schedule import Arrivals, Span, in_records, joined
from elastic_ctr.training.master.ledger.rows import Came


def test_offsets_of_the_first_look_have_come_by_then_and_later_ones_between_two_looks() -> None:
    arrivals = Arrivals()
    arrivals.look(100.0, 50)
    arrivals.look(101.0, 50)
    arrivals.look(103.0, 90)

    assert arrivals.take(70) == [Span(100.0, 100.0, 50), Span(101.0, 102.0, 20)]
    arrivals.look(104.0, 25)
    assert arrivals.take(1000) == [Span(102.0, 103.0, 20), Span(103.0, 104.0, 5)]


def test_offsets_that_came_while_the_master_was_away_came_since_the_last_of_a_pass() -> None:
    arrivals = Arrivals(since=90.0)
    arrivals.look(100.0, 10)

    assert arrivals.take(10) == [Span(90.0, 100.0, 10)]


def test_offsets_that_the_stream_has_dropped_are_no_arrivals_any_more() -> None:
    arrivals = Arrivals()
    arrivals.look(1.0, 10)
    arrivals.look(2.0, 30)
    arrivals.look(3.0, 15)

    assert arrivals.take(30) == [Span(1.25, 2.0, 15)]


def test_a_clock_that_is_set_back_makes_no_arrival_that_ends_before_it_begins() -> None:
    arrivals = Arrivals()
    arrivals.look(100.0, 1)
    arrivals.look(40.0, 9)

    assert arrivals.take(9) == [Span(100.0, 100.0, 1), Span(40.0, 40.0, 8)]


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 1000), st.integers(0, 800)), max_size=30))
def test_each_offset_is_taken_once_and_the_oldest_first(looks: list[tuple[float, int, int]]) -> None:
    arrivals, now, lag, taken, came = Arrivals(), 0.0, 0, 0, 0
    found: list[Span] = []
    for pause, more, take in looks:
        now, lag, came = now + pause, lag + more, came + more
        arrivals.look(now, lag)
        got = arrivals.take(min(take, lag))
        assert sum(each.offsets for each in got) == min(take, lag)
        lag -= min(take, lag)
        taken += sum(each.offsets for each in got)
        found += got

    assert taken + lag == came
    assert all(each.first <= each.last <= now for each in found)
    assert all(one.last <= other.last + 1e-9 for one, other in pairwise(found))


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(1, 4))
def test_joined_spans_are_few_and_have_all_offsets(offsets: list[int], most: int) -> None:
    spans = [Span(float(at), at + 0.5, each) for at, each in enumerate(offsets)]

    found = joined(spans, most)

    assert len(found) <= most
    assert sum(each.offsets for each in found) == sum(offsets)
    if spans:
        assert (found[0].first, found[-1].last) == (spans[0].first, spans[-1].last)


def test_bytes_become_records_by_the_records_of_their_pass() -> None:
    came = [Came(7, 1.0, 2.0, 100), Came(7, 2.0, 3.0, 201), Came(8, 3.0, 4.0, 50), Came(9, 4.0, 5.0, 10)]

    assert in_records(came, {7: 10, 8: 5}) == (
        Arrival(7, 1.0, 2.0, 3),
        Arrival(7, 2.0, 3.0, 7),
        Arrival(8, 3.0, 4.0, 5),
    )
