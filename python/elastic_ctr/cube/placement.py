"""The rules of the release protocol as pure functions: assigned partitions, completeness, deletion."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from elastic_ctr.cube.release import AgentReport, Holder, Placement, ReaderReport, ReleaseDocument
from elastic_ctr.formats.keys import shard_of
from elastic_ctr.store.versions.manifest import DictionaryManifest, VersionManifest

Holders = Mapping[str, Holder]

_SHORTEST_GAP = 0.5
# A scan lists four folders: each second of a day that is 1.30 USD of requests to a bucket, each minute 0.05.
_LONGEST_SCAN_PAUSE = 60.0
_YOUNG_DICTIONARY_SECONDS = 120.0
# Longer than a fold takes, so that a fold that began before a compaction can be used after it.
_YOUNG_CHAIN_SECONDS = 600.0
_POD = re.compile(r"-s(\d{1,4})-(\d+)$")


def shard_of_pod(pod: str) -> int:
    """Return the shard in a pod's name `…-s<shard>-<replica>`, as its StatefulSet gave it. Raises ValueError."""
    found = _POD.search(pod)
    if found is None:
        raise ValueError(f"pod name {pod!r} does not end in -s<shard>-<replica>; name cube pods so")
    return int(found[1])


def shards_up(reports: Iterable[AgentReport], shards: int) -> tuple[int, ...]:
    """Return the shards of the wanted placement that have a pod that reports and is not draining, in order."""
    return tuple(sorted({each.shard for each in reports if not each.draining and each.shard < shards}))


def assigned_shards(partition: int, placement: Placement, holders: Holders) -> frozenset[int]:
    """Return the shards whose pods must load a partition of a version with these holders: always the partition's own
    shard. While that has no pod up, also the (p mod m)-th of the m shards with a pod up, so that a lost shard's
    partitions spread over the others; but not while enough other pods have loaded the partition: added shards come up
    one by one, and the old ones fetch nothing meanwhile.
    """
    home = shard_of(partition, placement.shards)
    if home in placement.up or not placement.up:
        return frozenset({home})
    owing = frozenset({home, placement.up[partition % len(placement.up)]})
    others = [h for h in holders.values() if partition in h.partitions and not h.draining and h.shard not in owing]
    return frozenset({home}) if len(others) >= placement.replicas else owing


def assigned_partitions(shard: int, version: int, document: ReleaseDocument, partitions: int) -> frozenset[int]:
    """Return the partitions of a version that a shard's pods must load."""
    holders = document.holders.get(version, {})
    return frozenset(p for p in range(partitions) if shard in assigned_shards(p, document.placement, holders))


def holders_by_version(reports: Iterable[AgentReport]) -> dict[int, dict[str, Holder]]:
    """Return the holders for readers: version -> address -> partitions."""
    found: dict[int, dict[str, Holder]] = {}
    for report in reports:
        for version, partitions in report.loaded.items():
            if partitions:
                found.setdefault(version, {})[report.address] = Holder(
                    partitions=tuple(sorted(partitions)), draining=report.draining, shard=report.shard
                )
    return {version: dict(sorted(found[version].items())) for version in sorted(found)}


def lacking_partitions(holders: Holders, partitions: int, replicas: int) -> tuple[int, ...]:
    """Return the partitions with fewer than `replicas` holders that do not drain."""
    counts = Counter(p for holder in holders.values() if not holder.draining for p in set(holder.partitions))
    return tuple(p for p in range(partitions) if counts[p] < replicas)


def pods_lacking_parts(
    version: int, partitions: int, reports: Iterable[AgentReport], placement: Placement, holders: Holders
) -> tuple[str, ...]:
    """Return the pods that do not drain and lack an assigned partition of a version, in order."""
    owing = [assigned_shards(partition, placement, holders) for partition in range(partitions)]

    def lacks_parts(report: AgentReport) -> bool:
        loaded = frozenset(report.loaded.get(version, ()))
        return any(report.shard in shards and p not in loaded for p, shards in enumerate(owing))

    return tuple(sorted(report.pod for report in reports if not report.draining and lacks_parts(report)))


class CandidateVerdict(NamedTuple):
    """The validation of a candidate by the serving pods. It is promoted only if `validated`."""

    validated: bool
    refused: str | None
    silent: tuple[str, ...]


