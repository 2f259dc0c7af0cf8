"""The release protocol between real processes on one machine."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import httpx
import numpy as np
import pytest

from contract.release_world import PARTITIONS, TOKEN, World, eventually, values_of, world
from credentials import tokens
from elastic_ctr.runtime.auth import bearer
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.published_files import check, read_dictionary
from elastic_ctr.store.versions.safeguards import Hold, is_resumed, read_refusals, refused_below, write_hold

BASE = 1_000


@pytest.fixture
def own_cube(tmp_path: Path) -> Iterator[World]:
    """A cube whose processes the test starts."""
    with world(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[World]]:
    """The cube that tests share, or none yet."""
    made: list[World] = []
    yield made
    for each in made:
        each.close()


@pytest.fixture
def cube(
    worlds: list[World], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[World]:
    """The cube that tests share, with all its processes. After a failed test the next one gets a new cube."""
    if not worlds:
        worlds.append(World(tmp_path_factory.mktemp("cube")))
    failed = request.session.testsfailed
    made = worlds[0]
    made.start_all()
    eventually("every shard is up", lambda: len(made.document().placement.up) == made.shards)
    yield made
    if request.session.testsfailed > failed:
        worlds.pop().close()


@pytest.fixture
def base(cube: World) -> int:
    """The test's first version, above those of the tests before."""
    cube.documents.clear()
    return cube.next_base()


def test_a_published_base_goes_live_and_is_answered(cube: World, base: int) -> None:
    keys = cube.base(base)
    cube.live(base)

    values, missed = cube.seek(base, np.append(keys, np.uint64(4)))
    assert not missed[:-1].any()
    assert missed[-1]
    np.testing.assert_array_equal(values[:-1], values_of(keys, base))


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_a_delta_goes_live_over_its_base_and_only_its_keys_change(cube: World, base: int) -> None:
    keys = cube.base(base)
    cube.live(base)

    cube.delta(base + 1, keys[:5], parent=base, base=base)
    document = cube.live(base + 1)

    assert document.previous == base
    values, _ = cube.seek(base + 1, keys)
    np.testing.assert_array_equal(values[:5], values_of(keys[:5], base + 1))
    np.testing.assert_array_equal(values[5:], values_of(keys[5:], base))
    old, _ = cube.seek(base, keys)
    np.testing.assert_array_equal(old, values_of(keys, base))


def test_a_version_with_a_damaged_file_is_refused_with_the_reason_and_the_old_one_stays_live(
    cube: World, base: int
) -> None:
    keys = cube.base(base)
    cube.live(base)

    cube.base(base + 1, damage=flip_a_byte)
    reason = eventually("the version is refused", lambda: cube.status()["refused"][str(base + 1)])
    cube.base(base + 2)
    cube.live(base + 2)

    assert "is not what its manifest says" in reason
    values, _ = cube.seek(base + 2, keys)
    np.testing.assert_array_equal(values, values_of(keys, base + 2))
    assert base + 1 not in {document.live for document in cube.documents}


def test_after_a_refused_delta_the_next_base_goes_live_and_until_then_the_status_says_why(
    cube: World, base: int
) -> None:
    keys = cube.base(base)
    cube.live(base)

    cube.delta(base + 1, keys[:5], parent=base, base=base, damage=flip_a_byte)
    eventually("it is refused", lambda: str(base + 1) in cube.status()["refused"])
    # The master publishes this hour before it knows of the refusal.
    cube.delta(base + 2, keys[:5], parent=base + 1, base=base)
    problem = eventually("the status says why", lambda: [each for each in cube.status()["problems"] if "stand" in each])
    eventually("the store has the refusal", lambda: base + 1 in read_refusals(cube.store))
    refused = read_refusals(cube.store)
    assert cube.document().live == base
    parent = base + 2
    assert refused_below(base, parent, refused) == base + 1
    cube.base(base + 3)
    cube.live(base + 3)

    assert problem[0].startswith(f"version {base + 1} is refused (")
    assert "is not what its manifest says" in problem[0]
    assert f"{base + 2} stands on it and cannot be built; the master publishes a base next" in problem[0]
    assert "is not what its manifest says" in refused[base + 1]
    values, _ = cube.seek(base + 3, keys)
    np.testing.assert_array_equal(values, values_of(keys, base + 3))
    assert cube.status()["problems"] == []
    # A transfer that has lost everything refuses the version still: pods and the store say so.
    cube.kill("transfer")
    (cube.root / "transfer" / "release.json").write_bytes(b"{")
    cube.start_transfer()
    cube.live(base + 3)
    eventually("it is refused still", lambda: str(base + 1) in cube.status()["refused"])
    assert (cube.root / "transfer" / "release.json.damaged").read_bytes() == b"{"


