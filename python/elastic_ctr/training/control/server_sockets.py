"""The Unix sockets through which a process reaches Paddle's servers. No port of Paddle is open.

Paddle's server has no access control: whoever connects to it can run shell commands. Paddle accepts `unix:NUMBER` as an endpoint,
the socket NUMBER in the working folder, which belongs to this user alone. A server listens there. A trainer of the same machine has
links to the servers' sockets in its own working folder; a trainer in a pod has the sockets of a forwarder there.
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
    """The socket of the server with this index. Paddle reads the name as a port, so it is a number."""
    return str(_FIRST + index)


def paddle_endpoints(servers: int) -> list[str]:
    """Paddle's own list of the servers, the same for each process."""
    return [f"unix:{socket_name(index)}" for index in range(servers)]


def address_on_this_machine(server_socket: Path) -> str:
    """What a trainer of the same machine is given to find a server's socket."""
    return f"{_LINK}{server_socket}"


def link_sockets(addresses: Sequence[str], folder: Path) -> bool:
    """Put a link to each server's socket into `folder`. False if a forwarder has to make the sockets: the servers are elsewhere.

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
    """Return once each server answers at its socket in `folder`. Raises OSError with the last failure after `timeout` seconds."""
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
    """Close each TCP port that this process listens on, and the connections that came in there. Returns the ports' addresses.

    For kernels that do not take the filter of `listen_nowhere`: Paddle's client opens a second server, for other trainers, which is as
    open as the first. Its descriptor now is `/dev/null`, so that brpc, which goes on using the number, reaches nothing.
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
    """Each descriptor of this process that is one, with a socket of its own that ends with the step."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (names, of descriptors that come and go)
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as found:
                if found.family in (socket.AF_INET, socket.AF_INET6):
                    yield int(name), found
