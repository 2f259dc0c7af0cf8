"""Tiny real processes in the place of the roles: a role's config file is the program it runs."""

import http.server
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from elastic_ctr.config.role_files import RoleFile
from elastic_ctr.config.values_file import Values
from elastic_ctr.operate.local import processes as module
from elastic_ctr.operate.local.endpoints import answers
from elastic_ctr.operate.local.plan import Role, RunPlaces
from elastic_ctr.operate.local.processes import Supervisor
from waiting import Clock, until

VALUES = Values.model_validate({"data": {"source": {"url": "file:///logs"}, "start": "20200401/00", "slots": ["a"]}})
STAYS = "import signal\nwhile True: signal.pause()"
DEAF = (
    "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\nwhile True: signal.pause()"
)


def gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def command_beside(folder: Path) -> Path:
    """A python whose folder has an `elastic-ctr` that runs the config file."""
    folder.mkdir(exist_ok=True)
    command = folder / "elastic-ctr"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$3" "$1"\n')
    command.chmod(0o755)
    return folder / "python"


Made = Callable[..., Supervisor]


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def supervised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Iterator[Made]:
    monkeypatch.setattr(module.sys, "executable", str(command_beside(tmp_path / "bin")))  # type: ignore[attr-defined]
    places = RunPlaces(tmp_path, VALUES)
    started: list[Supervisor] = []

    def made(
        *programs: str, health: str | None = None, ends: bool = False, commands: Mapping[int, str] | None = None
    ) -> Supervisor:
        roles = []
        for number, program in enumerate(programs):
            role = Role(f"ctr-role-{number}", (commands or {}).get(number, "role"), RoleFile(), health, ends)
            places.config_file(role).parent.mkdir(exist_ok=True)
            places.config_file(role).write_text(textwrap.dedent(program))
            roles.append(role)
        found = Supervisor(places, roles, {"TOLD": "yes"}, clock)
        started.append(found)
        found.start()
        return found

    yield made
    for each in started:
        each.stop(grace_seconds=0.0)


def watched_until(one: Supervisor, what: Callable[[], bool]) -> None:
    def look() -> bool:
        one.watch()
        return what()

    until(look)


def test_training_gives_way_to_what_answers(supervised: Made) -> None:
    one = supervised(STAYS, STAYS, STAYS, commands={0: "trainer", 1: "serving", 2: "cube-transfer"})

    trainer, serving, transfer = (one.pids()[f"ctr-role-{number}"] for number in (0, 1, 2))

    here, trains, serves, decides = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, trainer, serving, transfer))
    assert (trains, decides, serves) == (min(here + 10, 19), min(here + 5, 19), here)
    # Niceness counts within a session, where the kernel divides cores among sessions first.
    assert {os.getsid(trainer), os.getsid(serving)} == {os.getsid(0)}


def test_all_roles_run_under_their_pods_name_bound_to_this_process(supervised: Made, tmp_path: Path) -> None:
    one = supervised(
        "import os, sys, signal\n"
        "print(os.environ['POD_NAME'], os.environ['TOLD'], sys.argv[1],"
        " os.getpgrp() == os.getpid(), flush=True)\n"
        "signal.pause()",
        STAYS,
    )
    log_file = tmp_path / "logs/ctr-role-0.log"

    until(lambda: log_file.exists() and "\n" in log_file.read_text())

    assert log_file.read_text() == "ctr-role-0 yes role True\n"
    assert sorted(one.pids()) == ["ctr-role-0", "ctr-role-1"]


def test_a_role_that_is_killed_is_started_again_and_the_restart_is_recorded(supervised: Made, clock: Clock) -> None:
    one = supervised(STAYS)
    [first] = one.pids().values()
    os.kill(first, signal.SIGKILL)

    watched_until(one, lambda: bool(one.restarts) and one.restarts[0].seconds is not None)

    [second] = one.pids().values()
    [restart] = one.restarts
    assert second != first
    assert (restart.role, restart.name, restart.reason) == ("role", "ctr-role-0", "killed by SIGKILL")
    assert (restart.at, restart.seconds) == (clock.now, 0.0)


