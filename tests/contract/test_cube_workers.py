"""`cube-server` as processes: what happens when workers die, hang, or cannot hold what they are to hold."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from cube.parts import values_for, write_parts
from cube.peers import HungUp, Peer
from cube.running import PROCESS, ServerProcess, gone, until, workers_that
from cube.server.asking import KEYS, every_worker_answers, peers_of, refuses
from elastic_ctr.cube.client.blocking import BlockingCubeClient
from elastic_ctr.cube.wire import Status


def test_a_killed_worker_is_replaced_by_one_that_holds_everything(tmp_path: Path) -> None:
    server = ServerProcess(workers=2)
    server.load(1, write_parts(tmp_path, KEYS, partitions=3))
    server.http.post("/drain", json={"draining": True})
    [killed, kept] = server.status()["workers"]

    os.kill(killed, signal.SIGKILL)

    def replaced() -> bool:
        # Whoever accepts answers: a new worker listens only when it holds everything.
        try:
            with Peer(server.port) as peer:
                reply = peer.ask(1, KEYS, 4)
        except (HungUp, ConnectionError):
            return False  # it was accepted by the one that was killed
        assert reply.status == Status.OK
        assert reply.draining
        status = server.status()
        return bool(status["ready"]) and status["workerRestarts"] == 1

    until(replaced)
    workers = server.status()["workers"]
    assert kept in workers
    assert killed not in workers
    for peer in peers_of(server, 30):
        with peer:
            assert peer.ask(1, KEYS, 4).values.tobytes() == values_for(KEYS, 4, 1).tobytes()
    assert server.stop() == 0


def test_a_server_that_listens_on_every_address_answers_lookups_by_ipv4_and_ipv6(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no ::1")
    every = "from elastic_ctr.cube.server.lookup_server import LookupServer as it; it.__init__.__defaults__ = ('::',)"
    server = ServerProcess(workers=2, before=every)
    server.load(1, write_parts(tmp_path, KEYS, partitions=3))

    for host in ("127.0.0.1", "[::1]"):
        with BlockingCubeClient([f"{host}:{server.port}"]) as client:
            values, _ = client.lookup(1, KEYS)
        assert values.tobytes() == values_for(KEYS, 4, 1).tobytes(), host
    assert server.stop() == 0


def _patient(hung_seconds: float) -> str:
    return f"from elastic_ctr.runtime import process_pool as pool; pool.SILENT_SECONDS = 3; pool.HUNG_SECONDS = {hung_seconds}"


def test_a_worker_that_hangs_is_not_ready_and_is_replaced_by_one_that_holds_everything(tmp_path: Path) -> None:
    server = ServerProcess(workers=2, before=_patient(6))
    server.load(1, write_parts(tmp_path, KEYS, partitions=3))
    [hung, kept] = server.status()["workers"]

    os.kill(hung, signal.SIGSTOP)

    until(lambda: not server.ready())
    until(lambda: server.status()["workerRestarts"] == 1 and server.ready())
    assert kept in server.status()["workers"]
    assert gone(hung)
    every_worker_answers(server, 1)
    assert server.stop() == 0


# tests/unit/runtime/test_process_pool.py has the rule with a counted clock, and a worker of test_cube_workers.py hangs in every run.
@pytest.mark.nightly
def test_a_load_goes_on_once_the_worker_that_hangs_is_killed(tmp_path: Path) -> None:
    server = ServerProcess(workers=2, before=_patient(6))
    os.kill(server.status()["workers"][0], signal.SIGSTOP)

    assert server.load(1, write_parts(tmp_path, KEYS, partitions=3)).status_code == 200

    until(lambda: server.status()["workerRestarts"] == 1 and server.ready())
    every_worker_answers(server, 1)
    assert server.stop() == 0


# tests/unit/runtime/test_process_pool.py has the rule with a counted clock, and a worker of test_cube_workers.py hangs in every run.
@pytest.mark.nightly
def test_told_to_end_it_ends_though_a_worker_hangs_over_an_order(tmp_path: Path) -> None:
    server = ServerProcess(workers=2, before=_patient(100_000))
    workers = server.status()["workers"]
    paths = write_parts(tmp_path, KEYS, partitions=3)
    peers = peers_of(server)
    os.kill(workers[0], signal.SIGSTOP)

    def load() -> None:
        with contextlib.suppress(httpx.HTTPError):
            server.load(1, paths)

    loading = threading.Thread(target=load)
    loading.start()
    # The other worker holds it already, so both have been told.
    until(lambda: any(_holds(peer, 1) for peer in peers))
    server.process.terminate()
    try:
        assert server.process.wait(30) == 0
    finally:
        server.process.kill()
        loading.join()
        for peer in peers:
            peer.socket.close()
        server.stop()
    assert all(gone(pid) for pid in workers)


def _holds(peer: Peer, version: int) -> bool:
    peer.socket.settimeout(0.5)
    try:
        return peer.keep_alive(version).status == Status.OK
    except TimeoutError:
        return False  # it is with the one that hangs


def test_after_a_standstill_of_all_processes_nobody_is_killed(tmp_path: Path) -> None:
    server = ServerProcess(workers=2, before=_patient(6))
    workers = server.status()["workers"]

    for pid in (server.process.pid, *workers):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(10)
    for pid in (server.process.pid, *workers):
        os.kill(pid, signal.SIGCONT)
    # Long enough for it to look again.
    time.sleep(3)

    status = server.status()
    assert (status["workers"], status["workerRestarts"], status["ready"]) == (workers, 0, True)
    assert server.stop() == 0


def _holding(version: int, does: str) -> str:
    """For a worker: what happens when it is told to hold that version."""
    return f"""
