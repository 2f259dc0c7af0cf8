"""The rules one by one; test_release_machine.py has them all together."""

from typing import Any

import pytest

from cube.transfer.release_parts import ALL, RULES, dictionary, hold, live, view
from elastic_ctr.config.cube_settings import CubeTransferConfig
from elastic_ctr.cube.release import AgentReport, Placement, ReaderReport, ReleaseDocument
from elastic_ctr.cube.transfer.state import (
    ReleaseState,
    RollbackRefused,
    StepTimes,
    advance,
    forgotten,
    kept_for_holds,
    lacking,
    lagging_pods,
    obeyed,
    refuse,
    resume,
    rolled_back,
    state_after_loss,
    state_from_newer,
    validation_verdict,
    with_clock_moved,
    with_scan,
    with_times,
)
from elastic_ctr.store.versions.manifest import VersionManifest


def test_a_built_version_becomes_the_candidate_and_waits_for_holders() -> None:
    state = advance(ReleaseState(generation=1), view(5), RULES)

    assert (state.candidate, state.live) == (5, None)
    assert lacking(state, view(5), RULES) == (0, 1, 2, 3)


def test_a_loaded_candidate_goes_live_and_the_live_version_becomes_the_previous_one() -> None:
    state = advance(live(4), view(4, 5, held=(4, 5)), RULES)

    assert (state.live, state.previous, state.candidate) == (5, 4, None)
    assert state.wanted == (5, 4)


def test_the_newest_is_next_and_those_between_are_never_live() -> None:
    state = advance(live(4), view(4, 5, 6, 7, held=(4, 5, 6, 7)), RULES)

    assert state.live == 7
    assert state.was_live == (4, 7)


def test_a_candidate_is_settled_before_a_newer_one_is_looked_at() -> None:
    state = advance(live(4), view(4, 5), RULES)

    after = advance(state, view(4, 5, 6, 7), RULES)

    assert after.candidate == 5


def test_a_transfer_promotes_nothing_until_it_has_listened_for_pods() -> None:
    seen = view(4, 5, held=(4, 5), listened=False)

    assert advance(live(4), seen, RULES).live == 4
    assert advance(live(4), seen._replace(listened=True), RULES).live == 5


def test_serving_pods_are_waited_for_from_when_every_partition_is_held() -> None:
    pods = [ReaderReport(pod="a", validated=(5,)), ReaderReport(pod="b")]
    state = advance(live(4), view(4, 5, held=(4, 5), readers=pods), RULES)

    early = advance(state, view(4, 5, held=(4, 5), readers=pods, now=1119.0), RULES)
    late = advance(state, view(4, 5, held=(4, 5), readers=pods, now=1120.0), RULES)

    assert validation_verdict(early, view(4, 5, readers=pods), RULES).silent == ("b",)
    assert early.live == 4
    assert late.live == 5


def agent(pod: str, *held: int, **more: Any) -> AgentReport:
    fields: dict[str, Any] = {"address": f"{pod}:1", "shard": 0, "loaded": dict.fromkeys(held, (0, 1, 2, 3)), **more}
    return AgentReport(pod=pod, **fields)


def test_a_version_that_one_pod_has_waits_for_the_pod_beside_it_that_still_loads_it() -> None:
    pods = [agent("c-s0-0", 4), agent("c-s0-1", 4, 5)]
    state = advance(live(4), view(4, 5, held=(4, 5), agents=pods), RULES)

    assert state.live == 4
    assert lagging_pods(state, view(4, 5, held=(4, 5), agents=pods), RULES) == ("c-s0-0",)
    both = [agent("c-s0-0", 4, 5), agent("c-s0-1", 4, 5)]
    assert advance(state, view(4, 5, held=(4, 5), agents=both), RULES).live == 5


def test_the_only_pod_that_has_a_version_may_go_and_what_was_live_is_still_answered() -> None:
    """The store went with it, so the other cannot load the version: live stays what both had."""
    going = [agent("c-s0-0", 4), agent("c-s0-1", 4, 5, draining=True)]
    holders = {4: {"a:1": ALL}, 5: {"b:1": ALL.model_copy(update={"draining": True})}}
    begun = advance(live(4), view(4, 5, held=(4, 5), agents=[agent("c-s0-0", 4), agent("c-s0-1", 4, 5)]), RULES)

    state = advance(begun, view(4, 5, holders=holders, agents=going, now=9999.0), RULES)

    assert (state.live, state.complete_since) == (4, None)


