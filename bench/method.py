"""How things are measured here: two sides in turn, medians of their ratios, and what the machine did meanwhile.

Numbers of different minutes are not to be compared on a shared machine, so ours and theirs alternate within each repetition and
only the ratio of neighbours counts. A load generator that uses up its core hides how fast a server is: such rows are
marked client-bound, and the work per CPU second of the servers stands beside the plain ratio.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench import own_network

FOLDER = Path("build/bench")
RESULTS = FOLDER / "results.json"
CLIENT_BOUND = 0.95  # cores
_TICKS = os.sysconf("SC_CLK_TCK")
_PACKAGES = (
    "numpy", "numba", "paddlepaddle", "uvloop", "httptools", "orjson", "fastapi", "uvicorn", "redis", "hiredis",
)  # fmt: skip


class Sample(NamedTuple):
    """One run of one side: work done (keys, requests …), its wall seconds, the generator's CPU seconds, latency."""

    work: float
    seconds: float
    client_cpu: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    failed: int = 0


@dataclass(frozen=True)
class Side:
    """What is loaded: `run(seconds)` loads it that long; `pids` are the processes that serve, their children included."""

    name: str
    run: Callable[[float], Sample]
    pids: Callable[[], Iterable[int]] = tuple


@dataclass(frozen=True)
class Plan:
    """How often and how long."""

    repetitions: int = 5
    seconds: float = 1.5
    quick: bool = False
    only: str = ""

    def wants(self, name: str) -> bool:
        return self.only in name


@dataclass(frozen=True)
class Row:
    """A line of the results; bound says which way the goal lies, no goal: it is only told. `otherwise`: it holds by what the note says."""

    name: str
    ratio: float
    min: float
    max: float
    goal: float | None
    note: str = ""
    bound: str = "at least"
    otherwise: bool = False

    @property
    def holds(self) -> bool | None:
        if self.goal is None:
            return None
        return self.otherwise or (self.ratio <= self.goal if self.bound == "at most" else self.ratio >= self.goal)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


@dataclass
class Comparison:
    """Samples of both sides by repetition, and the CPU seconds of their servers."""

    name: str
    ours: list[Sample] = field(default_factory=list)
    theirs: list[Sample] = field(default_factory=list)
    our_cpu: list[float] = field(default_factory=list)
    their_cpu: list[float] = field(default_factory=list)

    @property
    def client_bound(self) -> bool:
        return statistics.median(cores(sample) for sample in self.ours) > CLIENT_BOUND

    def ratios(self) -> list[float]:
        return [rate(a) / rate(b) for a, b in zip(self.ours, self.theirs, strict=True)]

    def ratios_per_cpu(self) -> list[float]:
        """Of work per CPU second of the servers; empty where a server used too little to be read."""
        if min([*self.our_cpu, *self.their_cpu], default=0.0) <= 0:
            return []
        pairs = zip(self.ours, self.our_cpu, self.theirs, self.their_cpu, strict=True)
        return [(a.work / a_cpu) / (b.work / b_cpu) for a, a_cpu, b, b_cpu in pairs]

    def p99_ratios(self) -> list[float]:
        return [a.p99 / b.p99 for a, b in zip(self.ours, self.theirs, strict=True)]

    def row(self, goal: float | None, *, per_cpu_when_client_bound: bool = False, note: str = "") -> Row:
        """The plain ratio of rates; of rates per server CPU second where that is the row's and the client was the limit."""
        per_cpu = self.ratios_per_cpu()
        notes = [note] if note else []
        ratios = self.ratios()
        if self.client_bound:
            notes.append("client-bound")
            if per_cpu_when_client_bound and per_cpu:
                notes.append(f"per server CPU second; plain {statistics.median(ratios):.1f}")
                ratios, per_cpu = per_cpu, []
        if per_cpu:
            notes.append(f"per server CPU second {statistics.median(per_cpu):.1f}")
        notes.append(
            f"{median_rate(self.ours):,.0f} to {median_rate(self.theirs):,.0f} a second; "
            f"generator {statistics.median(map(cores, self.ours)):.2f} and {statistics.median(map(cores, self.theirs)):.2f} cores"
        )
        return summary(self.name, ratios, goal, note="; ".join(notes))

    def details(self) -> dict[str, Any]:
        return {
            "ours": [sample._asdict() for sample in self.ours],
            "theirs": [sample._asdict() for sample in self.theirs],
            "ourServerCpu": self.our_cpu,
            "theirServerCpu": self.their_cpu,
        }


