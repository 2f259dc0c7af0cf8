"""Versions as training publishes them, for scoring without a serving fleet: SequenceFiles, a network of Paddle, hours of lines."""

import csv
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from contract.serving_world import DIM, FIRST, KEYS, PARTITIONS, SLOTS, Exported, line_of
from elastic_ctr.formats.seqfile.file_writer import SequenceFileWriter
from elastic_ctr.store.backends import FileStore, Store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import VersionManifest
from elastic_ctr.store.versions.published_files import publish

HOURS = {"20200401/00": 600, "20200401/01": 400}
BAD_LINE = "1 0 notanumber:0"


def put_trained_version(store: Store, work: Path, exported: Exported, **changes: Any) -> VersionManifest:
    """A version with the keys and the network of `exported`; `changes` are of its manifest, a `parent` makes it a delta."""
    version = changes.get("version", exported.version)
    kind: Any = "base" if changes.get("parent") is None else "delta"
    entries = []
    for partition in range(PARTITIONS):
        mine = exported.keys % np.uint64(PARTITIONS) == partition
        file = work / f"{version}-{partition}.seq"
        with SequenceFileWriter(file, seed=file.name) as writer:
            writer.write(exported.keys[mine], exported.values[mine])
        path = layout.cube_file(version, kind, partition, PARTITIONS)
        entries.append(publish(store, file, path, records=int(mine.sum())))
    folder = layout.model_folder(version)
    files = [
        publish(store, exported.folder / name, f"{folder}/{name}") for name in ("network.pdmodel", "network.pdiparams")
    ]
    given: dict[str, Any] = {
        "version": version, "kind": kind, "base": version, "parent": None, "pass_id": "20200401/00", "event_time_max": 1,
        "created_at": 1.0, "partitions": PARTITIONS, "dim": DIM, "keys": len(exported.keys), "slots": SLOTS, "sparse_dim": None,
        "network": "slot-dnn", "cube_files": tuple(entries), "model_files": tuple(files), "samples": 0, "auc_live": None,
        "auc_published": None, **changes,
    }  # fmt: skip
    manifest = VersionManifest(**given)
    store.put_bytes(manifest.to_json(), layout.version_manifest(version))
    return manifest


def features_by(dice: random.Random) -> list[tuple[int, str]]:
    """Some slots several times, some never, some keys unknown, a slot that the model has not."""
    return [(dice.randrange(1, KEYS + 40), slot) for slot in (*SLOTS, "unread") for _ in range(dice.randrange(0, 3))]


def write_hours(
    data: Path, hours: dict[str, int], *, files: int = 2, bad_each: int = 0, seed: int = 5
) -> dict[str, list[Any]]:
    """Hours of so many lines in `files` files each; every so manieth line is bad. The features of each file's lines, None for a bad one."""
    dice = random.Random(seed)
    written: dict[str, list[Any]] = {}
    for hour, rows in hours.items():
        folder = data / hour
        folder.mkdir(parents=True)
        for number in range(files):
            lines: list[str] = []
            found: list[Any] = []
            for row in range(rows // files):
                if bad_each and row % bad_each == bad_each - 1:
                    lines.append(BAD_LINE)
                    found.append(None)
                    continue
                features = features_by(dice)
                show = dice.randrange(1, 4)
                lines.append(f"{show} {dice.randrange(0, show + 1)} {line_of(features)}".rstrip())
                found.append(features)
            name = f"part-{number}"
            (folder / name).write_text("".join(f"{line}\n" for line in lines))
            written[f"{hour}/{name}"] = found
        (folder / "donefile").touch()
    return written


def write_values(folder: Path, data: Path, store: FileStore, **changes: Any) -> Path:
    """A values file; `changes` are of `data`."""
    given = {
        "data": {"source": {"url": data.as_uri()}, "start": "20200401/00", "end": "20200401/01", "slots": list(SLOTS), **changes},
        "store": {"config": {"url": store.url}},
    }  # fmt: skip
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(given))
    return file


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "elastic_ctr", *map(str, words)]


def call(*words: object) -> "subprocess.CompletedProcess[str]":
    """Each process that scores imports Paddle: one of them, unless the words say otherwise."""
    if words[0] in {"predict", "evaluate"} and "--processes" not in words:
        words = (*words, "--processes", 1)
    return subprocess.run(command(*words), capture_output=True, text=True, check=False, timeout=240)


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


def of_all_tasks(out: Path, name: str) -> list[dict[str, str]]:
    """The rows of a file of the input, whose tasks are in the order of their outputs' names."""
    outputs = sorted(each for each in out.rglob("*.csv") if str(each.relative_to(out)).startswith(f"{name}."))
    assert outputs, f"{out} has nothing of {name}"
    return [row for output in outputs for row in rows_of(output)]


@pytest.fixture
def values(store: FileStore, exports: dict[int, Exported], tmp_path: Path) -> Path:
    """Of a store with one version, which cube has not built."""
    (tmp_path / "work").mkdir()
    put_trained_version(store, tmp_path / "work", exports[FIRST])
    return write_values(tmp_path, tmp_path / "data", store, taskBytes=5000)
