"""Ports for processes that tests start: each is given away once.

A port that the kernel chose is free again until its process comes to listen: the kernel may choose it for the next one
that asks, or for a connection that goes out.
"""

import itertools
import os
import socket

# Below those that the kernel takes for outgoing connections (net.ipv4.ip_local_port_range, 32768 unless set).
_PORTS = range(10000, 32000)
# Two runs of tests on one machine begin apart.
_BEGIN = (os.getpid() * 97) % len(_PORTS)
_turn = itertools.cycle([*_PORTS[_BEGIN:], *_PORTS[:_BEGIN]])


def free_port() -> int:
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of `count` neighbours."""
    row: list[int] = []
    for port in itertools.islice(_turn, len(_PORTS)):
        if row and port != row[-1] + 1:
            row = []
        row = [*row, port] if _is_free(port) else []
        if len(row) == count:
            return row[0]
    raise RuntimeError(f"no {count} neighbours among the ports {_PORTS.start} to {_PORTS.stop - 1} are free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As who is to listen does: what is left of a connection that has ended is in nobody's way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
