import os
import re
import signal
import sys
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]

# pytest-xdist gives a worker one file at a time: fixtures of a module are made once. The tests of these files share none and
# take long, mostly by waiting for processes.
ONE_BY_ONE = re.compile(
    r"tests/pipeline/test_(?!operating|rows)\w+\.py|tests/contract/test_cube_(copies|workers)\.py|tests/unit/cube/agent/test_agent\.py"
)

# How long an example takes says nothing: the first one may compile, and a machine may be busy with something else.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A shell starts what it puts into the background with SIGINT ignored, nohup ignores SIGHUP, and programs that tests start
# would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Each of the many processes that tests start would compile all of its modules anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# numba's cache names types by their modules, those of `bench` included; a process that cannot import them would throw away the
# machine code that all others share.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

# GSSAPI for Kerberos, which `tools/get kerberos` compiles.
if (GSSAPI := ROOT / "build" / "tools" / "kerberos" / "lib").exists():
    sys.path.append(str(GSSAPI))
    os.environ["PYTHONPATH"] += f"{os.pathsep}{GSSAPI}"

# Helm's library is written in Go: collecting garbage less often takes a quarter off the time of rendering.
os.environ.setdefault("GOGC", "400")

# Programs that `tools/get` brought.
os.environ["PATH"] = f"{ROOT / 'build' / 'tools' / 'bin'}:{os.environ['PATH']}"


def one_after_the_other(nodeid: str) -> str:
    """The name of what pytest-xdist gives to one worker: a file, or a single test of ONE_BY_ONE."""
    file = nodeid.partition("::")[0]
    return nodeid if ONE_BY_ONE.fullmatch(file) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    scheduler = import_module("xdist.scheduler").LoadFileScheduling(config, log)
    scheduler._split_scope = one_after_the_other
    return scheduler


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the parts that were not tested, and the command that brings what each needs."""
    absent: dict[tuple[str, str], int] = defaultdict(int)
    for report in terminalreporter.getreports("skipped"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if needs := re.search(r"\bneeds ([^:]+): (.+)", reason):
            absent[needs[1], needs[2]] += 1
    if absent:
        terminalreporter.section("not tested here")
        for (name, command), tests in sorted(absent.items()):
            terminalreporter.line(f"{tests:4} tests need {name}: {command}")