@pytest.mark.parametrize("excused", [{"draining": True}, {"shard": 1}])
def test_promotion_waits_for_no_pod_that_drains_or_has_no_partitions_to_load(excused: dict[str, Any]) -> None:
    pods = [agent("c-s0-0", 4, 5), agent("c-s0-1", 4, **excused)]

    assert advance(live(4), view(4, 5, held=(4, 5), agents=pods), RULES).live == 5


def test_a_pod_that_cannot_load_a_version_delays_it_for_validation_timeout_seconds() -> None:
    pods = [agent("c-s0-0", 4, 5), agent("c-s0-1", 4)]
    state = advance(live(4), view(4, 5, held=(4, 5), agents=pods), RULES)

    assert advance(state, view(4, 5, held=(4, 5), agents=pods, now=1119.0), RULES).live == 4
    assert advance(state, view(4, 5, held=(4, 5), agents=pods, now=1120.0), RULES).live == 5


def test_a_pod_that_can_load_nothing_more_delays_one_version_and_not_each() -> None:
    pods = [agent("c-s0-0", 4, 5), agent("c-s0-1", 4)]
    state = advance(live(4), view(4, 5, held=(4, 5), agents=pods), RULES)
    state = advance(state, view(4, 5, held=(4, 5), agents=pods, now=1120.0), RULES)
    pods = [agent("c-s0-0", 4, 5, 6), agent("c-s0-1", 4)]

    state = advance(state, view(4, 5, 6, held=(4, 5, 6), agents=pods, now=1121.0), RULES)

    assert state.live == 6


def test_a_clock_that_is_set_back_makes_no_wait_longer() -> None:
    pods = [agent("c-s0-0", 4, 5), agent("c-s0-1", 4)]
    state = advance(live(4), view(4, 5, held=(4, 5), agents=pods, now=9000.0), RULES)

    state = advance(state, view(4, 5, held=(4, 5), agents=pods, now=1000.0), RULES)

    assert advance(state, view(4, 5, held=(4, 5), agents=pods, now=1120.0), RULES).live == 5


def test_the_first_version_of_all_waits_for_no_second_pod() -> None:
    pods = [agent("c-s0-0", 5), agent("c-s0-1")]

    assert advance(ReleaseState(generation=1), view(5, held=(5,), agents=pods), RULES).live == 5


def test_the_wait_begins_again_when_a_holder_is_lost() -> None:
    pods = [ReaderReport(pod="a", validated=(5,)), ReaderReport(pod="b")]
    state = advance(live(4), view(4, 5, held=(4, 5), readers=pods), RULES)

    lost = advance(state, view(4, 5, held=(4,), readers=pods), RULES)

    assert lost.complete_since is None


def test_a_refusal_is_final_and_the_next_is_tried() -> None:
    pods = [ReaderReport(pod="a", refused={5: "differs"})]

    state = advance(live(4), view(4, 5, held=(4, 5), readers=pods), RULES)
    later = advance(state, view(4, 5, held=(4, 5)), RULES)

    assert state.refused == {5: "a: differs"}
    assert (later.live, later.candidate) == (4, None)


def test_a_complaint_about_the_live_version_does_not_take_it_away() -> None:
    pods = [ReaderReport(pod="a", refused={4: "differs"})]

    state = advance(live(4), view(4, held=(4,), readers=pods, damaged={4: "damaged"}), RULES)

    assert (state.live, state.refused) == (4, {})


def test_a_candidate_whose_parts_are_damaged_or_deleted_is_refused() -> None:
    state = advance(live(4), view(4, 5), RULES)

    damaged = advance(state, view(4, 5, damaged={5: "a: part 3"}), RULES)
    deleted = advance(state, view(4), RULES)

    assert damaged.refused == {5: "a: part 3"}
    assert deleted.refused == {5: "its dictionary was deleted from the store"}


