"""Status and metrics of cube-transfer, read-only."""

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

from prometheus_client.core import GaugeMetricFamily, Metric

from elastic_ctr.cube.placement import abandoned_versions, skipped_versions
from elastic_ctr.cube.release import AgentReport, ReaderReport
from elastic_ctr.cube.transfer import state as rules_of
from elastic_ctr.cube.transfer.controller import CubeTransfer
from elastic_ctr.cube.transfer.state import ReleaseState, StepTimes
from elastic_ctr.runtime.metrics import Metrics
from elastic_ctr.runtime.status.status_document import PublishingHold
from elastic_ctr.runtime.status.transfer_status import (
    BuildStatus,
    CandidateStatus,
    CubePodStatus,
    ReleaseStatus,
    ServingPodStatus,
    ShardStatus,
    VersionTimes,
)
from elastic_ctr.store.versions.manifest import VersionManifest, freshness_seconds
from elastic_ctr.store.versions.safeguards import Hold

# Event times this far ahead of now mean that clocks differ; an hour that is published before its end is less far ahead.
_CLOCKS_DIFFER = 2 * 3600.0
# The usual interval is computed from this many of the newest versions, and from no fewer than the second number.
_PUNCTUAL, _FEWEST_VERSIONS = 10, 3
_SHORTEST_INTERVAL = 3600.0
# If even the most punctual version came this many intervals after its events, the data are historical.
_LONG_PAST = 48


def status_of(transfer: CubeTransfer) -> ReleaseStatus:
    document, scan, progress = transfer.document, transfer.watch.scan, transfer.builder.progress
    # There is no state while cube-transfer collects reports.
    state = transfer.state or ReleaseState(generation=1)
    manifests = {} if scan is None else scan.manifests
    live = None if state.live is None else manifests.get(state.live)
    return ReleaseStatus(
        role="cube-transfer",
        listening=transfer.listening,
        generation=None if transfer.listening else state.generation,
        revision=None if document is None else document.revision,
        live=state.live,
        previous=state.previous,
        promotion_paused=state.promotion_paused,
        hold=None if state.held is None else PublishingHold.model_validate(state.held.model_dump(by_alias=True)),
        candidate=None if state.candidate is None else _candidate(transfer, state, state.candidate),
        published=tuple(sorted(manifests)),
        built=() if scan is None else tuple(sorted(scan.dictionaries)),
        building=None if progress is None else BuildStatus.model_validate(progress),
        next=transfer.now_building(),
        skipped=tuple(skipped_versions(manifests, state.was_live, state.live, state.candidate, state.refused)),
        abandoned=tuple(abandoned_versions(manifests)),
        refused=dict(sorted(state.refused.items())),
        problems=tuple(problems_of(transfer)),
        shards=_shards(transfer),
        readers=_readers(transfer),
        event_time_max=None if live is None else live.event_time_max,
        freshness_seconds=None if live is None else round(freshness_seconds(live.event_time_max, time.time()), 3),
        versions={version: _times(transfer, version, each) for version, each in state.times.items()},
    )


def overdue_intervals(published: Sequence[VersionManifest], live: VersionManifest | None, now: float) -> float | None:
    """Return how late the live version is, in usual intervals between versions; 0 while the next version is not due.

    The usual interval is the median between event times of the newest versions, and at least an hour, because streams have another
    alert. A version is due as long after its newest event as the most punctual of the newest versions came. Return None without at
    least three event times, and for historical data, whose next version has no expected time.
    """
    newest = [each for each in sorted(published, key=lambda each: each.version)[-_PUNCTUAL:] if each.compacts is None]
    times = sorted({each.event_time_max for each in newest})
    if live is None or len(times) < _FEWEST_VERSIONS:
        return None
    interval = max(statistics.median([b - a for a, b in pairwise(times)]), _SHORTEST_INTERVAL)
    lateness = max(min(each.created_at - each.event_time_max for each in newest), 0.0)
    if lateness > _LONG_PAST * interval:
        return None
    return max((now - live.event_time_max - lateness) / interval - 1, 0.0)


