"""The versions in the store: which may be built, which are built, what is wrong with the rest; and the deletion of old ones.

The donefile announces a version, its manifest decides. An unusable version becomes a sentence and does not block others.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from pathlib import PurePosixPath
from typing import NamedTuple, TypeVar

from elastic_ctr.cube.placement import built_alike, unbuilt_chain
from elastic_ctr.cube.release import ReleaseDocument
from elastic_ctr.runtime.documents import read_document
from elastic_ctr.store.backends import NotInStore, Store, StoreError
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.donefile import Donefile, read_donefile
from elastic_ctr.store.versions.manifest import DictionaryManifest, ManifestDamaged, VersionManifest
from elastic_ctr.store.versions.published_files import (
    is_orphan,
    published_versions,
    read_checkpoint,
    read_dictionary,
    read_version,
    versions_in,
)

log = logging.getLogger(__name__)
M = TypeVar("M", VersionManifest, DictionaryManifest)


class Scan(NamedTuple):
    """The result of one scan. `usable`: versions that are announced and have a manifest and files down to the next built
    ancestor. `unread`: versions with an unreadable manifest.
    """

    manifests: dict[int, VersionManifest]
    dictionaries: dict[int, DictionaryManifest]
    usable: tuple[int, ...]
    problems: tuple[str, ...]
    unread: frozenset[int]


class Catalog:
    """Scans the store repeatedly. Each manifest is read once, because manifests are immutable."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._manifests: dict[int, VersionManifest] = {}
        self._dictionaries: dict[int, DictionaryManifest] = {}
        self._announced: dict[str, set[int]] = {}
        self._donefiles: dict[str, Donefile] = {}
        self._complete: set[int] = set()

    def scan(self, deleted: Collection[int] = ()) -> Scan:
        """Scan the store. `deleted` are the versions that retention removed and the donefiles still list.

        Raises StoreError if the store does not answer, or lists nothing although it had versions before.
        """
        problems: list[str] = []
        # Donefiles are read first, because a version is announced after its manifest was written.
        announced = self._read_announced(problems)
        listed = published_versions(self._store)
        if self._manifests and not listed:
            raise StoreError(
                f"{self._store.url} shows no version any more where {len(self._manifests)} were; is it mounted? "
                "Nothing is changed until it shows them again"
            )
        self._manifests = self._read(self._manifests, listed, read_version, problems)
        self._complete &= set(listed)
        folders = versions_in(self._store, layout.DICTIONARIES, "/")
        self._dictionaries = self._read(self._dictionaries, folders, read_dictionary, problems)
        usable = []
        # A version older than a built one is never built.
        newest_built = max(self._dictionaries, default=0)
        for version in sorted(announced):
            if version not in self._manifests:
                # A version older than all published ones was deleted by retention or by hand, which is no problem.
                if version not in deleted and listed and version > listed[0] and version not in listed:
                    problems.append(
                        f"the donefile names version {version}, which has no manifest in the store; "
                        "publish its manifest or remove the line"
                    )
            # A compacted base is only built for the deltas on it.
            elif version > newest_built and self._manifests[version].compacts is None:
                wrong = self._unusable(version)
                if wrong is None:
                    usable.append(version)
                else:
                    problems.append(wrong)
        return Scan(
            manifests=self._manifests,
            dictionaries=self._dictionaries,
            usable=tuple(usable),
            problems=tuple(dict.fromkeys(problems)),
            unread=frozenset(listed) - self._manifests.keys(),
        )

    def has_news(self) -> bool:
        """True if the donefiles have changed since the last scan. This costs less than a scan, which lists all versions."""
        try:
            return any(read_donefile(self._store, path) != known for path, known in self._donefiles.items())
        except StoreError:
            # The scan reports the error.
            return True

    def _read(
        self, known: dict[int, M], versions: list[int], read: Callable[[Store, int], M], problems: list[str]
    ) -> dict[int, M]:
        found = {}
        for version in versions:
            try:
                found[version] = known[version] if version in known else read(self._store, version)
            except NotInStore:  # noqa: PERF203 (not a hot loop)
                continue  # a build under way, an interrupted one, or deleted since
            except ManifestDamaged as damaged:
                problems.append(str(damaged))
        return found

    def _read_announced(self, problems: list[str]) -> set[int]:
        for path in (layout.BASE_DONEFILE, layout.PATCH_DONEFILE):
            donefile = self._donefiles[path] = read_donefile(self._store, path)
            # A version stays announced if its line is damaged later.
            before = self._announced.get(path, set()) if donefile.problems else set[int]()
            self._announced[path] = {line.id for line in donefile.lines} | before
            problems += donefile.problems
        return {version for lines in self._announced.values() for version in lines}

    def _unusable(self, version: int) -> str | None:
        try:
            alike = built_alike(self._manifests[version], self._dictionaries)
            chain = unbuilt_chain(version, self._manifests, alike)
        except LookupError as gap:
            return str(gap)
        for each in chain:
            if each in self._complete:
                continue
            missing = missing_inputs(self._manifests[each], self._store)
            if missing:
                return (
                    f"version {version} cannot be built: {missing[0]} is not in the store"
                    f"{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}; publish the version again"
                )
            self._complete.add(each)
        return None


