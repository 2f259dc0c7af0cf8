"""Training with the server behind a Unix socket, and behind forwarders, beside Paddle's own TCP.

    python -m bench.server_sockets [--quick] [--records 800000] [--only forwarders]

Each run is one engine and one server process over the same converted records (deepfm, 26 slots, batches of 4,096), loaded before
the clock starts. `TCP` is what Paddle does by itself: its server listens on a port without any access control. With forwarders server
and engine are in two network namespaces, joined by a pair of virtual interfaces, and so is the TCP that they are compared with;
namespaces need root and `ip`. Runs alternate; a run is compared with the mean of the two TCP runs around it.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench.engine_beside_server import without_paddles_output
from bench.method import Results, Row, arguments, plan_of, show, summary
from bench.training import clicks, converted
from bench.training_pipeline import between
from elastic_ctr.config.model import Model, ModelInput
from elastic_ctr.training.control.proof import new_life

BATCH = 4096
_PORT = 18800
_SERVER_IP, _ENGINE_IP = "10.213.7.1", "10.213.7.2"
_NAMESPACES = ("ctr-bench-server", "ctr-bench-engine")
ONE_MACHINE = "training over a Unix socket ÷ TCP"
FORWARDED = "training through forwarders ÷ TCP, between namespaces"
FORWARDED_TLS = "training through forwarders with TLS ÷ TCP, between namespaces"


def run(way: str, data: Path, folder: Path, records: int) -> None:
    """One run; prints records a second and microseconds of CPU a record. The server is started by the caller."""
    out = without_paddles_output()
    given = ModelInput(tuple((data / "slot.conf").read_text().split()))
    from elastic_ctr.training.model.program import prepare_environment
    from elastic_ctr.training.trainer import engine as trainer

    prepare_environment(folder / "engine")
    if way.startswith("tcp"):
        host = _SERVER_IP if way == "tcp-namespaces" else "127.0.0.1"
        trainer.paddle_endpoints = lambda servers: [f"{host}:{_PORT}"] * servers  # type: ignore[attr-defined]
        trainer.await_servers = lambda *_: _await(host)  # type: ignore[attr-defined]
    engine = trainer.Engine(Model(), given, 1, threads=2, gradient_merge=2)
    engine.connect(1)
    engine.initialise()
    dataset = engine.ready(engine.preload(data / "converted.txt", BATCH), records)
    began, before = time.monotonic(), _cpu()
    engine.train(dataset)
    seconds, used = time.monotonic() - began, _cpu() - before
    os.write(out, f"{records / seconds} {used / records * 1e6}\n".encode())
    os._exit(0)


def _await(host: str) -> None:
    ends = time.monotonic() + 60
    while True:
        with socket.socket() as probe:
            if probe.connect_ex((host, _PORT)) == 0:
                return
        assert time.monotonic() < ends, "Paddle's server does not listen"
        time.sleep(0.05)


def _cpu() -> float:
    """Seconds of CPU of this process and those beside it, which have its parent."""
    total = 0.0
    for each in psutil.Process(os.getppid()).children(recursive=True):
        times = each.cpu_times()
        total += times.user + times.system
    return total


_TCP_SERVER = """
import sys
from elastic_ctr.training.pserver import process
process.paddle_endpoints = lambda _: [sys.argv.pop()]
process.main()
"""


def once(way: str, data: Path, home: Path, records: int, tls: Path | None) -> tuple[float, float]:
    """Records a second, and microseconds of CPU a record, of one way."""
    folder = Path(tempfile.mkdtemp(dir=home))
    (folder / "engine").mkdir(mode=0o700)
    (folder / "token").write_text("bench secret-of-a-bench\n")
    inside = [["ip", "netns", "exec", name] for name in _NAMESPACES] if "namespaces" in way else [[], []]
    slots = tuple((data / "slot.conf").read_text().split())
    spec = {
        "model": Model().model_dump(mode="json", by_alias=True), "input": {"slots": slots}, "servers": 1, "index": 0,
        "scratch": str(folder / "server"),
    }  # fmt: skip
    (folder / "spec.json").write_text(json.dumps(spec))
    processes: list[subprocess.Popen[bytes]] = []

    def start(where: list[str], *command: str) -> None:
        with (folder / f"log-{len(processes)}").open("wb") as log:
            processes.append(subprocess.Popen([*where, sys.executable, *command], stdout=log, stderr=log))

    try:
        if way.startswith("tcp"):
            host = _SERVER_IP if way == "tcp-namespaces" else "127.0.0.1"
            start(inside[0], "-c", _TCP_SERVER, str(folder / "spec.json"), f"{host}:{_PORT}")
        else:
            start(inside[0], "-m", "elastic_ctr.training.pserver.process", str(folder / "spec.json"))
        server, here = folder / "server" / "8801", folder / "engine"
        if way == "unix":
            (here / "8801").symlink_to(server)
        if way.startswith("forwarded"):
            life, forwarder = new_life(), ["-m", "elastic_ctr.training.control.forwarder"]
            common = ["--token", str(folder / "token"), "--parent", str(os.getpid())]
            common += ["--tls", str(tls)] if "tls" in way else []
            listen = f"{_SERVER_IP}:{_PORT}"
            start(inside[0], *forwarder, "expose", "--listen", listen, "--socket", str(server), "--life", life, *common)
            start(inside[1], *forwarder, "reach", "--folder", str(here), *common, f"8801={listen}/{life}")
        command = ["-m", "bench.server_sockets", "--run", way, str(data), str(folder), "--records", str(records)]
        with (folder / "engine.log").open("wb") as log:
            answer = subprocess.run(
                [*inside[1], sys.executable, *command], stdout=subprocess.PIPE, stderr=log, text=True, check=False
            )
        if answer.returncode:
            lines = [file.read_text(errors="replace")[-2000:] for file in sorted(folder.glob("*log*"))]
            raise RuntimeError(f"the engine ended with {answer.returncode}: {lines}")
        speed, cpu = map(float, answer.stdout.split())
        return speed, cpu
    finally:
        for each in processes:
            each.kill()
            each.wait()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def namespaces() -> Iterator[None]:
    """Two network namespaces of this bench, joined by a pair of virtual interfaces."""
    server, engine = _NAMESPACES

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    for name in _NAMESPACES:
        ip("netns", "add", name)
    try:
        ip(
            "link",
            "add",
            "ctr-bench-0",
            "netns",
            server,
            "type",
            "veth",
            "peer",
            "name",
            "ctr-bench-1",
            "netns",
            engine,
        )
        for name, link, address in ((server, "ctr-bench-0", _SERVER_IP), (engine, "ctr-bench-1", _ENGINE_IP)):
            ip("-n", name, "address", "add", f"{address}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in _NAMESPACES:
            ip("netns", "delete", name)


def certificates(folder: Path) -> Path:
    """tls.crt, tls.key and ca.crt, for both sides."""
    folder.mkdir()
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for command in (
        ["req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=bench"],
        ["req", *key, "-keyout", "tls.key", "-out", "tls.csr", "-subj", "/CN=pod"],
        ["x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-days", "2", "-out", "tls.crt"],
    ):
        subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True)
    return folder


def measure(
    name: str, way: str, peer: str, goal: float, repetitions: int, once_of: Callable[[str], tuple[float, float]]
) -> Row:
    """The two ways in turn."""
    peers, ours = [once_of(peer)], []
    for _ in range(repetitions):
        ours.append(once_of(way))
        peers.append(once_of(peer))
    speeds = [[each[0] for each in found] for found in (ours, peers)]
    cpu = [statistics.median(each[1] for each in found) for found in (ours, peers)]
    note = (
        f"{statistics.median(speeds[0]):,.0f} to {statistics.median(speeds[1]):,.0f} records a second, {cpu[0]:.1f} to {cpu[1]:.1f} µs of "
        "CPU a record; one trainer, one pserver, this machine's cores for all"
    )
    return summary(name, between(*speeds), goal, note=note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser)
    parser.add_argument("--records", type=int, help="by default 800,000, quick 100,000")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    plan = plan_of(given)
    records = given.records or (100_000 if plan.quick else 800_000)
    if given.run:
        run(given.run[0], Path(given.run[1]), Path(given.run[2]), records)
    results = Results(given.results, quick=plan.quick or bool(given.records))
    repetitions = 1 if plan.quick else plan.repetitions
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        data = home / "data"
        clicks(data, records)
        converted(data, data / "converted.txt")
        tls = certificates(home / "tls")

        def once_of(way: str) -> tuple[float, float]:
            return once(way, data, home, records, tls)

        if plan.wants(ONE_MACHINE):
            results.put(measure(ONE_MACHINE, "unix", "tcp", 1.0, repetitions, once_of))
        if plan.wants(FORWARDED) or plan.wants(FORWARDED_TLS):
            with namespaces():
                for title, way, goal in (
                    (FORWARDED, "forwarded-namespaces", 0.9),
                    (FORWARDED_TLS, "forwarded-tls-namespaces", 0.75),
                ):
                    if plan.wants(title):
                        results.put(measure(title, way, "tcp-namespaces", goal, repetitions, once_of))
    show(results.read())


if __name__ == "__main__":
    main()
