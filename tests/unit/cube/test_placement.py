from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.cube.placement import (
    abandoned_versions,
    assigned_partitions,
    assigned_shards,
    built_alike,
    dictionaries_to_delete,
    holders_by_version,
    lacking_partitions,
    next_candidate,
    next_to_build,
    readers_verdict,
    seconds_to_next_look,
    seconds_to_next_scan,
    served_without,
    shard_of_pod,
    shards_up,
    skipped_versions,
    standing_on_refused,
    unbuilt_chain,
    unneeded_partitions,
    versions_to_delete,
)
from elastic_ctr.cube.release import AgentReport, Holder, Placement, ReaderReport, ReleaseDocument
from elastic_ctr.store.versions.manifest import DictionaryManifest, FileEntry, OverlayBelow, VersionManifest

versions = st.integers(1, 60)
placements = st.integers(1, 6).flatmap(
    lambda shards: st.builds(
        Placement,
        shards=st.just(shards),
        up=st.sets(st.integers(0, shards - 1)).map(lambda up: tuple(sorted(up))),
    )
)


def manifest(version: int, parent: int | None = None, base: int | None = None) -> VersionManifest:
    return VersionManifest(
        version=version, kind="base" if parent is None else "delta", base=version if base is None else base,
        parent=parent, pass_id="p", event_time_max=0, created_at=0.0, partitions=4, dim=2, keys=0, slots=(),
        sparse_dim=None, network="n", cube_files=(), model_files=(), samples=0, auc_live=None, auc_published=None,
    )  # fmt: skip


def dictionary(version: int, full: int | None = None, base: int | None = None, **more: Any) -> DictionaryManifest:
    fields = {"kind": "full" if full is None else "overlay", "partitions": 4, "dim": 2, "keys": 0, "files": (), **more}
    return DictionaryManifest(
        version=version, full_version=full or version, base=base or full or version, parent=None, **fields
    )


def agent(pod: str, shard: int, draining: bool = False, **holds: tuple[int, ...]) -> AgentReport:
    held = {int(version[1:]): parts for version, parts in holds.items()}
    return AgentReport(pod=pod, address=f"{pod}:1", shard=shard, loaded=held, draining=draining)


def document(live: int | None, holders: dict[int, dict[str, Holder]], shards: int = 2, **more: Any) -> ReleaseDocument:
    wanted = more.pop("wanted", (live,) if live is not None else ())
    placement = Placement(shards=shards, up=more.pop("up", tuple(range(shards))))
    return ReleaseDocument(
        generation=1, revision=1, placement=placement, live=live, wanted=wanted, holders=holders, **more
    )


def holder_of(partitions: int, shards: int) -> st.SearchStrategy[Holder]:
    parts = st.frozensets(st.integers(0, partitions - 1)).map(tuple)
    return st.builds(Holder, partitions=parts, draining=st.booleans(), shard=st.integers(0, shards - 1))


@pytest.mark.parametrize(("pod", "shard"), [("ctr-cube-s0-0", 0), ("a-s-s3-cube-s12-7", 12)])
def test_a_pod_reads_its_shard_from_its_name(pod: str, shard: int) -> None:
    assert shard_of_pod(pod) == shard


@pytest.mark.parametrize("pod", ["ctr-cube-0", "ctr-cube-s1", "ctr-cube-s1-x", "", "ctr-cube-sx-0", "s1-0"])
def test_a_pod_name_without_a_shard_is_refused(pod: str) -> None:
    with pytest.raises(ValueError, match="does not end in -s<shard>-<replica>"):
        shard_of_pod(pod)


@given(placements, st.integers(1, 80))
def test_every_partition_is_owed_by_its_own_shard_and_by_one_that_is_up_if_any_is(
    placement: Placement, partitions: int
) -> None:
    for partition in range(partitions):
        owing = assigned_shards(partition, placement, {})

        assert partition % placement.shards in owing
        assert len(owing) <= 2
        assert not placement.up or owing & set(placement.up)


@given(placements, st.dictionaries(st.sampled_from("abc"), holder_of(12, shards=6)), st.integers(1, 2))
def test_a_partition_is_owed_by_its_own_shard_alone_only_if_that_is_up_or_enough_others_answer_it(
    placement: Placement, holders: dict[str, Holder], replicas: int
) -> None:
    placement = placement.model_copy(update={"replicas": replicas})
    for partition in range(12):
        owing = assigned_shards(partition, placement, holders)

        assert partition % placement.shards in owing
        staying = sum(partition in each.partitions and not each.draining for each in holders.values())
        assert not placement.up or owing & set(placement.up) or staying >= replicas