def rate(sample: Sample) -> float:
    return sample.work / sample.seconds


def cores(sample: Sample) -> float:
    """That the load generator used."""
    return sample.client_cpu / sample.seconds


def median_rate(samples: Iterable[Sample]) -> float:
    return statistics.median(map(rate, samples))


def summary(name: str, ratios: Sequence[float], goal: float | None, *, note: str = "", bound: str = "at least") -> Row:
    return Row(name, statistics.median(ratios), min(ratios), max(ratios), goal, note, bound)


def compare(name: str, ours: Side, theirs: Side, plan: Plan) -> Comparison:
    """Load the two in turn, who comes first alternating too. That they answer alike is asserted before, by the caller."""
    result = Comparison(name)
    for side in (ours, theirs):
        side.run(min(0.3, plan.seconds))
    for repetition in range(plan.repetitions):
        order = [(ours, result.ours, result.our_cpu), (theirs, result.theirs, result.their_cpu)]
        for side, samples, cpu in order if repetition % 2 == 0 else reversed(order):
            before = server_cpu(side.pids())
            samples.append(side.run(plan.seconds))
            cpu.append(server_cpu(side.pids()) - before)
            if samples[-1].failed:
                raise RuntimeError(f"{name}: {side.name} failed {samples[-1].failed} requests; nothing is measured so")
    return result


def server_cpu(pids: Iterable[int]) -> float:
    """CPU seconds so far of these processes, all their threads."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def resident_bytes(pid: int) -> int:
    """RSS of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def private_bytes(pid: int) -> int:
    """RSS of a process without the pages of files: those are the machine's to take."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def huge_bytes(pid: int) -> int:
    """How much of a process's memory is in huge pages."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("AnonHugePages:", "FilePmdMapped:")))