def readers_verdict(
    version: int, readers: Iterable[ReaderReport], complete_seconds: float, validation_timeout_seconds: float
) -> CandidateVerdict:
    """A refusal of one serving pod is final. Otherwise all known serving pods must validate, or at least one of them
    after validation_timeout_seconds. Without a known serving pod the candidate counts as validated.
    """
    known = sorted(readers, key=lambda each: each.pod)
    for reader in known:
        if version in reader.refused:
            return CandidateVerdict(validated=False, refused=f"{reader.pod}: {reader.refused[version]}", silent=())
    silent = tuple(each.pod for each in known if version not in each.validated)
    enough_validated = len(silent) < len(known) and complete_seconds >= validation_timeout_seconds
    return CandidateVerdict(validated=not silent or enough_validated, refused=None, silent=silent)


def next_candidate(built: Iterable[int], live: int | None, refused: Collection[int]) -> int | None:
    """Return the newest built version above the live one; the versions between are skipped."""
    return max((v for v in built if v not in refused and (live is None or v > live)), default=None)


def next_to_build(
    usable: Iterable[int], built: Collection[int], live: int | None, refused: Collection[int]
) -> int | None:
    """Return the newest usable version if it is newer than all built and live ones, because an older one would be skipped."""
    return next_candidate(usable, max(*built, live or 0, 0), refused)


def skipped_versions(
    known: Iterable[int], was_live: Collection[int], live: int | None, candidate: int | None, refused: Collection[int]
) -> tuple[int, ...]:
    """Return the versions that a newer one replaced before they could go live."""
    newest = max(live or 0, candidate or 0)
    return tuple(sorted(v for v in known if v < newest and v not in was_live and v not in refused and v != candidate))


def abandoned_versions(manifests: Mapping[int, VersionManifest]) -> tuple[int, ...]:
    """Return the versions that training abandoned when it went back to a checkpoint: a later delta has an older parent.

    The first delta on a compacted base has an older parent, too, but its keys include those of the versions between.
    """
    compacted = {version for version, manifest in manifests.items() if manifest.compacts is not None}
    found: set[int] = set()
    for version, manifest in manifests.items():
        if manifest.kind == "delta" and manifest.parent is not None and manifest.parent not in compacted:
            parent = manifest.parent
            found.update(v for v in manifests if parent < v < version)
    return tuple(sorted(found - compacted))


def unneeded_partitions(
    held: Mapping[int, Collection[int]], document: ReleaseDocument, shard: int, address: str, partitions: int
) -> dict[int, frozenset[int]]:
    """Return the loaded partitions that a pod need not keep: version -> partitions. Lookups may still use them.

    A partition of a wanted version is unneeded if it is assigned to other pods that have loaded it. A partition of
    another version is unneeded, unless it is assigned to this pod, which has not loaded the live version's yet.
    """
    live = document.live
    lacking_live = frozenset[int]()
    if live is not None:
        lacking_live = assigned_partitions(shard, live, document, partitions) - frozenset(held.get(live, ()))

    def loaded_elsewhere(partition: int, holders: Holders) -> bool:
        owing = assigned_shards(partition, document.placement, holders)
        return shard not in owing and any(
            h.shard in owing and partition in h.partitions
            for other, h in holders.items()
            if other != address and not h.draining
        )

    found: dict[int, frozenset[int]] = {}
    for version, parts in held.items():
        if version in document.wanted:
            holders = document.holders.get(version, {})
            found[version] = frozenset(p for p in parts if loaded_elsewhere(p, holders))
        elif live is not None:
            found[version] = frozenset(parts) - lacking_live
    return {version: free for version, free in found.items() if free}


def served_without(address: str, held: Mapping[int, Collection[int]], document: ReleaseDocument) -> bool:
    """True if other pods that do not drain answer all partitions of the live version that this pod has loaded."""
    if document.live is None:
        return True
    stay = [h for a, h in document.holders.get(document.live, {}).items() if a != address and not h.draining]
    answered = {p for holder in stay for p in holder.partitions}
    return all(p in answered for p in held.get(document.live, ()))


def unbuilt_chain(version: int, manifests: Mapping[int, VersionManifest], built: Collection[int]) -> tuple[int, ...]:
    """Return the versions whose own files a build needs, oldest first: those after the last built ancestor, or from the base on.

    Raises LookupError with a sentence if the chain has a gap.
    """
    chain = [version]
    while (current := manifests[chain[-1]]).kind == "delta":
        parent = current.parent
        if parent is None or parent >= current.version:
            raise LookupError(f"delta {current.version} names no earlier parent; publish a base or remove the delta")
        if parent in built:
            break
        if parent not in manifests:
            raise LookupError(
                f"delta {current.version} depends on {parent}, which the store does not hold; "
                "publish a base or remove the delta"
            )
        chain.append(parent)
    return tuple(reversed(chain))


