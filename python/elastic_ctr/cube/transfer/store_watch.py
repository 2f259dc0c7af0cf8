"""The store as cube-transfer sees it: what scans find goes to the release, and what the release decides goes to the store.

Scans, writes and deletions run in a thread, one scan at a time.
"""

import asyncio
import logging
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from elastic_ctr.config.cube_settings import CubeTransferConfig
from elastic_ctr.cube.placement import (
    dictionaries_to_delete,
    seconds_to_next_look,
    seconds_to_next_scan,
    versions_to_delete,
)
from elastic_ctr.cube.transfer import state as rules_of
from elastic_ctr.cube.transfer.catalog import (
    Catalog,
    Scan,
    delete_dictionaries,
    delete_orphans,
    delete_versions,
    followed_by_checkpoints,
    restored_document,
)
from elastic_ctr.runtime.documents import DocumentDamaged
from elastic_ctr.runtime.lifecycle import wait_event
from elastic_ctr.store.backends import Store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.safeguards import (
    Refusal,
    is_gone,
    is_resumed,
    newest_hold,
    read_refusals,
    write_refusal,
    write_resumption,
)

if TYPE_CHECKING:
    from elastic_ctr.cube.transfer.controller import CubeTransfer

log = logging.getLogger(__name__)

_RETENTION_SECONDS = 60.0


