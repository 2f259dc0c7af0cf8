"""Transfer behind its own door, in this process; versions are built by hand, pods are played."""

import asyncio
import math
import os
import threading
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from credentials import access, tokens
from cube.published import DIM, PARTITIONS, keys_of, publish_version
from elastic_ctr.config.cube_settings import CubeTransferConfig
from elastic_ctr.config.role_files import CubeTransferFile
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.cube.release import AgentReport, Placement, ReaderReport, ReleaseDocument
from elastic_ctr.cube.transfer import controller, store_watch
from elastic_ctr.cube.transfer.catalog import Scan
from elastic_ctr.cube.transfer.controller import CubeTransfer
from elastic_ctr.cube.transfer.state import state_after_loss
from elastic_ctr.cube.transfer.transfer_api import transfer_app
from elastic_ctr.runtime.auth import bearer
from elastic_ctr.runtime.http import serving
from elastic_ctr.runtime.lock import StateInUse
from elastic_ctr.runtime.status.transfer_status import ReleaseStatus
from elastic_ctr.store.backends import FileStore, StoreError
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import CheckpointManifest, DictionaryManifest, FileEntry
from elastic_ctr.store.versions.safeguards import read_refusals
from status_documents import complete

ALL = tuple(range(PARTITIONS))


class Desk:
    """What a test asks and says."""

    def __init__(self, root: Path, client: httpx.AsyncClient, transfer: CubeTransfer) -> None:
        self.root = root
        self.store = FileStore(root / "store")
        self.client = client
        self.transfer = transfer

    def publish(self, version: int, *, built: bool = True, **more: Any) -> None:
        publish_version(self.store, self.root / "work", version, keys_of(1, 2, 3), **more)
        if built:
            manifest = DictionaryManifest(
                version=version, kind="full", full_version=version, base=version, parent=None, partitions=PARTITIONS,
                dim=DIM, keys=3, files=(),
            )  # fmt: skip
            self.store.put_bytes(manifest.to_json(), layout.dictionary_manifest(version))
            # As after the end of a build.
            self.transfer.watch.due.set()

    async def agent(self, *versions: int, pod: str = "c-s0-0", **more: Any) -> httpx.Response:
        fields = {"pod": pod, "address": "127.0.0.1:1", "shard": 0, "loaded": dict.fromkeys(versions, ALL), **more}
        return await self.client.post("/agents", content=AgentReport.model_validate(fields).to_json())

    async def reader(self, pod: str = "r", **said: Any) -> httpx.Response:
        return await self.client.post("/readers", content=ReaderReport(pod=pod, **said).to_json())

    async def document(self, **query: Any) -> ReleaseDocument:
        answer = await self.client.get("/release", params=query)
        assert answer.status_code == 200, answer.text
        return ReleaseDocument.model_validate_json(answer.content)

    async def until(self, **facts: Any) -> ReleaseDocument:
        """The first document that says so, by long poll."""
        document = await self.document()
        while any(getattr(document, name) != value for name, value in facts.items()):
            answer = await self.client.get("/release", params={"after": document.revision, "wait": 30})
            assert answer.status_code == 200, f"{facts} did not come: {document}"
            document = ReleaseDocument.model_validate_json(answer.content)
        return document

    async def status(self) -> dict[str, Any]:
        return dict((await self.client.get("/status")).json())


def transfer_of(root: Path, **options: Any) -> CubeTransfer:
    store = FileStore(root / "store")
    settings = CubeTransferConfig(state_dir=str(root / "state"), builder_port=9, poll_seconds=0.02, **options)
    config = CubeTransferFile(store=StoreConfig(url=store.url), cube_transfer=settings, shards=1, replicas_per_shard=1)
    return CubeTransfer(config, store)


@asynccontextmanager
async def desk(root: Path, *, state_recovery_seconds: float = 0.05, **options: Any) -> AsyncIterator[Desk]:
    transfer = transfer_of(
        root, state_recovery_seconds=state_recovery_seconds, **{"validation_timeout_seconds": 0.2, **options}
    )
    stop = asyncio.Event()
    async with serving(transfer_app(transfer, access("secret")), "127.0.0.1", 0) as door:
        running = asyncio.create_task(transfer.run(stop))
        url = f"http://127.0.0.1:{door.port}"
        async with httpx.AsyncClient(base_url=url, headers=bearer(tokens("secret")), timeout=60) as client:
            made = Desk(root, client, transfer)
            if state_recovery_seconds < 1:
                while transfer.listening:
                    await asyncio.sleep(0.005)
            try:
                yield made
            finally:
                stop.set()
                await running


