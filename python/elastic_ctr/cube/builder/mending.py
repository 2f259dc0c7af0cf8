"""Repair of a built dictionary: parts that the store has lost or damaged are built again from the published files, byte for byte."""

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from elastic_ctr.cube.builder.job import BuildFailed, BuildOutcome, Plan, Step, plan_build
from elastic_ctr.store.backends import NotInStore, Store
from elastic_ctr.store.versions.manifest import DictionaryManifest, FileEntry
from elastic_ctr.store.versions.published_files import checked_file, read_dictionary, read_fold, read_full

log = logging.getLogger(__name__)

Build = Callable[[Plan, Step, int], BuildOutcome]
"""Does one step of one partition of a plan, in the scratch folder."""


def damaged_files(store: Store, dictionary: DictionaryManifest) -> list[FileEntry]:
    """Return the damaged files among all layers of a version. Raises NotInStore, ManifestDamaged for a manifest, StoreError."""
    below = () if dictionary.below is None else (dictionary.below.file,)
    entries = dict.fromkeys((*read_full(store, dictionary).files, *below, *dictionary.files))
    return [each for each in entries if not _is_whole(store, each)]


def mend(store: Store, version: int, scratch: Path, build: Build) -> list[str]:
    """Build damaged parts again and return their paths. Raises BuildFailed, NotInStore, ManifestDamaged, StoreError, OSError."""
    mended = []
    for entry in damaged_files(store, read_dictionary(store, version)):
        file = _built_again(store, entry, scratch, build)
        store.put(file, entry.path, overwrite=True)
        file.unlink()
        log.info("%s was damaged in the store, and is built again", entry.path)
        mended.append(entry.path)
    return mended


def plan_again(store: Store, own: DictionaryManifest) -> Plan:
    """Return the plan by which a dictionary was built, over the ancestor that was built at that time."""
    return plan_build(own.version, store, read_fold(store, own.full_version) if own.folded else None)


def _is_whole(store: Store, entry: FileEntry) -> bool:
    digest, size = hashlib.sha256(), 0
    try:
        for block in store.read_from(entry.path):
            digest.update(block)
            size += len(block)
    except NotInStore:
        return False
    return (size, digest.hexdigest()) == (entry.bytes, entry.sha256)


def _built_again(store: Store, entry: FileEntry, scratch: Path, build: Build) -> Path:
    path = PurePosixPath(entry.path)
    own = read_dictionary(store, int(path.parent.name))
    plan = plan_again(store, own)
    # An overlay in one file has no partition in its name and counts as partition 0.
    partition = int(path.stem.partition("-")[2] or 0)
    is_overlay = own.kind == "overlay" and entry in own.files
    if is_overlay:
        outcome = build(plan, "overlay", partition)
    elif plan.ancestor is None:
        outcome = build(plan, "full", partition)
    else:
        _overlay_of(store, own, plan, partition, scratch, build)
        outcome = build(plan, "merge", partition)
    if outcome.entry is None:
        raise BuildFailed(outcome.failed or f"{entry.path} cannot be built again", final=outcome.final)
    if (outcome.entry.bytes, outcome.entry.sha256) != (entry.bytes, entry.sha256):
        raise BuildFailed(
            f"{entry.path} is damaged, and built again it is another file, as versions that it was built from are gone; put a copy of it "
            "back, or have another version answer: `elastic-ctr rollback VERSION`",
            final=True,
        )
    return scratch / path.name


def _overlay_of(store: Store, own: DictionaryManifest, plan: Plan, partition: int, scratch: Path, build: Build) -> None:
    """Put the overlay that was merged into the full parts into `scratch`: from the store for a fold, else built again."""
    if own.kind == "full":
        outcome = build(plan, "overlay", 0 if plan.in_one_file else partition)
        if outcome.entry is None:
            raise BuildFailed(outcome.failed or "the overlay cannot be built again", final=outcome.final)
        return
    place = 0 if plan.in_one_file else partition
    there = checked_file(store, own.part(partition), scratch)
    (scratch / plan.files("overlay")[place]).write_bytes(there.read_bytes())
