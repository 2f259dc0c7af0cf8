"""The Unix sockets through which a process reaches Paddle's servers, so that Paddle opens no port.

Paddle's server has no access control: any client can run shell commands. Paddle accepts `unix:NUMBER` as an endpoint, the socket
NUMBER in the working directory, to which only this user has access. A server listens there. A trainer on the same machine has links
to the servers' sockets in its own working directory; a trainer in a pod has the sockets of a forwarder there.

Paddle's client opens a server for other trainers while it connects, and no setting turns that off. Closing it afterwards would be too
late, because a connection that was made in between stays open. `listen_nowhere` installs a seccomp filter before: the kernel then
fakes the results of `listen` and `accept`. The server's thread calls `accept` until that returns EAGAIN, so any other error would
keep a core busy and the server from ending.
"""

import ctypes
import errno
import os
import platform
import socket
import stat
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from elastic_ctr.runtime.child_process import python_module, start_child
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


_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
# Offsets in `struct seccomp_data` of the number of the call and of the architecture.
_NUMBER, _ARCHITECTURE = 0, 4
# Return values of the filter: skip the call and return 0, or fail with the error that is added; allow the call.
_DONE, _ALLOW = 0x00050000, 0x7FFF0000
# By machine: AUDIT_ARCH of linux/audit.h, and the numbers of `listen`, `accept` and `accept4`.
_CALLS = {"x86_64": (0xC000003E, 50, 43, 288), "aarch64": (0xC00000B7, 201, 202, 242)}


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("true", ctypes.c_uint8), ("false", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("filter", ctypes.POINTER(_Instruction)))


def listen_nowhere() -> bool:
    """Install the filter for this thread and for all threads and processes that it starts. Return False if the kernel does not support
    it. It needs no privilege, and cannot be undone.
    """
    if (call := _CALLS.get(platform.machine())) is None:
        return False
    architecture, listen, accept, accept4 = call
    instructions = (_Instruction * 9)(
        _Instruction(_LOAD, 0, 0, _ARCHITECTURE),
        _Instruction(_JUMP_IF_EQUAL, 0, 6, architecture),
        _Instruction(_LOAD, 0, 0, _NUMBER),
        _Instruction(_JUMP_IF_EQUAL, 2, 0, listen),
        _Instruction(_JUMP_IF_EQUAL, 2, 0, accept),
        _Instruction(_JUMP_IF_EQUAL, 1, 2, accept4),
        _Instruction(_RETURN, 0, 0, _DONE),
        _Instruction(_RETURN, 0, 0, _DONE | errno.EAGAIN),
        _Instruction(_RETURN, 0, 0, _ALLOW),
    )
    program = _Program(len(instructions), instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    return bool(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0)


class NoSecret(ValueError):
    """The settings have no secret for forwarders to prove."""


def expose(server: Path, *, listen: str, life: str, token: str | None, tls: str | None) -> "subprocess.Popen[bytes]":
    """Forward the TCP address `listen` to the Unix socket `server`, for peers that prove the secret and name this life. Raises NoSecret."""
    return _start(["expose", "--listen", listen, "--socket", str(server), "--life", life], token, tls)


def reach(folder: Path, addresses: Sequence[str], *, token: str | None, tls: str | None) -> "subprocess.Popen[bytes]":
    """Create a socket in `folder` for each server that forwards to its address. Raises NoSecret."""
    servers = [f"{socket_name(index)}={address}" for index, address in enumerate(addresses)]
    return _start(["reach", "--folder", str(folder), *servers], token, tls)


def _start(arguments: list[str], token: str | None, tls: str | None) -> "subprocess.Popen[bytes]":
    if token is None:
        raise NoSecret("auth.internalFile is missing; trainers and pservers of several pods need a secret in common")
    files = ["--token", token, *(["--tls", tls] if tls else []), "--parent", str(os.getpid())]
    command = python_module("elastic_ctr.training.control.forwarder", *arguments, *files)
    return start_child(command, binds_itself=True)
