"""Run the fuzzers: `python -m fuzz --inputs 1000000` in tests/, or `make fuzz`.

Each target runs in a process of its own with numba's bounds checking on. A crash, a hang (a batch that takes minutes),
an error that is none of the parser's own refusals, or an answer that cannot be ends the run with what was fed.
"""

import argparse
import faulthandler
import logging
import os
import subprocess
import sys
import time

from fuzz.checked_code import ROOT, checked_code

NAMES = (
    "cube-server",
    "cube-client",
    "cube-blocking-client",
    "serving-http",
    "serving-rows",
    "click-log",
    "json-rows",
    "sequence-file",
    "prediction-json",
    "published-files",
    "release-state",
    "release-messages",
    "values-file",
    "intake-rows",
    "csv-files",
    "record-files",
    "rotations",
)
_BATCH = 200
_HANG_SECONDS = 300


def run(name: str, inputs: int, seed: int) -> None:
    from fuzz.targets import TARGETS

    target = TARGETS[name](seed)
    began = time.monotonic()
    done = accepted = 0
    while done < inputs:
        faulthandler.dump_traceback_later(_HANG_SECONDS, exit=True)
        count = min(_BATCH, inputs - done)
        accepted += target.batch(count)
        done += count
    faulthandler.cancel_dump_traceback_later()
    seconds = time.monotonic() - began
    print(f"{name}: {done:,} inputs in {seconds:.0f} s, {accepted:,} understood, no crash, no hang", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        faulthandler.enable()
        # Refusals are logged, and there are many.
        logging.disable(logging.CRITICAL)
        for name in given.only:
            run(name, given.inputs, given.seed)
        return 0
    env = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(checked_code())}
    failed = []
    for name in given.only:
        command = [sys.executable, "-m", "fuzz", "--here", "--only", name]
        command += ["--inputs", str(given.inputs), "--seed", str(given.seed)]
        if subprocess.run(command, check=False, env=env, cwd=ROOT / "tests").returncode:
            failed.append(name)
            print(f"{name}: FAILED with seed {given.seed}; its words are above", flush=True)
    print(f"{len(given.only) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