def test_a_dictionary_part_damaged_in_the_store_makes_agents_refuse_the_candidate(own_cube: World) -> None:
    own_cube.start_builder()
    own_cube.start_transfer()
    own_cube.base(BASE)
    eventually("the version is the candidate", lambda: own_cube.document().candidate == BASE)
    flip_a_byte(own_cube.store.root / f"output/ctr_dict/{BASE}/part-00003.dict")

    for pod, _ in own_cube.pods():
        own_cube.start_pod(pod)
    reason = eventually("the version is refused", lambda: own_cube.status()["refused"][str(BASE)])
    own_cube.base(BASE + 1)
    own_cube.live(BASE + 1)

    assert "ctr-cube-s1-0" in reason
    assert "part-00003.dict" in reason


def damage_in_place(path: Path) -> None:
    """As bits that rot: neither size, nor time, nor inode changes."""
    seen = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([last ^ 1]))
    os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def bytes_of(file: Path) -> bytes | None:
    with suppress(FileNotFoundError):
        return file.read_bytes()
    return None


def test_a_live_part_that_is_damaged_in_the_cache_is_fetched_anew_and_the_store_keeps_its_own(
    cube: World, base: int
) -> None:
    keys = cube.base(base)
    cube.live(base)
    cached = cube.root / "ctr-cube-s1-0" / str(base) / "part-00003.dict"
    published = cube.store.root / f"output/ctr_dict/{base}/part-00003.dict"
    good = published.read_bytes()
    assert cached.stat().st_ino != published.stat().st_ino

    damage_in_place(cached)

    # Between the deletion of the damaged file and the end of the fetch there is none.
    eventually("the part is fetched anew", lambda: bytes_of(cached) == good)
    eventually(
        "all partitions are answered",
        lambda: 3 in cube.document().holders[base][cube.address("ctr-cube-s1-0")].partitions,
    )
    values, missed = cube.seek(base, keys)
    np.testing.assert_array_equal(values, values_of(keys, base))
    assert not missed.any()
    assert published.read_bytes() == good


def test_a_live_part_that_is_damaged_in_the_store_too_is_built_again_from_its_sequence_file(
    cube: World, base: int
) -> None:
    keys = cube.base(base)
    cube.live(base)
    pod = "ctr-cube-s1-0"
    published = cube.store.root / f"output/ctr_dict/{base}/part-00003.dict"
    good = published.read_bytes()

    damage_in_place(published)
    damage_in_place(cube.root / pod / str(base) / "part-00003.dict")

    eventually("the part is built again", lambda: bytes_of(published) == good)
    eventually("the part is answered again", lambda: 3 in cube.document().holders[base][cube.address(pod)].partitions)
    eventually("nothing is wrong", lambda: cube.status()["problems"] == [])
    values, missed = cube.seek(base, keys)
    np.testing.assert_array_equal(values, values_of(keys, base))
    assert not missed.any()
    assert f"output/ctr_dict/{base}/part-00003.dict was damaged in the store, and is built again" in cube.log("builder")