class StoreWatch:
    """`scan` is the last look at the store, None before the first one; `error` is the reason why the present one fails. `looked` is set after each
    look of `run`, and `due` is to be set where a scan is due at once: the state has what is to be written to the store, or compared with it.
    """

    def __init__(self, store: Store, rules: CubeTransferConfig, release: "CubeTransfer") -> None:
        self.scan: Scan | None = None
        self.error: str | None = None
        self.looked, self.due = asyncio.Event(), asyncio.Event()
        self._store = store
        self._rules = rules
        self._release = release
        self._catalog = Catalog(store)
        self._scanning = asyncio.Lock()
        # True if a part of the last scan failed, and is repeated soon.
        self._scan_failed = False
        self._retention_at = 0.0
        # Refusals in the store; None until they have been read once.
        self._shared: dict[int, str] | None = None
        # Numbers of the newest publishing hold that was read, and of the newest one whose end was written to the store.
        self._hold_seen = 0
        self._resumption_shared = 0
        # True while the store may have the release document of a backup that was taken over.
        self.restored = False

    async def run(self) -> None:
        while True:
            self.due.clear()
            self._scan_failed = False
            await self.scan_now()
            self.looked.set()
            published = [] if self.scan is None else [each.created_at for each in self.scan.manifests.values()]
            now, shortest = time.time(), self._rules.poll_seconds
            pause = seconds_to_next_look(published, now, shortest)
            until_scan = shortest if self._scan_failed else seconds_to_next_scan(published, now, shortest)
            next_scan = time.monotonic() + until_scan
            while not await wait_event(self.due, pause) and time.monotonic() < next_scan:
                if await asyncio.to_thread(self._catalog.has_news):
                    break

    async def scan_now(self) -> None:
        async with self._scanning:
            deleted = () if self._release.state is None else self._release.state.deleted
            try:
                scan = await asyncio.to_thread(self._catalog.scan, deleted)
            except OSError as failed:
                if self.error is None:
                    log.warning("the store cannot be looked at: %s", failed)
                self.error = str(failed)
                self._scan_failed = True
                return
            await self._take_restored()
            self.error = None
            logged = () if self.scan is None else self.scan.problems
            self.scan = scan
            for problem in scan.problems:
                if problem not in logged:
                    log.warning("%s", problem)
            if self._release.state is not None:
                self._release.decide(
                    rules_of.with_scan(self._release.state, scan.manifests, scan.dictionaries, self._release.now())
                )
                await self.obey_hold()
                await self._share_refusals(scan)
                await self._retain(scan)

    async def _take_restored(self) -> None:
        """Take over the release document of a restored backup, one generation later. The file is deleted once its version is live here,
        at once where it has none.

        A restore writes it before the dictionaries. It is read before they are used, or the newest of them would go live.
        """
        try:
            if self._release.state is not None and self._release.state.live is not None:
                if self.restored:
                    await asyncio.to_thread(self._store.delete, layout.RESTORED)
                    self.restored = False
                return
            document = await asyncio.to_thread(restored_document, self._store)
            if document is None:
                return
            self.restored = True
            if self._release.state is None:
                self._release.adopt_newer(document)
                return
            log.info("the release of a backup is taken over: live %s", document.live)
            self._release.take_over(self._release.state, document)
            if document.live is None:
                # Nothing to wait for. Taken over again at each scan, it would end a canary and raise the generation.
                await asyncio.to_thread(self._store.delete, layout.RESTORED)
                self.restored = False
        except (OSError, DocumentDamaged) as failed:
            self._scan_failed = True
            log.warning("the release of the backup cannot be taken over now: %s", failed)

    async def obey_hold(self) -> None:
        """Obey the master's newest publishing hold in the store, and write the end of a resumed one there. A resume calls this first,
        because it may end a hold that has not been read yet.
        """
        if self._release.state is None:
            return
        try:
            known = max(self._hold_seen, 0 if self._release.state.hold is None else self._release.state.hold.number)
            hold = await asyncio.to_thread(newest_hold, self._store, known)
            if hold is not None:
                resumed = await asyncio.to_thread(is_resumed, self._store, hold.number)
                view = self._release.view()
                if not resumed and view is not None:
                    log.error("the master holds publishing: %s", hold.reason)
                    self._release.decide(rules_of.obeyed(self._release.state, hold, view, self._rules))
                self._hold_seen = hold.number
            if (held := self._release.state.held) is not None:
                resumed = await asyncio.to_thread(is_resumed, self._store, held.number)
                # A crash between the two files of a resume leaves the hold open here; or an operator has deleted a damaged hold.
                if resumed or await asyncio.to_thread(is_gone, self._store, held):
                    self._release.decide(rules_of.resume(self._release.state))
            if self._resumption_shared < self._release.state.resumed:
                number = self._release.state.resumed
                await asyncio.to_thread(write_resumption, self._store, number)
                self._resumption_shared = number
        except OSError as failed:
            self._scan_failed = True
            log.warning("publishing holds cannot be read from the store, or ended there, now: %s", failed)

    async def _share_refusals(self, scan: Scan) -> None:
        """Share refusals through the store: the master then publishes a base instead of a delta that stands on a refused version."""
        try:
            if self._shared is None:
                self._shared = await asyncio.to_thread(read_refusals, self._store)
            for version, reason in self._shared.items():
                if self._release.state is None or version in self._release.state.refused:
                    continue
                if version not in {*self._release.state.wanted, *self._release.state.was_live}:
                    self._release.decide(rules_of.refuse(self._release.state, version, reason))
            refused = {} if self._release.state is None else self._release.state.refused
            for version in sorted((refused.keys() - self._shared.keys()) & (scan.manifests.keys() | scan.unread)):
                refusal = Refusal(version=version, reason=refused[version], refused_at=time.time())
                await asyncio.to_thread(write_refusal, self._store, refusal)
                self._shared[version] = refusal.reason
        except OSError as failed:
            self._scan_failed = True
            log.warning("refusals cannot be written to the store now: %s", failed)

    async def _retain(self, scan: Scan) -> None:
        now = time.monotonic()
        if now < self._retention_at or self._release.state is None:
            return
        self._retention_at = now + _RETENTION_SECONDS
        try:
            followed = await asyncio.to_thread(followed_by_checkpoints, self._store)
            # Deleting takes time, in which a rollback must not choose one of these versions.
            doomed = self._give_up(scan, followed.parents | followed.log)
            await asyncio.to_thread(delete_versions, self._store, doomed)
            overlays = self._unneeded_dictionaries(followed.parents)
            if deleted := await asyncio.to_thread(delete_dictionaries, self._store, overlays):
                log.info("%d overlays are deleted from the store: nothing needs them", len(deleted))
            published = (scan.manifests.keys() | scan.unread) - set(doomed)
            built = scan.dictionaries.keys() - set(doomed)
            for folder in await asyncio.to_thread(delete_orphans, self._store, published, built, time.time()):
                log.info("%s is deleted: it has no manifest and has not changed for a day", folder)
        except OSError as failed:
            log.warning("old versions cannot be deleted now: %s", failed)

    def _unneeded_dictionaries(self, parents: Collection[int]) -> tuple[int, ...]:
        """Return the dictionaries to delete, and remove them from the scan, so that no decision uses them."""
        scan, state = self.scan, self._release.state
        if scan is None or state is None:
            return ()
        in_use = {*state.wanted, *parents, *rules_of.kept_for_holds(state)}
        doomed = dictionaries_to_delete(
            scan.manifests, scan.dictionaries, in_use, self._rules.keep_versions, time.time()
        )
        if doomed:
            self.scan = scan._replace(dictionaries={v: d for v, d in scan.dictionaries.items() if v not in doomed})
        return doomed

    def _give_up(self, scan: Scan, followed: Collection[int]) -> Collection[int]:
        """Return the versions to delete, and remove them from scan and state, so that no decision uses them."""
        state = self._release.state
        if state is None:
            return ()
        newest_built = sorted(scan.dictionaries)[-1:]
        # Only versions of a stream are kept for holds, because they are small.
        in_files = {version for version, each in scan.dictionaries.items() if each.in_one_file}
        kept = rules_of.kept_for_holds(state) & in_files
        in_use = {*state.wanted, *kept, *followed, *newest_built, *scan.usable[-1:]}
        if (building := self._release.now_building()) is not None:
            in_use.add(building)
        doomed = versions_to_delete(scan.manifests, scan.dictionaries, in_use, self._rules.keep_versions, scan.unread)
        if doomed:
            self.scan = scan._replace(
                manifests={v: m for v, m in scan.manifests.items() if v not in doomed},
                dictionaries={v: d for v, d in scan.dictionaries.items() if v not in doomed},
                usable=tuple(v for v in scan.usable if v not in doomed),
            )
            self._release.decide(rules_of.forgotten(state, doomed))
        return doomed