def built_alike(manifest: VersionManifest, dictionaries: Mapping[int, DictionaryManifest]) -> set[int]:
    """Return the built versions that a version can stand on: those with the same format of values."""
    return {version for version, built in dictionaries.items() if built.values == manifest.values}


def standing_on_refused(
    versions: Iterable[int],
    manifests: Mapping[int, VersionManifest],
    dictionaries: Mapping[int, DictionaryManifest],
    refused: Collection[int],
) -> dict[int, int]:
    """Return the versions that can never be built, each with the refused version whose files its build would need."""
    found: dict[int, int] = {}
    for version in versions:
        try:
            chain = unbuilt_chain(version, manifests, built_alike(manifests[version], dictionaries))
        except LookupError:
            continue  # retention has just deleted one of its parents
        below = [each for each in chain if each in refused and each != version]
        if below:
            found[version] = below[0]
    return found


def seconds_to_next_look(published: Iterable[float], now: float, longest: float) -> float:
    """Return a tenth of the time between the last two versions, by the times of their publication. So a version of a stream waits
    little, and the store gets few requests for an hourly one. The pause grows while no version comes, up to `longest`.
    """
    return min(longest, _seconds_between(published, now) / 10)


def seconds_to_next_scan(published: Iterable[float], now: float, shortest: float) -> float:
    """Return the time between the last two versions, from `shortest` to a minute. A changed donefile brings a scan forward; the others find
    that a stream's master has stopped publishing, repaired files, and what is to be deleted.
    """
    return min(_LONGEST_SCAN_PAUSE, max(shortest, _seconds_between(published, now)))


def _seconds_between(published: Iterable[float], now: float) -> float:
    """Return the time between the last two versions, or since the last one if that is longer; infinity without two."""
    last = sorted(published)[-2:]
    return math.inf if len(last) < 2 else max(last[1] - last[0], now - last[1], _SHORTEST_GAP)


def versions_to_delete(
    manifests: Mapping[int, VersionManifest],
    dictionaries: Mapping[int, DictionaryManifest],
    in_use: Collection[int],
    keep_versions: int,
    unread: Collection[int] = (),
) -> tuple[int, ...]:
    """Return the versions that retention deletes: not among the newest keep_versions, not in use, and not below one of those.
    The newest version's whole chain stays, because the next export reads it. In a chain that a base compacts only the
    young versions stay, because cube-builder may be about to build on them. Versions with an unreadable manifest
    (`unread`) and all older ones stay. A dictionary without a version is the rest of an interrupted deletion.
    """
    keep = {*sorted(manifests)[-keep_versions:], *in_use}
    link = max(manifests, default=None)
    young = -math.inf if link is None else manifests[link].created_at - _YOUNG_CHAIN_SECONDS
    compacted = False
    while link is not None and link in manifests and not (compacted and manifests[link].created_at < young):
        keep |= {link, manifests[link].base}
        compacted = compacted or manifests[link].compacts is not None
        link = manifests[link].parent if manifests[link].compacts is None else manifests[link].compacts
    open_ends = list(keep)
    while open_ends:
        version = open_ends.pop()
        below: set[int] = set()
        if version in dictionaries:
            below = {*dictionaries[version].others, dictionaries[version].base}
        elif version in manifests:
            manifest = manifests[version]
            below = {manifest.base} if manifest.parent is None else {manifest.base, manifest.parent}
        open_ends.extend(below - keep)
        keep |= below
    newest = max(manifests, default=0)
    orphans = {version for version in dictionaries if version < newest and version not in unread}
    readable_since = max(unread, default=0)
    return tuple(sorted(version for version in {*manifests, *orphans} - keep if version > readable_since))


def dictionaries_to_delete(
    manifests: Mapping[int, VersionManifest],
    dictionaries: Mapping[int, DictionaryManifest],
    in_use: Collection[int],
    keep_versions: int,
    now: float,
) -> tuple[int, ...]:
    """Return overlays in one file that are not needed although their versions stay, as a stream leaves one a second: not among the
    newest `keep_versions`, not in use, not below one of those, and so old that no builder is about to build on them.
    """
    keep = {*sorted(dictionaries)[-keep_versions:], *in_use}
    old = {each for each, manifest in manifests.items() if now - manifest.created_at > _YOUNG_DICTIONARY_SECONDS}
    doomed = {each for each, one in dictionaries.items() if one.in_one_file and each in old and each not in keep}
    # A builder may build on a young overlay, which lies over older ones.
    below = {other for each in dictionaries.keys() - doomed for other in dictionaries[each].others}
    return tuple(sorted(doomed - below))
