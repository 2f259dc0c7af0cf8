from elastic_ctr.cube.agent.handoff import HandoffTimers

IT = {7: [2]}


def test_a_partition_is_hidden_after_half_of_the_time_and_due_after_all_of_it() -> None:
    handed = HandoffTimers(30)
    told = []
    for now in range(40):
        handed.update(IT, {} if handed.hidden(7, now) else IT, now)
        told.append((bool(handed.hidden(7, now)), handed.due(7, now) == [2]))

    assert told.index((True, False)) == 15
    assert told.index((True, True)) == 30


def test_the_timer_of_a_partition_that_was_needed_again_begins_anew() -> None:
    handed = HandoffTimers(30)
    handed.update(IT, {}, 0)
    handed.update({}, {}, 20)
    handed.update(IT, {}, 21)

    assert not handed.hidden(7, 30)
    assert handed.hidden(7, 36)
    assert not handed.due(7, 50)
    assert handed.due(7, 51)


def test_a_partition_is_not_due_while_the_release_document_still_lists_this_pod_for_it() -> None:
    handed = HandoffTimers(30)
    for now in (0, 100):
        handed.update(IT, IT, now)
    assert handed.hidden(7, 100)
    assert not handed.due(7, 100)

    handed.update(IT, {}, 101)

    assert not handed.due(7, 115)
    assert handed.due(7, 116)


def test_a_version_that_was_never_handed_off_is_neither_hidden_nor_due() -> None:
    assert not HandoffTimers(30).hidden(7, 1e9)
    assert not HandoffTimers(30).due(7, 1e9)


def test_each_partition_of_a_version_has_its_own_time() -> None:
    handed = HandoffTimers(30)
    handed.update({7: {1, 2}, 8: {1}}, {8: (1,)}, 0)
    handed.update({7: {2, 3}, 8: {1}}, {8: (1,)}, 10)
    handed.update({7: {1, 2, 3}, 8: {1}}, {}, 20)

    assert (handed.hidden(7, 24), handed.hidden(8, 24)) == ({2}, {1})
    assert (handed.due(7, 29), handed.due(8, 29)) == ([], [])
    assert (handed.due(7, 30), handed.due(8, 34)) == ([2], [])
    assert (handed.due(7, 40), handed.due(8, 35)) == ([2, 3], [1])
    assert handed.due(7, 50) == [1, 2, 3]