class Looks:
    """Counts scans, and looks at the donefiles since the last of them."""

    def __init__(self, transfer: CubeTransfer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scans = self.idle = 0
        catalog = transfer.watch._catalog
        scan, has_news = catalog.scan, catalog.has_news

        def counted_scan(deleted: Collection[int] = ()) -> Scan:
            self.scans, self.idle = self.scans + 1, 0
            return scan(deleted)

        def counted_look() -> bool:
            self.idle += 1
            return has_news()

        monkeypatch.setattr(catalog, "scan", counted_scan)
        monkeypatch.setattr(catalog, "has_news", counted_look)

    async def many(self) -> None:
        while self.idle < 20:
            await asyncio.sleep(0.01)


async def test_an_idle_store_is_looked_at_without_scans_and_a_donefile_brings_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path) as it:
        looks = Looks(it.transfer, monkeypatch)
        await looks.many()
        assert looks.scans <= 1

        it.publish(100)
        await it.agent(100)
        await it.until(live=100)
        await looks.many()
        assert looks.scans <= 3


async def test_a_refusal_is_in_the_store_without_news_of_the_donefiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path) as it:
        it.publish(100)
        await it.until(candidate=100)
        await Looks(it.transfer, monkeypatch).many()

        await it.reader(refused={100: "scores differ"})

        while 100 not in read_refusals(it.store):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("broken", ["scan", "refusals"])
async def test_a_scan_that_fails_in_part_is_repeated_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    async with desk(tmp_path) as it:
        it.publish(100)
        await it.until(candidate=100)
        failed = 0
        place, name = (it.transfer.watch._catalog, "scan") if broken == "scan" else (store_watch, "write_refusal")
        works = getattr(place, name)

        def fails_twice(*given: object) -> object:
            nonlocal failed
            if failed == 2:
                return works(*given)
            failed += 1
            raise StoreError("it is away")

        # A scan under way would share the refusal.
        async with it.transfer.watch._scanning:
            monkeypatch.setattr(place, name, fails_twice)
        await it.reader(refused={100: "scores differ"})

        while 100 not in read_refusals(it.store):
            await asyncio.sleep(0.01)
        assert failed == 2


@pytest.mark.parametrize("step", [3600.0, -3600.0, 1.5, -1.5])
async def test_a_clock_that_is_set_changes_no_wait_however_small_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    wall, up = 1_000_000.0, 50.0
    monkeypatch.setattr(controller, "time", SimpleNamespace(time=lambda: wall, monotonic=lambda: up))
    transfer = transfer_of(tmp_path)
    transfer.state = state_after_loss(None).model_copy(update={"complete_since": wall - 10})

    for _ in range(10):
        wall, up = wall + 1 + step, up + 1
        transfer._follow_clock()

    assert transfer.state.complete_since is not None
    assert transfer.now() - transfer.state.complete_since == pytest.approx(20)
    # Times that people read follow the clock of the machine.
    assert abs(transfer.now() - wall) <= 2


async def test_while_it_listens_transfer_publishes_nothing_and_takes_reports(tmp_path: Path) -> None:
    async with desk(tmp_path, state_recovery_seconds=60) as it:
        answer = await it.client.get("/release")

        assert answer.status_code == 503
        assert (await it.client.get("/readyz")).status_code == 503
        assert (await it.agent()).status_code == 204
        assert (await it.client.post("/rollback", json={"version": 1})).status_code == 503
        assert (await it.status())["listening"] is True


