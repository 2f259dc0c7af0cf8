"""Freshness of a stream whose bases go to an archive in a bucket, beside that of the same stream without an archive.

    .venv/bin/python -m bench.stream_archive [--pairs 3] [--minutes 3] [--rate 2000] [--keys 200000] [--compact-versions 150]

Each run is one of `bench.stream`, whose store is a folder. The bucket is of S3Proxy on this machine, and compactions make bases so often
that several are copied in each run. The two kinds alternate; a ratio is that of a pair, the goal is 1.2. Exit code 1 if an answer is
wrong, or if a run with an archive has copied no base but the first.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import bench.tests_path  # noqa: F401 (the next imports need it)
from bench.method import ending
from bench.stream import measure, options
from bench.stream_log import click_log
from contract.bucket_world import KEY, SECRET, s3proxy

_WHICH = ("p50", "p99")


def measured(words: list[str], *, archive: bool) -> dict[str, Any]:
    """The document of one run."""
    given = options().parse_args(words)
    with tempfile.TemporaryDirectory(prefix="archive-") as name, click_log("folder", Path(name)) as log:
        if not archive:
            return measure(given, Path(name), log)
        with s3proxy(Path(name) / "s3proxy") as server:
            server.bucket("archive")
            place = {"url": "s3://archive/bases", "bucket": {"endpoint": server.endpoint}}
            return measure(given, Path(name), log, {"archive": place})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    for name, default in (("minutes", "3"), ("rate", "2000"), ("keys", "200000"), ("compact-versions", "150")):
        parser.add_argument(f"--{name}", default=default)
    given = parser.parse_args()
    os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in vars(given).items() if name != "pairs"]
    pairs = []
    for number in range(given.pairs):
        # The first of a pair would always have the warmer caches, or the colder ones.
        order = (True, False) if number % 2 else (False, True)
        found = {archive: measured(words, archive=archive) for archive in order}
        pairs.append(found)
        for archive, one in found.items():
            fresh = ", ".join(f"{which} {one['freshness'][which]:.2f} s" for which in _WHICH)
            bases = f"{one['compactions']} compactions, {one['archived']} bases archived"
            print(f"{'archive' if archive else 'none':7}: {fresh}; {bases}; {one['wrong']} wrong", flush=True)
    for which in _WHICH:
        ratios = sorted(each[True]["freshness"][which] / each[False]["freshness"][which] for each in pairs)
        print(f"{which}: ratio {median(ratios):.2f}, {ratios[0]:.2f} to {ratios[-1]:.2f} (goal: at most 1.2)")
    runs = [one for each in pairs for one in each.values()]
    return 1 if any(one["wrong"] for one in runs) or any(each[True]["archived"] < 2 for each in pairs) else 0


if __name__ == "__main__":
    sys.exit(ending(main))