def test_a_live_part_damaged_with_its_sequence_file_is_a_problem_of_the_status_and_not_answered(
    cube: World, base: int
) -> None:
    cube.base(base)
    cube.live(base)
    pod, damaged = "ctr-cube-s1-0", "is not what the dictionary's manifest says"
    before = cube.log(pod).count(damaged)
    published = cube.store.root / f"output/ctr_dict/{base}/part-00003.dict"
    source = f"output/ctr_cube/{base}/base/feature-00003-of-00006.seq"

    damage_in_place(cube.store.root / source)
    damage_in_place(published)
    damage_in_place(cube.root / pod / str(base) / "part-00003.dict")

    def told() -> list[str]:
        start = f"version {base} has damaged parts in the store: {source} in "
        return [each for each in cube.status()["problems"] if each.startswith(start)]

    problem = eventually("the status names the source", told)
    assert problem[0].endswith(
        "put a copy of the file back, or have another version answer: `elastic-ctr rollback VERSION`"
    )
    assert 3 not in cube.document().holders[base][cube.address(pod)].partitions
    # Tried again with growing pauses, not in a busy loop: the part is small and every try is a line of `errors`.
    tries = cube.log(pod).count(damaged) - before
    assert 1 <= tries < 20
    damage_in_place(published)  # the same bit again: mended

    eventually("the part is answered again", lambda: 3 in cube.document().holders[base][cube.address(pod)].partitions)
    eventually("nothing is wrong", lambda: cube.status()["problems"] == [])


def test_a_restarted_transfer_keeps_its_generation_and_names_the_holders_at_once(cube: World, base: int) -> None:
    keys = cube.base(base)
    before = cube.live(base)

    cube.kill("transfer")
    cube.start_transfer()
    after = eventually("transfer answers", cube.document)

    assert after.generation == before.generation
    assert after.revision > before.revision
    assert after.live == base
    assert after.holders[base].keys() == before.holders[base].keys()
    values, _ = cube.seek(base, keys)
    np.testing.assert_array_equal(values, values_of(keys, base))


def test_a_transfer_that_lost_its_state_goes_on_one_generation_later(cube: World, base: int) -> None:
    keys = cube.base(base)
    before = cube.live(base)
    eventually("the agents know", lambda: "holds version" in cube.ready_of("ctr-cube-s0-0"))

    cube.kill("transfer")
    (cube.root / "transfer" / "release.json").unlink()
    cube.start_transfer()
    after = eventually("transfer answers", cube.document)
    cube.delta(base + 1, keys[:5], parent=base, base=base)
    cube.live(base + 1)

    assert after.generation == before.generation + 1
    assert after.live == base
    assert after.revision > before.revision


def test_a_pod_that_was_killed_loads_everything_again_from_its_cache_and_goes_on(cube: World, base: int) -> None:
    keys = cube.base(base)
    before = cube.live(base)
    part = cube.root / "ctr-cube-s1-0" / str(base) / "part-00003.dict"
    inode = part.stat().st_ino

    cube.kill("ctr-cube-s1-0")
    eventually("its holder is gone", lambda: cube.address("ctr-cube-s1-0") not in cube.document().holders[base])
    cube.start_pod("ctr-cube-s1-0")
    eventually("it holds again", lambda: cube.address("ctr-cube-s1-0") in cube.document().holders[base])
    values, missed = cube.seek(base, keys)
    cube.delta(base + 1, keys[:5], parent=base, base=base)
    after = cube.live(base + 1)

    assert not missed.any()
    np.testing.assert_array_equal(values, values_of(keys, base))
    assert part.stat().st_ino == inode
    assert after.generation == before.generation
    every_pod = {cube.address(pod) for pod, _ in cube.pods()}
    eventually("both pods hold the delta", lambda: cube.document().holders[base + 1].keys() == every_pod)


