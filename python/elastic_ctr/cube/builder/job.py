"""The plan of a build, and the build of one partition: from published files to dictionary parts.

A base becomes full parts. A delta becomes an overlay, merge(overlay of its nearest built ancestor, the deltas since),
over that ancestor's full parts; past `overlay_share` of their keys the whole version becomes full parts instead. Deltas that are one
file for all partitions become one overlay for all of them. Once that is large, later versions lie over it, with a recent overlay of
their own keys alone; when that has grown, both are merged. So the build of a stream's version costs as much as its keys and those
of the last few versions, not as all keys since the full parts. If no ancestor down to the base is built, base and deltas become
full parts at once. A base that compacts the log of a stream contains only what is built already, so the deltas on it lie over the
parts below the version before it. The parts depend on the published files and on which ancestors are built, on nothing else: an
interrupted build is repeated byte for byte. A manifest may also announce a fold.

The manifest of a version names the format of its values (`values`). An ancestor with another format does not count as built:
quantised values are never quantised again, and the published files have float32. So after a change of `model.values` the next version
becomes full parts, each value of them quantised once.
"""

import shutil
import tempfile
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.cube.builder.input import read_blocks
from elastic_ctr.cube.builder.part import MEMORY_BYTES, PartFile, PartIdentity, build_full, build_overlay, merge_full
from elastic_ctr.cube.dictionary.format import DictionaryDamaged, Keys, Values
from elastic_ctr.cube.placement import unbuilt_chain
from elastic_ctr.formats.keys import partitions_of
from elastic_ctr.formats.seqfile.file_format import SequenceFileDamaged
from elastic_ctr.runtime.auth import Tokens
from elastic_ctr.store.backends import AlreadyPublished, NotInStore, RetryPolicy, Store, StoreError, open_store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import (
    DictionaryManifest,
    FileEntry,
    ManifestDamaged,
    OverlayBelow,
    VersionManifest,
)
from elastic_ctr.store.versions.published_files import checked_file, read_dictionary, read_full, read_version

Step = Literal["full", "overlay", "merge", "publish"]
Stage = Literal["reading", "building", "publishing"]
FOLD = "fold"
"""The folder in scratch of a build beside all others."""

# Seconds of retries against the store: long, because one failed partition wastes the work on all others.
_PATIENCE_SECONDS = 60.0
# Up to this many keys, an overlay in one file is built within some 0.2 s. Merging it into full parts would take longer.
_LEAST_TO_MERGE = 200_000
# An overlay in one file of more keys than this gets a recent overlay on top. The recent overlay is merged into it once it has
# more keys than this, too, and more than a share of the overlay's keys, so that several versions share the work.
_LARGE_OVERLAY = 20_000
_RECENT_SHARE = 0.25
# Input bytes of a build that runs without worker processes: the start of one takes longer, up to two seconds on a busy machine.
_SMALL_BYTES = 128 << 20
# Parts that a worker process publishes at the same time, and whose input it reads: requests to a distant store wait longer than they
# compute. It builds one at a time.
PUTS_AT_ONCE, READS_AT_ONCE = 8, 4
_BUILDING = threading.Lock()


class BuildFailed(Exception):
    """A build failed; the text has the file and the reason. `final` as in BuildProgress."""

    def __init__(self, sentence: str, *, final: bool) -> None:
        super().__init__(sentence)
        self.final = final


