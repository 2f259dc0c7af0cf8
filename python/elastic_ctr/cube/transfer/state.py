"""The persistent state of cube-transfer and the rules that change it: pure functions, without waiting, clock or
network.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from pydantic import Field

from elastic_ctr.config.cube_settings import CubeTransferConfig
from elastic_ctr.cube.placement import (
    CandidateVerdict,
    Holders,
    lacking_partitions,
    next_candidate,
    pods_lacking_parts,
    readers_verdict,
)
from elastic_ctr.cube.release import AgentReport, Generation, Placement, ReaderReport, ReleaseDocument, following
from elastic_ctr.store.versions.manifest import DictionaryManifest, Record, VersionId, VersionManifest, Whole
from elastic_ctr.store.versions.safeguards import Hold

# Number of past versions whose times and names are kept.
REMEMBERED = 64
_NEWEST_KEPT = 16
_NO_CANDIDATE: dict[str, Any] = {"candidate": None, "restoring": False, "complete_since": None, "canary_since": None}


class RollbackRefused(ValueError):
    """A rollback is impossible; the text has the reason and the possible versions."""


class StepTimes(Record):
    """Unix seconds at which a version first reached a step. `published` is by the master's clock, the others by
    cube-transfer's.
    """

    published: float | None = None
    seen: float | None = None
    built: float | None = None
    candidate: float | None = None
    complete: float | None = None
    live: float | None = None

    @property
    def seconds_to_live(self) -> float | None:
        """Return the seconds from publishing to going live for the first time; at least 0, even if the clocks differ."""
        if self.published is None or self.seen is None or self.live is None:
            return None
        return round(max(0.0, self.seen - self.published) + max(0.0, self.live - self.seen), 3)


class ReleaseState(Record):
    """The persistent state.

    Attributes:
        restoring: the candidate is the target of a rollback and needs no validation.
        canary_since: when the candidate began to answer its share of the requests.
        hold: the newest publishing hold that was obeyed.
        resumed: the number of the newest publishing hold that an operator has ended.
        spared: the version that was live at that moment, which is no longer a suspect.
    """

    generation: Generation
    live: VersionId | None = None
    previous: VersionId | None = None
    candidate: VersionId | None = None
    restoring: bool = False
    promotion_paused: bool = False
    complete_since: float | None = None
    # Left out if it is not set, because a cube-transfer of an older release rejects an unknown key.
    canary_since: float | None = Field(default=None, exclude_if=lambda since: since is None)
    refused: dict[VersionId, str] = Field(default_factory=dict)
    was_live: tuple[VersionId, ...] = ()
    deleted: tuple[VersionId, ...] = ()
    times: dict[VersionId, StepTimes] = Field(default_factory=dict)
    hold: Hold | None = None
    resumed: Whole = 0
    spared: VersionId | None = None

    @property
    def held(self) -> Hold | None:
        """The publishing hold that no operator has ended yet."""
        return self.hold if self.hold is not None and self.hold.number > self.resumed else None

    @property
    def wanted(self) -> tuple[int, ...]:
        """The versions to load, in the order in which an empty pod should load them."""
        return tuple(dict.fromkeys(v for v in (self.live, self.previous, self.candidate) if v is not None))


class View(NamedTuple):
    """The present observations. `holders` is computed from the reports of `agents`. `listened`: every pod has had time
    to report since the start. `canary_seconds`: how long a candidate has to answer its share of requests.
    """

    now: float
    built: Mapping[int, DictionaryManifest]
    holders: Mapping[int, Holders]
    readers: Collection[ReaderReport]
    damaged: Mapping[int, str]
    agents: Collection[AgentReport]
    placement: Placement
    listened: bool = True
    canary_seconds: float = 0.0


def document_of(
    state: ReleaseState, revision: int, placement: Placement, holders: Mapping[int, Holders]
) -> ReleaseDocument:
    return ReleaseDocument(
        generation=state.generation,
        revision=revision,
        placement=placement,
        wanted=state.wanted,
        candidate=state.candidate,
        canary=state.canary_since is not None,
        live=state.live,
        previous=state.previous,
        promotion_paused=state.promotion_paused,
        refused=state.refused,
        holders={version: dict(held) for version, held in holders.items()},
    )


def state_after_loss(document: ReleaseDocument | None) -> ReleaseState:
    """Return the state after a loss: the content of the newest document that a pod reported, one generation later."""
    if document is None:
        return ReleaseState(generation=1)
    return ReleaseState(
        generation=following(document.generation),
        live=document.live,
        previous=document.previous,
        # The candidate is chosen again; a rollback that was under way must be ordered again.
        promotion_paused=document.promotion_paused,
        refused=document.refused,
        was_live=tuple(v for v in (document.previous, document.live) if v is not None),
    )


def state_from_newer(own: ReleaseState, document: ReleaseDocument) -> ReleaseState:
    """Return the state after a pod reported a newer document: the document's content with our own history."""
    after = state_after_loss(document)
    refused = {v: reason for v, reason in {**own.refused, **document.refused}.items() if v != document.live}
    was_live = tuple(dict.fromkeys([*(v for v in own.was_live if v not in after.was_live), *after.was_live]))
    return after.model_copy(
        update={
            "refused": refused,
            "was_live": was_live,
            "deleted": own.deleted,
            "times": own.times,
            "hold": own.hold,
            "resumed": own.resumed,
            "spared": own.spared,
        }
    )


