"""Paddle's own server, and that nothing but its Unix socket leads to it."""

import base64
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from attacks import attacks, raw_answer
from browser import browser
from contract.engine_world import StartedEngine, engine
from elastic_ctr.config.model import Model
from elastic_ctr.runtime.child_process import dies_with_this_process
from elastic_ctr.training.control.proof import new_life
from elastic_ctr.training.control.server_call import connect, ping, rows_at
from ports import free_port

SLOTS = ("a", "b")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedEngine]:
    with engine(tmp_path_factory.mktemp("engine"), Model(partitions=4, embedding_dim=2), SLOTS, pservers=2) as made:
        made.trainers[0].train([(1, 1, {"a": [key], "b": [key + 1000]}) for key in range(1, 41)])
        yield made


def sockets_of_servers(started: StartedEngine) -> list[Path]:
    return [started.folder / f"pserver-{index}" / str(8801 + index) for index in range(2)]


def test_no_process_of_a_training_listens_on_tcp(started: StartedEngine) -> None:
    # A server of buckets may be a child, too.
    own = [each for each in psutil.Process().children() if str(started.folder) in " ".join(each.cmdline())]
    children = [*own, *(below for each in own for below in each.children(recursive=True))]

    open_to_others = {
        (each.pid, found.laddr, found.status) for each in children for found in each.net_connections(kind="tcp")
    }

    assert len(children) >= 3
    assert [each for each in open_to_others if each[2] in (psutil.CONN_LISTEN, psutil.CONN_ESTABLISHED)] == []
    assert [each.is_socket() for each in sockets_of_servers(started)] == [True, True]


def test_a_trainer_that_cannot_listen_is_idle_between_its_tasks_and_ends(tmp_path: Path) -> None:
    # Paddle's server for other trainers, which takes no connection, once called `accept` without a pause.
    with engine(tmp_path / "engine", Model(partitions=4, embedding_dim=2)) as made:
        [trainer] = [
            each
            for each in psutil.Process().children()
            if str(tmp_path / "engine" / "trainer-1") in " ".join(each.cmdline())
        ]
        before = trainer.cpu_times()
        time.sleep(2)
        after = trainer.cpu_times()
        made.trainers[0].close()
        log = (made.folder / "trainer-1" / "log").read_text()

    assert sum(after[:2]) - sum(before[:2]) < 1
    assert "accept" not in log


_STARTS = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from contract.engine_world import engine
from elastic_ctr.config.model import Model
with engine(Path(sys.argv[1]), Model(partitions=4, embedding_dim=2)) as made:
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_a_stranger_that_connects_again_and_again_while_a_trainer_starts_keeps_no_connection(tmp_path: Path) -> None:
    # Where Paddle's client opens its server for other trainers: the first free port from 8500 on, at the address of the machine's name.
    place = (socket.gethostbyname(socket.gethostname()), 8500)
    with socket.socket() as other:
        if other.connect_ex(place) == 0:
            pytest.skip(f"another program listens on {place}")
    folders = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "unit")]
    started = subprocess.Popen(
        [sys.executable, "-c", _STARTS, str(tmp_path / "engine"), *folders],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=dies_with_this_process(),  # noqa: PLW1509 (it calls prctl alone)
    )  # fmt: skip
    ready = threading.Event()

    def wait() -> None:
        assert started.stdout is not None
        started.stdout.readline()
        ready.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    kept = []
    while not ready.wait(0.001):
        stranger = socket.socket()
        stranger.settimeout(1)
        if stranger.connect_ex(place) == 0:
            kept.append(stranger)
        else:
            stranger.close()
    answered = [raw for raw in (_asked(each) for each in kept) if raw]
    started.communicate(b"\n", timeout=60)
    waiting.join()

    assert answered == []


def _asked(stranger: socket.socket) -> bytes:
    with stranger, suppress(OSError):
        stranger.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        return stranger.recv(1024)
    return b""


def test_only_this_user_reaches_the_folders_of_the_sockets(started: StartedEngine) -> None:
    folders = [each.parent for each in sockets_of_servers(started)] + [started.folder / "trainer-1"]

    assert [oct(each.stat().st_mode & 0o777) for each in folders] == ["0o700"] * 3


