"""The records a second that a stream sustains, beside those of the same records in a folder of an hour.

    .venv/bin/python -m bench.stream_capacity [--rows 4000000]

The same synthetic lines are trained twice by `elastic-ctr local`'s own processes, with one trainer and one pserver. As a stream they all
stand in a followed folder at the start, so that each pass is as large as `data.stream.maxRecords` allows, and each is published, built and
checked. As an hour they are one pass, of which the training phase alone counts. Then clicks come at nine tenths of the stream's own rate for
`--seconds`: the lag must not grow by more than two of the largest passes.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from rich.console import Console

from bench.method import Results, Row, ending
from bench.stream import Producer, Stream
from bench.stream_log import ClickLog, click_log
from bench.training_pipeline import COMMAND, pipeline
from elastic_ctr.features.synthetic import PRESETS, Truth

GOAL = 0.6
# The first passes fill the table and start what is compiled.
SETTLED = 2


def sustained(folder: Path, log: ClickLog, lines: list[bytes], seconds: float) -> tuple[float, float]:
    """Records a second while the backlog is trained, and by how many seconds of clicks the lag grew while they came at 0.9 of that."""
    truth = Truth(PRESETS["easy"], seed=1)
    run = Stream(folder, log, truth, {}, {})
    log.append(lines)
    size, backlog = log.offset / len(lines), log.offset
    with run.session.running():
        run.until(lambda: run.answers_up_to(backlog), "the backlog is trained and live")
        passes = run.status()["passes"][:-1]
        done = [each for each in passes if each["doneAt"] is not None][SETTLED:]
        rate = sum(each["records"] for each in done[1:]) / (done[-1]["doneAt"] - done[0]["doneAt"])
        producer = Producer(truth, log, int(0.9 * rate))
        producing = threading.Thread(target=producer.run, args=(seconds,), daemon=True)
        producing.start()
        lags = []
        try:
            while producing.is_alive():
                time.sleep(1)
                lags.append(run.lag() / size)
        finally:
            producer.stop()
            producing.join()
    half = len(lags) // 2
    return rate, (max(lags[half:]) - max(lags[:half])) / (0.9 * rate)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--quick", action="store_true", help="200,000 rows and ten seconds")
    parser.add_argument("--only", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.quick:
        given.rows, given.seconds = min(given.rows, 200_000), min(given.seconds, 10)
    folder = Path(tempfile.mkdtemp(prefix="capacity-"))
    data = folder / "hours"
    subprocess.run(
        [COMMAND, "synth", "--hours", "1", "--rows", str(given.rows), "--preset", "easy", "--seed", "1", str(data)],
        check=True, capture_output=True,
    )  # fmt: skip
    lines = [line for file in sorted(data.glob("2*/*/part-*")) for line in file.read_bytes().splitlines(keepends=True)]
    # The hour before and after the stream: the machine may change meanwhile.
    hours = [pipeline(data, given.rows, folder)]
    with click_log("folder", folder) as log:
        rate, grew = sustained(folder / "stream", log, lines, given.seconds)
    hours.append(pipeline(data, given.rows, folder))
    shutil.rmtree(folder, ignore_errors=True)
    ratios = sorted(rate / each for each in hours)
    median = sum(ratios) / len(ratios)
    console = Console(highlight=False)
    console.print(
        f"stream {rate:,.0f} records/s, hour {' and '.join(f'{each:,.0f}' for each in hours)}: ratio {median:.2f} (at least {GOAL}); "
        f"at 0.9 of the stream's rate the lag grew by {grew:.1f} s of clicks in the second half of {given.seconds:g} s"
    )
    found = {"stream": rate, "hours": hours, "lagGrewSeconds": grew, "rows": given.rows}
    row = Row("stream: sustained records/s, to those of an hour", median, ratios[0], ratios[-1], GOAL, f"{rate:,.0f}/s")
    Results(quick=given.quick).put(row, found)
    return 0


if __name__ == "__main__":
    sys.exit(ending(main))