def advance(state: ReleaseState, view: View, rules: CubeTransferConfig) -> ReleaseState:
    """Return the state after all steps that the view allows. The function is idempotent."""
    while True:
        after = _step(state, view, rules)
        if after == state:
            return state
        state = after


def _step(state: ReleaseState, view: View, rules: CubeTransferConfig) -> ReleaseState:
    state = _below_suspects(_with_refusals(state, view), view)
    candidate = state.candidate
    if candidate is None:
        chosen = None if state.promotion_paused else next_candidate(view.built, state.live, state.refused)
        if chosen is None:
            return state
        strange = _other_shape(view, chosen, state.live)
        if strange is not None:
            return refuse(state, chosen, strange)
        return _with_candidate(state, chosen, view.now)
    if lacking(state, view, rules):
        return state.model_copy(update={"complete_since": None, "canary_since": None})
    # `complete_since` is in the future only if the clock was set back.
    if state.complete_since is None or state.complete_since > view.now:
        state = with_times(state, {candidate: {"complete": view.now}})
        state = state.model_copy(update={"complete_since": view.now})
    # Right after a start, missing reports do not mean that pods are missing.
    if not view.listened:
        return state
    if not state.restoring and (
        state.promotion_paused
        or not validation_verdict(state, view, rules).validated
        or lagging_pods(state, view, rules)
    ):
        return state
    if canary_seconds_left(state, view) > 0:
        begins = state.canary_since is None or state.canary_since > view.now
        return state.model_copy(update={"canary_since": view.now}) if begins else state
    return _promoted(with_times(state, {candidate: {"live": view.now}}), candidate)


def lacking(state: ReleaseState, view: View, rules: CubeTransferConfig) -> tuple[int, ...]:
    """Return the partitions of the candidate that still need holders."""
    if state.candidate is None or state.candidate not in view.built:
        return ()
    return lacking_partitions(
        view.holders.get(state.candidate, {}), view.built[state.candidate].partitions, rules.min_ready_replicas
    )


def lagging_pods(state: ReleaseState, view: View, rules: CubeTransferConfig) -> tuple[str, ...]:
    """Return the cube pods to wait for: they have the live version and still load the candidate.

    Without the wait a version could go live just as its only holder is lost, while other pods still have the version
    before. A pod without the live version (new, or out of disk) could not take over, so promotion does not wait for it.
    """
    candidate = state.candidate
    if state.live is None or candidate is None or candidate not in view.built:
        return ()
    if _waited(state, view) >= rules.validation_timeout_seconds:
        return ()
    partitions = view.built[candidate].partitions

    def lack(version: int) -> tuple[str, ...]:
        return pods_lacking_parts(version, partitions, view.agents, view.placement, view.holders.get(version, {}))

    without_live = lack(state.live)
    return tuple(pod for pod in lack(candidate) if pod not in without_live)


def validation_verdict(state: ReleaseState, view: View, rules: CubeTransferConfig) -> CandidateVerdict:
    """Return the validation of the candidate by serving pods."""
    assert state.candidate is not None
    return readers_verdict(state.candidate, view.readers, _waited(state, view), rules.validation_timeout_seconds)


def canary_seconds_left(state: ReleaseState, view: View) -> float:
    """Return how long the validated candidate has still to answer its share; 0 for a rollback and for the first version."""
    if state.restoring or state.live is None:
        return 0.0
    since = view.now if state.canary_since is None else min(state.canary_since, view.now)
    return max(0.0, since + view.canary_seconds - view.now)


