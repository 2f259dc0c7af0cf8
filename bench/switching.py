"""What a version switch costs the lookup loop: a worker's own loop, told of another version twenty times a second.

The loop runs in a process of its own, as in a worker; only the clock around its machine code is added. A switch is the time
from leaving the machine code to entering it again, during which no round is answered.
"""

import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bench import table as tables
from bench.cube_load import our_load
from bench.method import FOLDER, Plan, Results, Sample, Side, compare, summary
from bench.processes import MAX_KEYS, Server
from bench.table import LATER, VERSION, Made
from elastic_ctr.cube.server import lookup_counters as counters
from elastic_ctr.cube.server.holdings import Holdings
from elastic_ctr.cube.server.loop import LookupLoop
from elastic_ctr.runtime.lifecycle import listen

_PAUSE = 0.05
_N, _CONNECTIONS = 300, 64


class _Timed(LookupLoop):
    """Notes when the machine code was left and entered again."""

    def __init__(self, counts: counters.Counts) -> None:
        self.gaps: list[float] = []
        self._left = 0.0
        super().__init__(counts, MAX_KEYS, 256)

    def serve(self) -> None:
        if self._left:
            self.gaps.append(time.perf_counter() - self._left)
        super().serve()
        self._left = time.perf_counter()


def _serve(folder: Path, dim: int) -> None:
    """Obey lines: "on" and "off" for switching, "gaps" for what was noted; ends with its input."""
    first, second = (tables.opened(folder, dim, version) for version in (VERSION, LATER))
    states = [Holdings.of(first), Holdings.of(first, second)]
    loop = _Timed(np.zeros(counters.WIDTH, np.int64))
    loop.replace(states[0], draining=False)
    listening = listen("127.0.0.1", 0)
    loop.listen(listening)
    loop.start()
    print(listening.getsockname()[1], flush=True)
    switching, number = False, 0
    while True:
        if select.select([sys.stdin.buffer], [], [], _PAUSE if switching else None)[0]:
            # One order at a time is under way, so none waits unseen in a buffer.
            order = sys.stdin.buffer.readline().strip()
            if not order:
                break
            switching = order == b"on"
            print(json.dumps(loop.gaps if order == b"gaps" else []), flush=True)
        elif switching:
            number += 1
            loop.replace(states[number % 2], draining=False)
    loop.stop()


class _Loop:
    """The process above."""

    def __init__(self, process: "subprocess.Popen[str]", server: Server) -> None:
        self._process = process
        self.server = server

    def order(self, what: str) -> list[float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        answer: list[float] = json.loads(self._process.stdout.readline())
        return answer


@contextmanager
def _loop(table: Made) -> Iterator[_Loop]:
    command = [sys.executable, "-m", "bench.switching", str(table.folder), str(table.dim)]
    (FOLDER / "logs").mkdir(parents=True, exist_ok=True)
    with (FOLDER / "logs" / "switching.log").open("wb") as log, subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.strip():
                raise RuntimeError(f"the loop did not start; see {log.name}")
            yield _Loop(process, Server(process.pid, int(line)))
        finally:
            process.kill()


def switch_rows(table: Made, plan: Plan, results: Results) -> None:
    names = (
        "version switch under load: microseconds between two rounds",
        "version switch under load: throughput ÷ steady",
    )
    if not any(map(plan.wants, names)):
        return
    keys = tables.asked(table, "uniform", 4_000_000 // _N, _N)
    with _loop(table) as loop:
        load = our_load(loop.server.port, keys, _CONNECTIONS)

        def run(order: str, seconds: float) -> Sample:
            loop.order(order)
            try:
                return load.run(seconds)
            finally:
                loop.order("off")

        switching = Side("switching", lambda seconds: run("on", seconds), lambda: [loop.server.pid])
        steady = Side("steady", lambda seconds: run("off", seconds), lambda: [loop.server.pid])
        compared = compare(names[1], switching, steady, plan)
        gaps = np.array(loop.order("gaps")) * 1e6
        load.close()
    answered = sum(sample.work for sample in compared.ours) / _N
    told = f"{gaps.size} switches, 20 a second; {answered:,.0f} requests answered meanwhile, none failed"
    p99, longest = np.percentile(gaps, 99), gaps.max()
    results.put(
        summary(
            names[0],
            [float(each) for each in gaps],
            100.0,
            bound="at most",
            note=f"{told}; p99 {p99:.0f}, longest {longest:.0f}",
        )
    )
    results.put(summary(names[1], compared.ratios(), 0.9, note=told), compared.details())


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