def test_each_version_of_a_stream_answers_with_its_own_values_through_recent_overlays(cube: World, base: int) -> None:
    keys = cube.base(base, keys=30_000)
    cube.live(base)
    # So many that those behind it lie over it.
    changed = {base + 1: keys[:25_000], base + 2: keys[:9], base + 3: keys[5:20], base + 4: keys[-3:]}
    wanted, expected = values_of(keys, base), {}
    for version, own in changed.items():
        cube.delta(version, own, parent=version - 1, base=base, files=1)
        cube.live(version)
        wanted[np.isin(keys, own)] = values_of(own, version)
        expected[version] = wanted.copy()

    def answers_are_right(version: int) -> None:
        values, missed = cube.seek(version, keys)
        assert not missed.any()
        np.testing.assert_array_equal(values, expected[version])

    below = [read_dictionary(cube.store, version).below for version in changed]
    assert [each and each.version for each in below] == [None, base + 1, base + 1, base + 1]
    for version in (base + 3, base + 4):
        answers_are_right(version)
    # A pod that comes back has all three layers again.
    cube.kill("ctr-cube-s1-0")
    eventually("its holder is gone", lambda: cube.address("ctr-cube-s1-0") not in cube.document().holders[base + 4])
    cube.start_pod("ctr-cube-s1-0")
    eventually("it holds again", lambda: cube.address("ctr-cube-s1-0") in cube.document().holders[base + 4])
    answers_are_right(base + 4)
    # So has a version that is gone back to.
    assert cube.rollback(version=base + 2).status_code == 200
    cube.live(base + 2)
    answers_are_right(base + 2)
    assert cube.rollback(resume=True).status_code == 200


def test_a_rollback_makes_the_earlier_version_live_and_holds_until_it_is_resumed(cube: World, base: int) -> None:
    keys = cube.base(base)
    cube.live(base)
    for version in (base + 1, base + 2):
        cube.delta(version, keys[:5], parent=version - 1, base=base)
        cube.live(version)

    # The base is two versions back: it has to be loaded first, and what is live stays so meanwhile.
    answer = cube.rollback(version=base)
    held = cube.live(base)
    cube.delta(base + 3, keys[:9], parent=base + 2, base=base)
    eventually("the new version is built", lambda: base + 3 in cube.status()["built"])
    still = cube.document()
    resumed = cube.rollback(resume=True)
    cube.live(base + 3)

    assert answer.status_code == 200
    assert held.promotion_paused
    assert still.live == base
    assert still.candidate is None
    assert resumed.json()["promotionPaused"] is False
    values, _ = cube.seek(base + 3, keys)
    np.testing.assert_array_equal(values[:9], values_of(keys[:9], base + 3))


def test_a_publishing_hold_goes_back_below_its_suspects_and_the_master_can_see_its_end(cube: World, base: int) -> None:
    keys = cube.base(base)
    cube.live(base)
    for version in (base + 1, base + 2):
        cube.delta(version, keys[:5], parent=version - 1, base=base)
        cube.live(version)
    number = base
    write_hold(cube.store, Hold(number=number, suspects=(base + 1, base + 2), reason="AUC fell", held_at=time.time()))

    held = cube.live(base)
    # What transfer learns from pods is what they know.
    eventually("the pods have heard of it", lambda: cube.pods_know(base))
    # One that has lost its state obeys the open hold again, though promotion would go on otherwise.
    cube.kill("transfer")
    (cube.root / "transfer" / "release.json").unlink()
    cube.start_transfer()
    eventually("transfer answers", cube.document)
    again = eventually("the hold is obeyed again", lambda: cube.status()["hold"])
    status = cube.status()
    assert not is_resumed(cube.store, number)
    resumed = cube.rollback(resume=True)
    eventually("the master can see that it is resumed", lambda: is_resumed(cube.store, number))
    # A delta on a suspect can never be built: the master publishes a base.
    cube.base(base + 3)
    cube.live(base + 3)

    assert held.promotion_paused
    assert again["suspects"] == [base + 1, base + 2]
    assert (status["live"], status["promotionPaused"]) == (base, True)
    assert any("publishing is held: AUC fell" in each for each in status["problems"])
    assert resumed.json()["promotionPaused"] is False
    assert read_refusals(cube.store).keys() == {base + 1, base + 2}
    assert cube.status()["hold"] is None
    # Without its state it neither obeys a hold that was ended nor forgets the refusals.
    cube.kill("transfer")
    (cube.root / "transfer" / "release.json").unlink()
    cube.start_transfer()
    eventually("transfer answers", cube.document)
    cube.live(base + 3)
    eventually("it has looked at the store", lambda: cube.status()["published"])
    assert cube.status()["hold"] is None
    assert not cube.document().promotion_paused


