"""From "pass trained" to "live" for a table of a million keys: seconds of each stage, peak memory of every process.

    python bench/publish.py [--keys 1000000] [--json]

One hour of clicks in which every key is new, through `elastic-ctr local`'s own processes: one trainer, two pservers, two cube
shards. Stages run one after the other unless said; `checkpoint`, `base` and `delta` are Paddle's own saves.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.method import ending
from elastic_ctr.config.load import settings
from elastic_ctr.config.values_file import Values
from elastic_ctr.operate.local.endpoints import ask
from elastic_ctr.operate.local.plan import RunPlaces
from elastic_ctr.operate.local.run_view import stage
from elastic_ctr.operate.local.session import Session

SLOTS = 8
PADDLES_OWN = ("base", "delta", "checkpoint", "batch", "shrink")


def write_hours(folder: Path, keys: int, hours: int) -> None:
    """Lines whose keys are all different; every hour after the first repeats a hundredth of them."""
    rng = np.random.default_rng(1)
    rows = keys // SLOTS
    drawn = rng.integers(1, 2**64 - 1, (rows, SLOTS), dtype=np.uint64)
    for hour in range(hours):
        target = folder / "20200401" / f"{hour:02d}"
        target.mkdir(parents=True)
        chosen = drawn if hour == 0 else drawn[: rows // 100]
        clicks = rng.random(len(chosen)) < 0.2
        with (target / "part-00000").open("w") as out:
            for row, click in zip(chosen.tolist(), clicks.tolist(), strict=True):
                out.write(f"1 {int(click)} " + " ".join(f"{key}:{slot}" for slot, key in enumerate(row)) + "\n")
        (target / "donefile").touch()


def peak_memory(session: Session, peaks: dict[str, float]) -> None:
    """MB, highest so far, of every role and its children: what the kernel noted."""
    for name, pid in session.supervisor.pids().items():
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            for number, each in enumerate([process, *process.children(recursive=True)]):
                with contextlib.suppress(OSError, StopIteration):
                    lines = Path(f"/proc/{each.pid}/status").read_text().splitlines()
                    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
                    # Short-lived pipes of the engine's saves share a name, and the largest of them is shown.
                    label = name if number == 0 else f"{name} > {each.name()}"
                    peaks[label] = max(peaks.get(label, 0.0), peak)


def stages(session: Session, transfer: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a version."""
    found = []
    for one in session.status.to_dict()["passes"] if session.status else ():
        if one["version"] is None:
            continue
        seconds = {name: taken for name, taken in one["seconds"].items() if name != "train"}
        times = transfer["versions"].get(str(one["version"]), {})
        found.append(
            {
                "version": one["version"],
                "kind": one["kind"],
                "keys": one["keys"],
                "stages": seconds,
                "release": times,
                "trainedToLive": round(session.seen[one["version"]].live_at - one["trainedAt"], 2),
            }
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_hours(folder / "data", given.keys, 2)
        values = {
            "data": {
                "source": {"url": f"file://{folder}/data"}, "start": "20200401/00", "end": "20200401/01",
                "slots": list(map(str, range(SLOTS))),
            },
            "master": {"config": {"evaluate": False}},
            "trainer": {"replicas": 1},
        }  # fmt: skip
        session = Session(RunPlaces(folder / "run", settings(Values, values, "bench")))
        peaks: dict[str, float] = {}
        said = ""
        with session.running():
            while True:
                session.look()
                peak_memory(session, peaks)
                now = stage(session.status, session.candidate)
                if now != said:
                    said = now
                    print(now, file=sys.stderr)
                session.raise_for_problems()
                if session.finished():
                    break
                time.sleep(0.3)
            transfer = ask(f"http://{session.places.transfer}/status")
        result: dict[str, Any] = {
            "versions": stages(session, transfer),
            "peakMegabytes": {k: round(v) for k, v in sorted(peaks.items())},
        }
    worst = max(
        (taken for each in result["versions"] for name, taken in each["stages"].items() if name not in PADDLES_OWN),
        default=0.0,
    )
    result["worstOwnStageSeconds"] = worst
    if given.json:
        print(json.dumps(result))
        return 0
    for each in result["versions"]:
        print(
            f"version {each['version']} ({each['kind']}, {each['keys']:,} keys): trained to live {each['trainedToLive']} s"
        )
        for name, taken in each["stages"].items():
            own = "  (Paddle)" if name in PADDLES_OWN else ""
            print(f"  {name:20} {taken:8.2f} s{own}")
        print(f"  release              {json.dumps(each['release'])}")
    print("peak memory, MB")
    for label, peak in result["peakMegabytes"].items():
        print(f"  {label:36} {peak:8,}")
    print(f"slowest stage that is not Paddle's own save: {worst:.2f} s (goal: at most 5)")
    return 0


if __name__ == "__main__":
    sys.exit(ending(main))
