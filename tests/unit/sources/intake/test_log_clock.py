"""The log's time beside a machine's clock that is set."""

from contextlib import closing
from pathlib import Path

import pytest

from elastic_ctr.sources.intake.click_log import ClickLog, Retention
from elastic_ctr.sources.intake.log_clock import LogClock
from elastic_ctr.sources.intake.request_lines import clicks_of
from elastic_ctr.sources.streams.interface import Kept

HOUR = 3600.0


class Machine:
    def __init__(self) -> None:
        self.wall, self.up = 1e9, 50.0

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.up += seconds

    def clock_of(self, log: ClickLog) -> LogClock:
        return LogClock(log, lambda: self.wall, lambda: self.up)


def log_in(folder: Path) -> ClickLog:
    return ClickLog(folder, Retention(72 * HOUR, 1 << 30))


@pytest.mark.parametrize("jump", [80 * HOUR, -80 * HOUR])
def test_lines_are_kept_as_long_as_ever_though_the_clock_is_set_and_the_intake_restarted(
    tmp_path: Path, jump: float, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine()
    with closing(log_in(tmp_path)) as log:
        clock = machine.clock_of(log)
        log.append([clicks_of(b"a\n", 10)], clock())
        machine.passes(10)
        machine.wall += jump
        log.append([clicks_of(b"b\n", 10)], clock())
        assert log.kept == Kept(0, 2)
    with closing(log_in(tmp_path)) as log:
        clock = machine.clock_of(log)
        machine.passes(72 * HOUR - 20)
        log.append([], clock())
        assert log.kept == Kept(0, 2)
        machine.passes(15)
        log.append([], clock())
        assert log.kept == Kept(1, 2)

    assert caplog.text.count(f"this machine's clock was set by {jump:+.1f} s") == 1


def test_a_clock_that_is_put_right_again_is_the_same_as_before(tmp_path: Path) -> None:
    machine = Machine()
    with closing(log_in(tmp_path)) as log:
        clock = machine.clock_of(log)
        for jump in (1e6, -1e6, 30.0, -30.0):
            machine.wall += jump
            clock()

        assert clock() == machine.wall