def test_a_version_of_another_shape_than_the_live_one_is_refused() -> None:
    seen = view(4, held=(4,))._replace(built={4: dictionary(4), 5: dictionary(5, dim=3)})

    state = advance(live(4), seen, RULES)

    assert "has dim 3 over 4 partitions, live version 4 has dim 2" in state.refused[5]


def test_a_rollback_to_a_held_version_is_live_at_once_and_holds() -> None:
    state = ReleaseState(generation=1, live=5, previous=4, was_live=(4, 5))

    after = rolled_back(state, 4, view(4, 5, held=(4, 5)), RULES)
    later = advance(after, view(4, 5, 6, held=(4, 5, 6)), RULES)

    assert (after.live, after.previous, after.promotion_paused) == (4, 5, True)
    assert (later.live, later.candidate) == (4, None)


def test_a_rollback_to_a_version_that_is_not_held_loads_it_first_and_asks_no_serving_pod() -> None:
    state = ReleaseState(generation=1, live=6, previous=5, was_live=(4, 5, 6))
    pods = [ReaderReport(pod="a", refused={4: "who knows"})]

    after = rolled_back(state, 4, view(4, 5, 6, held=(5, 6), readers=pods), RULES)
    loaded = advance(after, view(4, 5, 6, 7, held=(4, 5, 6, 7), readers=pods), RULES)

    assert (after.live, after.candidate, after.restoring, after.promotion_paused) == (6, 4, True, True)
    assert (loaded.live, loaded.previous, loaded.promotion_paused) == (4, 6, True)


@pytest.mark.parametrize(
    ("version", "reason"),
    [(3, "is refused"), (9, "has no dictionary in the store"), (5, "was never live")],
)
def test_an_impossible_rollback_is_refused_with_the_reason_and_the_possible_versions(version: int, reason: str) -> None:
    state = ReleaseState(generation=1, live=6, was_live=(2, 6), refused={3: "differs"})

    with pytest.raises(RollbackRefused, match=f"{reason}.*possible are 2"):
        rolled_back(state, version, view(2, 3, 5, 6), RULES)


def test_a_rollback_to_what_is_live_holds_it() -> None:
    state = advance(live(4), view(4, 5), RULES)

    after = rolled_back(state, 4, view(4, 5), RULES)

    assert (after.live, after.promotion_paused, after.candidate) == (4, True, None)


def test_resuming_goes_on_with_the_newest_and_gives_up_a_rollback_under_way() -> None:
    state = ReleaseState(generation=1, live=6, previous=5, was_live=(4, 5, 6))
    waiting = rolled_back(state, 4, view(4, 5, 6, 7, held=(5, 6)), RULES)

    after = advance(resume(waiting), view(4, 5, 6, 7, held=(5, 6)), RULES)

    assert (after.live, after.candidate, after.promotion_paused) == (6, 7, False)
    assert resume(after) == after


def test_a_hold_goes_back_below_its_suspects_and_refuses_them_once_none_is_live() -> None:
    state = ReleaseState(generation=1, live=7, previous=6, was_live=(3, 4, 5, 6, 7))
    built = (3, 4, 5, 6, 7, 8)

    waiting = obeyed(state, hold(5, 8), view(*built, held=(6, 7)), RULES)
    after = advance(waiting, view(*built, held=(4, 7)), RULES)

    assert (waiting.live, waiting.candidate, waiting.restoring) == (7, 4, True)
    # Version 8 was built and never live; 7 was live a moment ago.
    assert (after.live, after.previous, after.promotion_paused) == (4, 7, True)
    assert after.refused.keys() == {5, 6, 7, 8}
    assert after.refused[8] == "the windows behind it were worse: publishing hold 1"
    assert after.held == hold(5, 8)


def test_a_hold_that_was_obeyed_is_not_obeyed_again_and_a_newer_one_is() -> None:
    state = obeyed(live(3), hold(5, 6), view(3), RULES)

    assert obeyed(resume(state), hold(5, 6), view(3), RULES) == resume(state)
    assert resume(state).held is None
    assert obeyed(resume(state), hold(7, 7, number=2), view(3), RULES).held == hold(7, 7, number=2)


