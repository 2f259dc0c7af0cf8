from elastic_ctr.cube.agent.handoff import HandedOver

PAIR = (7, 2)


def test_readers_are_told_of_it_for_half_of_the_time_and_it_is_kept_for_all_of_it() -> None:
    handed = HandedOver(30)
    told = []
    for now in range(40):
        handed.see([PAIR], [] if handed.going(PAIR, now) else [PAIR], now)
        told.append((handed.going(PAIR, now), handed.over(PAIR, now)))

    assert told.index((True, False)) == 15
    assert told.index((True, True)) == 30


def test_what_is_needed_again_begins_anew() -> None:
    handed = HandedOver(30)
    handed.see([PAIR], [], 0)
    handed.see([], [], 20)
    handed.see([PAIR], [], 21)

    assert not handed.going(PAIR, 30)
    assert handed.going(PAIR, 36)
    assert not handed.over(PAIR, 50)
    assert handed.over(PAIR, 51)


def test_what_readers_are_still_told_of_is_not_over() -> None:
    handed = HandedOver(30)
    for now in (0, 100):
        handed.see([PAIR], [PAIR], now)
    assert handed.going(PAIR, 100)
    assert not handed.over(PAIR, 100)

    handed.see([PAIR], [], 101)

    assert not handed.over(PAIR, 115)
    assert handed.over(PAIR, 116)


def test_what_was_never_seen_is_held() -> None:
    assert not HandedOver(30).going(PAIR, 1e9)
    assert not HandedOver(30).over(PAIR, 1e9)