class Plan(NamedTuple):
    """The inputs of a build: the nearest built ancestor, if any, and the versions since, oldest first."""

    manifest: VersionManifest
    ancestor: DictionaryManifest | None
    inputs: tuple[VersionManifest, ...]

    @property
    def full_version(self) -> int:
        """Return the version whose folder has the full parts, unless this version is merged into full parts itself."""
        return self.manifest.version if self.ancestor is None else self.ancestor.full_version

    @property
    def in_one_file(self) -> bool:
        """True if the overlay is one file over all partitions, as are all its inputs then."""
        below = self.ancestor
        return (
            below is not None
            and (below.kind == "full" or below.in_one_file)
            and all(each.in_one_file for each in self.inputs)
        )

    @property
    def below(self) -> OverlayBelow | None:
        """Return the overlay below this version's own; None if its own has all keys since the full parts."""
        under = self.ancestor
        if under is None or under.kind == "full" or not self.in_one_file:
            return None
        if under.below is None:
            large = under.keys > _LARGE_OVERLAY
            return OverlayBelow(version=under.version, file=under.files[0]) if large else None
        grown = under.keys > max(_LARGE_OVERLAY, _RECENT_SHARE * under.below.file.records)
        return None if grown else under.below

    @property
    def is_small(self) -> bool:
        """True if the build is one task with so little input that the start of a process would take longer."""
        sizes = [each.bytes for each in (*self.merged(0), *(file for own in self.inputs for file in own.cube_files))]
        return self.in_one_file and sum(sizes) <= _SMALL_BYTES

    def merged(self, partition: int) -> tuple[FileEntry, ...]:
        """Return the overlays of the ancestor that are merged into this version's own, the lowest first."""
        if self.ancestor is None:
            return ()
        below = self.below
        # The overlay below is not merged.
        return tuple(each for each in self.ancestor.overlays(partition) if below is None or each != below.file)

    @property
    def first_step(self) -> Step:
        return "full" if self.ancestor is None else "overlay"

    def files(self, step: Step) -> list[Path]:
        """Return the names of the files that a step makes, one per task."""
        version = self.manifest.version
        if step == "overlay" and self.in_one_file:
            return [Path(Path(layout.dictionary_overlay(version)).name)]
        return [Path(Path(layout.dictionary_part(version, p)).name) for p in range(self.manifest.partitions)]


def plan_build(version: int, store: Store, fold: DictionaryManifest | None = None) -> Plan:
    """Plan a version's build. It lies over `fold` if these full parts are newer than those of the nearest built ancestor.

    Raises NotInStore, StoreError, ManifestDamaged, and BuildFailed where the version can never be built.
    """
    own = read_version(store, version)
    manifests, dictionaries = _shortest_chain(store, own)
    try:
        unbuilt = unbuilt_chain(version, manifests, dictionaries)
    except LookupError as gap:
        raise BuildFailed(str(gap), final=True) from gap
    first = manifests[unbuilt[0]]
    ancestor = dictionaries.get(first.parent) if first.parent is not None and first.kind == "delta" else None
    inputs = tuple(manifests[each] for each in unbuilt)
    others: list[VersionManifest | DictionaryManifest] = [*inputs]
    if ancestor is not None:
        others.append(ancestor)
    for below in others:
        if (below.dim, below.partitions) != (own.dim, own.partitions):
            raise BuildFailed(
                f"version {own.version} has dim {own.dim} over {own.partitions} partitions, version {below.version} that "
                f"it stands on has dim {below.dim} over {below.partitions}; a model keeps both for life: publish a new "
                "base",
                final=True,
            )
    if fold is not None and ancestor is not None and might_stand_on(ancestor, fold):
        return _over_fold(store, own, fold) or Plan(own, ancestor, inputs)
    return Plan(own, ancestor, inputs)


_Chain = tuple[dict[int, VersionManifest], dict[int, DictionaryManifest]]
"""The versions that a build may need, and the nearest built ancestor, if any."""


def _chain(store: Store, own: VersionManifest, *, over_compactions: bool) -> _Chain:
    """Return the versions down to the nearest built ancestor. `over_compactions`: go on from a base to the version that it compacts.
    The base has that version's keys and values, and the first delta on it all keys trained since, so the delta may lie over its parts.

    Raises NotInStore, StoreError, ManifestDamaged.
    """
    manifests, oldest = {own.version: own}, own
    while oldest.kind == "delta" and oldest.parent is not None and oldest.parent < oldest.version:
        if (built := _built_ancestor(store, oldest.parent, own)) is not None:
            return manifests, {oldest.parent: built}
        below = read_version(store, oldest.parent)
        over = over_compactions and below.compacts is not None
        oldest = oldest.model_copy(update={"parent": below.compacts}) if over else below
        manifests[oldest.version] = oldest
    return manifests, {}


def _shortest_chain(store: Store, own: VersionManifest) -> _Chain:
    """Return the chain to a version built before a compaction if there is one, else the plain chain. Raises as `_chain`."""
    with suppress(NotInStore, ManifestDamaged):
        manifests, built = _chain(store, own, over_compactions=True)
        if built:
            return manifests, built
    return _chain(store, own, over_compactions=False)


def _built_ancestor(store: Store, version: int, own: VersionManifest) -> DictionaryManifest | None:
    """Return a version's dictionary if it is built and stores values in the format of `own`."""
    try:
        built = read_dictionary(store, version)
    except NotInStore:
        return None
    return built if built.values == own.values else None


