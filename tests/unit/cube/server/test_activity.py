import numpy as np

from elastic_ctr.cube.server.lookup_counters import REQUESTS, VERSIONS_AT, WIDTH, Activity
from waiting import Clock


def test_a_version_whose_counter_changed_had_a_lookup_since_the_last_look() -> None:
    clock, counts = Clock(), np.zeros((2, WIDTH), np.int64)
    activity = Activity(counts, clock)
    activity.look({1: 0, 2: 1})
    assert activity.last_asked_seconds() == {1: None, 2: None}
    assert activity.last_lookup_seconds() is None

    counts[1, VERSIONS_AT + 1] += 1
    counts[0, REQUESTS] += 1
    activity.look({1: 0, 2: 1})
    clock.now += 7
    activity.look({1: 0, 2: 1})

    assert activity.last_asked_seconds() == {1: None, 2: 7.0}
    assert activity.last_lookup_seconds() == 7.0


def test_a_version_does_not_inherit_what_its_place_counted_for_another() -> None:
    clock, counts = Clock(), np.zeros((1, WIDTH), np.int64)
    activity = Activity(counts, clock)
    activity.look({1: 0})
    counts[0, VERSIONS_AT] += 5

    activity.look({2: 0})

    assert activity.last_asked_seconds() == {2: None}
