"""The release protocol between real processes on one machine."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import pytest

from contract.release_world import PARTITIONS, TOKEN, World, eventually, values_of, world
from elastic_ctr.runtime.http import bearer
from elastic_ctr.versions.manifest import check, read_dictionary
from elastic_ctr.versions.refusals import read_refusals, refused_below

BASE = 1_000


@pytest.fixture
def cube(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def test_a_published_base_goes_live_and_is_answered(cube: World) -> None:
    cube.start_all()

    keys = cube.base(BASE)
    cube.live(BASE)

    values, missed = cube.seek(BASE, np.append(keys, np.uint64(4)))
    assert not missed[:-1].any()
    assert missed[-1]
    np.testing.assert_array_equal(values[:-1], values_of(keys, BASE))


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def test_a_delta_goes_live_over_its_base_and_only_its_keys_change(cube: World) -> None:
    cube.start_all()
    keys = cube.base(BASE)
    cube.live(BASE)

    cube.delta(BASE + 1, keys[:5], parent=BASE, base=BASE)
    document = cube.live(BASE + 1)

    assert document.previous == BASE
    values, _ = cube.seek(BASE + 1, keys)
    np.testing.assert_array_equal(values[:5], values_of(keys[:5], BASE + 1))
    np.testing.assert_array_equal(values[5:], values_of(keys[5:], BASE))
    old, _ = cube.seek(BASE, keys)
    np.testing.assert_array_equal(old, values_of(keys, BASE))


def test_a_version_with_a_damaged_file_is_refused_with_the_reason_and_the_old_one_stays_live(cube: World) -> None:
    cube.start_all()
    keys = cube.base(BASE)
    cube.live(BASE)

    cube.base(BASE + 1, damage=flip_a_byte)
    reason = eventually("the version is refused", lambda: cube.status()["refused"][str(BASE + 1)])
    cube.base(BASE + 2)
    cube.live(BASE + 2)

    assert "is not what its manifest says" in reason
    values, _ = cube.seek(BASE + 2, keys)
    np.testing.assert_array_equal(values, values_of(keys, BASE + 2))
    assert BASE + 1 not in {document.live for document in cube.documents}


def test_after_a_refused_delta_the_next_base_goes_live_and_until_then_the_status_says_why(cube: World) -> None:
    cube.start_all()
    keys = cube.base(BASE)
    cube.live(BASE)

    cube.delta(BASE + 1, keys[:5], parent=BASE, base=BASE, damage=flip_a_byte)
    eventually("it is refused", lambda: str(BASE + 1) in cube.status()["refused"])
    # The master publishes this hour before it knows of the refusal.
    cube.delta(BASE + 2, keys[:5], parent=BASE + 1, base=BASE)
    problem = eventually("the status says why", lambda: [each for each in cube.status()["problems"] if "stand" in each])
    refused = eventually("the store has the refusal", lambda: read_refusals(cube.store))
    assert cube.document().live == BASE
    parent = BASE + 2
    assert refused_below(BASE, parent, refused) == BASE + 1
    cube.base(BASE + 3)
    cube.live(BASE + 3)

    assert problem[0].startswith(f"version {BASE + 1} is refused (")
    assert "is not what its manifest says" in problem[0]
    assert f"{BASE + 2} stands on it and cannot be built; the master publishes a base next" in problem[0]
    assert "is not what its manifest says" in refused[BASE + 1]
    values, _ = cube.seek(BASE + 3, keys)
    np.testing.assert_array_equal(values, values_of(keys, BASE + 3))
    assert cube.status()["problems"] == []
    # A transfer that has lost everything refuses the version still: pods and the store say so.
    cube.kill("transfer")
    (cube.root / "transfer" / "release.json").write_bytes(b"{")
    cube.start_transfer()
    cube.live(BASE + 3)
    eventually("it is refused still", lambda: str(BASE + 1) in cube.status()["refused"])
    assert (cube.root / "transfer" / "release.json.damaged").read_bytes() == b"{"


def test_a_dictionary_part_damaged_in_the_store_makes_agents_refuse_the_candidate(cube: World) -> None:
    cube.start_builder()
    cube.start_transfer()
    cube.base(BASE)
    eventually("the version is the candidate", lambda: cube.document().candidate == BASE)
    flip_a_byte(cube.store.root / f"output/ctr_dict/{BASE}/part-00003.dict")

    for pod, _ in cube.pods():
        cube.start_pod(pod)
    reason = eventually("the version is refused", lambda: cube.status()["refused"][str(BASE)])
    cube.base(BASE + 1)
    cube.live(BASE + 1)

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


def test_a_live_part_that_is_damaged_in_the_cache_is_fetched_anew_and_the_store_keeps_its_own(cube: World) -> None:
    cube.start_all()
    keys = cube.base(BASE)
    cube.live(BASE)
    cached = cube.root / "ctr-cube-s1-0" / str(BASE) / "part-00003.dict"
    published = cube.store.root / f"output/ctr_dict/{BASE}/part-00003.dict"
    good = published.read_bytes()
    assert cached.stat().st_ino != published.stat().st_ino

    damage_in_place(cached)

    eventually("the part is fetched anew", lambda: cached.read_bytes() == good)
    eventually(
        "all partitions are answered",
        lambda: 3 in cube.document().holders[BASE][cube.address("ctr-cube-s1-0")].partitions,
    )
    values, missed = cube.seek(BASE, keys)
    np.testing.assert_array_equal(values, values_of(keys, BASE))
    assert not missed.any()
    assert published.read_bytes() == good


def test_a_live_part_that_is_damaged_in_the_store_too_is_told_and_not_answered(cube: World) -> None:
    cube.start_all()
    cube.base(BASE)
    cube.live(BASE)
    pod = "ctr-cube-s1-0"
    published = cube.store.root / f"output/ctr_dict/{BASE}/part-00003.dict"

    damage_in_place(published)
    damage_in_place(cube.root / pod / str(BASE) / "part-00003.dict")

    def told() -> list[str]:
        return [each for each in cube.status()["problems"] if each.startswith(f"{pod} cannot answer")]

    problem = eventually("the status names the part", told)
    assert f"output/ctr_dict/{BASE}/part-00003.dict" in problem[0]
    assert 3 not in cube.document().holders[BASE][cube.address(pod)].partitions
    # Tried again with growing pauses, not in a busy loop: the part is small and every try is a line of `errors`.
    tries = cube.log(f"{pod}.agent").count("is not what the dictionary's manifest says")
    assert 1 <= tries < 20
    damage_in_place(published)  # the same bit again: mended

    eventually("the part is answered again", lambda: 3 in cube.document().holders[BASE][cube.address(pod)].partitions)
    eventually("nothing is wrong", lambda: cube.status()["problems"] == [])


def test_a_restarted_transfer_keeps_its_generation_and_names_the_holders_at_once(cube: World) -> None:
    cube.start_all()
    keys = cube.base(BASE)
    before = cube.live(BASE)

    cube.kill("transfer")
    cube.start_transfer()
    after = eventually("transfer answers", cube.document)

    assert after.generation == before.generation
    assert after.revision > before.revision
    assert after.live == BASE
    assert after.holders[BASE].keys() == before.holders[BASE].keys()
    values, _ = cube.seek(BASE, keys)
    np.testing.assert_array_equal(values, values_of(keys, BASE))


def test_a_transfer_that_lost_its_state_goes_on_one_generation_later(cube: World) -> None:
    cube.start_all()
    keys = cube.base(BASE)
    before = cube.live(BASE)
    eventually("the agents know", lambda: "holds version" in cube.ready_of("ctr-cube-s0-0"))

    cube.kill("transfer")
    (cube.root / "transfer" / "release.json").unlink()
    cube.start_transfer()
    after = eventually("transfer answers", cube.document)
    cube.delta(BASE + 1, keys[:5], parent=BASE, base=BASE)
    cube.live(BASE + 1)

    assert after.generation == before.generation + 1
    assert after.live == BASE
    assert after.revision > before.revision


def test_a_killed_agent_is_started_again_and_the_server_answers_meanwhile(cube: World) -> None:
    cube.start_all()
    keys = cube.base(BASE)
    before = cube.live(BASE)

    cube.kill("ctr-cube-s0-0.agent")
    values, missed = cube.seek(BASE, keys)
    cube.start_agent("ctr-cube-s0-0")
    cube.delta(BASE + 1, keys[:5], parent=BASE, base=BASE)
    after = cube.live(BASE + 1)

    assert not missed.any()
    np.testing.assert_array_equal(values, values_of(keys, BASE))
    assert after.generation == before.generation
    assert after.holders[BASE + 1].keys() == {cube.address(pod) for pod, _ in cube.pods()}


def test_a_server_that_was_killed_is_given_everything_again(cube: World) -> None:
    cube.start_all()
    keys = cube.base(BASE)
    cube.live(BASE)

    cube.kill("ctr-cube-s1-0.server")
    eventually("its holder is gone", lambda: cube.address("ctr-cube-s1-0") not in cube.document().holders[BASE])
    cube.start_server("ctr-cube-s1-0")
    eventually("it holds again", lambda: cube.address("ctr-cube-s1-0") in cube.document().holders[BASE])

    values, missed = cube.seek(BASE, keys)
    assert not missed.any()
    np.testing.assert_array_equal(values, values_of(keys, BASE))


def test_a_rollback_makes_the_earlier_version_live_and_holds_until_it_is_resumed(cube: World) -> None:
    cube.start_all()
    keys = cube.base(BASE)
    cube.live(BASE)
    for version in (BASE + 1, BASE + 2):
        cube.delta(version, keys[:5], parent=version - 1, base=BASE)
        cube.live(version)

    # The base is two versions back: it has to be loaded first, and what is live stays so meanwhile.
    answer = cube.rollback(version=BASE)
    held = cube.live(BASE)
    cube.delta(BASE + 3, keys[:9], parent=BASE + 2, base=BASE)
    eventually("the new version is built", lambda: BASE + 3 in cube.status()["built"])
    still = cube.document()
    resumed = cube.rollback(resume=True)
    cube.live(BASE + 3)

    assert answer.status_code == 200
    assert held.promotion_paused
    assert still.live == BASE
    assert still.candidate is None
    assert resumed.json()["promotionPaused"] is False
    values, _ = cube.seek(BASE + 3, keys)
    np.testing.assert_array_equal(values[:9], values_of(keys[:9], BASE + 3))


def test_a_rollback_to_a_version_that_never_was_live_is_refused_with_the_way_out(cube: World) -> None:
    cube.start_all()
    cube.base(BASE)
    cube.live(BASE)

    answer = cube.rollback(version=BASE + 7)

    assert answer.status_code == 409
    assert f"version {BASE + 7}" in answer.json()["error"]
    assert cube.document().live == BASE


def test_a_candidate_waits_for_serving_pods_and_a_difference_refuses_it(cube: World) -> None:
    cube.start_all()
    keys = cube.base(BASE)
    cube.live(BASE)
    cube.report("ctr-serving-0", validated=(BASE,))

    cube.delta(BASE + 1, keys[:5], parent=BASE, base=BASE)
    waiting = eventually("it waits for the pod", lambda: (cube.status()["candidate"] or {}).get("silentReaders"))
    cube.report("ctr-serving-0", validated=(BASE,), refused={BASE + 1: "sample 3 differs by 0.5"})
    reason = eventually("it is refused", lambda: cube.status()["refused"][str(BASE + 1)])
    cube.delta(BASE + 2, keys[:5], parent=BASE + 1, base=BASE)
    eventually("the next is the candidate", lambda: cube.document().candidate == BASE + 2)
    cube.report("ctr-serving-0", validated=(BASE, BASE + 2))
    cube.live(BASE + 2)

    assert waiting == ["ctr-serving-0"]
    assert reason == "ctr-serving-0: sample 3 differs by 0.5"
    assert BASE + 1 not in {document.live for document in cube.documents}


def test_of_twenty_versions_in_a_row_a_slow_reader_sees_some_and_the_last(cube: World) -> None:
    cube.start_all()
    keys = cube.base(BASE)
    cube.live(BASE)
    last = BASE + 20
    seen = []

    cube.report("ctr-serving-0", validated=(BASE,))
    for version in range(BASE + 1, last + 1):
        cube.delta(version, keys[:4], parent=version - 1, base=BASE)
    while (document := cube.document()).live != last:
        cube.report("ctr-serving-0", validated=document.wanted)
        eventually("there is something new", lambda: cube.document().wanted != document.wanted)
        seen.append(document.live)

    status = cube.status()
    assert seen == sorted(seen, key=lambda version: version or 0)
    assert status["refused"] == {}
    lived = {document.live for document in cube.documents}
    assert {*status["skipped"], *lived} >= set(status["published"])
    values, _ = cube.seek(last, keys)
    np.testing.assert_array_equal(values[:4], values_of(keys[:4], last))
    np.testing.assert_array_equal(values[4:], values_of(keys[4:], BASE))


def test_a_pod_that_ends_drains_first_and_another_shard_takes_over(cube: World) -> None:
    cube.start_all()
    keys = cube.base(BASE)
    cube.live(BASE)

    ended = cube.end("ctr-cube-s1-0.agent")
    cube.end("ctr-cube-s1-0.server")
    values, missed = cube.seek(BASE, keys)

    assert ended == 0
    assert not missed.any()
    np.testing.assert_array_equal(values, values_of(keys, BASE))
    assert cube.document().holders[BASE].keys() == {cube.address("ctr-cube-s0-0")}


def test_shards_grow_from_two_to_four_and_every_read_is_answered(cube: World) -> None:
    cube.start_all()
    keys = cube.base(BASE)
    cube.live(BASE)

    cube.end("transfer")
    cube.shards = 4
    cube.start_transfer()
    for pod, shard in cube.pods():
        if shard >= 2:
            cube.start_pod(pod)

    def moved() -> bool:
        values, missed = cube.seek(BASE, keys)
        assert not missed.any()
        np.testing.assert_array_equal(values, values_of(keys, BASE))
        holders = cube.document().holders[BASE]
        owed = {cube.address(pod): tuple(range(shard, 6, 4)) for pod, shard in cube.pods()}
        return {address: holder.partitions for address, holder in holders.items()} == owed

    eventually("transfer answers", cube.document)
    eventually("each pod holds what it owes and nothing else", moved)


def test_who_does_not_know_the_token_changes_nothing(cube: World) -> None:
    cube.start_transfer()
    eventually("transfer answers", cube.document)

    for path, body in (("agents", {}), ("readers", {"pod": "x"}), ("rollback", {"resume": True})):
        answer = httpx.post(f"{cube.url('transfer')}/{path}", json=body, headers={"authorization": "Bearer wrong"})

        assert answer.status_code == 401
        assert "token" in answer.json()["error"]


def test_a_builder_killed_in_the_middle_publishes_nothing_half_and_the_rerun_is_byte_identical(cube: World) -> None:
    cube.start_builder()
    cube.base(BASE, keys=60_000)
    folder = cube.store.root / f"output/ctr_dict/{BASE}"
    order: dict[str, Any] = {"url": f"{cube.url('builder')}/build", "headers": bearer(TOKEN), "json": {"version": BASE}}
    eventually("the builder takes the order", lambda: httpx.post(**order).status_code == 200)
    eventually("parts are being published", lambda: list(folder.glob("*.dict")))

    cube.kill("builder")
    was_whole = (folder / "manifest.json").exists()
    left = {each.name: each.read_bytes() for each in folder.glob("*.dict")}
    cube.start_builder()
    eventually("the builder takes the order", lambda: httpx.post(**order).status_code == 200)
    eventually("it is built", lambda: httpx.get(f"{cube.url('builder')}/build").json()["stage"] == "done")

    manifest = read_dictionary(cube.store, BASE)
    assert not was_whole or len(left) == PARTITIONS
    assert [each.name for each in sorted(folder.glob("*.dict"))] == [f"part-{p:05d}.dict" for p in range(PARTITIONS)]
    for name, data in left.items():
        assert (folder / name).read_bytes() == data
    for entry in manifest.files:
        check(cube.store, entry, cube.store.root / entry.path)


def test_a_pod_fetches_from_a_store_on_another_file_system_by_copying(cube: World) -> None:
    if not Path("/dev/shm").is_dir() or Path("/dev/shm").stat().st_dev == cube.root.stat().st_dev:
        pytest.skip("there is no second file system at /dev/shm")
    with TemporaryDirectory(dir="/dev/shm") as elsewhere:
        cube.agent_options["cache_dir"] = elsewhere
        cube.shards = 1
        cube.start_builder()
        cube.start_transfer()
        cube.start_server("ctr-cube-s0-0", cache_dir=elsewhere)
        cube.start_agent("ctr-cube-s0-0")
        keys = cube.base(BASE)
        cube.live(BASE)

        values, _ = cube.seek(BASE, keys)

        np.testing.assert_array_equal(values, values_of(keys, BASE))
        assert len(list(Path(elsewhere).glob(f"{BASE}/*.dict"))) == PARTITIONS
        cube.close()
