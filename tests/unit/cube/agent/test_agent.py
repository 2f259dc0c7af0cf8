"""One agent, with lookups and a transfer that are played."""

import asyncio
import errno
import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from cube.agent.played import ADDRESS, MINE, OTHER, PARTITIONS, Played, pod, put_real_dictionary
from cube.parts import of_partition, values_for
from cube.peers import Peer
from cube.published import RemoteStore
from elastic_ctr.config.cube_settings import CubePodConfig
from elastic_ctr.cube.agent.cache import Cache
from elastic_ctr.cube.agent.lookup_parts import NothingServes
from elastic_ctr.cube.release import Holder, Placement
from elastic_ctr.cube.server.lookup_server import LookupServer
from elastic_ctr.store.backends import FileStore, StoreError
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.published_files import read_dictionary


async def test_an_agent_loads_its_partitions_of_the_wanted_versions_the_live_one_first(
    tmp_path: Path, played: Played
) -> None:
    played.say(5, 4, 6)
    async with pod(tmp_path, played) as it:
        await it.holds(v5=MINE, v4=MINE, v6=MINE)
        await it.until(lambda: played.reports[-1].loaded == {5: MINE, 4: MINE, 6: MINE})

        assert [version for version, _ in played.loads] == [5, 4, 6]
        assert it.agent.ready() == (True, "ready; holds version 5")


async def test_before_any_version_was_live_a_pod_that_runs_is_ready(tmp_path: Path, played: Played) -> None:
    async with pod(tmp_path, played) as it:
        assert not it.agent.ready()[0]
        played.say(None)
        await it.until(lambda: it.agent.ready()[0])


async def test_a_fold_that_versions_will_lie_over_soon_is_fetched_beforehand(tmp_path: Path, played: Played) -> None:
    store = FileStore(tmp_path / "store")
    own = read_dictionary(store, 5)
    # What the overlay of version 4 was merged into.
    store.put_bytes(read_dictionary(store, 4).to_json(), layout.dictionary_fold(4))
    announcing = own.model_copy(update={"fold_ahead": 4})
    store.delete(layout.dictionary_manifest(5))
    store.put_bytes(announcing.to_json(), layout.dictionary_manifest(5))
    played.say(5)
    async with pod(tmp_path, played, store=store) as it:
        await it.holds(v5=MINE)
        wanted = {f"part-0000{partition}.dict" for partition in MINE}
        await it.until(lambda: {each.name for each in (tmp_path / "cache" / "4").glob("*.dict")} == wanted)
        heard = len(played.reports)
        await it.until(lambda: len(played.reports) > heard + 5)

    assert (tmp_path / "cache" / "4" / "fold.json").exists()
    assert [version for version, _ in played.loads] == [5]


async def test_nothing_is_fetched_beforehand_while_a_wanted_version_is_tried_again(
    tmp_path: Path, played: Played
) -> None:
    store = FileStore(tmp_path / "store")
    store.put_bytes(read_dictionary(store, 4).to_json(), layout.dictionary_fold(4))
    announcing = read_dictionary(store, 6).model_copy(update={"fold_ahead": 4})
    store.delete(layout.dictionary_manifest(6))
    store.put_bytes(announcing.to_json(), layout.dictionary_manifest(6))
    played.say(5, 6, 99)
    async with pod(tmp_path, played, store=store) as it:
        await it.holds(v5=MINE, v6=MINE)
        await it.until(lambda: "99" in " ".join(it.agent.errors))
        heard = len(played.reports)
        await it.until(lambda: len(played.reports) > heard + 5)
        assert not (tmp_path / "cache" / "4").exists()

        played.say(5, 6)
        await it.until((tmp_path / "cache" / "4" / "fold.json").exists)


async def test_a_fold_that_cannot_be_fetched_beforehand_is_no_error(tmp_path: Path, played: Played) -> None:
    store = FileStore(tmp_path / "store")
    announcing = read_dictionary(store, 5).model_copy(update={"fold_ahead": 4})
    store.delete(layout.dictionary_manifest(5))
    store.put_bytes(announcing.to_json(), layout.dictionary_manifest(5))
    played.say(5)
    async with pod(tmp_path, played, store=store) as it:
        await it.holds(v5=MINE)
        await it.until(lambda: it.agent._fold_is_done)

        assert (it.agent.errors, it.agent.ready()[0]) == ([], True)


async def test_parts_that_no_worker_could_load_are_loaded_again(tmp_path: Path, played: Played) -> None:
    played.say(5)
    async with pod(tmp_path, played) as it:
        await it.holds(v5=MINE)

        played.held = {}
        await it.holds(v5=MINE)

        assert len(played.loads) == 2


async def test_a_document_of_a_lower_generation_changes_nothing(tmp_path: Path, played: Played) -> None:
    played.say(5, generation=3)
    async with pod(tmp_path, played) as it:
        await it.holds(v5=MINE)
        heard = len(played.reports)

        played.say(6, generation=2)
        await it.until(lambda: len(played.reports) > heard + 5)

        assert it.agent.document is not None
        assert it.agent.document.live == 5
        assert played.reports[-1].document == it.agent.document