def _waited(state: ReleaseState, view: View) -> float:
    """Return the seconds since the candidate has had enough holders."""
    return 0.0 if state.complete_since is None else view.now - state.complete_since


def _other_shape(view: View, version: int, live: int | None) -> str | None:
    """Return why a version can never be loaded beside the live one, or None: a cube has one model."""
    new, old = view.built[version], None if live is None else view.built.get(live)
    if old is None or (new.dim, new.partitions) == (old.dim, old.partitions):
        return None
    return (
        f"version {version} has dim {new.dim} over {new.partitions} partitions, live version {live} has dim {old.dim} "
        f"over {old.partitions}; a model keeps both for life: a changed model needs a release of its own"
    )


def _with_refusals(state: ReleaseState, view: View) -> ReleaseState:
    """Refuse versions by reports and hold, finally. A report against the live or previous version only goes to the status."""
    found: dict[int, str] = {}
    answered = {state.live, state.previous} - {None if state.restoring else state.candidate}
    restored = {state.candidate} if state.restoring else set[int | None]()
    for reader in sorted(view.readers, key=lambda each: each.pod):
        for version, reason in reader.refused.items():
            if version not in answered | restored:
                found.setdefault(version, f"{reader.pod}: {reason}")
    for version, reason in view.damaged.items():
        if version not in answered - restored:
            found.setdefault(version, reason)
    if state.candidate is not None and state.candidate not in view.built:
        found.setdefault(state.candidate, "its dictionary was deleted from the store")
    if (hold := state.hold) is not None:
        # The previous version is refused, too: it must not be promoted after a resume.
        for version in {*view.built, *state.was_live} - {state.live, state.spared} - restored:
            if hold.suspects_version(version):
                found.setdefault(version, f"the windows behind it were worse: publishing hold {hold.number}")
    for version, reason in sorted(found.items()):
        state = refuse(state, version, reason)
    if state.candidate in state.refused:
        state = state.model_copy(update=_NO_CANDIDATE)
    return state


def _promoted(state: ReleaseState, version: int) -> ReleaseState:
    was_live = tuple(dict.fromkeys([*(v for v in state.was_live if v != version), version]))[-REMEMBERED:]
    return state.model_copy(
        update={
            "live": version,
            "previous": state.live if state.live != version else state.previous,
            **_NO_CANDIDATE,
            "was_live": was_live,
        }
    )


def restorable(state: ReleaseState, view: View) -> list[int]:
    """Return the versions that a rollback may restore, in the order in which they were last live."""
    return [v for v in state.was_live if v in view.built and v not in state.refused and v != state.live]


def _with_candidate(state: ReleaseState, version: int, now: float, *, restoring: bool = False) -> ReleaseState:
    state = with_times(state, {version: {"candidate": now}})
    return state.model_copy(update={**_NO_CANDIDATE, "candidate": version, "restoring": restoring})


def rolled_back(state: ReleaseState, version: int, view: View, rules: CubeTransferConfig) -> ReleaseState:
    """Make a version live again as soon as it is loaded, and pause promotion. It was live before, so it is not validated
    again. Until it is loaded, the present version stays live. Raises RollbackRefused.
    """
    possible = restorable(state, view)
    ways_out = f"possible are {', '.join(map(str, reversed(possible)))}" if possible else "no other version is possible"
    if version in state.refused:
        raise RollbackRefused(f"version {version} is refused ({state.refused[version]}); {ways_out}")
    if version not in view.built:
        raise RollbackRefused(f"version {version} has no dictionary in the store (deleted, or never built); {ways_out}")
    if version not in state.was_live:
        raise RollbackRefused(f"version {version} was never live, so no serving pod answers for it; {ways_out}")
    if version == state.live:
        # The version is live already, so only the promotion pauses.
        return state.model_copy(update={"promotion_paused": True, **_NO_CANDIDATE})
    state = _with_candidate(state, version, view.now, restoring=True)
    return advance(state.model_copy(update={"promotion_paused": True}), view, rules)