def might_stand_on(ancestor: DictionaryManifest, fold: DictionaryManifest) -> bool:
    """True if the numbers of the versions allow it; the folded version may still be one that was rolled back since."""
    return ancestor.full_version < fold.version <= ancestor.version


def _over_fold(store: Store, own: VersionManifest, fold: DictionaryManifest) -> Plan | None:
    """Return None if the version does not stand on the folded one, or if retention deleted that after a base compacted it."""
    inputs, parent = [own], own.parent
    with suppress(NotInStore):
        while parent is not None and parent > fold.version:
            below = read_version(store, parent)
            if below.compacts is not None:
                parent = below.compacts
                continue
            inputs.append(below)
            parent = below.parent
        if parent == fold.version and fold.values == own.values and store.exists(layout.dictionary_fold(parent)):
            return Plan(own, fold, tuple(reversed(inputs)))
    return None


def folded(plan: Plan, entries: Collection[FileEntry]) -> DictionaryManifest:
    """Return the manifest of the full parts that the overlay of a plan was merged into."""
    whole = dictionary_of(plan, "full", entries)
    return whole.model_copy(update={"folded": True})


class Task(NamedTuple):
    """One step of one partition, for a worker process; `part` is the built part to publish. Files are not synced.

    The step "overlay" of a plan in one file has one task for all partitions, with partition 0.
    """

    store: StoreConfig
    plan: Plan
    step: Step
    partition: int
    scratch: Path
    store_tokens: Tokens | None = None
    memory_bytes: int = MEMORY_BYTES
    part: FileEntry | None = None


@dataclass
class BuildOutcome:
    """The result of a task: `entry` is the finished part, in scratch until it is published, `failed` the reason of a failure."""

    partition: int
    entry: FileEntry | None = None
    failed: str | None = None
    final: bool = False
    seconds: dict[Stage, float] = field(default_factory=dict)


def run_task(task: Task) -> BuildOutcome:
    """Run one step of one partition. Errors are returned, not raised, because not all of them can be pickled."""
    outcome = BuildOutcome(task.partition)
    try:
        patience = RetryPolicy(_PATIENCE_SECONDS)
        opened = open_store(task.store, tokens=task.store_tokens, retry=patience)
        with closing(opened) as store:
            outcome.entry = _done(task, store, outcome.seconds)
    except (ManifestDamaged, SequenceFileDamaged, DictionaryDamaged, BuildFailed) as damaged:
        outcome.failed, outcome.final = str(damaged), True
    except StoreError as failed:
        outcome.failed = str(failed)
    except ValueError as refused:
        outcome.failed = f"partition {task.partition} of version {task.plan.manifest.version}: {refused}"
        outcome.final = True
    except OSError as failed:
        outcome.failed = f"partition {task.partition} cannot be built in {task.scratch}: {failed.strerror or failed}"
    return outcome


def run_tasks(tasks: Sequence[Task]) -> list[BuildOutcome]:
    """Run tasks in threads, which build one after the other."""
    with ThreadPoolExecutor(len(tasks)) as threads:
        return list(threads.map(run_task, tasks))


def _done(task: Task, store: Store, seconds: dict[Stage, float]) -> FileEntry:
    if task.part is not None:
        began = time.monotonic()
        publish_again(store, task.scratch / Path(task.part.path).name, task.part)
        seconds["publishing"] = time.monotonic() - began
        return task.part
    with tempfile.TemporaryDirectory(dir=task.scratch) as name:
        part = _built(task, store, Path(name), seconds)
    path = f"{layout.dictionary_folder(task.plan.manifest.version)}/{part.path.name}"
    return FileEntry(path=path, bytes=part.bytes, sha256=part.sha256, records=part.records)


