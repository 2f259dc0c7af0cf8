"""Requests and bytes to a bucket of a published version and of an idle hour, and USD by a price list.

    python -m bench.bucket_costs [--versions 20] [--partitions 60] [--idle-seconds 120] [--write]

A master publishes hours into a real bucket of S3Proxy, with pservers and trainers that write files as the real ones do, but small ones;
cube-transfer, cube-builder and two shards of two cube pods are processes. A relay in front of the bucket counts. A version is counted from
the files of its save until it is live, with its checkpoint, its dictionary and the deletion of old versions. An idle release is counted
once nothing has come for more than a minute. Serving pods are not there: each adds a GET for a file of the network. --write puts the
table into docs/operations/buckets.md.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import bench.tests_path  # noqa: F401 (the next imports need it)
from bench.page import with_table
from contract import release_world
from contract.bucket_world import s3proxy
from contract.publishing_world import Publishing
from contract.relay import Relay, relay
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.store.versions.published_files import published_versions
from training.master import world as training_world

PAGE = Path(__file__).parents[1] / "docs" / "operations" / "buckets.md"
# USD of S3 Standard in us-east-1, each for 1,000 requests, from the public price list; bytes within a region are free.
USD = {"PUT": 0.005, "LIST": 0.005, "GET": 0.0004, "HEAD": 0.0004, "DELETE": 0.0}
# Longer than the longest pause between two scans of cube-transfer.
_SETTLED_SECONDS = 65


class Spent(NamedTuple):
    """Requests by their kind, and bytes to the bucket and from it."""

    requests: Counter[str]
    up: int
    down: int

    @property
    def usd(self) -> float:
        return sum(USD[kind] * count for kind, count in self.requests.items()) / 1000


class Meter:
    """Counts what has passed a relay since the last count."""

    def __init__(self, line: Relay) -> None:
        self._line = line
        self._done = self._up = self._down = 0

    def count(self) -> Spent:
        new, up, down = self._line.requests[self._done :], self._line.up, self._line.down
        kinds = Counter("LIST" if "list-type=2" in each else each.partition(" ")[0] for each in new)
        spent = Spent(kinds, up - self._up, down - self._down)
        self._done, self._up, self._down = self._done + len(new), up, down
        return spent


class Release(release_world.World):
    """Cube's processes with a store of any kind."""

    def __init__(self, root: Path, at: StoreConfig, replicas: int = 1) -> None:
        super().__init__(root, shards=2, replicas=replicas)
        self._at = at

    def role_file(self, kind: str, **given: Any) -> tuple[str, dict[str, Any]]:
        kind, settings = super().role_file(kind, **given)
        return kind, settings | {"store": self._at.model_dump()}

    def start_transfer(self, **options: Any) -> None:
        # The tests look more often.
        super().start_transfer(poll_seconds=1.0, **options)


def measured(folder: Path, versions: int, partitions: int, idle_seconds: float) -> tuple[Spent, Spent]:
    """What one version and one idle hour spend, on average."""
    training_world.MODEL = model = training_world.MODEL.model_copy(update={"partitions": partitions})
    with s3proxy(folder / "server") as server, relay(server.port) as line:
        at = StoreConfig(url=f"s3://{server.bucket()}/models", bucket=server.access(endpoint=line.endpoint))
        release, meter = Release(folder / "release", at, replicas=2), Meter(line)
        (folder / "master").mkdir()
        master = Publishing(folder / "master", training_world.data_of(end=None), model=model, at=at)
        try:
            release.start_all()
            # The first version, a base, and what each process does once.
            for number in range(versions + 1):
                if number == 1:
                    meter.count()
                known = len(master.ledger.saves.versions())
                master.until(lambda known=known: _done(master) > known)
                release.live(published_versions(master.store)[-1])
                if number and number % 50 == 0:
                    print(f"{number} of {versions} versions are live", file=sys.stderr)
            each = meter.count()
            time.sleep(_SETTLED_SECONDS)
            meter.count()
            time.sleep(idle_seconds)
            idle = meter.count()
        finally:
            release.close()
    return scaled(each, 1 / versions), scaled(idle, 3600 / idle_seconds)


def _done(master: Publishing) -> int:
    return sum(each["state"] == "published" for each in master.ledger.saves.versions())


def scaled(spent: Spent, by: float) -> Spent:
    requests = Counter({kind: round(count * by, 1) for kind, count in spent.requests.items()})
    return Spent(requests, round(spent.up * by), round(spent.down * by))


def table_of(each: Spent, idle: Spent, partitions: int) -> list[str]:
    rows = [
        (f"1,000 hourly versions of {partitions} partitions, each with a checkpoint", scaled(each, 1000), ".2f"),
        ("a day of an idle release", scaled(idle, 24), ".3f"),
    ]
    kinds = list(USD)
    return [
        f"| what | {' | '.join(kinds)} | MB up | MB down | USD |",
        f"|---|{'---:|' * (len(kinds) + 3)}",
        *(
            f"| {name} | {' | '.join(f'{spent.requests[kind]:,.0f}' for kind in kinds)} | {spent.up / 1e6:.1f} | {spent.down / 1e6:.1f} "
            f"| {spent.usd:{form}} |"
            for name, spent, form in rows
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", type=int, default=20)
    parser.add_argument("--partitions", type=int, default=60)
    parser.add_argument("--idle-seconds", type=float, default=120)
    parser.add_argument("--write", action="store_true", help="put the table into docs/operations/buckets.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        each, idle = measured(Path(folder), given.versions, given.partitions, given.idle_seconds)
    table = table_of(each, idle, given.partitions)
    print("\n".join(table))
    if given.write:
        PAGE.write_text(with_table(PAGE.read_text(), "docs/operations/buckets.md", "bucket-costs", table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