def obeyed(state: ReleaseState, hold: Hold, view: View, rules: CubeTransferConfig) -> ReleaseState:
    """Obey a publishing hold of the master: pause promotion, and restore an earlier version if the live one is a suspect."""
    if state.hold is not None and hold.number <= state.hold.number:
        return state
    state = state.model_copy(update={"hold": hold, "promotion_paused": True})
    return advance(state if state.restoring else state.model_copy(update=_NO_CANDIDATE), view, rules)


def _below_suspects(state: ReleaseState, view: View) -> ReleaseState:
    """While a publishing hold is open and the live version is a suspect, restore the newest version below the suspects that was live.
    Without such a version the live one stays.
    """
    hold, live = state.held, state.live
    if hold is None or hold.suspects is None or state.restoring or live is None or not hold.suspects_version(live):
        return state
    below = [version for version in restorable(state, view) if version < hold.suspects[0]]
    if not below:
        return state
    return _with_candidate(state, max(below), view.now, restoring=True)


def kept_for_holds(state: ReleaseState) -> set[int]:
    """Return versions for a publishing hold to restore, over the windows that it judges: of those that were live the newest, and of
    older ones every fourth by number, a choice that does not change as versions are added.
    """
    return {*state.was_live[-_NEWEST_KEPT:], *(version for version in state.was_live if version % 4 == 0)}


def resume(state: ReleaseState) -> ReleaseState:
    """Resume promotion, and end an open publishing hold. A rollback under way is given up."""
    if (hold := state.held) is not None:
        # A suspect that stayed live may be needed again, so it is spared.
        state = state.model_copy(update={"resumed": hold.number, "spared": state.live})
    if not state.promotion_paused:
        return state
    candidate = None if state.restoring else state.candidate
    return state.model_copy(
        update={"promotion_paused": False, "candidate": candidate, "restoring": False, "complete_since": None}
    )


def refuse(state: ReleaseState, version: int, reason: str) -> ReleaseState:
    """Refuse a version. A refusal is final, and the first reason stays."""
    if version in state.refused:
        return state
    return state.model_copy(update={"refused": {**state.refused, version: reason}})


def with_times(state: ReleaseState, moments: Mapping[int, Mapping[str, float]]) -> ReleaseState:
    """Add times of steps; the first time of a step stays. Return the same object if nothing is new."""
    oldest, found = _oldest_noted(state), dict[int, StepTimes]()
    for version, at in moments.items():
        known = state.times.get(version, StepTimes())
        fresh = {name: when for name, when in at.items() if getattr(known, name) is None}
        if version >= oldest and fresh:
            found[version] = known.model_copy(update=fresh)
    if not found:
        return state
    return state.model_copy(update={"times": dict(sorted({**state.times, **found}.items())[-REMEMBERED:])})


def _oldest_noted(state: ReleaseState) -> int:
    """Return the oldest version with times. Older ones stay forgotten: a stream has thousands, and each scan would note them again."""
    return min(state.times) if len(state.times) >= REMEMBERED else 0


def with_scan(
    state: ReleaseState, manifests: Mapping[int, VersionManifest], built: Collection[int], now: float
) -> ReleaseState:
    """Add the times of the versions that a scan has found, most of which are known."""
    oldest, moments = _oldest_noted(state), dict[int, dict[str, float]]()
    for version, manifest in manifests.items():
        if version < oldest:
            continue
        known, there = state.times.get(version), version in built
        if known is None or known.published is None or known.seen is None or (there and known.built is None):
            moments[version] = {"published": manifest.created_at, "seen": now} | ({"built": now} if there else {})
    return with_times(state, moments)


def with_clock_moved(state: ReleaseState, seconds: float) -> ReleaseState:
    """Shift the times after the clock was set, so that no wait changes."""
    own = ("seen", "built", "candidate", "complete")
    times = {
        version: each
        if each.live is not None
        else each.model_copy(update={name: at + seconds for name in own if (at := getattr(each, name)) is not None})
        for version, each in state.times.items()
    }
    waits = {
        name: at + seconds for name in ("complete_since", "canary_since") if (at := getattr(state, name)) is not None
    }
    return state.model_copy(update={"times": times, **waits})


def forgotten(state: ReleaseState, deleted: Iterable[int]) -> ReleaseState:
    """Forget deleted versions: no rollback restores them, and their donefile lines are no problem."""
    gone = set(deleted)
    return state.model_copy(
        update={
            "deleted": tuple(sorted({*state.deleted, *gone}))[-REMEMBERED:],
            "was_live": tuple(v for v in state.was_live if v not in gone),
        }
    )
