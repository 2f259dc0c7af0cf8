from pathlib import Path

from ports import free_port, free_ports


def test_no_port_is_given_away_twice() -> None:
    given = [free_port() for _ in range(500)]
    for count in (100, 3):
        first = free_ports(count)
        given += range(first, first + count)

    assert len(set(given)) == len(given)


def test_the_kernel_gives_none_of_them_to_a_connection_that_goes_out() -> None:
    lowest, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()

    assert max(free_port() for _ in range(500)) < int(lowest)