import ctypes, os, time
from elastic_ctr.cube.server.holdings import Holdings
changed = Holdings.changed
def change(self, assigned, **more):
    if {version} in assigned.versions:
        {does}
    return changed(self, assigned, **more)
Holdings.changed = change
"""


# tests/unit/cube/server/test_worker.py has orders that fail, and a load that ends every worker is in test_cube_workers.py in every run.
@pytest.mark.nightly
def test_a_load_waits_for_a_worker_while_the_only_one_is_replaced(tmp_path: Path) -> None:
    none = tmp_path / "none"
    waits = f"import os, time\nwhile os.path.exists({str(none)!r}): time.sleep(0.1)"
    server = ServerProcess(before=workers_that(waits))
    paths = write_parts(tmp_path, KEYS, partitions=3)
    answers: list[httpx.Response] = []
    none.touch()
    os.kill(server.status()["workers"][0], signal.SIGKILL)
    until(lambda: not server.ready())

    loading = threading.Thread(target=lambda: answers.append(server.load(1, paths)))
    loading.start()
    time.sleep(2)
    before = list(answers), server.loaded()["versions"]
    none.unlink()
    loading.join()

    assert before == ([], {})
    assert [answer.status_code for answer in answers] == [200]
    every_worker_answers(server, 1)
    assert server.stop() == 0


# tests/unit/cube/server/test_worker.py has orders that fail, and a load that ends every worker is in test_cube_workers.py in every run.
@pytest.mark.nightly
def test_while_no_worker_comes_a_load_is_refused_in_the_end_and_a_drain_is_not(tmp_path: Path) -> None:
    few = "from elastic_ctr.cube.server import lookup_workers as workers; workers._NO_WORKER_SECONDS = 1"
    none = tmp_path / "none"
    ends = f"import os; os.path.exists({str(none)!r}) and os._exit(3)"
    server = ServerProcess(before=few + workers_that(ends))
    server.load(1, write_parts(tmp_path / "v1", KEYS, partitions=3))
    none.touch()
    os.kill(server.status()["workers"][0], signal.SIGKILL)
    until(lambda: not server.ready())

    refused = server.load(2, write_parts(tmp_path / "v2", KEYS, partitions=3, version=2))

    assert refused.status_code == 422
    assert "no worker has come to answer lookups within 1 s" in refused.json()["error"]
    assert server.http.post("/drain", json={"draining": True}).status_code == 200
    assert server.http.post("/unload", json={"version": 1, "partitions": [0]}).status_code == 200
    assert (server.loaded()["versions"], server.loaded()["draining"]) == ({"1": [1, 2]}, True)
    assert server.stop() == 0


def _no_room_for(version: int, while_there: Path) -> str:
    """For a worker: it finds no memory for that version as long as there is that file."""
    return _holding(version, f"if os.path.exists({str(while_there)!r}): raise MemoryError('no room')")


# tests/unit/runtime/test_process_pool.py has the rule with a counted clock, and a worker of test_cube_workers.py hangs in every run.
@pytest.mark.nightly
def test_that_it_drains_is_said_at_once_though_a_worker_hangs(tmp_path: Path) -> None:
    server = ServerProcess(workers=2, before=_patient(100_000))
    hung = server.status()["workers"][0]
    os.kill(hung, signal.SIGSTOP)

    with pytest.raises(httpx.ReadTimeout):
        server.http.post("/drain", json={"draining": True}, timeout=1)
    said = server.loaded()["draining"]
    os.kill(hung, signal.SIGCONT)

    assert said
    # The order that nobody waited for goes on.
    until(lambda: all(_drains(server.port) for _ in range(16)))
    assert server.stop() == 0


def _drains(port: int) -> bool:
    with Peer(port) as peer:
        return peer.ask(1, KEYS, 4).draining


# tests/unit/cube/server/test_worker.py has orders that fail, and a load that ends every worker is in test_cube_workers.py in every run.
@pytest.mark.nightly
def test_a_drain_that_a_worker_cannot_carry_out_is_refused_and_may_be_ordered_again(tmp_path: Path) -> None:
    full = tmp_path / "full"
    server = ServerProcess(workers=2, before=workers_that(_no_room_for(1, full)))
    server.load(1, write_parts(tmp_path, KEYS, partitions=3))
    full.touch()

    refused = server.http.post("/drain", json={"draining": True})

    assert (refused.status_code, refused.json()["error"]) == (422, "MemoryError: no room")
    assert not server.loaded()["draining"]
    full.unlink()
    assert server.http.post("/drain", json={"draining": True}).status_code == 200
    assert server.loaded()["draining"]
    assert server.stop() == 0


def test_a_file_that_no_worker_can_open_any_more_is_given_up_and_the_rest_is_answered(tmp_path: Path) -> None:
    server = ServerProcess(workers=2)
    first = write_parts(tmp_path / "v1", KEYS, partitions=3)
    second = write_parts(tmp_path / "v2", KEYS, partitions=3, version=2)
    third = write_parts(tmp_path / "v3", KEYS, partitions=3, version=3)
    for version, paths in ((1, first), (2, second), (3, third)):
        server.load(version, paths)

    os.truncate(second[1].full, 100)
    for files in third.values():
        files.full.unlink()
    for pid in server.status()["workers"]:
        os.kill(pid, signal.SIGKILL)

    until(lambda: server.loaded()["versions"] == {"1": [0, 1, 2], "2": [0, 2]})
    until(server.ready)
    every_worker_answers(server, 1)
    every_worker_answers(server, 2, Status.PARTITION_NOT_HELD)
    every_worker_answers(server, 3, Status.VERSION_NOT_HELD)
    # As the agent does, who sees what is not held.
    again = write_parts(tmp_path / "again", KEYS, partitions=3, version=2)
    again[1].full.replace(second[1].full)
    assert server.load(2, {1: second[1]}, partitions=3).status_code == 200
    every_worker_answers(server, 2)
    assert server.stop() == 0


def test_everything_is_given_up_when_no_worker_can_hold_it_though_the_files_are_whole(tmp_path: Path) -> None:
    full = tmp_path / "full"
    server = ServerProcess(before=workers_that(_no_room_for(1, full)))
    paths = write_parts(tmp_path / "v1", KEYS, partitions=3)
    server.load(1, paths)
    server.http.post("/drain", json={"draining": True})

    full.touch()
    os.kill(server.status()["workers"][0], signal.SIGKILL)

    until(lambda: server.loaded()["versions"] == {})
    until(server.ready)
    assert server.loaded()["draining"]
    full.unlink()
    assert server.load(1, paths).status_code == 200
    every_worker_answers(server, 1)
    assert server.stop() == 0


def test_nothing_is_given_up_while_a_worker_answers_it_still(tmp_path: Path) -> None:
    server = ServerProcess(workers=2)
    paths = write_parts(tmp_path, KEYS, partitions=3)
    server.load(1, paths)
    [killed, kept] = server.status()["workers"]

    paths[1].full.replace(tmp_path / "hidden")
    os.kill(killed, signal.SIGKILL)
    until(lambda: server.status()["workerRestarts"] >= 5)

    assert server.loaded()["versions"] == {"1": [0, 1, 2]}
    assert server.status()["workers"] == [kept]
    every_worker_answers(server, 1)
    assert server.stop() == 0


# tests/unit/cube/server/test_worker.py has orders that fail, and a load that ends every worker is in test_cube_workers.py in every run.
@pytest.mark.nightly
def test_nothing_is_given_up_where_it_is_the_port_that_a_worker_cannot_have(tmp_path: Path) -> None:
    no_port = tmp_path / "no port"
    refusing = f"""