def test_a_role_that_fails_again_and_again_waits_longer_each_time(supervised: Made, clock: Clock) -> None:
    one = supervised("import sys; sys.exit(3)")
    pauses = []
    for number in range(6):
        watched_until(one, lambda number=number: len(one.restarts) == number + 1)  # type: ignore[misc]
        [running] = one._all.values()
        pauses.append(running.restart_at - clock.now)
        clock.now = max(clock.now, running.restart_at)
        one.watch()

    assert pauses == [0, 1, 2, 4, 8, 10]
    assert one.restarts[0].reason == "exit code 3"


def test_a_role_that_never_gets_past_its_start_is_named_and_no_other_role_ends(supervised: Made, clock: Clock) -> None:
    one = supervised("import sys\nprint('no memory for the table')\nsys.exit(3)", STAYS)
    other = one.pids()["ctr-role-1"]

    def named() -> bool:
        one.watch()
        clock.now = max(clock.now, one._all["ctr-role-0"].restart_at)
        return bool(one.problems())

    until(named)

    [problem] = one.problems()
    assert "ctr-role-0 ended 8 times in a row within 10 s of its start" in problem
    assert problem.endswith("no memory for the table")
    watched_until(one, lambda: len(one.restarts) == 8)
    assert one.pids()["ctr-role-1"] == other


def test_a_role_that_ran_for_a_while_is_forgiven_its_failures(supervised: Made, clock: Clock) -> None:
    one = supervised(STAYS)
    for _ in range(2):
        before = len(one.restarts)
        os.kill(next(iter(one.pids().values())), signal.SIGKILL)
        watched_until(one, lambda before=before: len(one.restarts) > before and bool(one.pids()))  # type: ignore[misc]
        clock.now += 11
        one.watch()

    assert [restart.seconds is not None for restart in one.restarts] == [True, True]
    [running] = one._all.values()
    assert running.failures == 0


def test_a_role_that_refuses_what_it_was_given_is_named_and_started_again_after_a_pause(
    supervised: Made, clock: Clock, tmp_path: Path
) -> None:
    mended = tmp_path / "mended"
    one = supervised(
        f"import os, signal, sys\nif os.path.exists({str(mended)!r}): signal.pause()\n"
        "print('starting')\nprint('data.start is missing')\nsys.exit(2)",
        STAYS,
    )
    other = one.pids()["ctr-role-1"]
    watched_until(one, lambda: bool(one.problems()))

    assert one.problems() == ["ctr-role-0 cannot run: starting\ndata.start is missing"]
    assert one.restarts == []
    assert one.pids() == {"ctr-role-1": other}

    mended.touch()
    clock.now += 61
    watched_until(one, lambda: "ctr-role-0" in one.pids())
    clock.now += 11
    one.watch()

    assert one.problems() == []
    assert one.pids()["ctr-role-1"] == other


def test_a_role_whose_log_cannot_be_opened_is_named_with_the_file_and_tried_again(
    supervised: Made, clock: Clock, tmp_path: Path
) -> None:
    log = tmp_path / "logs" / "ctr-role-0.log"
    one = supervised(
        f"import os, pathlib, sys\nos.remove({str(log)!r})\npathlib.Path({str(log)!r}).mkdir()\nsys.exit(2)"
    )

    watched_until(one, lambda: bool(one.problems()))
    unreadable = one.problems()
    clock.now += 61
    one.watch()

    assert unreadable == [f"ctr-role-0 cannot run: {log} cannot be read: Is a directory"]
    [unwritable] = one.problems()
    assert unwritable.startswith("ctr-role-0 cannot be started: ")
    assert "Is a directory" in unwritable
    assert str(log) in unwritable


