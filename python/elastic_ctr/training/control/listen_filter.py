"""A seccomp filter with which a process cannot accept connections: the kernel fakes the results of `listen` and `accept`.

Paddle's client opens a server for other trainers while it connects, and no setting turns that off. Closing it afterwards would be too
late, because a connection that was made in between stays open. The server's thread calls `accept` until that returns EAGAIN, so any
other error would keep a core busy and the server from ending.
"""

import ctypes
import errno
import platform

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