async def test_an_old_version_is_unloaded_and_its_files_deleted_once_its_lookups_have_ended(
    tmp_path: Path, played: Played
) -> None:
    played.say(5)
    async with pod(tmp_path, played) as it:
        await it.holds(v5=MINE)
        played.asked = {5: 0.0}
        played.say(6)
        await it.holds(v5=MINE, v6=MINE)
        heard = len(played.reports)
        await it.until(lambda: len(played.reports) > heard + 20)
        assert played.unloads == []

        played.asked = {5: 1.0}
        await it.holds(v6=MINE)
        await it.until(lambda: not (tmp_path / "cache" / "5").exists())

    assert (tmp_path / "cache" / "6").exists()


async def test_the_last_live_version_is_kept_until_the_new_one_is_held(tmp_path: Path, played: Played) -> None:
    played.say(5)
    played.refuses = {(6, 2)}
    async with pod(tmp_path, played) as it:
        await it.holds(v5=MINE)
        played.say(6)
        await it.holds(v5=(2,), v6=(0,))
        heard = len(played.reports)
        await it.until(lambda: len(played.reports) > heard + 20)

        assert played.held[5] == {2}
        assert any("part 2 is damaged" in error for error in played.reports[-1].errors)
        assert not it.agent.ready()[0]
        played.refuses = set()
        await it.holds(v6=MINE)


async def test_partitions_of_another_shard_are_first_no_longer_reported_and_then_unloaded(
    tmp_path: Path, played: Played
) -> None:
    played.say(5)
    async with pod(tmp_path, played, drain_seconds=0.3) as it:
        await it.holds(v5=MINE)
        four = Placement(shards=4, up=(0, 1, 2, 3))
        mine = Holder(partitions=MINE, shard=0)
        played.say(5, placement=four, holders={5: {ADDRESS: mine}})
        heard = len(played.reports)
        await it.until(lambda: len(played.reports) > heard + 20)
        assert played.reports[-1].loaded == {5: MINE}

        played.say(5, placement=four, holders={5: {ADDRESS: mine, OTHER: Holder(partitions=(2,), shard=2)}})
        await it.until(lambda: played.reports[-1].loaded == {5: (0,)})
        heard = len(played.reports)
        await it.until(lambda: len(played.reports) > heard + 20)
        assert played.held == {5: {0, 2}}, "the document that readers have still names this pod"

        others = {ADDRESS: Holder(partitions=(0,), shard=0), OTHER: Holder(partitions=(2,), shard=2)}
        played.say(5, placement=four, holders={5: others})
        await it.holds(v5=(0,))


async def test_a_partition_is_reported_on_while_readers_may_not_find_its_new_holder_yet(
    tmp_path: Path, played: Played
) -> None:
    played.say(5)
    async with pod(tmp_path, played, drain_seconds=1000) as it:
        await it.holds(v5=MINE)
        four = Placement(shards=4, up=(0, 1, 2, 3))
        both = {ADDRESS: Holder(partitions=MINE, shard=0), OTHER: Holder(partitions=(2,), shard=2)}
        played.say(5, placement=four, holders={5: both})
        heard = len(played.reports)
        await it.until(lambda: len(played.reports) > heard + 50)

        assert played.reports[-1].document == played.document
        assert played.reports[-1].loaded == {5: MINE}


async def test_nothing_is_unloaded_while_transfer_is_away(tmp_path: Path, played: Played) -> None:
    played.say(5)
    async with pod(tmp_path, played, drain_seconds=0.3) as it:
        await it.holds(v5=MINE)
        played.away = True
        heard = len(played.reports)
        await it.until(lambda: len(played.reports) > heard + 100)
        four = Placement(shards=4, up=(0, 1, 2, 3))
        others = {ADDRESS: Holder(partitions=(0,), shard=0), OTHER: Holder(partitions=(2,), shard=2)}
        played.say(5, placement=four, holders={5: others})
        heard = len(played.reports)
        await it.until(lambda: len(played.reports) > heard + 50)
        assert played.held == {5: {0, 2}}

        played.away = False
        await it.holds(v5=(0,))


async def test_the_partitions_of_a_shard_that_is_down_are_loaded_too(tmp_path: Path, played: Played) -> None:
    played.say(5, placement=Placement(shards=2, up=(0,)))
    async with pod(tmp_path, played) as it:
        await it.holds(v5=(0, 1, 2, 3))