def test_a_role_that_cannot_be_started_is_named_and_tried_again(supervised: Made, clock: Clock, tmp_path: Path) -> None:
    one = supervised(STAYS)
    program = tmp_path / "bin" / "elastic-ctr"
    [pid] = one.pids().values()
    # Its shell has read the program by then.
    until(lambda: str(program) not in psutil.Process(pid).cmdline())
    program.rename(tmp_path / "bin" / "away")
    os.kill(pid, signal.SIGKILL)
    watched_until(one, lambda: bool(one.problems()))

    assert "ctr-role-0 cannot be started: " in one.problems()[0]

    (tmp_path / "bin" / "away").rename(program)
    clock.now += 11
    watched_until(one, lambda: bool(one.pids()))


def test_a_role_that_may_end_is_not_started_again(supervised: Made) -> None:
    one = supervised("", ends=True)

    watched_until(one, lambda: all(each.done for each in one._all.values()))
    one.watch()

    assert one.pids() == {}
    assert one.restarts == []


def test_a_role_that_may_not_end_is_started_again_even_after_a_good_end(supervised: Made) -> None:
    one = supervised("")

    watched_until(one, lambda: len(one.restarts) == 1)

    assert one.restarts[0].reason == "exit code 0"


def test_a_stop_ends_all_in_order_and_the_deaf_by_force(supervised: Made, tmp_path: Path) -> None:
    one = supervised(STAYS, DEAF)
    pids = list(one.pids().values())
    until(lambda: (tmp_path / "logs/ctr-role-1.log").read_text() == "up\n")

    one.stop(grace_seconds=0.2)
    one.watch()

    assert all(gone(pid) for pid in pids)
    assert one.pids() == {}
    assert one.restarts == []


def test_transfer_is_there_for_as_long_as_a_draining_pod_may_ask_it(supervised: Made, tmp_path: Path) -> None:
    slow = """
        import signal, sys, time
        def end(*_):
            time.sleep(0.3)
            print(time.monotonic(), flush=True)
            sys.exit()
        signal.signal(signal.SIGTERM, end)
        print("up", flush=True)
        while True: signal.pause()
    """
    one = supervised(slow, slow, commands={0: "cube-transfer", 1: "cube-server"})
    logs = [tmp_path / f"logs/ctr-role-{number}.log" for number in range(2)]
    until(lambda: all(log.exists() and log.read_text() == "up\n" for log in logs))

    one.stop()

    transfer, server = (float(log.read_text().split()[-1]) for log in logs)
    assert transfer > server + 0.2


def test_a_supervisor_that_is_killed_takes_its_roles_with_it(tmp_path: Path) -> None:
    command_beside(tmp_path / "bin")
    program = f"""
        import sys
        from pathlib import Path
        from elastic_ctr.config.role_files import RoleFile
        from elastic_ctr.config.values_file import Values
        from elastic_ctr.operate.local.plan import Role, RunPlaces
        from elastic_ctr.operate.local.processes import Supervisor
        sys.executable = {str(tmp_path / "bin/python")!r}
        values = Values.model_validate({{"data": {{"source": {{"url": "file:///x"}}, "start": "20200401/00", "slots": ["a"]}}}})
        places = RunPlaces(Path({str(tmp_path)!r}), values)
        one = Supervisor(places, [Role(f"r-{{n}}", "role", RoleFile(), None) for n in range(2)])
        one.start()
        print(*one.pids().values(), flush=True)
        sys.stdin.read()
    """
    # The roles do nothing to end with their parent: the kernel is told before they begin.
    role = "import signal\nprint('bound', flush=True)\nwhile True: signal.pause()\n"
    (tmp_path / "config").mkdir()
    for number in range(2):
        (tmp_path / f"config/r-{number}.yaml").write_text(role)
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdin is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    for number in range(2):
        log_file = tmp_path / f"logs/r-{number}.log"
        until(lambda log_file=log_file: log_file.read_text() == "bound\n")  # type: ignore[misc]

    process.kill()
    process.wait()
    process.stdout.close()
    process.stdin.close()

    assert len(pids) == 2
    until(lambda: all(gone(pid) for pid in pids))


def test_a_door_answers_or_does_not() -> None:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/healthz" else 503)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"

    found = [answers(f"{url}/healthz"), answers(f"{url}/readyz")]
    server.shutdown()
    server.server_close()
    thread.join()

    assert found == [True, False]
    assert not answers(f"{url}/healthz")
