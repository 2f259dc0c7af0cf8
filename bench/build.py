"""A published version to dictionary parts: seconds, sameness, memory.

    python -m bench.build [--quick] [--keys 10000000] [--large 50000000] [--only memory]

A version is published as the master does, and built and published as cube-builder does, by its own processes: checksums,
syncs and copies are in the time. Memory is the high-water mark of the process that built, once of a version of 60
partitions and once with all keys in a single one, more than the builder holds in memory. All files are in a temporary
folder under build/bench and go with it.
"""

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from bench.method import FOLDER, Plan, Results, arguments, plan_of, server_cpu, show, summary
from elastic_ctr.config.cube_settings import CubeTransferConfig
from elastic_ctr.config.role_files import CubeBuilderFile
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.cube.builder.build_server import CubeBuilder
from elastic_ctr.cube.builder.job import BuildOutcome, Task, fresh_scratch, plan_build, run_task
from elastic_ctr.formats.seqfile.file_writer import SequenceFileWriter
from elastic_ctr.store.backends import FileStore, open_store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import FileEntry, VersionManifest, digest_of
from elastic_ctr.store.versions.published_files import read_dictionary

Keys = NDArray[np.uint64]
Floats = NDArray[np.float32]
Blocks = Iterable[tuple[Keys, Floats]]

DIM = 9
PARTITIONS = 60
WARM, BASE, DELTA = 9, 10, 11
_BLOCK = 1 << 20


class Spent(NamedTuple):
    """By a build: wall and CPU seconds, the memory of its largest process in bytes, seconds by stage."""

    seconds: float
    cpu: float
    resident: int
    stages: dict[str, float]


def keys_of(partition: int, partitions: int, start: int, count: int) -> Keys:
    """Distinct keys of a partition, spread as signs are."""
    order = np.arange(start, start + count, dtype=np.uint64)
    # An odd factor is a bijection of 58 bits, and 2^58 x 60 partitions fit 64.
    spread = (order * np.uint64(0x9E37_79B9_7F4A_7C15)) & np.uint64((1 << 58) - 1)
    keys: Keys = spread * np.uint64(partitions) + np.uint64(partition)
    return keys


def values_of(keys: Keys) -> Floats:
    spread = (keys[:, None] * np.arange(3, 3 + DIM, dtype=np.uint64)) >> np.uint64(40)
    values: Floats = spread.astype(np.float32) / np.float32(1 << 24) - np.float32(0.5)
    return values


def records_of(partition: int, partitions: int, start: int, count: int, seed: int = 0) -> Iterator[tuple[Keys, Floats]]:
    """Blocks of records of a partition, in an order that the seed chooses; values follow the key."""
    for at in range(start, start + count, _BLOCK):
        keys = keys_of(partition, partitions, at, min(_BLOCK, start + count - at))
        if seed:
            np.random.default_rng(seed).shuffle(keys)
        yield keys, values_of(keys)


def write(
    store: FileStore, version: int, kind: Literal["base", "delta"], partition: int, partitions: int, blocks: Blocks
) -> FileEntry:
    """One SequenceFile, written where the store keeps it."""
    path = layout.cube_file(version, kind, partition, partitions)
    file = store.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    with SequenceFileWriter(file, seed=f"{version}-{partition}") as writer:
        for keys, values in blocks:
            writer.write(keys, values)
    size, sha256 = digest_of(file)
    return FileEntry(path=path, bytes=size, sha256=sha256, records=writer.records)


def announce(store: FileStore, version: int, files: list[FileEntry], parent: int | None = None) -> None:
    manifest = VersionManifest(
        version=version, kind="base" if parent is None else "delta", base=parent or version, parent=parent,
        pass_id="bench", event_time_max=1, created_at=1.0, partitions=len(files), dim=DIM,
        keys=sum(file.records for file in files), slots=("0",), sparse_dim=None, network="bench",
        cube_files=tuple(files), model_files=(), samples=0, auc_live=None, auc_published=None,
    )  # fmt: skip
    store.put_bytes(manifest.to_json(), layout.version_manifest(version))


def publish_base(store: FileStore, version: int, count: int, partitions: int = PARTITIONS) -> int:
    """One base of about so many keys; how many they are."""
    each = count // partitions
    files = [
        write(store, version, "base", number, partitions, records_of(number, partitions, 0, each))
        for number in track(range(partitions), f"publishing {each * partitions:,} keys")
    ]
    announce(store, version, files)
    return each * partitions