@pytest.mark.parametrize("kind", [FileStore, RemoteStore])
async def test_a_damaged_part_of_the_candidate_is_reported_and_refused_and_the_rest_is_answered(
    tmp_path: Path, played: Played, kind: type[FileStore]
) -> None:
    store = kind(tmp_path / "store")
    (store.root / layout.dictionary_part(6, 2)).write_bytes(b"\x00" * 2000)
    played.say(5, 6)
    async with pod(tmp_path, played, store=store) as it:
        await it.holds(v5=MINE, v6=(0,))
        report = await it.until(lambda: played.reports[-1].refused and played.reports[-1])

        assert "part-00002.dict" in report.refused[6]
        assert report.loaded[5] == MINE
        played.say(5, 7)
        await it.until(lambda: played.held.get(7) == set(MINE) and not played.reports[-1].refused)


async def test_a_version_whose_load_has_an_error_of_the_program_ends_no_lookup_of_another(
    tmp_path: Path, played: Played
) -> None:
    played.say(5)
    played.breaks = {6: ValueError("mmap length is greater than file size")}
    async with pod(tmp_path, played) as it:
        await it.holds(v5=MINE)
        played.say(5, 6)
        await it.until(lambda: any("version 6 cannot be loaded: ValueError" in each for each in it.agent.errors))
        kept = dict(played.held)
        played.breaks = {}
        await it.holds(v5=MINE, v6=MINE)

    assert kept == {5: set(MINE)}
    assert not it.agent.errors


async def test_parts_are_neither_tried_alone_nor_fetched_again_while_no_worker_serves(
    tmp_path: Path, played: Played
) -> None:
    played.say(5)
    played.breaks = {5: NothingServes("no worker has come to answer lookups")}
    async with pod(tmp_path, played) as it:
        await it.until(lambda: len(played.loads) > 1)
        fetched = it.agent.cache.fetched_bytes
        played.breaks = {}
        await it.holds(v5=MINE)

        assert it.agent.cache.fetched_bytes == fetched
    assert {len(parts) for _, parts in played.loads} == {len(MINE)}


async def test_a_manifest_of_a_newer_release_is_refused_by_the_name_of_its_key_and_the_rest_is_answered(
    tmp_path: Path, played: Played
) -> None:
    store = FileStore(tmp_path / "store")
    newer = json.loads(read_dictionary(store, 6).to_json()) | {"compression": "zstd"}
    store.delete(layout.dictionary_manifest(6))
    store.put_bytes(json.dumps(newer).encode(), layout.dictionary_manifest(6))
    played.say(5, 6)
    async with pod(tmp_path, played, store=store) as it:
        await it.holds(v5=MINE)
        report = await it.until(lambda: played.reports[-1].refused and played.reports[-1])

        assert "compression: this version of elastic-ctr knows no such key" in report.refused[6]
        assert report.loaded == {5: MINE}


async def test_a_full_disk_is_reported_and_tried_again_and_what_is_loaded_is_answered(
    tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Cache.parts

    def full(self: Cache, version: int, partition: int) -> tuple[Path, ...]:
        if version == 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, version, partition)

    played.say(5, 6)
    async with pod(tmp_path, played) as it:
        with monkeypatch.context() as patched:
            patched.setattr(Cache, "parts", full)
            await it.until(lambda: played.reports and any("No space left" in e for e in played.reports[-1].errors))
            assert played.held == {5: set(MINE)}
            assert played.reports[-1].refused == {}
        await it.holds(v5=MINE, v6=MINE)
        await it.until(lambda: not played.reports[-1].errors)


class Unreachable(RemoteStore):
    """A store that answers only while it is not away."""

    away = False

    def read_from(self, path: str, offset: int = 0) -> Iterator[bytes]:
        if self.away:
            raise StoreError("the store is away")
        return super().read_from(path, offset)


async def test_a_part_that_no_worker_can_open_any_more_is_fetched_anew_while_the_rest_is_answered(
    tmp_path: Path, played: Played
) -> None:
    keys = np.arange(1, 301, dtype=np.uint64)
    store = Unreachable(tmp_path / "real")
    put_real_dictionary(store, tmp_path / "work", 5, keys)
    played.say(5)

    def values(partition: int) -> bytes:
        with Peer(server.port) as peer:
            return peer.ask(5, of_partition(keys, partition, PARTITIONS), 4).values.tobytes()

    with closing(LookupServer(CubePodConfig().model_copy(update={"port": 0}))) as server:
        running = asyncio.create_task(server.run())
        async with pod(tmp_path, played, store=store, lookups=server) as it:
            await it.until(lambda: played.reports and played.reports[-1].loaded == {5: MINE})
            lost = tmp_path / "cache" / "5" / "part-00002.dict"
            store.away = True
            os.truncate(lost, 100)
            os.kill(server.status()["workers"][0], signal.SIGKILL)

            await it.until(lambda: played.reports[-1].loaded == {5: (0,)})
            await it.until(lambda: server.ready)
            assert await asyncio.to_thread(values, 0) == values_for(of_partition(keys, 0, PARTITIONS), 4, 5).tobytes()

            store.away = False
            await it.until(lambda: played.reports[-1].loaded == {5: MINE})
            assert await asyncio.to_thread(values, 2) == values_for(of_partition(keys, 2, PARTITIONS), 4, 5).tobytes()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