def test_versions_behind_a_hold_go_live_once_it_is_resumed_and_its_suspects_never_do() -> None:
    state = ReleaseState(generation=1, live=7, previous=4, was_live=(4, 7))
    held = obeyed(state, hold(7, 8), view(4, 7, 8, held=(4, 7)), RULES)
    assert held.live == 4

    after = advance(resume(held), view(4, 7, 8, held=(4, 7, 8)), RULES)
    later = advance(after, view(4, 7, 8, 9, held=(4, 7, 8, 9)), RULES)

    assert (after.live, after.candidate) == (4, None)
    assert later.live == 9
    assert later.refused.keys() == {7, 8}


@pytest.mark.parametrize("suspects", [(), (8, 9), (3, 6)])
def test_a_hold_without_a_version_to_go_back_to_pauses_promotion_alone(suspects: tuple[int, ...]) -> None:
    state = ReleaseState(generation=1, live=6, previous=5, candidate=7, was_live=(5, 6))

    after = obeyed(state, hold(*suspects), view(5, 6, 7, held=(5, 6, 7)), RULES)

    assert (after.live, after.candidate, after.promotion_paused) == (6, None, True)
    assert 6 not in after.refused


def test_versions_that_a_hold_may_go_back_to_are_the_newest_that_were_live_and_the_same_older_ones_for_as_long_as_they_are_known() -> (
    None
):
    kept = [
        kept_for_holds(ReleaseState(generation=1, was_live=tuple(range(first, first + 64)))) for first in (100, 101)
    ]

    assert kept[0] >= set(range(148, 164))
    assert {v for v in kept[0] if v < 148} == {v for v in range(100, 148) if v % 4 == 0}
    assert kept[1] >= {v for v in kept[0] if 101 <= v < 148}


def test_a_hold_goes_to_the_next_version_below_when_the_first_is_damaged_or_was_forgotten_by_a_newer_document() -> None:
    state = ReleaseState(generation=1, live=7, previous=6, was_live=(3, 4, 5, 6, 7))
    seen = view(3, 4, 5, 6, 7, held=(6, 7))
    waiting = obeyed(state, hold(5, 8), seen, RULES)

    damaged = advance(waiting, seen._replace(damaged={4: "pod a: its parts are damaged"}), RULES)
    said = ReleaseDocument(generation=4, revision=9, placement=Placement(shards=1), live=7, previous=6)
    learned = advance(state_from_newer(waiting, said), seen, RULES)

    assert (waiting.candidate, damaged.candidate, learned.candidate) == (4, 3, 4)
    assert damaged.restoring
    assert learned.restoring


def test_a_suspect_that_was_live_when_the_hold_ended_is_spared() -> None:
    state = ReleaseState(generation=1, live=6, was_live=(6,))
    held = obeyed(state, hold(5, 7), view(6, 7, held=(6,)), RULES)

    after = advance(resume(held), view(6, 7, 8, held=(6, 7, 8)), RULES)

    assert (after.live, after.previous) == (8, 6)
    assert after.refused.keys() == {7}


def test_a_hold_is_kept_by_a_transfer_that_learns_a_newer_document() -> None:
    state = obeyed(live(3), hold(5, 6), view(3), RULES)
    said = ReleaseDocument(generation=4, revision=9, placement=Placement(shards=1), live=3)

    assert state_from_newer(state, said).held == hold(5, 6)


def test_a_transfer_without_state_goes_on_from_the_highest_document() -> None:
    said = ReleaseDocument(
        generation=3, revision=9, placement=Placement(shards=1), live=5, previous=4, candidate=6, promotion_paused=True,
        refused={2: "x"},
    )  # fmt: skip

    state = state_after_loss(said)

    assert (state.generation, state.live, state.previous, state.candidate, state.promotion_paused) == (
        4,
        5,
        4,
        None,
        True,
    )
    assert state.refused == {2: "x"}
    assert state_after_loss(None).generation == 1


def test_a_pod_with_a_newer_document_is_right_and_our_past_is_kept_beside() -> None:
    own = ReleaseState(generation=2, live=4, was_live=(3, 4), refused={5: "x", 2: "y"}, deleted=(1,))
    said = ReleaseDocument(generation=4, revision=9, placement=Placement(shards=1), live=5, previous=4)

    state = state_from_newer(own, said)

    assert (state.generation, state.live, state.was_live, state.refused) == (5, 5, (3, 4, 5), {2: "y"})
    assert state.deleted == (1,)


