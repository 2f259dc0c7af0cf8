import os
import re
import signal
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]

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

# Programs that `tools/get` brought.
os.environ["PATH"] = f"{ROOT / 'build' / 'tools' / 'bin'}:{os.environ['PATH']}"


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
