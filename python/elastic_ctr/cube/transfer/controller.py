"""`cube-transfer`: decides which versions cube loads and which one is live.

One event loop owns the state; `store_watch` looks at the store, the builder is another process. Every change ends in
`decide`, which applies the rules and publishes.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from elastic_ctr.config.role_files import CubeTransferFile
from elastic_ctr.cube.placement import (
    holders_by_version,
    next_to_build,
    shards_up,
    standing_on_refused,
)
from elastic_ctr.cube.release import (
    AgentReport,
    Holder,
    Placement,
    ReaderReport,
    ReleaseDocument,
    RollbackOrder,
    following,
)
from elastic_ctr.cube.transfer import state as rules_of
from elastic_ctr.cube.transfer.builder_client import Builder
from elastic_ctr.cube.transfer.heartbeats import Pods
from elastic_ctr.cube.transfer.part_repairs import PartRepairs
from elastic_ctr.cube.transfer.state import ReleaseState, View
from elastic_ctr.cube.transfer.state_file import RESERVED, PersistedState, StateFile
from elastic_ctr.cube.transfer.store_watch import StoreWatch
from elastic_ctr.runtime.auth import Tokens
from elastic_ctr.runtime.http import RequestRefused
from elastic_ctr.runtime.lifecycle import wait_event
from elastic_ctr.runtime.lock import StateLock
from elastic_ctr.store.backends import Store

log = logging.getLogger(__name__)

# Seconds between two writes of the state file that only change the reports.
_KEEP_SECONDS = 1.0

# A failed build is retried after its pause without another scan; seconds between two looks at the pause.
_BUILD_AGAIN_SECONDS = 0.1

_STANDSTILL = 1.0
# A larger difference between wall clock and monotonic clock means that the wall clock was set.
_CLOCK_JUMP = 2.0


class CubeTransfer:
    """The release document and everything that leads to it. Made and used inside one event loop.

    A pod that has not reported for `report_timeout_seconds` counts as empty. Without a state file, cube-transfer collects reports for
    `state_recovery_seconds` before it publishes anything.
    """

    def __init__(self, config: CubeTransferFile, store: Store, tokens: Tokens | None = None) -> None:
        self.config = config
        self.rules = config.cube_transfer
        self.agents: Pods[AgentReport] = Pods(self.rules.report_timeout_seconds)
        # A serving pod that ended silently may have been about to refuse, so promotion waits for it as long as for a slow pod.
        readers_seconds = max(self.rules.report_timeout_seconds, self.rules.validation_timeout_seconds)
        self.readers: Pods[ReaderReport] = Pods(readers_seconds)
        self.builder = Builder(f"http://127.0.0.1:{self.rules.builder_port}", tokens)
        self.repairs = PartRepairs(self.builder)
        self.watch = StoreWatch(store, self.rules, self)
        self.state: ReleaseState | None = None
        self.document: ReleaseDocument | None = None
        self.state_file = StateFile(Path(self.rules.state_dir))
        self._persisted: PersistedState | None = None
        self._persisted_at = 0.0
        self._carried: ReleaseDocument | None = None
        # The reports of agents, and the holders computed from them.
        self._held_by: tuple[list[AgentReport], Mapping[int, Mapping[str, Holder]]] = [], {}
        self._news = asyncio.Event()
        self._began = time.monotonic()
        self._clock_offset = time.time() - time.monotonic()
        self._revision = 0
        self._stopping = False

    async def run(self, stop: asyncio.Event) -> None:
        """Work until stop is set. Raises StateInUse, OSError."""
        with StateLock(Path(self.rules.state_dir)):
            self._restore()
            stopped = asyncio.create_task(stop.wait())
            work = [asyncio.create_task(each) for each in (self.watch.run(), self._build(), self._tick())]
            try:
                done, _ = await asyncio.wait([stopped, *work], return_when=asyncio.FIRST_COMPLETED)
                for task in done - {stopped}:
                    task.result()
            finally:
                self._stopping = True
                self._wake()
                for task in (stopped, *work):
                    task.cancel()
                await asyncio.gather(stopped, *work, return_exceptions=True)
                await self.builder.close()

    # Inputs

    def record(self, report: AgentReport | ReaderReport) -> None:
        self.adopt_newer(report.document)
        own, now = report.model_copy(update={"document": None}), time.monotonic()
        if self.agents.record(own, now) if isinstance(own, AgentReport) else self.readers.record(own, now):
            self.decide()

    def order(self, order: RollbackOrder) -> ReleaseState:
        """Raises RollbackRefused, RequestRefused."""
        view = self.view()
        if self.state is None or view is None:
            sentence = "transfer has just started and still learns what pods hold; repeat this in 10 s"
            raise RequestRefused(503, sentence)
        if order.resume:
            after = rules_of.resume(self.state)
            log.info("resumed: the newest version is promoted again")
        else:
            assert order.version is not None  # the API has checked that
            after = rules_of.rolled_back(self.state, order.version, view, self.rules)
            log.info("rollback to version %s; nothing else is promoted until it is resumed", order.version)
        self.decide(after)
        return self.state

    async def next_document(self, after: int | None, generation: int | None, seconds: float) -> ReleaseDocument | None:
        """Return the document once its revision is above `after`, or None if there is none within `seconds`.

        Raises RequestRefused while there is no document: a cube-transfer without state first collects reports.
        """
        until = time.monotonic() + seconds
        while True:
            document, news = self.document, self._news
            if document is None:
                raise RequestRefused(503, "transfer has no state and still learns what pods carry")
            behind = generation is not None and generation < document.generation
            if after is None or document.revision > after or behind:
                return document
            left = until - time.monotonic()
            if left <= 0 or self._stopping:
                return None
            await wait_event(news, left)

    # Present state

    def now(self) -> float:
        """Return unix seconds by the monotonic clock, so that differences are exact. `_follow_clock` sets it with the times in `state`."""
        return time.monotonic() + self._clock_offset

    @property
    def listening(self) -> bool:
        return self.state is None

    def now_building(self) -> int | None:
        """Return the version that the builder should build now."""
        if self.state is None or self.watch.scan is None:
            return None
        blocked = self.unbuildable()
        buildable = [version for version in self.watch.scan.usable if version not in blocked]
        return next_to_build(buildable, self.watch.scan.dictionaries, self.state.live, self.state.refused)

    def unbuildable(self) -> dict[int, int]:
        """Return the usable versions that stand on a refused one, each with the refused version."""
        if self.state is None or self.watch.scan is None:
            return {}
        return standing_on_refused(
            self.watch.scan.usable, self.watch.scan.manifests, self.watch.scan.dictionaries, self.state.refused
        )

    def _restore(self) -> None:
        self._persisted = self.state_file.read()
        self._began = time.monotonic()
        if self._persisted is None:
            log.info("no state here: listening %.0f s for what pods carry", self.rules.state_recovery_seconds)
            return
        self.state = self._persisted.state
        # An earlier process may have ended between the takeover of a backup's document and its deletion.
        self.watch.restored = True
        self._revision = self._persisted.revisions
        # Persisted reports expire at the end of the state recovery, unless their pods report again before.
        heard = self._began + self.rules.state_recovery_seconds - self.rules.report_timeout_seconds
        for report in self._persisted.agents:
            self.agents.record(report, heard)
        log.info("going on: generation %s, live %s", self.state.generation, self.state.live)
        self.decide()

    def adopt_newer(self, document: ReleaseDocument | None) -> None:
        """Adopt the document that a pod reports if it is newer, which shows that our state was lost or is an old copy."""
        if document is None:
            return
        if self.state is None:
            if document.is_newer_than(self._carried):
                self._carried = document
        elif document.is_newer_than(self.document):
            log.warning(
                "a pod carries generation %s revision %s, ours is older: its content is taken up, one generation later",
                document.generation, document.revision,
            )  # fmt: skip
            self.take_over(self.state, document)

    def take_over(self, state: ReleaseState, document: ReleaseDocument) -> None:
        """Take the content of a document into the state, one generation later."""
        self._revision = max(self._revision, document.revision)
        self.decide(rules_of.state_from_newer(state, document))

    def view(self) -> View | None:
        if self.watch.scan is None:
            return None
        reports = self.agents.reports
        refusals = [(each.pod, each.refused) for each, _ in reversed(self.agents.heard())]
        return View(
            now=self.now(),
            built=self.watch.scan.dictionaries,
            holders=self._holders(),
            readers=self.readers.reports,
            damaged={v: f"{pod}: {reason}" for pod, refused in refusals for v, reason in refused.items()},
            agents=reports,
            placement=self._placement_now(),
            listened=time.monotonic() - self._began >= self.rules.state_recovery_seconds,
            canary_seconds=60 * self.config.canary_minutes,
        )

    def _holders(self) -> Mapping[int, Mapping[str, Holder]]:
        """Return the holders by the present reports. They are cached: a stream has many versions, and reports change rarely."""
        reports = self.agents.reports
        if reports != self._held_by[0]:
            self._held_by = reports, holders_by_version(reports)
        return self._held_by[1]

    def _placement_now(self) -> Placement:
        shards = self.config.shards
        up = shards_up(self.agents.reports, shards)
        return Placement(shards=shards, replicas=self.config.replicas_per_shard, up=up)

    def decide(self, state: ReleaseState | None = None) -> None:
        """Apply the rules, persist, then publish, because a restart must not take back a published change."""
        before = self.state
        state = state or before
        if state is None:
            return
        view = self.view()
        if view is not None:
            state = rules_of.advance(state, view, self.rules)
        self.state = state
        if before is None or _shared_of(before) != _shared_of(state):
            self.watch.due.set()
        document = rules_of.document_of(state, self._revision, self._placement_now(), self._holders())
        changed = document != self.document
        if changed:
            document = document.model_copy(update={"revision": following(self._revision)})
        if self._persist(state, document.revision) and changed:
            self._revision = document.revision
            self.document = document
            _tell(before, state)
            self._wake()

    def _persist(self, state: ReleaseState, revision: int) -> bool:
        """Write the state file if needed. Return False if that fails: nothing new is published then."""
        before, now = self._persisted, time.monotonic()
        agents = tuple(report for report, _ in self.agents.heard())
        # Stays None unless the file reserves the revision already.
        revisions = before.revisions if before is not None and revision <= before.revisions else None
        reserved = before is not None and before.state == state and revisions is not None
        if reserved and before is not None and (before.agents == agents or now - self._persisted_at < _KEEP_SECONDS):
            return True
        after = PersistedState(state=state, revisions=revisions or following(revision, RESERVED), agents=agents)
        try:
            self.state_file.write(after)
        except OSError as failed:
            if self.state_file.error is None:
                log.warning("the state cannot be written, so nothing new is published: %s", failed)
            self.state_file.error = f"{self.state_file.path} cannot be written: {failed.strerror or failed}"
            return reserved
        self._persisted, self._persisted_at, self.state_file.error = after, now, None
        return True

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # Background tasks

    async def _tick(self) -> None:
        """Decide again as time passes: reports expire, waits end, the state recovery ends."""
        period = min(0.25, self.rules.poll_seconds)
        before = time.monotonic()
        while True:
            await asyncio.sleep(period)
            now = time.monotonic()
            self._follow_clock()
            # If this process stood still (frozen, throttled, waiting for a disk), reports were unread and pods not silent.
            stood_still, before = now - before - period, now
            if stood_still > _STANDSTILL:
                self.agents.extend_deadlines(stood_still)
                self.readers.extend_deadlines(stood_still)
            for pod in self.agents.expire(now):
                log.warning("cube pod %s is silent: nothing is expected of it until it reports again", pod)
            for pod in self.readers.expire(now):
                log.warning("serving pod %s is silent: it is no longer waited for", pod)
            if self.state is None and now - self._began >= self.rules.state_recovery_seconds:
                self._revision = self._carried.revision if self._carried is not None else 0
                state = rules_of.state_after_loss(self._carried)
                log.info("starting generation %s with live %s", state.generation, state.live)
                self.decide(state)
            else:
                self.decide()

    def _follow_clock(self) -> None:
        # `SteadyClock` would not do: it passes each step below its bound on, and small steps add up.
        moved = time.time() - self.now()
        if abs(moved) > _CLOCK_JUMP:
            log.warning("this machine's clock was set by %+.1f s; no wait becomes shorter or longer by it", moved)
            self._clock_offset += moved
            if self.state is not None:
                self.state = rules_of.with_clock_moved(self.state, moved)

    async def _build(self) -> None:
        while True:
            version = self.now_building()
            if version is None or not self.builder.may_try(version):
                if (damaged := self._next_to_repair()) is not None:
                    await self.repairs.repair(damaged)
                    continue
                self.watch.looked.clear()
                await wait_event(self.watch.looked, _BUILD_AGAIN_SECONDS)
                continue
            log.info("version %s is being built", version)
            progress = await self.builder.build(version)
            if progress.stage == "done":
                await self.watch.scan_now()
            elif progress.final and self.state is not None:
                log.warning("version %s is refused: %s", version, progress.error)
                self.decide(rules_of.refuse(self.state, version, progress.error or "it cannot be built"))

    def _next_to_repair(self) -> int | None:
        if self.state is None or self.watch.scan is None:
            return None
        return self.repairs.next_of(self.state.wanted, self.watch.scan.dictionaries, self.agents.reports)


def _shared_of(state: ReleaseState) -> tuple[int, Collection[int], int]:
    """Return what a scan takes to the store, and the generation, whose first scan has to be noted."""
    return state.generation, state.refused.keys(), state.resumed


def _tell(before: ReleaseState | None, after: ReleaseState) -> None:
    """Log the steps of versions between two states."""
    if before is None:
        return
    if after.live != before.live:
        times = after.times.get(after.live or 0)
        took = None if times is None or after.live in before.was_live else times.seconds_to_live
        log.info("version %s is live%s", after.live, "" if took is None else f", {took:.3f} s after it was published")
    if after.candidate is not None and after.candidate != before.candidate:
        log.info("version %s is the candidate", after.candidate)
    if after.canary_since is not None and (after.candidate, after.canary_since) != (
        before.candidate,
        before.canary_since,
    ):
        log.info("version %s answers a share of the requests", after.candidate)
    for version in after.refused.keys() - before.refused.keys():
        log.warning("version %s is refused: %s", version, after.refused[version])
