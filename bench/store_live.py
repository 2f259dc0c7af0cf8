"""Seconds from the first file of a version to its going live, with a bucket as the store beside the file-server.

    python -m bench.store_live [--keys 1000000] [--partitions 60] [--repeats 5] [--latency-ms 20]

cube-transfer, cube-builder and two cube pods are processes, of a release for each store: S3Proxy, which keeps a bucket in memory, and nginx
with the chart's configuration. The files of a base are made before; two threads publish them, as two pservers do. Runs of the two stores
alternate; the ratio is that of each pair. The goal is 1.3. S3Proxy answers in a millisecond; with --latency-ms a relay keeps each request to
it for so long, as one to a cloud takes.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np

import bench.tests_path  # noqa: F401 (the next imports need it)
from bench.bucket_costs import Release
from contract.bucket_world import s3proxy
from contract.file_server_world import file_server_world
from contract.relay import Fate, relay
from contract.release_world import TOKEN
from credentials import tokens
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.formats.seqfile.file_writer import SequenceFileWriter
from elastic_ctr.store.backends import Store, open_store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.donefile import Announcement, announce
from elastic_ctr.store.versions.manifest import VersionManifest
from elastic_ctr.store.versions.published_files import publish

DIM = 9


class Publisher:
    """Publishes bases of the same keys into one store."""

    def __init__(self, store: Store, folder: Path, keys: int, partitions: int) -> None:
        self._store = store
        self._partitions = partitions
        self._announced: dict[int, Announcement] = {}
        self._counts: dict[Path, int] = {}
        folder.mkdir()
        drawn = np.random.default_rng(1).integers(1, 2**63, keys, np.uint64)
        for partition in range(partitions):
            own = drawn[drawn % np.uint64(partitions) == partition]
            file = folder / f"{partition:05d}"
            with SequenceFileWriter(file, seed=str(partition)) as writer:
                writer.write(own, np.full((own.size, DIM), 0.5, np.float32))
            self._counts[file] = own.size

    def publish(self, version: int) -> None:
        def put(numbered: tuple[int, Path]) -> object:
            path = layout.cube_file(version, "base", numbered[0], self._partitions)
            return publish(self._store, numbered[1], path, self._counts[numbered[1]])

        with ThreadPoolExecutor(2) as pservers:
            entries = tuple(pservers.map(put, enumerate(sorted(self._counts))))
        manifest = VersionManifest.model_validate(
            {
                "version": version, "kind": "base", "base": version, "parent": None, "pass_id": "p", "partitions": self._partitions,
                "event_time_max": int(time.time()), "created_at": time.time(), "dim": DIM, "keys": sum(self._counts.values()),
                "slots": ("0",), "sparse_dim": None, "network": "n", "cube_files": entries, "model_files": (), "samples": 0,
                "auc_live": None, "auc_published": None,
            }
        )  # fmt: skip
        self._store.put_bytes(manifest.to_json(), layout.version_manifest(version))
        self._announced = announce(self._store, self._announced)


def runner(folder: Path, at: StoreConfig, keys: int, partitions: int) -> tuple[Release, Callable[[int], float]]:
    """A started release, and a function that publishes a version and returns its seconds until it is live."""
    release = Release(folder, at)
    release.start_all()
    publisher = Publisher(open_store(at, tokens=tokens(TOKEN)), folder / "made", keys, partitions)

    def seconds(version: int) -> float:
        began = time.monotonic()
        publisher.publish(version)
        release.live(version, 300)
        return time.monotonic() - began

    return release, seconds


def slow(seconds: float) -> Callable[[int], Fate]:
    def fate(_: int) -> Fate:
        time.sleep(seconds)
        return "passed"

    return fate


def compared(folder: Path, keys: int, partitions: int, repeats: int, latency_ms: float) -> list[tuple[float, float]]:
    """Seconds of the bucket and of the file-server, for each pair."""
    releases: list[Release] = []
    with ExitStack() as stack:
        proxy = stack.enter_context(s3proxy(folder / "s3proxy", heap="1500m"))
        server = stack.enter_context(file_server_world(token=TOKEN))
        bucket = proxy.store(proxy.bucket())
        if latency_ms:
            line = stack.enter_context(relay(proxy.port))
            line.fate = slow(latency_ms / 1000)
            bucket = StoreConfig(url=bucket.url, bucket=proxy.access(endpoint=line.endpoint))
        try:
            runs = []
            for name, at in (("bucket", bucket), ("server", StoreConfig(url=server.url))):
                release, seconds = runner(folder / name, at, keys, partitions)
                releases.append(release)
                runs.append(seconds)
                # The first one compiles, and a process learns there that the bucket keeps its promises.
                seconds(1)
            pairs = []
            for number in range(repeats):
                # The first of a pair would always have the warmer caches, or the colder ones.
                order = runs if number % 2 else runs[::-1]
                took = {run: run(number + 2) for run in order}
                pairs.append((took[runs[0]], took[runs[1]]))
            return pairs
        finally:
            for release in releases:
                release.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--latency-ms", type=float, default=0, help="added to each request to the bucket")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pairs = compared(Path(folder), given.keys, given.partitions, given.repeats, given.latency_ms)
    ratios = sorted(bucket / server for bucket, server in pairs)
    print("bucket, s | file-server, s")
    print("\n".join(f"{bucket:9.2f} | {server:9.2f}" for bucket, server in pairs))
    print(f"ratio {median(ratios):.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f} (goal: at most 1.3)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