@given(placements, st.dictionaries(st.sampled_from("abc"), holder_of(12, shards=6)))
def test_the_partitions_of_each_shard_agree_with_the_shards_of_each_partition(
    placement: Placement, holders: dict[str, Holder]
) -> None:
    said = document(5, {5: holders}, shards=placement.shards, up=placement.up)
    for shard in range(placement.shards):
        owed = assigned_partitions(shard, 5, said, 12)

        assert owed == {p for p in range(12) if shard in assigned_shards(p, placement, holders)}


@given(st.integers(2, 6), st.integers(1, 20), st.data())
def test_the_partitions_of_a_lost_shard_are_spread_over_all_that_are_left(
    shards: int, rounds: int, data: st.DataObject
) -> None:
    lost = data.draw(st.integers(0, shards - 1))
    left = tuple(s for s in range(shards) if s != lost)
    partitions = shards * len(left) * rounds

    said = document(5, {}, shards=shards, up=left)

    extra = [len(assigned_partitions(s, 5, said, partitions)) - partitions // shards for s in left]
    assert sum(extra) == partitions // shards
    assert max(extra) - min(extra) <= rounds * (shards - 1)


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_added_shards_that_come_up_in_any_order_make_no_shard_fetch_a_partition_of_another(
    before: int, added: int, data: st.DataObject
) -> None:
    shards, partitions = before + added, 60
    up = data.draw(st.sets(st.integers(before, shards - 1))) | set(range(before))
    held = {
        f"s{shard}": Holder(partitions=tuple(range(shard, partitions, before)), shard=shard) for shard in range(before)
    }

    said = document(5, {5: held}, shards=shards, up=tuple(sorted(up)))

    for shard in up:
        to_fetch = assigned_partitions(shard, 5, said, partitions) - set(
            held[f"s{shard}"].partitions if shard < before else ()
        )
        assert to_fetch <= {p for p in range(partitions) if p % shards == shard}


def test_a_shard_is_up_while_one_of_its_pods_reports_and_is_not_draining() -> None:
    reports = [agent("a", 0, draining=True), agent("b", 0), agent("c", 1, draining=True), agent("d", 5)]

    assert shards_up(reports, 3) == (0,)


def test_the_holders_of_a_version_are_the_agents_that_report_its_partitions() -> None:
    reports = [agent("b", 1, v7=(3, 1)), agent("a", 0, draining=True, v7=(0, 2), v6=())]

    assert holders_by_version(reports) == {
        7: {
            "a:1": Holder(partitions=(0, 2), draining=True, shard=0),
            "b:1": Holder(partitions=(1, 3), draining=False, shard=1),
        }
    }


@given(st.lists(st.tuples(st.sets(st.integers(0, 9)), st.booleans()), max_size=6), st.integers(1, 3))
def test_a_version_lacks_what_too_few_servers_hold_that_stay(
    servers: list[tuple[set[int], bool]], replicas: int
) -> None:
    holders = {str(i): Holder(partitions=tuple(parts), draining=gone) for i, (parts, gone) in enumerate(servers)}

    lacking = lacking_partitions(holders, 8, replicas)

    for partition in range(8):
        staying = sum(partition in parts and not gone for parts, gone in servers)
        assert (partition in lacking) == (staying < replicas)


def reader(pod: str, validated: bool = False, refused: bool = False) -> ReaderReport:
    return ReaderReport(pod=pod, validated=(5,) if validated else (), refused={5: "differs"} if refused else {})


def test_where_no_serving_pod_is_known_the_holders_decide() -> None:
    assert readers_verdict(5, [], 0, 120).validated


def test_a_version_that_one_serving_pod_refuses_is_refused_though_another_validated_it() -> None:
    verdict = readers_verdict(5, [reader("a", validated=True), reader("b", refused=True)], 1000, 120)

    assert verdict.refused == "b: differs"
    assert not verdict.validated


def test_a_silent_serving_pod_is_named_and_waited_for_until_its_time_is_over() -> None:
    pods = [reader("a", validated=True), reader("b")]

    early, late = readers_verdict(5, pods, 119, 120), readers_verdict(5, pods, 120, 120)

    assert (early.validated, early.silent) == (False, ("b",))
    assert (late.validated, late.silent) == (True, ("b",))


def test_when_serving_pods_are_known_one_must_pass_however_long_it_takes() -> None:
    assert not readers_verdict(5, [reader("a"), reader("b")], 1e9, 120).validated


@given(st.sets(versions), st.none() | versions, st.sets(versions))
def test_the_next_candidate_is_the_newest_built_above_live_and_never_refused(
    built: set[int], live: int | None, refused: set[int]
) -> None:
    chosen = next_candidate(built, live, refused)

    possible = {v for v in built - refused if live is None or v > live}
    assert chosen == max(possible, default=None)


@given(st.sets(versions), st.sets(versions), st.none() | versions, st.sets(versions))
def test_only_a_version_newer_than_all_that_is_built_is_built(
    usable: set[int], built: set[int], live: int | None, refused: set[int]
) -> None:
    chosen = next_to_build(usable, built, live, refused)

    assert chosen is None or (chosen in usable - refused and chosen > max({*built, live or 0}, default=0))
    assert chosen is not None or not {v for v in usable - refused if v > max({*built, live or 0}, default=0)}


def test_versions_that_something_newer_overtook_are_skipped() -> None:
    assert skipped_versions([1, 2, 3, 4, 5, 6], was_live={1}, live=1, candidate=5, refused={3}) == (2, 4)


def test_versions_between_a_delta_and_its_older_parent_were_abandoned_by_training() -> None:
    known = {1: manifest(1), 2: manifest(2, 1, 1), 3: manifest(3, 2, 1), 4: manifest(4, 1, 1), 5: manifest(5, 4, 1)}

    assert abandoned_versions(known) == (2, 3)


def test_a_build_needs_everything_since_the_last_built_ancestor() -> None:
    known = {1: manifest(1), 2: manifest(2, 1, 1), 3: manifest(3, 2, 1), 4: manifest(4, 3, 1)}

    assert unbuilt_chain(4, known, {2}) == (3, 4)
    assert unbuilt_chain(4, known, ()) == (1, 2, 3, 4)
    assert unbuilt_chain(1, known, ()) == (1,)


def test_deltas_over_a_refused_version_cannot_be_built_until_the_next_base() -> None:
    known = {1: manifest(1), **{v: manifest(v, v - 1, 1) for v in (2, 3, 4)}, 5: manifest(5), 6: manifest(6, 5, 5)}

    assert standing_on_refused((2, 3, 4, 5, 6), known, {1: dictionary(1)}, {2}) == {3: 2, 4: 2}
    # A refused version that is built is no obstacle: its files were read.
    built = {1: dictionary(1), 2: dictionary(2, full=1)}
    assert standing_on_refused((3, 4, 5, 6), known, built, {2}) == {}
    assert standing_on_refused((3,), {3: manifest(3, 2, 1)}, {}, {2}) == {}


def test_a_version_stands_on_dictionaries_with_its_own_kind_of_values_alone() -> None:
    known = {1: manifest(1), 2: manifest(2, 1, 1), 3: manifest(3, 2, 1).model_copy(update={"values": "int8"})}
    built = {1: dictionary(1), 2: dictionary(2, full=1)}

    assert built_alike(known[2], built) == {1, 2}
    assert built_alike(known[3], {**built, 4: dictionary(4, values="int8")}) == {4}
    # Its build needs the files of the refused version again.
    assert standing_on_refused((3,), known, built, {2}) == {3: 2}


def test_a_gap_below_a_delta_is_named_with_the_way_out() -> None:
    with pytest.raises(LookupError, match="delta 3 depends on 2, which the store does not hold; publish a base"):
        unbuilt_chain(3, {3: manifest(3, 2, 1)}, {1})


@given(st.data())
def test_retention_keeps_the_newest_what_is_in_use_and_what_those_stand_on(data: st.DataObject) -> None:
    known: dict[int, VersionManifest] = {}
    base = 0
    for version in range(1, data.draw(st.integers(1, 25)) + 1):
        if base == 0 or data.draw(st.booleans()):
            base = version
            known[version] = manifest(version)
        else:
            known[version] = manifest(version, version - 1, base)
    built = {
        v: dictionary(v, full=m.base if m.base != v else None)
        for v, m in known.items()
        if data.draw(st.booleans()) or m.kind == "base"
    }
    in_use = data.draw(st.sets(st.sampled_from(sorted(known))))
    keep = data.draw(st.integers(1, 6))

    doomed = set(versions_to_delete(known, built, in_use, keep))

    left = {v: m for v, m in known.items() if v not in doomed}
    left_built = {v: d for v, d in built.items() if v in left}
    assert not doomed & in_use
    assert not doomed & set(sorted(known)[-keep:])
    for version in {*sorted(known)[-keep:], *in_use}:
        assert known[version].base in left
        if version in left_built:
            assert left_built[version].full_version in left
        else:
            unbuilt_chain(version, left, left_built)


def test_retention_keeps_the_newest_versions_whole_chain_though_all_of_it_is_built() -> None:
    known = {1: manifest(1), **{v: manifest(v, v - 1, 1) for v in range(2, 10)}}
    built = {v: dictionary(v, full=None if v == 1 else 1) for v in known}

    # Export looks up there what a delta with thresholds leaves out.
    assert versions_to_delete(known, built, {9}, 2) == ()
    assert versions_to_delete({**known, 10: manifest(10)}, {**built, 10: dictionary(10)}, {10}, 2) == tuple(range(2, 9))


def test_retention_keeps_what_is_young_of_a_chain_that_a_base_compacts() -> None:
    chain = {version: manifest(version, version - 1 if version > 1 else None, 1) for version in range(1, 10)}
    known = {
        **chain,
        10: manifest(10).model_copy(update={"compacts": 8}),
        11: manifest(11, 10, 10),
        12: manifest(12, 11, 10),
    }
    at = {version: each.model_copy(update={"created_at": 200.0 * version}) for version, each in known.items()}

    # 12 was made at 2,400: 9 was overtaken by the compaction, 8 is at 1,600 and what is below it is older than ten minutes.
    assert versions_to_delete(at, {}, (), 1) == (1, 2, 3, 4, 5, 6, 7, 8, 9)
    young = {version: each.model_copy(update={"created_at": 2000.0 + version}) for version, each in known.items()}
    assert versions_to_delete(young, {}, (), 1) == (9,)


def test_retention_keeps_what_a_version_may_stand_on_whose_manifest_cannot_be_read() -> None:
    known = {v: manifest(v) for v in (1, 2, 3, 5, 6, 7)}

    assert versions_to_delete(known, {}, (), 1) == (1, 2, 3, 5, 6)
    assert versions_to_delete(known, {4: dictionary(4)}, (), 1, unread={4}) == (5, 6)
    assert versions_to_delete({v: manifest(v) for v in (1, 2, 3)}, {}, (), 1, unread={4}) == ()


def test_retention_ends_a_deletion_that_was_cut_off() -> None:
    known = {v: manifest(v) for v in (2, 3, 6)}
    built = {v: dictionary(v) for v in (1, 2, 3, 6, 7)} | {5: dictionary(5, full=4), 4: dictionary(4)}

    assert versions_to_delete(known, built, {5}, 2) == (1, 2), "4 has no manifest, and what is in use stands on it"


def test_nothing_is_let_go_while_no_version_is_live() -> None:
    said = document(None, {})

    assert unneeded_partitions({4: {0, 1, 2}}, said, 0, "me", 4) == {}


def test_an_old_version_is_unneeded_only_where_the_live_one_is_loaded() -> None:
    said = document(5, {})

    assert unneeded_partitions({4: {0, 1, 2}, 5: {0}}, said, 0, "me", 4) == {4: {0, 1}}


def test_a_wanted_partition_is_let_go_only_to_a_pod_that_owes_and_holds_it_and_stays() -> None:
    def let_go(other: Holder) -> bool:
        said = document(5, {5: {"me": Holder(partitions=(0, 1), shard=0), "other": other}})
        return 1 in unneeded_partitions({5: {0, 1}}, said, 0, "me", 4).get(5, frozenset())

    assert let_go(Holder(partitions=(1,), shard=1))
    assert not let_go(Holder(partitions=(3,), shard=1))
    assert not let_go(Holder(partitions=(1,), shard=1, draining=True))
    assert not let_go(Holder(partitions=(1,), shard=0))


@given(st.data())
def test_a_pod_keeps_an_answer_for_each_assigned_partition_with_any_release_document(data: st.DataObject) -> None:
    shards = data.draw(st.integers(1, 4))
    placement = Placement(shards=shards, up=tuple(sorted(data.draw(st.sets(st.integers(0, shards - 1))))))
    shard = data.draw(st.integers(0, shards - 1))
    parts = st.frozensets(st.integers(0, 7))
    held = data.draw(st.dictionaries(st.integers(1, 5), parts, max_size=4))
    wanted = tuple(data.draw(st.sets(st.integers(1, 5))))
    live = data.draw(st.sampled_from([None, *wanted]))
    others = holder_of(8, shards)
    holders = data.draw(st.dictionaries(st.integers(1, 5), st.dictionaries(st.sampled_from("ab"), others)))
    said = ReleaseDocument(generation=1, revision=1, placement=placement, wanted=wanted, live=live, holders=holders)

    free = unneeded_partitions(held, said, shard, "me", 8)

    for partition in frozenset() if live is None else assigned_partitions(shard, live, said, 8):
        before = {v for v, own in held.items() if partition in own}
        after = {v for v in before if partition not in free.get(v, frozenset())}
        assert not before or after
        assert before & set(wanted) <= after


def test_a_pod_may_go_when_others_that_stay_answer_all_it_answers() -> None:
    holders = {5: {"me": Holder(partitions=(0, 2)), "a": Holder(partitions=(0,)), "b": Holder(partitions=(2,))}}
    draining = {5: {**holders[5], "b": Holder(partitions=(2,), draining=True)}}

    assert served_without("me", {5: (0, 2)}, document(5, holders))
    assert not served_without("me", {5: (0, 2)}, document(5, draining))
    assert served_without("me", {4: (0, 2)}, document(5, holders))
    assert served_without("me", {5: (0, 2)}, document(None, {}))


def overlay(version: int, full: int) -> DictionaryManifest:
    file = FileEntry(path=f"output/ctr_dict/{version}/overlay.dict", bytes=1, sha256="0" * 64)
    return dictionary(version, full=full, files=(file,))


def test_old_overlays_of_a_stream_go_though_their_versions_stay() -> None:
    known = {1: manifest(1), **{v: manifest(v, v - 1, 1) for v in range(2, 10)}}
    built = {1: dictionary(1), **{v: overlay(v, 1 if v < 6 else 5) for v in range(2, 10)}}

    # 5 has the full parts of the newest ones, 3 is in use.
    assert dictionaries_to_delete(known, built, {9, 3}, 2, now=1000) == (2, 4, 6, 7)
    assert dictionaries_to_delete(known, built, {9, 3}, 4, now=1000) == (2, 4)
    # Young ones stay, and those that are no overlay in one file.
    assert dictionaries_to_delete(known, built, {9, 3}, 2, now=100) == ()
    parts = {v: dictionary(v, full=None if v == 1 else 1) for v in known}
    assert dictionaries_to_delete(known, parts, {9}, 2, now=1000) == ()


def test_an_overlay_stays_as_long_as_one_that_lies_over_it() -> None:
    known = {1: manifest(1), **{v: manifest(v, v - 1, 1) for v in range(2, 10)}}
    built = {1: dictionary(1), **{v: overlay(v, 1) for v in range(2, 10)}}
    for over in (4, 5, 9):
        below = OverlayBelow(version=over // 3 + 1, file=built[over // 3 + 1].files[0])
        built[over] = built[over].model_copy(update={"below": below})

    # 9 lies over 4, which lies over 2 but is not needed with it; so does 5.
    assert dictionaries_to_delete(known, built, {9}, 1, now=1000) == (2, 3, 5, 6, 7, 8)
    assert dictionaries_to_delete(known, built, {9, 5}, 1, now=1000) == (3, 6, 7, 8)
    # One may be built upon a young one.
    known = {v: each.model_copy(update={"created_at": 1000.0 if v == 5 else 0.0}) for v, each in known.items()}
    assert dictionaries_to_delete(known, built, {9}, 1, now=1001) == (3, 6, 7, 8)
    # Retention of versions keeps it, too.
    assert versions_to_delete(known, built, {5}, 1) == ()
    assert {2, 5} <= set(known) - set(versions_to_delete({**known, 9: manifest(9)}, built, {5}, 1))


@pytest.mark.parametrize(
    ("published", "now", "seconds"),
    [
        ([], 100.0, 3.0),
        ([100.0], 100.0, 3.0),
        ([0.0, 3600.0], 3600.0, 3.0),
        # A stream: a tenth of its cadence, and no less than 50 ms.
        ([99.0, 98.0, 100.0], 100.5, 0.1),
        ([99.9, 100.0], 100.1, 0.05),
        # The longer none comes, the less often.
        ([99.0, 100.0], 110.0, 1.0),
        ([99.0, 100.0], 1000.0, 3.0),
        # The clock was set back.
        ([99.0, 100.0], 50.0, 0.1),
    ],
)
def test_the_store_is_looked_at_as_often_as_versions_come(published: list[float], now: float, seconds: float) -> None:
    assert seconds_to_next_look(published, now, 3.0) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("published", "now", "seconds"),
    [
        ([], 100.0, 60.0),
        ([0.0, 3600.0], 3600.0, 60.0),
        # A stream's publishing hold is found in the time of a version or two.
        ([99.0, 98.0, 100.0], 100.5, 1.0),
        ([95.0, 100.0], 100.5, 5.0),
        ([99.0, 100.0], 110.0, 10.0),
        ([99.0, 100.0], 1000.0, 60.0),
    ],
)
def test_the_store_is_scanned_each_minute_and_a_streams_more_often(
    published: list[float], now: float, seconds: float
) -> None:
    assert seconds_to_next_scan(published, now, 1.0) == pytest.approx(seconds)