async def test_a_long_poll_is_answered_by_the_next_revision_and_ends_empty_without_one(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        first = await it.document()
        waiting = asyncio.create_task(it.client.get("/release", params={"after": first.revision, "wait": 30}))
        await it.agent()
        second = ReleaseDocument.model_validate_json((await waiting).content)
        nothing = await it.client.get("/release", params={"after": second.revision, "wait": 0.05})

    assert second.revision > first.revision
    assert second.placement.up == (0,)
    assert nothing.status_code == 304


async def test_a_request_with_a_lower_generation_is_answered_at_once_whatever_its_revision(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        document = await it.document(after=10**9, generation=0, wait=30)

    assert document.generation == 1


@pytest.mark.parametrize("query", ["after=x", "after=-1", "wait=x", "wait=-1", "wait=nan", "after=" + "9" * 30])
async def test_a_query_that_is_not_a_number_is_refused_by_name(tmp_path: Path, query: str) -> None:
    async with desk(tmp_path) as it:
        answer = await it.client.get(f"/release?{query}")

    assert answer.status_code == 400
    assert answer.json()["error"].startswith(query.split("=", maxsplit=1)[0])


async def test_a_built_version_is_candidate_then_live_and_the_status_tells_its_way(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        it.publish(10)
        await it.until(candidate=10)
        waiting = complete(ReleaseStatus, (await it.client.get("/status")).content).candidate
        await it.agent(10)
        await it.reader()
        await it.until(live=10)
        status = complete(ReleaseStatus, (await it.client.get("/status")).content)
        metrics = (await it.client.get("/metrics")).text

    assert waiting is not None
    assert waiting.missing_partitions == (0, 1, 2)
    assert waiting.waits_for == ("3 partitions have fewer than 1 holders: 0, 1, 2",)
    assert status.live == 10
    assert (status.seconds_to_live or 0) > 0
    assert (status.event_time_max or 0) > 0
    assert status.shards[0].pods[0].loaded == {10: 3}
    assert [each.pod for each in status.readers] == ["r"]
    assert "elastic_ctr_cube_transfer_live_version 10.0" in metrics


async def test_a_report_of_another_state_changes_the_document_though_the_release_stays(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        it.publish(1)
        await it.agent(1)
        await it.reader(validated=(1,))
        before = await it.until(live=1)
        # Decisions by time alone publish nothing.
        await asyncio.sleep(0.3)
        assert await it.document() == before

        for drains in (True, False, True):
            await it.agent(1, draining=drains)
            document = await it.document()
            assert document.holders[1]["127.0.0.1:1"].draining is drains
            assert document.revision > before.revision
            before = document


async def test_a_pod_that_falls_silent_holds_nothing_and_its_dead_shard_is_named(tmp_path: Path) -> None:
    async with desk(tmp_path, report_timeout_seconds=0.1) as it:
        it.publish(10)
        await it.until(candidate=10)
        await it.agent(10)
        await it.until(live=10)
        document = await it.until(holders={})
        problems = (await it.status())["problems"]

    assert document.live == 10
    assert any("no pod of shard 0 is up" in problem for problem in problems)


async def test_a_report_from_an_address_outside_is_refused(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        answer = await it.agent(address="10.0.0.1:80")

        assert answer.status_code == 400
        assert "10.0.0.1:80" in answer.json()["error"]
        assert (await it.document()).placement.up == ()


async def test_a_restart_names_the_same_holders_until_they_had_time_to_report(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        it.publish(10)
        await it.until(candidate=10)
        await it.agent(10)
        before = await it.until(live=10)
    async with desk(tmp_path, state_recovery_seconds=0.3) as it:
        after = await it.document()
        empty = await it.until(holders={})

    assert (after.generation, after.live, after.holders) == (before.generation, 10, before.holders)
    assert after.revision > before.revision
    assert empty.live == 10


async def test_a_pod_that_carries_a_newer_document_is_right(tmp_path: Path) -> None:
    carried = ReleaseDocument(generation=7, revision=99, placement=Placement(shards=1), live=4, refused={3: "x"})
    async with desk(tmp_path) as it:
        await it.reader(document=carried)
        document = await it.document()

    assert (document.generation, document.live, document.refused) == (8, 4, {3: "x"})
    assert document.revision > 99


async def test_a_transfer_without_state_takes_the_highest_document_it_hears(tmp_path: Path) -> None:
    async with desk(tmp_path, state_recovery_seconds=1) as it:
        for revision, live in ((5, 3), (9, 4), (7, 2)):
            carried = ReleaseDocument(generation=2, revision=revision, placement=Placement(shards=1), live=live)
            await it.agent(document=carried)
        while it.transfer.listening:
            await asyncio.sleep(0.01)
        document = await it.document()

    assert (document.generation, document.live) == (3, 4)


async def test_a_second_transfer_on_the_same_state_is_refused(tmp_path: Path) -> None:
    async with desk(tmp_path):
        other = transfer_of(tmp_path)
        with pytest.raises(StateInUse):
            await other.run(asyncio.Event())


@pytest.mark.parametrize(("order", "status"), [({}, 400), ({"version": 1, "resume": True}, 400), ({"version": 1}, 409)])
async def test_an_impossible_order_is_refused_with_a_reason(tmp_path: Path, order: dict[str, Any], status: int) -> None:
    async with desk(tmp_path) as it:
        while it.transfer.view() is None:
            await asyncio.sleep(0.005)
        answer = await it.client.post("/rollback", json=order)

    assert answer.status_code == status
    assert answer.json()["error"]


async def test_old_versions_are_deleted_and_what_is_live_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_ctr.cube.transfer.store_watch._RETENTION_SECONDS", 0.0)
    async with desk(tmp_path, keep_versions=2) as it:
        it.publish(10)
        await it.until(candidate=10)
        await it.agent(10)
        await it.until(live=10)
        for version in range(11, 16):
            it.publish(version, built=False)
        while it.store.exists(layout.version_manifest(13)):
            await asyncio.sleep(0.01)
        status = await it.status()

    assert (tmp_path / "store" / layout.version_manifest(10)).exists()
    assert not [each for each in status["problems"] if "donefile names" in each]


async def test_overlays_of_a_stream_go_though_a_checkpoint_has_their_deltas_in_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_watch, "_RETENTION_SECONDS", 0.0)
    async with desk(tmp_path, keep_versions=2) as it:
        it.publish(10)
        for version in range(11, 17):
            entry = FileEntry(path=layout.dictionary_overlay(version), bytes=1, sha256="0" * 64, records=3)
            overlay = DictionaryManifest(
                version=version, kind="overlay", full_version=10, base=10, parent=version - 1, partitions=PARTITIONS,
                dim=DIM, keys=3, files=(entry,),
            )  # fmt: skip
            it.store.put_bytes(b"o", entry.path)
            it.store.put_bytes(overlay.to_json(), layout.dictionary_manifest(version))
            it.publish(version, built=False, parent=version - 1, base=10, in_one_file=True, created_at=1.0)
        log = CheckpointManifest(
            name="b", pass_id="p", pass_ordinal=1, follows_version=13, base_version=10, created_at=0.0, partitions=2,
            rows={}, files=(), stands_on="a", log=(11, 12, 13),
        )  # fmt: skip
        it.store.put_bytes(log.to_json(), layout.checkpoint_manifest("b"))
        while any(it.store.exists(layout.dictionary_overlay(version)) for version in (11, 12)):
            await asyncio.sleep(0.01)

    left = [version for version in range(11, 17) if it.store.exists(layout.dictionary_overlay(version))]
    # The next delta may stand on 13.
    assert {13, 15, 16} <= set(left)
    assert not {11, 12} & set(left)
    assert all(it.store.exists(layout.version_manifest(version)) for version in range(10, 17))


@pytest.mark.parametrize(
    ("step", "status"),
    [("followed_by_checkpoints", 200), ("delete_versions", 409)],
    ids=["before retention has chosen", "while it deletes"],
)
async def test_a_version_that_was_accepted_as_target_of_a_rollback_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, status: int
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    really = getattr(store_watch, step)

    def slow(*given: Any) -> Any:
        begun.set()
        assert may_go_on.wait(60)
        return really(*given)

    monkeypatch.setattr(store_watch, step, slow)
    async with desk(tmp_path, keep_versions=2) as it:
        it.transfer.watch._retention_at = math.inf
        may_go_on.set()
        for version in range(10, 14):
            it.publish(version)
            await it.until(candidate=version)
            await it.agent(*range(10, version + 1))
            await it.until(live=version)
        begun.clear()
        may_go_on.clear()
        it.transfer.watch._retention_at = 0
        assert await asyncio.to_thread(begun.wait, 60)

        answer = await it.client.post("/rollback", json={"version": 10})
        may_go_on.set()
        while it.store.exists(layout.version_manifest(11)):
            await asyncio.sleep(0.01)

        assert answer.status_code == status, answer.text
        accepted = status == 200
        assert it.store.exists(layout.dictionary_manifest(10)) is accepted
        document = await it.document()
        assert (10 in (document.live, document.candidate)) is accepted
        assert document.refused == {}


async def test_the_files_of_a_version_whose_manifest_cannot_be_read_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_ctr.cube.transfer.store_watch._RETENTION_SECONDS", 0.0)
    async with desk(tmp_path) as it:
        for version in (10, 11):
            it.publish(version)
        (it.store.root / layout.version_manifest(10)).write_text('{"of": "a newer release"}')
        leftover = layout.cube_file(9, "base", 0, 1)
        it.store.put_bytes(b"", leftover)
        for path in it.store.root.rglob("*"):
            os.utime(path, (0, 0))
        while it.store.exists(leftover):
            await asyncio.sleep(0.01)

    assert it.store.list(f"{layout.CUBE}/10")
    assert it.store.exists(layout.dictionary_manifest(10))


async def test_while_the_state_cannot_be_written_nothing_new_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path) as it:
        before = await it.document()
        (tmp_path / "state" / "release.new").mkdir()
        it.publish(10)
        while not (problems := [p for p in (await it.status())["problems"] if "cannot be written" in p]):
            await asyncio.sleep(0.01)
        stuck = await it.document()
        (tmp_path / "state" / "release.new").rmdir()
        await it.until(candidate=10)

    assert "release.json" in problems[0]
    assert stuck.candidate is None
    assert before.live is None


async def test_a_builder_that_does_not_answer_is_named(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        it.publish(10, built=False)
        while not any("the builder at" in problem for problem in (await it.status())["problems"]):
            await asyncio.sleep(0.01)
        status = await it.status()

    assert (status["next"], status["built"], status["refused"]) == (10, [], {})


@pytest.mark.parametrize("restored_first", [True, False])
async def test_a_transfer_without_a_live_version_takes_over_the_release_of_a_backup_before_a_newer_version_goes_live(
    tmp_path: Path, restored_first: bool
) -> None:
    before = ReleaseDocument(
        generation=4,
        revision=900,
        placement=Placement(shards=9),
        live=1,
        previous=2,
        promotion_paused=True,
        refused={3: "bad"},
    )

    def restore(it: Desk) -> None:
        it.store.put_bytes(before.to_json(), layout.RESTORED)
        for version in (1, 2, 4):
            it.publish(version)

    async with desk(tmp_path, state_recovery_seconds=60 if restored_first else 0.05) as it:
        await it.agent(1, 2, 4)
        restore(it)
        if restored_first:
            while it.transfer._carried is None:
                await asyncio.sleep(0.005)
            it.transfer.rules = it.transfer.rules.model_copy(update={"state_recovery_seconds": 0.0})
            while it.transfer.listening:
                await asyncio.sleep(0.005)

        document = await it.until(live=1)
        while it.store.exists(layout.RESTORED):
            await asyncio.sleep(0.005)
        last = await it.document()

    assert (document.generation, document.placement.shards) == (5, 1)
    assert document.revision > 900
    assert (last.live, last.previous, last.candidate, last.promotion_paused, last.refused) == (
        1,
        2,
        None,
        True,
        {3: "bad"},
    )


async def test_the_release_of_a_backup_without_a_live_version_is_taken_over_once(tmp_path: Path) -> None:
    before = ReleaseDocument(generation=4, revision=900, placement=Placement(shards=1), refused={3: "bad"})
    FileStore(tmp_path / "store").put_bytes(before.to_json(), layout.RESTORED)

    async with desk(tmp_path) as it:
        taken = await it.until(refused={3: "bad"})
        while it.store.exists(layout.RESTORED):
            await asyncio.sleep(0.005)
        it.publish(5)
        await it.agent(5)
        live = await it.until(live=5)

    assert taken.generation in {5, 6}
    assert live.generation == taken.generation


async def test_a_transfer_that_ended_after_it_took_over_a_backup_deletes_its_document_when_it_starts_again(
    tmp_path: Path,
) -> None:
    """A later loss of the state would make the version of the backup live again."""
    async with desk(tmp_path) as it:
        it.publish(1)
        await it.agent(1)
        await it.until(live=1)
    it.store.put_bytes(
        ReleaseDocument(generation=1, revision=1, placement=Placement(shards=1), live=1).to_json(), layout.RESTORED
    )

    async with desk(tmp_path) as again:
        while again.store.exists(layout.RESTORED):
            await asyncio.sleep(0.005)
        assert (await again.until(live=1)).generation == 1


async def test_a_transfer_with_a_live_version_leaves_the_release_of_a_backup_alone(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        it.publish(1)
        await it.agent(1)
        await it.until(live=1)
        it.store.put_bytes(
            ReleaseDocument(generation=4, revision=900, placement=Placement(shards=1), live=2).to_json(),
            layout.RESTORED,
        )
        it.publish(3)
        await it.agent(1, 3)

        assert (await it.until(live=3)).generation == 1
        assert it.store.exists(layout.RESTORED)