def problems_of(transfer: CubeTransfer) -> list[str]:
    """Return the problems that need an operator, as sentences."""
    found = [] if transfer.watch.scan is None else list(transfer.watch.scan.problems)
    builder = transfer.builder.error
    found += [each for each in (transfer.watch.error, transfer.state_file.error, builder) if each is not None]
    dead = _dead_shards(transfer)
    if dead and not transfer.listening:
        found.append(
            f"no pod of shard {', '.join(map(str, dead))} is up: the pods of the other shards load what it owes"
        )
    state = transfer.state
    live = None if state is None or transfer.watch.scan is None else transfer.watch.scan.manifests.get(state.live or 0)
    if live is not None and live.event_time_max - time.time() > _CLOCKS_DIFFER:
        found.append(
            f"version {live.version} knows events of {live.event_time_max - time.time():.0f} s in the future: this machine's "
            "clock is late, or data.timeZone is wrong; freshness is shown as 0"
        )
    found += transfer.repairs.problems()
    if state is not None:
        if (hold := state.held) is not None:
            found.append(f"publishing is held: {hold.reason}{_suspects(hold)}{_without_target(state)}")
        found += _refused_sentences(transfer, state)
        reports: list[AgentReport | ReaderReport] = [*transfer.agents.reports, *transfer.readers.reports]
        for report in reports:
            for version, reason in report.refused.items():
                if version not in state.refused:
                    found.append(f"{report.pod} cannot answer with version {version}: {reason}")
    return found


def _suspects(hold: Hold) -> str:
    return "" if hold.suspects is None else f"; versions {hold.suspects[0]} to {hold.suspects[1]} are suspects"


def _without_target(state: ReleaseState) -> str:
    """Return the end of a hold's sentence if a suspect stays live because no earlier version can be restored; else ""."""
    hold = state.held
    if hold is None or state.restoring or state.live is None or not hold.suspects_version(state.live):
        return ""
    return f"; version {state.live} stays live, because no version before it can be restored"


def _refused_sentences(transfer: CubeTransfer, state: ReleaseState) -> list[str]:
    """Return sentences about refused versions newer than the live one."""
    standing = transfer.unbuildable()
    found = []
    for version, reason in sorted(state.refused.items()):
        # Suspects are left out, because the sentence about their publishing hold names them.
        if version > (state.live or 0) and not (state.held and state.held.suspects_version(version)):
            above = [str(each) for each, below in sorted(standing.items()) if below == version]
            blocked = (
                f"; {', '.join(above)} stand{'s' if len(above) == 1 else ''} on it and cannot be built" if above else ""
            )
            found.append(f"version {version} is refused ({reason}){blocked}; the master publishes a base next")
    return found


def _dead_shards(transfer: CubeTransfer) -> list[int]:
    up = () if transfer.document is None else transfer.document.placement.up
    return [shard for shard in range(transfer.config.shards) if shard not in up]


def _candidate(transfer: CubeTransfer, state: ReleaseState, version: int) -> CandidateStatus:
    view = transfer.view()
    waits: list[str] = []
    missing: tuple[int, ...] = ()
    silent: tuple[str, ...] = ()
    canary = state.canary_since is not None
    if view is not None:
        missing = rules_of.lacking(state, view, transfer.rules)
        replicas = transfer.rules.min_ready_replicas
        if missing:
            shown = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
            waits.append(f"{len(missing)} partitions have fewer than {replicas} holders: {shown}")
        elif not view.listened:
            waits.append("transfer has just started and listens for pods")
        elif not state.restoring:
            behind = rules_of.lagging_pods(state, view, transfer.rules)
            if behind:
                waits.append(f"not yet loaded by cube pods {', '.join(behind)}")
            silent = rules_of.validation_verdict(state, view, transfer.rules).silent
            if silent:
                waits.append(f"no answer yet from serving pods {', '.join(silent)}")
            if canary:
                waits.append(
                    f"it answers a share of the requests for {rules_of.canary_seconds_left(state, view):.0f} s more"
                )
    return CandidateStatus(
        version=version,
        restoring=state.restoring,
        canary=canary,
        waits_for=tuple(waits),
        missing_partitions=missing,
        silent_readers=silent,
        complete_seconds=None if state.complete_since is None else round(transfer.now() - state.complete_since, 3),
    )


