from elastic_ctr.cube.agent.agent import HandoffTimers

PAIR = (7, 2)


def test_readers_are_told_of_it_for_half_of_the_time_and_it_is_kept_for_all_of_it() -> None:
    handed = HandoffTimers(30)
    told = []
    for now in range(40):
        handed.update([PAIR], [] if handed.should_hide(PAIR, now) else [PAIR], now)
        told.append((handed.should_hide(PAIR, now), handed.may_unload(PAIR, now)))

    assert told.index((True, False)) == 15
    assert told.index((True, True)) == 30


def test_what_is_needed_again_begins_anew() -> None:
    handed = HandoffTimers(30)
    handed.update([PAIR], [], 0)
    handed.update([], [], 20)
    handed.update([PAIR], [], 21)

    assert not handed.should_hide(PAIR, 30)
    assert handed.should_hide(PAIR, 36)
    assert not handed.may_unload(PAIR, 50)
    assert handed.may_unload(PAIR, 51)


def test_what_readers_are_still_told_of_is_not_over() -> None:
    handed = HandoffTimers(30)
    for now in (0, 100):
        handed.update([PAIR], [PAIR], now)
    assert handed.should_hide(PAIR, 100)
    assert not handed.may_unload(PAIR, 100)

    handed.update([PAIR], [], 101)

    assert not handed.may_unload(PAIR, 115)
    assert handed.may_unload(PAIR, 116)


def test_what_was_never_seen_is_held() -> None:
    assert not HandoffTimers(30).should_hide(PAIR, 1e9)
    assert not HandoffTimers(30).may_unload(PAIR, 1e9)