import os
from elastic_ctr.cube.server import lookup_worker as worker
bind = worker.bind
def refuse(*given, **more):
    if os.path.exists({str(no_port)!r}):
        raise OSError("no port")
    return bind(*given, **more)
worker.bind = refuse
"""
    server = ServerProcess(before=workers_that(refusing))
    server.load(1, write_parts(tmp_path, KEYS, partitions=3))

    no_port.touch()
    os.kill(server.status()["workers"][0], signal.SIGKILL)
    until(lambda: server.status()["workerRestarts"] >= 5)
    no_port.unlink()

    until(server.ready)
    assert server.loaded()["versions"] == {"1": [0, 1, 2]}
    every_worker_answers(server, 1)
    assert server.stop() == 0


# With one worker it is the same test: tests/contract/test_cube_workers.py has two in every run.
ONE = pytest.param(1, marks=pytest.mark.nightly)


@pytest.mark.parametrize("workers", [ONE, 2])
def test_a_load_that_ends_every_worker_is_refused_and_what_was_held_is_held_again(tmp_path: Path, workers: int) -> None:
    server = ServerProcess(workers=workers, before=workers_that(_holding(2, "os._exit(3)")))
    server.load(1, write_parts(tmp_path / "v1", KEYS, partitions=3))

    refused = server.load(2, write_parts(tmp_path / "v2", KEYS, partitions=3, version=2))

    assert refused.status_code == 422
    assert "every worker that was to hold it ended over it" in refused.json()["error"]
    assert server.loaded()["versions"] == {"1": [0, 1, 2]}
    until(lambda: server.status()["workerRestarts"] == workers and server.ready())
    every_worker_answers(server, 1)
    assert server.stop() == 0


# tests/unit/runtime/test_process_pool.py has the rule with a counted clock, and a worker of test_cube_workers.py hangs in every run.
@pytest.mark.nightly
def test_a_load_that_is_stuck_until_its_worker_is_killed_is_refused(tmp_path: Path) -> None:
    soon = "from elastic_ctr.cube.server import lookup_workers as workers; workers._ORDER_SECONDS = 4"
    server = ServerProcess(before=soon + workers_that(_holding(2, "time.sleep(1_000_000)")))
    server.load(1, write_parts(tmp_path / "v1", KEYS, partitions=3))

    refused = server.load(2, write_parts(tmp_path / "v2", KEYS, partitions=3, version=2))

    assert refused.status_code == 422
    until(lambda: server.status()["workerRestarts"] == 1 and server.ready())
    assert server.loaded()["versions"] == {"1": [0, 1, 2]}
    every_worker_answers(server, 1)
    assert server.stop() == 0


def test_a_worker_that_finds_no_memory_for_a_load_refuses_it_and_lives(tmp_path: Path) -> None:
    server = ServerProcess(workers=2, before=workers_that(_holding(2, "raise MemoryError('no room')")))
    server.load(1, write_parts(tmp_path / "v1", KEYS, partitions=3))

    refused = server.load(2, write_parts(tmp_path / "v2", KEYS, partitions=3, version=2))

    assert (refused.status_code, refused.json()["error"]) == (422, "MemoryError: no room")
    assert (server.loaded()["versions"], server.status()["workerRestarts"]) == ({"1": [0, 1, 2]}, 0)
    every_worker_answers(server, 1)
    assert server.stop() == 0


# tests/unit/runtime/test_process_pool.py has the rule with a counted clock, and a worker of test_cube_workers.py hangs in every run.
@pytest.mark.nightly
@pytest.mark.parametrize("where", ["in its imports", "over what is held"])
def test_a_worker_that_hangs_while_it_is_started_holds_up_no_change(tmp_path: Path, where: str) -> None:
    from_now_on, hanging = tmp_path / "from now on", tmp_path / "hanging"
    hang = f"""