def missing_inputs(manifest: VersionManifest, store: Store) -> list[str]:
    """Return the files of the manifest that the store lacks."""
    there = set(store.list(layout.cube_folder(manifest.version, manifest.kind)))
    return [entry.path for entry in manifest.cube_files if PurePosixPath(entry.path).name not in there]


def delete_orphans(store: Store, published: Collection[int], built: Collection[int], now: float) -> list[str]:
    """Delete folders of versions that have no manifest and have not changed for a day. Return them. Raises StoreError.

    A folder newer than all published versions stays, because an upload may be under way.
    """
    deleted = []
    newest = max(published, default=0)
    kept = {layout.CUBE: set(published), layout.MODELS: set(published), layout.DICTIONARIES: {*published, *built}}
    for parent, keep in kept.items():
        for name in store.list(parent):
            number = name.removesuffix("/")
            if number == name or not layout.is_version(number) or int(number) in keep or int(number) > newest:
                continue
            folder = f"{parent}/{number}"
            if is_orphan(store, folder, now):
                store.delete(folder)
                deleted.append(folder)
    return deleted


def restored_document(store: Store) -> ReleaseDocument | None:
    """Return the release document that a restore has put into the store, or None. Raises StoreError, DocumentDamaged."""
    try:
        return read_document(ReleaseDocument, store.get_bytes(layout.RESTORED))
    except NotInStore:
        return None


class Followed(NamedTuple):
    """Versions that a recovery may return to.

    Attributes:
        parents: versions before checkpoints; the next delta may name them as its parent, so their dictionaries are needed, too.
        log: deltas that a recovery applies to a save; their dictionaries are not read.
    """

    parents: frozenset[int]
    log: frozenset[int]


def followed_by_checkpoints(store: Store) -> Followed:
    """Read these versions from the checkpoints in the store. Raises StoreError."""
    parents, log = set[int](), set[int]()
    for name in store.list(layout.CHECKPOINTS):
        if name.endswith("/"):
            try:
                checkpoint = read_checkpoint(store, name[:-1])
            except (NotInStore, ManifestDamaged):
                continue  # unfinished, or a foreign folder
            parents.update(v for v in (checkpoint.follows_version, checkpoint.base_version) if v is not None)
            log.update(checkpoint.log)
    return Followed(frozenset(parents), frozenset(log))


def delete_dictionaries(store: Store, doomed: Iterable[int]) -> list[int]:
    """Delete the overlays and manifests of dictionaries. Full parts that an overlay was folded into, or is being folded into, stay as
    long as the version, because others lie over them. Return the versions. Raises StoreError.
    """
    deleted = []
    for version in doomed:
        store.delete(layout.dictionary_manifest(version))
        store.delete(layout.dictionary_overlay(version))
        deleted.append(version)
    return deleted


def delete_versions(store: Store, doomed: Iterable[int]) -> None:
    """Delete versions, manifests first, so that a half-deleted version is a folder without a manifest. Raises StoreError."""
    for version in doomed:
        store.delete(layout.version_manifest(version))
        store.delete(layout.dictionary_manifest(version))
        for folder in (layout.dictionary_folder(version), f"{layout.CUBE}/{version}", layout.model_folder(version)):
            store.delete(folder)
        store.delete(layout.refusal(version))
        log.info("version %s is deleted from the store: newer ones are kept and nothing needs it", version)
