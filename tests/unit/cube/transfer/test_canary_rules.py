"""A candidate that answers a share of the requests before it goes live."""

import pytest

from cube.transfer.release_parts import ALL, RULES, hold, live, view
from elastic_ctr.cube.release import ReaderReport, ReleaseDocument
from elastic_ctr.cube.transfer.state import (
    ReleaseState,
    advance,
    canary_seconds_left,
    document_of,
    obeyed,
    rolled_back,
    with_clock_moved,
)


def answering_its_share(now: float = 1000.0) -> ReleaseState:
    return advance(live(4), view(4, 5, held=(4, 5), now=now, canary_seconds=60.0), RULES)


def test_a_validated_candidate_answers_its_share_for_its_minutes_and_goes_live_then() -> None:
    seen = view(4, 5, 6, held=(4, 5), canary_seconds=60.0)
    state = answering_its_share()

    early = advance(state, seen._replace(now=1059.0), RULES)
    late = advance(state, seen._replace(now=1060.0), RULES)

    assert (early.live, early.candidate, canary_seconds_left(early, seen._replace(now=1059.0))) == (4, 5, 1.0)
    assert document_of(early, 1, seen.placement, seen.holders).canary
    assert (late.live, late.previous, late.candidate, late.canary_since) == (5, 4, 6, None)
    assert not document_of(late, 1, seen.placement, seen.holders).canary


def test_a_candidate_that_serving_has_not_validated_answers_no_request() -> None:
    pods = [ReaderReport(pod="a", validated=(4,))]

    state = advance(live(4), view(4, 5, held=(4, 5), readers=pods, canary_seconds=60.0), RULES)

    assert (state.candidate, state.canary_since) == (5, None)


def test_the_first_version_and_a_rollback_answer_no_share() -> None:
    seen = view(4, 5, held=(4, 5), canary_seconds=60.0)

    first = advance(ReleaseState(generation=1), seen, RULES)
    back = rolled_back(ReleaseState(generation=1, live=5, was_live=(4, 5)), 4, seen, RULES)

    assert first.live == 5
    assert back.live == 4


def test_a_share_that_is_turned_off_ends_at_once() -> None:
    assert advance(answering_its_share(), view(4, 5, held=(4, 5)), RULES).live == 5


@pytest.mark.parametrize("suspects", [(5,), (6,)])
def test_a_publishing_hold_ends_the_share_and_refuses_a_suspect(suspects: tuple[int, ...]) -> None:
    seen = view(4, 5, held=(4, 5), now=1030.0, canary_seconds=60.0)

    state = obeyed(answering_its_share(), hold(*suspects), seen, RULES)

    assert (state.live, state.candidate, state.canary_since) == (4, None, None)
    assert (5 in state.refused) == (suspects == (5,))


def test_an_operator_who_keeps_the_live_version_ends_the_share() -> None:
    seen = view(4, 5, held=(4, 5), now=1030.0, canary_seconds=60.0)

    state = rolled_back(answering_its_share(), 4, seen, RULES)

    assert (state.live, state.candidate, state.canary_since, state.promotion_paused) == (4, None, None, True)


def test_a_candidate_that_lost_a_partition_answers_its_share_anew() -> None:
    seen = view(4, 5, held=(4, 5), canary_seconds=60.0)

    lost = advance(answering_its_share(), seen._replace(now=1030.0, holders={4: {"a:1": ALL}}), RULES)
    again = advance(lost, seen._replace(now=1040.0), RULES)

    assert lost.canary_since is None
    assert advance(again, seen._replace(now=1099.0), RULES).live == 4
    assert advance(again, seen._replace(now=1100.0), RULES).live == 5


def test_a_clock_that_is_set_changes_no_share() -> None:
    seen = view(4, 5, held=(4, 5), canary_seconds=60.0)

    state = with_clock_moved(answering_its_share(), -500.0)

    assert advance(state, seen._replace(now=559.0), RULES).live == 4
    assert advance(state, seen._replace(now=560.0), RULES).live == 5


def test_readers_of_an_older_release_are_told_of_a_share_only_where_there_is_one() -> None:
    seen = view(4, 5, held=(4, 5))

    without = document_of(live(4), 1, seen.placement, seen.holders).model_dump(mode="json", by_alias=True)
    with_one = document_of(answering_its_share(), 1, seen.placement, seen.holders).model_dump(
        mode="json", by_alias=True
    )

    assert "canary" not in without
    assert with_one["canary"] is True
    assert ReleaseDocument.model_validate(with_one).canary
