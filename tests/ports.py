"""Ports for processes that tests start: each is given away once, also between processes that run tests side by side.

A port that the kernel chose is free again until its process comes to listen: the kernel may choose it for the next one
that asks, or for a connection that goes out. Hence a test process claims a block of ports at a time, and holds the claim
until it ends.
"""

import socket

# Below those that the kernel takes for outgoing connections (net.ipv4.ip_local_port_range, 32768 unless set).
_PORTS = range(10000, 32000)
_BLOCK = 200


class _Ports:
    def __init__(self) -> None:
        self._claims: dict[range, socket.socket] = {}
        self._left: list[int] = []

    def neighbours(self, count: int) -> int:
        row: list[int] = []
        while len(row) < count:
            if not self._left:
                # Blocks need not touch each other: a row ends with its block.
                self._left, row = self._claim(), []
            port = self._left.pop(0)
            row = ([*row, port] if not row or port == row[-1] + 1 else [port]) if _is_free(port) else []
        return row[0]

    def _claim(self) -> list[int]:
        for first in range(_PORTS.start, _PORTS.stop, _BLOCK):
            block = range(first, first + _BLOCK)
            if block in self._claims:
                continue
            # A name outside the file system: the kernel keeps it for one holder in each network, and frees it with its
            # process, however that ends.
            claim = socket.socket(socket.AF_UNIX)
            try:
                claim.bind(f"\0elastic-ctr-tests/ports/{first}")
            except OSError:
                claim.close()
                continue
            self._claims[block] = claim
            return list(block)
        raise RuntimeError(f"the ports {_PORTS.start} to {_PORTS.stop - 1} are all claimed by tests of this machine")


_ports = _Ports()


def free_port() -> int:
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of `count` neighbours."""
    return _ports.neighbours(count)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As a server does: the rest of a connection that has ended blocks no port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
