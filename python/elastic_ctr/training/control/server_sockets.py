"""The Unix sockets through which a process reaches Paddle's servers, so that Paddle opens no port.

Paddle's server has no access control: any client can run shell commands. Paddle accepts `unix:NUMBER` as an endpoint, the socket
NUMBER in the working directory, to which only this user has access. A server listens there. A trainer on the same machine has links
to the servers' sockets in its own working directory; a trainer in a pod has the sockets of a forwarder there.
"""

import os
import socket
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from elastic_ctr.training.control.server_call import ping

_FIRST = 8801
_LINK = "unix:"
_RETRY_SECONDS = 0.05


def socket_name(index: int) -> str:
    """Return the socket's name for the server with this index. It is a number, because Paddle reads it as a port."""
    return str(_FIRST + index)


def paddle_endpoints(servers: int) -> list[str]:
    """Return the servers' endpoints for Paddle, the same in each process."""
    return [f"unix:{socket_name(index)}" for index in range(servers)]


def address_on_this_machine(server_socket: Path) -> str:
    """Return the address of a server's socket for trainers on the same machine."""
    return f"{_LINK}{server_socket}"


def link_sockets(addresses: Sequence[str], folder: Path) -> bool:
    """Create a link to each server's socket in `folder`. Return False if the servers are in other pods and need a forwarder.

    Raises OSError.
    """
    for index in range(len(addresses)):
        (folder / socket_name(index)).unlink(missing_ok=True)
    if not all(each.startswith(_LINK) for each in addresses):
        return False
    for index, address in enumerate(addresses):
        (folder / socket_name(index)).symlink_to(address.removeprefix(_LINK))
    return True


def await_servers(folder: Path, servers: int, timeout: float) -> None:
    """Return when each server answers at its socket in `folder`. Raises OSError with the last failure after `timeout` seconds."""
    ends = time.monotonic() + timeout
    for index in range(servers):
        while True:
            try:
                ping(folder / socket_name(index))
                break
            except OSError:
                if time.monotonic() > ends:
                    raise
                time.sleep(_RETRY_SECONDS)


def close_listeners() -> list[tuple[str, int]]:
    """Close each TCP port that this process listens on, and the connections accepted there. Return the ports' addresses.

    This is for kernels without the filter of `listen_nowhere`: Paddle's client opens a second server, for other trainers, which has no
    access control either. Its descriptor becomes `/dev/null`, because brpc goes on using the number.
    """
    closed = []
    for descriptor, found in _tcp_sockets():
        if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            closed.append(found.getsockname()[:2])
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, descriptor)
            os.close(nothing)
    ports = {port for _, port in closed}
    for _, found in _tcp_sockets():
        if found.getsockname()[1] in ports:
            with suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)
    return closed


def _tcp_sockets() -> Iterator[tuple[int, socket.socket]]:
    """Yield each TCP descriptor of this process, with a duplicate socket that is closed after the step."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (names, of descriptors that come and go)
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as found:
                if found.family in (socket.AF_INET, socket.AF_INET6):
                    yield int(name), found