import os, time
def hang():
    if os.path.exists({str(from_now_on)!r}):
        open({str(hanging)!r}, "w").close()
        time.sleep(1_000_000)
"""
    code = "hang()" if where == "in its imports" else _holding(1, "self.tables or hang()")
    server = ServerProcess(workers=2, before=workers_that(hang + code))
    server.load(1, write_parts(tmp_path / "v1", KEYS, partitions=3))
    from_now_on.touch()
    os.kill(server.status()["workers"][0], signal.SIGKILL)
    until(hanging.exists)

    assert server.http.post("/drain", json={"draining": True}).status_code == 200
    assert server.http.post("/unload", json={"version": 1, "partitions": [0]}).status_code == 200
    if where == "in its imports":
        assert server.load(2, write_parts(tmp_path / "v2", KEYS, partitions=3, version=2)).status_code == 200
        every_worker_answers(server, 2)
    assert not server.ready()
    assert server.stop() == 0


def test_a_worker_whose_lookups_have_failed_ends_and_is_replaced(tmp_path: Path) -> None:
    due = tmp_path / "due"
    failing = f"""
import os
from elastic_ctr.cube.server.loop import LookupLoop
serve = LookupLoop.serve
def fail(self):
    if os.path.exists({str(due)!r}):
        os.unlink({str(due)!r})
        raise MemoryError("a round found no memory")
    serve(self)
