"""A network for the measured processes alone: a loopback that the machine's packet filter has no rules for."""

import ctypes
import fcntl
import socket
import struct
from pathlib import Path

_LIBC = ctypes.CDLL(None)
# linux/sched.h, linux/sockios.h, linux/if.h.
_CLONE_NEWNET = 0x4000_0000
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


def enter() -> None:
    """In a process that is about to run a measurement (`preexec_fn`). Stays in the machine's network where it must: without root."""
    if _LIBC.unshare(_CLONE_NEWNET):
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def entered() -> bool:
    """Whether this process has no interface but loopback."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return [line.partition(":")[0].strip() for line in lines] == ["lo"]