def machine() -> dict[str, Any]:
    """What ran this, as far as it matters to the figures."""

    def first(path: str, start: str) -> str:
        lines = Path(path).read_text().splitlines()
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(start)), "")

    def said(*command: str) -> str:
        try:
            return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        except FileNotFoundError:
            return ""

    installed = {found.metadata["Name"].lower(): found.version for found in metadata.distributions()}
    huge = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return {
        "cpu": first("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memoryGB": round(int(first("/proc/meminfo", "MemTotal").split()[0]) / 1e6, 1),
        "kernel": platform.release(),
        "fileSystem": said("stat", "--file-system", "--format", "%T", "."),
        "hugePages": huge.read_text().strip() if huge.exists() else "none",
        "python": platform.python_version(),
        "redisServer": said("redis-server", "--version").partition("v=")[2].split(" ")[0],
        "versions": {name: installed[name] for name in _PACKAGES if name in installed},
        "commit": said("git", "describe", "--always", "--dirty=, changed"),
        "network": "of its own" if own_network.entered() else "of the machine",
        "load": [round(each, 2) for each in os.getloadavg()],
        "measured": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


@dataclass
class Results:
    """The file of results: rows are merged by name, so that each measurement may be run alone, and say when and of what they are.

    `quick`: they are not of the time and the size that the goals are of.
    """

    path: Path = RESULTS
    quick: bool = False

    def put(self, row: Row, details: dict[str, Any] | None = None) -> None:
        document = self.read()
        facts = machine()
        line = {**row.to_json(), "quick": self.quick, "commit": facts["commit"], "measured": facts["measured"]}
        if self.quick:
            line["note"] = f"quick run; {line['note']}".rstrip("; ")
        names = [each["name"] for each in document["rows"]]
        if row.name in names:
            document["rows"][names.index(row.name)] = line
        else:
            document["rows"].append(line)
        document["machine"] = facts
        document.setdefault("details", {})[row.name] = details or {}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".new")
        temporary.write_text(json.dumps(document, indent=1))
        temporary.replace(self.path)
        Console(stderr=True, highlight=False).print(f"  {one_line(line)}")

    def read(self) -> dict[str, Any]:
        if not self.path.exists():
            return {"machine": {}, "rows": []}
        document: dict[str, Any] = json.loads(self.path.read_text())
        return document


def one_line(row: dict[str, Any]) -> str:
    verdict = {True: "holds", False: "MISSED", None: ""}[row["holds"]]
    return f"{row['name']}: {number(row['ratio'])} (goal {goal_of(row)}) {verdict}"


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def goal_of(row: dict[str, Any]) -> str:
    if row["goal"] is None:
        return "none"
    return f"{'≤' if row['bound'] == 'at most' else '≥'} {row['goal']:g}"


def show(document: dict[str, Any]) -> None:
    table = Table(title="Ours ÷ theirs, one run", caption=about(document["machine"]))
    for title, kind in (("what", "left"), ("ratio", "right"), ("min to max", "right"), ("goal", "right"), ("", "left")):
        table.add_column(title, justify="left" if kind == "left" else "right")
    table.add_column("note", overflow="fold")
    for row in document["rows"]:
        verdict = {True: "[green]holds", False: "[red]missed", None: ""}[row["holds"]]
        span = f"{number(row['min'])} to {number(row['max'])}"
        table.add_row(row["name"], number(row["ratio"]), span, goal_of(row), verdict, row["note"])
    Console(width=None if os.isatty(1) else 160).print(table)


def about(facts: dict[str, Any]) -> str:
    """The machine in one line."""
    versions = " ".join(f"{name} {version}" for name, version in facts.get("versions", {}).items())
    redis = f"Redis {server}, " if (server := facts.get("redisServer")) else ""
    return (
        f"{facts.get('cpu')} x {facts.get('cores')}, {facts.get('memoryGB')} GB, Linux {facts.get('kernel')}, "
        f"{facts.get('fileSystem')}, Python {facts.get('python')}, {redis}{versions}, "
        f"network {facts.get('network', 'of the machine')}, load {facts.get('load')}, {facts.get('measured')}"
    )


def plot(document: dict[str, Any], path: Path) -> None:
    """Bars of the ratios, whiskers from min to max, a tick where the goal is. Needs matplotlib."""
    from importlib import import_module

    # By name: only the environment of `make bench` has it.
    import_module("matplotlib").use("Agg")
    plt = import_module("matplotlib.pyplot")

    rows = [row for row in document["rows"] if row["goal"] is not None and row["ratio"] > 0][::-1]
    if not rows:
        return
    figure, axes = plt.subplots(figsize=(9, 0.3 * len(rows) + 1.2))
    places = range(len(rows))
    ratios = [row["ratio"] for row in rows]
    spans = [[row["ratio"] - row["min"] for row in rows], [row["max"] - row["ratio"] for row in rows]]
    axes.barh(places, ratios, color=["#4c9f70" if row["holds"] else "#c8553d" for row in rows], xerr=spans)
    axes.plot([row["goal"] for row in rows], list(places), "k|", markersize=12, label="goal")
    axes.set_yticks(list(places), [row["name"] for row in rows], fontsize=7)
    axes.set_xscale("log")
    axes.set_xlabel("measured (log); | is the goal")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def ending(main: Callable[[], int]) -> int:
    """The exit code of a bench; Ctrl-C ends it in order, without a traceback."""
    try:
        return main()
    except KeyboardInterrupt:
        print("ended before its time, and all that it had started", file=sys.stderr)
        return 130


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="two short repetitions: does it run, and roughly how")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each side in each repetition")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--results", type=Path, default=RESULTS)


def plan_of(given: argparse.Namespace) -> Plan:
    if given.quick:
        return Plan(2, 0.5, quick=True, only=given.only)
    return Plan(given.repetitions, given.seconds, only=given.only)


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long it took."""
    began = time.monotonic()
    yield
    Console(stderr=True, highlight=False).print(f"{what}: {time.monotonic() - began:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description="Show results that were measured, and draw them")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--plot", type=Path, help="write this PNG")
    given = parser.parse_args()
    document = Results(given.results).read()
    show(document)
    if given.plot:
        plot(document, given.plot)


if __name__ == "__main__":
    main()