def test_garbage_among_the_holds_is_named_with_the_way_out_and_ends_when_it_is_deleted(cube: World, base: int) -> None:
    cube.base(base)
    cube.live(base)
    path = layout.hold(base)
    cube.store.put_bytes(b"garbage", path)

    problem = eventually("the status names it", lambda: [each for each in cube.status()["problems"] if path in each])
    paused = cube.document().promotion_paused
    cube.store.delete(path)
    eventually("promotion goes on", lambda: not cube.document().promotion_paused)

    assert problem[0].endswith("delete it, or run `elastic-ctr rollback --resume`, to go on")
    assert paused
    assert cube.status()["problems"] == []


def test_a_rollback_to_a_version_that_never_was_live_is_refused_with_the_way_out(cube: World, base: int) -> None:
    cube.base(base)
    cube.live(base)

    answer = cube.rollback(version=base + 7)

    assert answer.status_code == 409
    assert f"version {base + 7}" in answer.json()["error"]
    assert cube.document().live == base


def test_a_candidate_waits_for_serving_pods_and_a_difference_refuses_it(cube: World, base: int) -> None:
    keys = cube.base(base)
    cube.live(base)
    cube.report("ctr-serving-0", validated=(base,))

    cube.delta(base + 1, keys[:5], parent=base, base=base)
    waiting = eventually("it waits for the pod", lambda: (cube.status()["candidate"] or {}).get("silentReaders"))
    cube.report("ctr-serving-0", validated=(base,), refused={base + 1: "sample 3 differs by 0.5"})
    reason = eventually("it is refused", lambda: cube.status()["refused"][str(base + 1)])
    cube.delta(base + 2, keys[:5], parent=base + 1, base=base)
    eventually("the next is the candidate", lambda: cube.document().candidate == base + 2)
    cube.report("ctr-serving-0", validated=(base, base + 2))
    cube.live(base + 2)

    assert waiting == ["ctr-serving-0"]
    assert reason == "ctr-serving-0: sample 3 differs by 0.5"
    assert base + 1 not in {document.live for document in cube.documents}


def test_of_twenty_versions_in_a_row_a_slow_reader_sees_some_and_the_last(cube: World, base: int) -> None:
    keys = cube.base(base)
    cube.live(base)
    last = base + 20
    seen = []

    cube.report("ctr-serving-0", validated=(base,))
    for version in range(base + 1, last + 1):
        cube.delta(version, keys[:4], parent=version - 1, base=base)
    while (document := cube.document()).live != last:
        cube.report("ctr-serving-0", validated=document.wanted)
        eventually("there is something new", lambda: cube.document().wanted != document.wanted)
        seen.append(document.live)

    status = cube.status()
    assert seen == sorted(seen, key=lambda version: version or 0)
    assert [version for version in status["refused"] if int(version) >= base] == []
    lived = {document.live for document in cube.documents}
    assert {*status["skipped"], *lived} >= {version for version in status["published"] if version >= base}
    values, _ = cube.seek(last, keys)
    np.testing.assert_array_equal(values[:4], values_of(keys[:4], last))
    np.testing.assert_array_equal(values[4:], values_of(keys[4:], base))


def test_a_pod_that_ends_drains_first_and_another_shard_takes_over(cube: World, base: int) -> None:
    keys = cube.base(base)
    cube.live(base)

    ended = cube.end("ctr-cube-s1-0")
    values, missed = cube.seek(base, keys)

    assert ended == 0
    assert not missed.any()
    np.testing.assert_array_equal(values, values_of(keys, base))
    assert cube.document().holders[base].keys() == {cube.address("ctr-cube-s0-0")}


def test_replicas_beyond_those_of_the_values_answer_and_drain_away(cube: World, base: int) -> None:
    """As an autoscaler adds and removes them: cube-transfer's file has the least number alone."""
    keys, more = cube.base(base), "ctr-cube-s0-1"
    cube.live(base)

    def holders() -> set[str]:
        return {*cube.document().holders[base]}

    def all_are_answered() -> None:
        values, missed = cube.seek(base, keys)
        assert not missed.any()
        np.testing.assert_array_equal(values, values_of(keys, base))

    cube.start_pod(more)
    eventually("the replica holds its partitions", lambda: cube.address(more) in holders())
    cube.delta(base + 1, keys[:5], parent=base, base=base)
    both = {cube.address("ctr-cube-s0-0"), cube.address(more)}
    assert both <= {*cube.live(base + 1).holders[base + 1]}
    all_are_answered()

    assert cube.end(more) == 0
    assert cube.address(more) not in holders()
    all_are_answered()