def test_seconds_to_live_stay_what_they_were_after_a_rollback_and_its_end() -> None:
    state = with_times(live(4), {4: {"published": 1.0, "seen": 2.0, "live": 8.2}})

    state = with_times(state, {4: {"live": 170.9}})

    assert state.times[4].seconds_to_live == 7.2


@pytest.mark.parametrize(
    ("published", "seen", "alive", "expected"),
    [(1.0, 2.0, 8.2, 7.2), (500.0, 2.0, 8.0, 6.0), (1.0, 9.0, 8.0, 8.0), (500.0, 9.0, 8.0, 0.0)],
)
def test_seconds_to_live_are_never_negative(published: float, seen: float, alive: float, expected: float) -> None:
    assert StepTimes(published=published, seen=seen, live=alive).seconds_to_live == expected


@pytest.mark.parametrize("moved", [-7200.0, 3600.0, 3 * 86400.0])
def test_a_clock_that_is_set_changes_no_wait(moved: float) -> None:
    state = with_times(
        live(4), {4: {"published": 1.0, "seen": 2.0, "live": 8.0}, 5: {"published": 900.0, "seen": 901.0}}
    )
    rules = CubeTransferConfig(min_ready_replicas=1, validation_timeout_seconds=60)
    waiting = view(4, 5, held=(4, 5), readers=[ReaderReport(pod="r")])
    state = advance(state, waiting, rules)

    state = with_clock_moved(state, moved)

    later = waiting._replace(
        now=waiting.now + moved + 59, readers=[ReaderReport(pod="r"), ReaderReport(pod="s", validated=(5,))]
    )
    assert advance(state, later, rules).live == 4
    after = advance(state, later._replace(now=later.now + 1), rules)
    assert after.live == 5
    spent = (after.times[5].live or 0) - (after.times[5].seen or 0)
    assert spent == pytest.approx(1000.0 + 60 - 901)
    assert after.times[4].seconds_to_live == 7.0


def test_a_look_at_versions_that_are_known_or_forgotten_changes_nothing() -> None:
    moments = {version: {"published": float(version), "seen": float(version)} for version in range(1, 200)}
    state = with_times(live(4), moments)

    assert min(state.times) > 100
    assert with_times(state, moments) is state
    assert with_times(state, {**moments, 200: {"seen": 200.0}}).times[200].seen == 200.0


def test_a_scan_notes_of_each_version_what_is_not_known_yet() -> None:
    manifest: Any = VersionManifest.model_construct
    published = {version: manifest(created_at=float(version)) for version in range(1, 200)}

    state = with_scan(live(4), published, {150}, 300.0)

    assert min(state.times) > 100
    assert state.times[150] == StepTimes(published=150.0, seen=300.0, built=300.0)
    assert state.times[199] == StepTimes(published=199.0, seen=300.0)
    assert with_scan(state, published, {150}, 301.0) is state
    # One that is forgotten and built since is no news.
    assert with_scan(state, published, {2, 150}, 301.0) is state
    known = {**published, 200: manifest(created_at=200.0)}
    after = with_scan(with_times(state, {200: {"candidate": 301.0}}), known, {150, 199}, 302.0)
    assert after.times[199] == StepTimes(published=199.0, seen=300.0, built=302.0)
    assert after.times[200] == StepTimes(published=200.0, seen=302.0, candidate=301.0)
    assert after.times[150] is state.times[150]


def test_the_first_time_of_each_step_counts() -> None:
    state = with_times(live(4), {4: {"seen": 1.0, "live": 2.0}})

    state = with_times(state, {4: {"seen": 5.0, "live": 6.0}})

    assert (state.times[4].seen, state.times[4].live) == (1.0, 2.0)


def test_a_deleted_version_is_no_rollback_target_and_no_news() -> None:
    state = forgotten(live(4, refused={2: "x"}), [2, 3])

    assert state.deleted == (2, 3)
    assert refuse(state, 2, "again") == state