def _built(task: Task, store: Store, folder: Path, seconds: dict[Stage, float]) -> PartFile:
    began = time.monotonic()
    plan, partition, manifest = task.plan, task.partition, task.plan.manifest
    out = task.scratch / plan.files(task.step)[partition]
    in_one_file = task.step == "overlay" and plan.in_one_file
    if task.step == "merge":
        assert plan.ancestor is not None
        full = checked_file(store, read_full(store, plan.ancestor).part(partition), folder)
        overlay = task.scratch / plan.files("overlay")[0 if plan.in_one_file else partition]
        build = partial(merge_full, full, overlay, out, manifest.version, memory_bytes=task.memory_bytes)
    else:
        entries = [input_file(each, partition) for each in plan.inputs]
        files = [checked_file(store, entry, folder) for entry in entries]
        parents = [checked_file(store, each, folder) for each in plan.merged(partition)]
        partitions = 1 if in_one_file else manifest.partitions
        identity = PartIdentity(manifest.version, partition, partitions, manifest.dim, values=manifest.values)
        blocks = chain.from_iterable(
            _of_partition(read_blocks(file, name=entry.path, records=entry.records, dim=manifest.dim), identity)
            if each.in_one_file
            else read_blocks(file, name=entry.path, records=entry.records, dim=manifest.dim)
            for file, entry, each in zip(files, entries, plan.inputs, strict=True)
        )
        if task.step == "full":
            build = partial(build_full, blocks, out, identity, task.memory_bytes)
        else:
            identity = identity._replace(base=plan.full_version)
            build = partial(build_overlay, parents, blocks, out, identity, memory_bytes=task.memory_bytes)
    seconds["reading"] = time.monotonic() - began
    # Threads of one process share its memory bound.
    with _BUILDING:
        began = time.monotonic()
        part = build()
    seconds["building"] = time.monotonic() - began
    return part


def _of_partition(blocks: Iterable[tuple[Keys, Values]], identity: PartIdentity) -> Iterator[tuple[Keys, Values]]:
    """Yield a partition's records from a file that has all partitions."""
    for keys, values in blocks:
        mine = partitions_of(keys, identity.partitions) == identity.partition
        yield keys[mine], values[mine]


def input_file(manifest: VersionManifest, partition: int) -> FileEntry:
    """Return the SequenceFile with a partition's keys. Raises BuildFailed if the manifest names none."""
    place = (0, 1) if manifest.in_one_file else (partition, manifest.partitions)
    path = layout.cube_file(manifest.version, manifest.kind, *place)
    for entry in manifest.cube_files:
        if entry.path == path:
            return entry
    raise BuildFailed(
        f"the manifest of version {manifest.version} names no file {path}; publish the version again", final=True
    )


def past_share(plan: Plan, overlay_keys: int, store: Store, overlay_share: float) -> bool:
    """True if the overlay has grown so large that the version should become full parts."""
    if plan.ancestor is None or plan.below is not None or (plan.in_one_file and overlay_keys < _LEAST_TO_MERGE):
        return False
    return overlay_keys > overlay_share * read_full(store, plan.ancestor).keys


def publish_again(store: Store, source: Path, entry: FileEntry) -> None:
    """Put a part. A part of an earlier, unfinished build is kept if it is the same and else replaced, because no agent
    reads a part before the dictionary's manifest names it. Raises StoreError.
    """
    try:
        store.put(source, entry.path)
    except AlreadyPublished:
        with tempfile.TemporaryDirectory(dir=source.parent) as name:
            try:
                checked_file(store, entry, Path(name))
            except ManifestDamaged:
                store.delete(entry.path)
                store.put(source, entry.path)


def dictionary_of(plan: Plan, kind: Literal["full", "overlay"], entries: Collection[FileEntry]) -> DictionaryManifest:
    """Return the manifest of a dictionary whose parts are all built."""
    own = plan.manifest
    return DictionaryManifest(
        version=own.version,
        kind=kind,
        full_version=own.version if kind == "full" else plan.full_version,
        base=own.base,
        parent=own.parent,
        partitions=own.partitions,
        dim=own.dim,
        keys=sum(entry.records for entry in entries),
        files=tuple(sorted(entries, key=lambda entry: entry.path)),
        values=own.values,
        folded=kind == "overlay" and plan.ancestor is not None and plan.ancestor.folded,
        below=plan.below if kind == "overlay" else None,
    )


def publish_dictionary(store: Store, manifest: DictionaryManifest, path: str) -> DictionaryManifest:
    """Write the manifest, after all parts: it publishes the dictionary. Raises StoreError."""
    try:
        store.put_bytes(manifest.to_json(), path)
    except AlreadyPublished:
        if store.get_bytes(path) != manifest.to_json():
            raise
    return manifest


def fresh_scratch(scratch: Path, version: int) -> Path:
    """Make an empty folder for one build, and delete the other folders in scratch, which are left-overs."""
    for old in scratch.iterdir() if scratch.is_dir() else ():
        if old.is_dir() and old.name != FOLD:
            shutil.rmtree(old, ignore_errors=True)
    folder = scratch / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