def test_a_real_server_is_well_and_counts_its_rows(started: StartedEngine) -> None:
    for path in sockets_of_servers(started):
        ping(path)

    assert sum(rows_at(path, 0) for path in sockets_of_servers(started)) == 80


def test_pings_leave_no_line_in_the_servers_log(started: StartedEngine) -> None:
    log = started.folder / "pserver-0" / "log"
    before = log.read_text()

    for _ in range(5):
        ping(sockets_of_servers(started)[0])

    assert log.read_text() == before


@pytest.fixture(scope="module")
def exposed(started: StartedEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str]]:
    """The port of a forwarder before the first server, and the server's life."""
    token, port, life = tmp_path_factory.mktemp("token") / "token", free_port(), new_life()
    token.write_text("test secret")
    command = [
        "expose",
        "--listen",
        f"127.0.0.1:{port}",
        "--socket",
        str(sockets_of_servers(started)[0]),
        "--life",
        life,
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "elastic_ctr.training.control.forwarder", *command, "--token", str(token), "--parent", str(os.getpid())],
        preexec_fn=dies_with_this_process(),  # noqa: PLW1509 (it calls prctl alone)
    )  # fmt: skip
    ends = time.monotonic() + 60
    while raw_answer(port, b"") == b"":
        assert time.monotonic() < ends
        time.sleep(0.05)
    yield port, life
    process.kill()
    process.wait()


@pytest.mark.parametrize("name", list(attacks(Path())))
def test_an_attack_on_a_pservers_port_runs_and_writes_nothing(
    started: StartedEngine, exposed: tuple[int, str], tmp_path: Path, name: str
) -> None:
    answer = raw_answer(exposed[0], attacks(tmp_path)[name])

    assert answer.startswith(b"ECTRPS1\n")
    assert b"HTTP" not in answer
    assert list(tmp_path.iterdir()) == []
    ping(sockets_of_servers(started)[0])


def test_the_attacks_would_work_on_the_socket_itself(started: StartedEngine, tmp_path: Path) -> None:
    # Otherwise the tests above would show nothing: this is what the folder's mode and the forwarder keep from strangers.
    with connect(sockets_of_servers(started)[1], 30) as inside:
        inside.sendall(attacks(tmp_path)["a save whose path runs a command"])
        assert b"200 OK" in inside.recv(4096)

    assert (tmp_path / "mark-1").exists()


class Page(http.server.BaseHTTPRequestHandler):
    """A page of another origin."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title>")

    def log_message(self, *_: object) -> None:
        pass


def test_a_page_of_another_origin_in_a_real_browser_gets_nothing(exposed: tuple[int, str], tmp_path: Path) -> None:
    server = http.server.HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        with browser(tmp_path) as page:
            page.ask("Page.navigate", url=f"http://localhost:{server.server_port}/")
            found = page.ask(
                "Runtime.evaluate", expression=_fetches(exposed[0], tmp_path), awaitPromise=True, returnByValue=True
            )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

    answers = found["result"]["value"]
    assert len(answers) == 4
    assert {each.split(":")[0] for each in answers} == {"TypeError"}
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(("mark", "stolen", "x"))] == []


def _fetches(port: int, folder: Path) -> str:
    """JavaScript of a list: what each request came to."""
    params = [base64.b64encode(each.encode()).decode() for each in (f"{folder}/x$(touch {folder}/mark-page)", "0")]
    body = json.dumps({"cmd_id": 5, "table_id": 0, "params": params})
    address = f"http://127.0.0.1:{port}"
    requests = [
        (f"{address}/PsService/service", {"method": "POST", "mode": "no-cors", "headers": {"Content-Type": "text/plain"}, "body": body}),
        (f"{address}/PsService/service", {"method": "POST", "body": body}),
        (f"{address}/flags/bvar_dump_file?setvalue={folder}/mark-flag", {"mode": "no-cors"}),
        (f"{address}/flags/bvar_dump?setvalue=true", {"mode": "no-cors"}),
    ]  # fmt: skip
    return (
        f"Promise.all({json.dumps(requests)}.map(([url, options]) => fetch(url, options)"
        ".then(answer => 'answered:' + answer.status + answer.type, failed => failed.name + ':' + failed.message)))"
    )
