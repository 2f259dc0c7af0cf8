"""Versions in a store, as the master publishes them, small enough to make many."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.seqfile.file_writer import SequenceFileWriter
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.donefile import announce
from elastic_ctr.store.versions.manifest import VersionManifest
from elastic_ctr.store.versions.published_files import publish

PARTITIONS = 3
DIM = 2

Keys = npt.NDArray[np.uint64]
Values = npt.NDArray[np.float32]


class RemoteStore(FileStore):
    """As one on another machine: its files have no path here."""

    def local_path(self, path: str) -> Path | None:  # noqa: ARG002
        return None


def keys_of(*keys: int) -> Keys:
    return np.array(keys, np.uint64)


def values_of(keys: Keys, version: int) -> Values:
    return np.stack([keys.astype(np.float32), np.full(keys.size, version, np.float32)], axis=1)


def publish_version(
    store: FileStore,
    work: Path,
    version: int,
    keys: Keys,
    parent: int | None = None,
    base: int | None = None,
    *,
    in_one_file: bool = False,
    rows: Values | None = None,
    **more: Any,
) -> VersionManifest:
    kind: Any = "base" if parent is None else "delta"
    work.mkdir(parents=True, exist_ok=True)
    entries = []
    files = 1 if in_one_file else PARTITIONS
    for partition in range(files):
        here = keys % files == partition
        own = keys[here]
        file = work / "file.seq"
        with SequenceFileWriter(file, seed=f"{version}-{partition}") as writer:
            writer.write(own, values_of(own, version) if rows is None else rows[here])
        entries.append(publish(store, file, layout.cube_file(version, kind, partition, files), records=own.size))
    fields: dict[str, Any] = {
        "version": version, "kind": kind, "base": version if base is None else base, "parent": parent, "pass_id": "p",
        "event_time_max": int(time.time()), "created_at": time.time(), "partitions": PARTITIONS, "dim": DIM,
        "keys": int(keys.size), "slots": ("0",), "sparse_dim": None, "network": "n", "cube_files": tuple(entries),
        "model_files": (), "samples": 0, "auc_live": None, "auc_published": None, **more,
    }  # fmt: skip
    manifest = VersionManifest(**fields)
    store.put_bytes(manifest.to_json(), layout.version_manifest(version))
    announce(store)
    return manifest