def high_water(pid: int | str = "self") -> int:
    """The most memory a process ever had, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def workers() -> list[int]:
    return [process.pid for process in multiprocessing.active_children() if process.pid]


def ordered(builder: CubeBuilder, version: int) -> Spent:
    """Let the builder build and publish, as transfer does."""
    before = server_cpu([*workers(), os.getpid()])
    builder.order(version)
    while (progress := builder.progress).stage not in {"done", "failed"}:
        time.sleep(0.01)
    if progress.error is not None:
        raise RuntimeError(progress.error)
    cpu = server_cpu([*workers(), os.getpid()]) - before
    return Spent(progress.seconds, cpu, max(map(high_water, workers())), progress.seconds_by_stage)


def digests(store: FileStore, version: int) -> list[str]:
    return [file.sha256 for file in read_dictionary(store, version).files]


def builder_of(store: FileStore, scratch: Path) -> CubeBuilder:
    settings = CubeTransferConfig(scratch_dir=str(scratch), builder_jobs=1)
    return CubeBuilder(CubeBuilderFile(store=StoreConfig(url=store.url), cube_transfer=settings))


def build_again_and_again(folder: Path, count: int, plan: Plan, results: Results) -> None:
    """A version of `count` keys, built anew each time by one worker process that has its machine code."""
    store = FileStore(folder / "store")
    publish_base(store, WARM, PARTITIONS * 100)
    keys = publish_base(store, BASE, count)
    spent: list[Spent] = []
    seen: list[list[str]] = []
    builder = builder_of(store, folder / "scratch")
    builder.start()
    try:
        for _ in track(range(plan.repetitions), "building"):
            # Also when it is done already: it makes the builder forget that BASE is.
            ordered(builder, WARM)
            spent.append(ordered(builder, BASE))
            seen.append(digests(store, BASE))
            store.delete(layout.dictionary_folder(BASE))
    finally:
        builder.stop()
    millions = keys / 1e6
    stages = {name: statistics.median(each.stages[name] / millions for each in spent) for name in spent[0].stages}
    note = (
        f"{keys:,} keys x {DIM} in {PARTITIONS} partitions, SequenceFiles to published parts, one worker; "
        f"{statistics.median(each.cpu / millions for each in spent):.3f} CPU seconds; "
        f"{', '.join(f'{name} {seconds:.3f}' for name, seconds in stages.items())}; "
        f"{max(each.resident for each in spent) / 1e9:.2f} GB"
    )
    seconds = [each.seconds / millions for each in spent]
    details = {"builds": [each._asdict() for each in spent]}
    results.put(summary("build seconds per million keys and core", seconds, 0.6, note=note, bound="at most"), details)
    same = [float(each == seen[0]) for each in seen[1:]]
    same.append(float(swapped_halves_are_the_same(folder, min(count, 1_000_000))))
    note = f"1 is yes; {len(seen)} builds, and a base and a delta that swap their records, each shuffled"
    results.put(summary("build is byte-identical", [min(same)], 1, note=note))


def swapped_halves_are_the_same(folder: Path, count: int) -> bool:
    """Whether base and delta become the same full parts when the two swap their (distinct) records."""
    each = count // PARTITIONS // 2
    found = []
    for seed, starts in ((1, (0, each)), (2, (each, 0))):
        store = FileStore(folder / f"half-{seed}")
        for version, start in zip((BASE, DELTA), starts, strict=True):
            kind: Literal["base", "delta"] = "base" if version == BASE else "delta"
            files = [
                write(store, version, kind, number, PARTITIONS, records_of(number, PARTITIONS, start, each, seed))
                for number in range(PARTITIONS)
            ]
            announce(store, version, files, None if version == BASE else BASE)
        builder = builder_of(store, folder / f"scratch-{seed}")
        builder.start()
        try:
            ordered(builder, DELTA)
        finally:
            builder.stop()
        found.append(digests(store, DELTA))
    return found[0] == found[1]


def build_one_partition(store_url: str, scratch: Path) -> tuple[BuildOutcome, int, float, float]:
    """In a process of its own: its memory is what the build took. Wall and CPU seconds last."""
    began, cpu = time.perf_counter(), time.process_time()
    plan = plan_build(BASE, open_store(StoreConfig(url=store_url)))
    outcome = run_task(Task(StoreConfig(url=store_url), plan, "full", 0, fresh_scratch(scratch, BASE)))
    return outcome, high_water(), time.perf_counter() - began, time.process_time() - cpu


def memory(folder: Path, count: int, results: Results) -> None:
    """All keys in one partition, which is far more than the builder holds in memory."""
    store = FileStore(folder / "store")
    keys = publish_base(store, BASE, count, partitions=1)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        outcome, resident, seconds, cpu = pool.submit(build_one_partition, store.url, folder / "scratch").result()
    if outcome.entry is None:
        raise RuntimeError(outcome.failed)
    note = (
        f"GB, the most ever resident; {keys:,} keys x {DIM} as one partition of {outcome.entry.bytes / 1e9:.1f} GB; "
        f"{seconds / keys * 1e6:.3f} s ({cpu / keys * 1e6:.3f} CPU seconds) per million keys, with group files on disk"
    )
    results.put(summary("build memory at 50 M keys", [resident / 1e9], 1.2, note=note, bound="at most"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser)
    parser.add_argument("--keys", type=int, help="of the version; by default 10,000,000, quick 1,000,000")
    parser.add_argument("--large", type=int, help="of the single partition; by default 50,000,000, quick 6,000,000")
    given = parser.parse_args()
    plan = plan_of(given)
    results = Results(given.results, quick=plan.quick or bool(given.keys or given.large))
    keys = given.keys or (1_000_000 if plan.quick else 10_000_000)
    large = given.large or (6_000_000 if plan.quick else 50_000_000)
    measurements: dict[str, Callable[[Path], None]] = {
        "build seconds per million keys and core, build is byte-identical": lambda folder: build_again_and_again(
            folder, keys, plan, results
        ),
        "build memory at 50 M keys": lambda folder: memory(folder, large, results),
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, measure in measurements.items():
        if plan.wants(name):
            with tempfile.TemporaryDirectory(prefix="build-", dir=FOLDER) as folder:
                measure(Path(folder).resolve())
    show(results.read())


if __name__ == "__main__":
    main()