def _shards(transfer: CubeTransfer) -> tuple[ShardStatus, ...]:
    heard = transfer.agents.heard()
    dead = set(_dead_shards(transfer))
    return tuple(
        ShardStatus(
            shard=shard,
            up=shard not in dead and shard < transfer.config.shards,
            pods=tuple(
                CubePodStatus(
                    pod=report.pod,
                    address=report.address,
                    draining=report.draining,
                    errors=report.errors,
                    loaded={version: len(parts) for version, parts in sorted(report.loaded.items())},
                    seconds_since_report=round(time.monotonic() - at, 3),
                )
                for report, at in heard
                if report.shard == shard
            ),
        )
        for shard in sorted({*range(transfer.config.shards), *(report.shard for report, _ in heard)})
    )


def _readers(transfer: CubeTransfer) -> tuple[ServingPodStatus, ...]:
    return tuple(
        ServingPodStatus.model_validate(
            {**report.model_dump(exclude={"document"}), "seconds_since_report": round(time.monotonic() - at, 3)}
        )
        for report, at in transfer.readers.heard()
    )


def _times(transfer: CubeTransfer, version: int, times: StepTimes) -> VersionTimes:
    build = transfer.builder.seconds.get(version)
    return VersionTimes(
        **times.model_dump(),
        seconds_to_live=times.seconds_to_live,
        build_seconds=None if build is None else build.seconds,
        build_seconds_by_stage={} if build is None else build.seconds_by_stage,
    )


def metrics_of(transfer: CubeTransfer) -> Metrics:
    """Return gauges of the status, which is computed once per scrape."""
    metrics = Metrics("cube-transfer")

    def gauges() -> Iterator[Metric]:
        status = status_of(transfer)
        for name, what, value in (
            ("live_version", "Id of the live version.", status.live),
            (
                "candidate_version",
                "Id of the candidate.",
                None if status.candidate is None else status.candidate.version,
            ),
            ("generation", "Generation of the release.", status.generation),
            (
                "promotion_paused",
                "1 while promotion is paused by a rollback or a publishing hold.",
                status.promotion_paused,
            ),
            ("refused_versions", "Refused versions.", len(status.refused)),
            ("cube_pods", "Cube pods that report.", len(transfer.agents.reports)),
            ("serving_pods", "Serving pods that report.", len(status.readers)),
            ("dead_shards", "Shards without a pod that is up.", len(_dead_shards(transfer))),
            ("problems", "Sentences in the status that ask for the operator.", len(status.problems)),
            (
                "freshness_seconds",
                "Seconds since the newest event that the live version has learned.",
                status.freshness_seconds,
            ),
            (
                "overdue_intervals",
                "Intervals between versions by which the live version is late; not a number where no next version can be expected.",
                _overdue(transfer),
            ),
            (
                "publish_to_live_seconds",
                "From publishing the live version to its going live for the first time.",
                status.seconds_to_live,
            ),
        ):
            yield GaugeMetricFamily(f"elastic_ctr_cube_transfer_{name}", what, value=_number(value))
        stages = GaugeMetricFamily(
            "elastic_ctr_cube_transfer_build_seconds",
            "Seconds of the last build by stage, over its processes.",
            labels=("stage",),
        )
        build = status.building or BuildStatus()
        for stage in ("reading", "building", "publishing"):
            stages.add_metric((stage,), _number(build.seconds_by_stage.get(stage)))
        yield stages

    metrics.computed(gauges)
    return metrics


def _overdue(transfer: CubeTransfer) -> float | None:
    state, manifests = transfer.state, {} if transfer.watch.scan is None else transfer.watch.scan.manifests
    live = None if state is None or state.live is None else manifests.get(state.live)
    return overdue_intervals([*manifests.values()], live, time.time())


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