LookupLoop.serve = fail
"""
    server = ServerProcess(before=workers_that(failing))
    server.load(1, write_parts(tmp_path, KEYS, partitions=3))

    due.touch()

    until(lambda: server.status()["workerRestarts"] == 1 and server.ready())
    every_worker_answers(server, 1)
    assert server.stop() == 0


# tests/unit/runtime/test_process_pool.py has the rule with a counted clock, and a worker of test_cube_workers.py hangs in every run.
@pytest.mark.nightly
def test_a_worker_that_reads_a_slow_disk_in_is_not_taken_for_one_that_hangs(tmp_path: Path) -> None:
    # As reading in does, it keeps the interpreter: nothing can be said meanwhile.
    slow = workers_that(_holding(1, "ctypes.PyDLL(None).sleep(8)"))
    server = ServerProcess(before=_patient(4) + slow)

    assert server.load(1, write_parts(tmp_path, KEYS, partitions=3)).status_code == 200

    assert server.status()["workerRestarts"] == 0
    every_worker_answers(server, 1)
    assert server.stop() == 0


_NO_PROCESS_AT_FIRST = """
import errno, subprocess
popen, missing = subprocess.Popen, [OSError(errno.EAGAIN, "no process"), OSError(errno.ENOMEM, "no memory")]
def scarce(*given, **more):
    if missing:
        raise missing.pop()
    return popen(*given, **more)
subprocess.Popen = scarce
"""


def test_a_worker_that_cannot_be_started_at_first_is_started_later(tmp_path: Path) -> None:
    server = ServerProcess(workers=2, before=_NO_PROCESS_AT_FIRST)

    assert len(server.status()["workers"]) == 2
    assert server.stop() == 0


def test_a_server_that_can_keep_no_workers_ends(tmp_path: Path) -> None:
    code = """
from elastic_ctr.cube.server import lookup_workers as workers
async def spawn(self, index): raise RuntimeError("nobody thought of this")
workers.Workers._spawn = spawn
"""
    ended = subprocess.run(
        [sys.executable, str(PROCESS), "{}", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert ended.returncode == 1
    assert "nobody thought of this" in ended.stderr


def test_workers_end_with_their_parent_even_when_it_is_killed(tmp_path: Path) -> None:
    server = ServerProcess(workers=2)
    workers = server.status()["workers"]

    server.process.kill()
    server.process.wait()

    until(lambda: all(gone(pid) for pid in workers))
    until(lambda: refuses(server.port))
    server.stop()
