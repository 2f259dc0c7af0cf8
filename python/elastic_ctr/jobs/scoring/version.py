"""The version that scores the rows: its lookup by name, and its files on this machine as in cube and serving."""

import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from elastic_ctr.config.feature_document import FILE as FEATURES_FILE
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.cube.builder.job import BuildFailed, Plan, Task, plan_build, run_task
from elastic_ctr.cube.builder.part import MEMORY_BYTES
from elastic_ctr.cube.dictionary.table import Paths
from elastic_ctr.runtime.auth import Tokens
from elastic_ctr.runtime.child_process import children_without_interrupts, die_with_parent
from elastic_ctr.serving.batching.predictor import MODEL_FILE, PARAMETERS_FILE
from elastic_ctr.store.backends import NotInStore, Store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import DictionaryManifest, ManifestDamaged, VersionManifest
from elastic_ctr.store.versions.published_files import (
    checked_file,
    fetch,
    published_versions,
    read_dictionary,
    read_full,
    read_version,
)
from elastic_ctr.store.versions.safeguards import read_refusals

LATEST, LIVE = "latest", "live"
_NAMED = 5


class VersionUnusable(ValueError):
    """The requested version cannot score; the text has the version, the reason and the way out."""


def find_version(store: Store, asked: str, live: Callable[[], int | None]) -> VersionManifest:
    """Return the version of an id, the newest one that is not refused (`latest`), or the live one by the callback (`live`).

    Raises VersionUnusable, ManifestDamaged, StoreError, and the errors of `live`.
    """
    if asked == LATEST:
        there = published_versions(store)
        refused = read_refusals(store)
        usable = [version for version in there if version not in refused]
        if not usable:
            all_refused = f": all {len(there)} that are there are refused"
            why = all_refused if there else "; is it the one that training publishes to?"
            raise VersionUnusable(f"no version is in the store {store.url}{why}")
        return read_version(store, usable[-1])
    if asked == LIVE:
        version = live()
        if version is None:
            raise VersionUnusable(f"no version is live yet; `--version {LATEST}` takes the newest one in the store")
    elif layout.is_version(asked):
        version = int(asked)
    else:
        raise VersionUnusable(f"--version {asked!r} is neither the id of a version nor {LATEST} nor {LIVE}")
    try:
        return read_version(store, version)
    except NotInStore as gone:
        raise VersionUnusable(f"version {version} is not in the store {store.url}; {_those_there(store)}") from gone


def _those_there(store: Store) -> str:
    there = published_versions(store)
    if not there:
        return "there is none; is it the store that training publishes to?"
    newest = ", ".join(str(version) for version in there[-_NAMED:])
    return f"there are {newest}" if len(there) <= _NAMED else f"the newest of {len(there)} are {newest}"


@dataclass(frozen=True)
class VersionFiles:
    """The files of a version on this machine: `folder` has network and features, `parts` are the dictionary's."""

    manifest: VersionManifest
    folder: Path
    parts: Mapping[int, Paths]


def fetch_version(
    store: Store, manifest: VersionManifest, scratch: Path, config: StoreConfig, tokens: Tokens | None, processes: int
) -> VersionFiles:
    """Fetch the files of a version and check their digests. Parts come from the store's dictionary. If none was built, or it was
    deleted, they are built here from the published files, by the rules of cube-builder.

    Raises VersionUnusable, ManifestDamaged, BuildFailed, StoreError, OSError.
    """
    folder = scratch / f"version-{manifest.version}"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {MODEL_FILE, PARAMETERS_FILE, *([] if manifest.features is None else [FEATURES_FILE])}
    entries = {
        entry.path.removeprefix(layout.model_folder(manifest.version) + "/"): entry for entry in manifest.model_files
    }
    if absent := sorted(wanted - entries.keys()):
        raise ManifestDamaged(
            f"the manifest of version {manifest.version} lists no {absent[0]}; publish the version again"
        )
    for name in sorted(wanted):
        fetch(store, entries[name], folder / name)
    parts = folder / "parts"
    parts.mkdir(exist_ok=True)
    with suppress(NotInStore):
        return VersionFiles(manifest, folder, _published(store, read_dictionary(store, manifest.version), parts))
    return VersionFiles(manifest, folder, _built(store, manifest, parts, config, tokens, processes))


def _published(store: Store, dictionary: DictionaryManifest, folder: Path) -> dict[int, Paths]:
    """Fetch the parts of a dictionary. Raises NotInStore if retention has deleted a part meanwhile."""
    full = read_full(store, dictionary)
    layers = {p: (full.part(p), *dictionary.overlays(p)) for p in range(dictionary.partitions)}
    # Each file once, because an overlay may be one file of all partitions.
    files = {each: checked_file(store, each, folder) for each in {each for own in layers.values() for each in own}}
    return {partition: Paths.of(*(files[each] for each in own)) for partition, own in layers.items()}


def _built(
    store: Store, manifest: VersionManifest, folder: Path, config: StoreConfig, tokens: Tokens | None, processes: int
) -> dict[int, Paths]:
    plan = plan_build(manifest.version, store)
    _build_all(plan, folder, config, tokens, min(processes, manifest.partitions))
    files = plan.files(plan.first_step)
    built = {partition: folder / files[partition % len(files)] for partition in range(manifest.partitions)}
    if plan.ancestor is None:
        return {partition: Paths(path) for partition, path in built.items()}
    full = read_full(store, plan.ancestor)
    below = [] if plan.below is None else [checked_file(store, plan.below.file, folder)]
    return {
        number: Paths.of(checked_file(store, full.part(number), folder), *below, path) for number, path in built.items()
    }


def _build_all(plan: Plan, folder: Path, config: StoreConfig, tokens: Tokens | None, processes: int) -> None:
    """Build all parts in worker processes. Raises BuildFailed."""
    step = plan.first_step
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, spawn, die_with_parent, (os.getpid(),)) as pool:
        memory = MEMORY_BYTES // processes
        with children_without_interrupts():
            building = [
                pool.submit(run_task, Task(config, plan, step, partition, folder, tokens, memory))
                for partition in range(len(plan.files(step)))
            ]
        try:
            for each in building:
                outcome = each.result()
                if outcome.failed is not None:
                    raise BuildFailed(outcome.failed, final=outcome.final)
        except BrokenProcessPool as lost:
            raise BuildFailed(
                "a process that built a part was ended; is there too little memory? Give fewer --processes", final=False
            ) from lost
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
