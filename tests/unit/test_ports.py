import contextlib
import subprocess
import sys
from pathlib import Path

from ports import free_port, free_ports

TESTS = Path(__file__).parents[1]


def test_no_port_is_given_away_twice() -> None:
    given = [free_port() for _ in range(500)]
    for count in (100, 3):
        first = free_ports(count)
        given += range(first, first + count)

    assert len(set(given)) == len(given)


def test_the_kernel_gives_none_of_them_to_a_connection_that_goes_out() -> None:
    lowest, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()

    assert max(free_port() for _ in range(500)) < int(lowest)


def test_processes_side_by_side_are_given_different_ports() -> None:
    program = "from ports import free_port; print(*(free_port() for _ in range(300))); input()"
    command = [sys.executable, "-c", program]
    with contextlib.ExitStack() as stack:
        given: list[str] = []
        for _ in range(3):
            other = stack.enter_context(
                subprocess.Popen(command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            assert other.stdout is not None
            given += other.stdout.readline().split()

    assert len(given) == 900
    assert len(set(given)) == 900