def test_shards_grow_from_two_to_four_and_every_read_is_answered(cube: World, base: int) -> None:
    keys = cube.base(base)
    cube.live(base)

    cube.end("transfer")
    cube.shards = 4
    cube.start_transfer()
    for pod, shard in cube.pods():
        if shard >= 2:
            cube.start_pod(pod)

    def moved() -> bool:
        values, missed = cube.seek(base, keys)
        assert not missed.any()
        np.testing.assert_array_equal(values, values_of(keys, base))
        holders = cube.document().holders[base]
        owed = {cube.address(pod): tuple(range(shard, 6, 4)) for pod, shard in cube.pods()}
        return {address: holder.partitions for address, holder in holders.items()} == owed

    eventually("transfer answers", cube.document)
    eventually("each pod holds what it owes and nothing else", moved)


def test_transfer_refuses_calls_with_a_wrong_token(own_cube: World) -> None:
    own_cube.start_transfer()
    eventually("transfer answers", own_cube.document)

    for path, body in (("agents", {}), ("readers", {"pod": "x"}), ("rollback", {"resume": True})):
        answer = httpx.post(f"{own_cube.url('transfer')}/{path}", json=body, headers={"authorization": "Bearer wrong"})

        assert answer.status_code == 401
        assert "token" in answer.json()["error"]


def test_a_builder_killed_in_the_middle_publishes_nothing_half_and_the_rerun_is_byte_identical(own_cube: World) -> None:
    own_cube.start_builder()
    own_cube.base(BASE, keys=60_000)
    folder = own_cube.store.root / f"output/ctr_dict/{BASE}"
    order: dict[str, Any] = {
        "url": f"{own_cube.url('builder')}/build",
        "headers": bearer(tokens(TOKEN)),
        "json": {"version": BASE},
    }
    eventually("the builder takes the order", lambda: httpx.post(**order).status_code == 200)
    eventually("parts are being published", lambda: list(folder.glob("*.dict")))

    own_cube.kill("builder")
    was_whole = (folder / "manifest.json").exists()
    left = {each.name: each.read_bytes() for each in folder.glob("*.dict")}
    own_cube.start_builder()
    eventually("the builder takes the order", lambda: httpx.post(**order).status_code == 200)
    eventually("it is built", lambda: httpx.get(f"{own_cube.url('builder')}/build").json()["stage"] == "done")

    manifest = read_dictionary(own_cube.store, BASE)
    assert not was_whole or len(left) == PARTITIONS
    assert [each.name for each in sorted(folder.glob("*.dict"))] == [f"part-{p:05d}.dict" for p in range(PARTITIONS)]
    for name, data in left.items():
        assert (folder / name).read_bytes() == data
    for entry in manifest.files:
        check(own_cube.store, entry, own_cube.store.root / entry.path)


def test_a_pod_fetches_from_a_store_on_another_file_system_by_copying(own_cube: World) -> None:
    here = own_cube.root.stat().st_dev
    others = [each for each in ("/dev/shm", gettempdir()) if Path(each).is_dir() and Path(each).stat().st_dev != here]
    if not others:
        pytest.skip("there is no second file system at /dev/shm or for temporary files")
    with TemporaryDirectory(dir=others[0]) as elsewhere:
        own_cube.shards = 1
        own_cube.start_builder()
        own_cube.start_transfer()
        own_cube.start_pod("ctr-cube-s0-0", cache_dir=elsewhere)
        keys = own_cube.base(BASE)
        own_cube.live(BASE)

        values, _ = own_cube.seek(BASE, keys)

        np.testing.assert_array_equal(values, values_of(keys, BASE))
        assert len(list(Path(elsewhere).glob(f"{BASE}/*.dict"))) == PARTITIONS
        own_cube.close()
