"""A child process that takes orders over a socket: started here, it dies with the thread that started it."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from elastic_ctr.runtime.lifecycle import dies_with_this_process

_LINE_LIMIT = 64 << 10  # asyncio's own


class Child(NamedTuple):
    """The process, and both ways of our end of the socket."""

    process: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


async def start(
    module: str, arguments: Mapping[str, object], *, descriptors: Sequence[int] = (), line_limit: int = _LINE_LIMIT
) -> Child:
    """Run a module with arguments, with --parent and --control besides: our pid, and its end of the socket.

    It inherits `descriptors` too; a line that it writes has at most `line_limit` bytes. To be called from the main thread: a
    child asks to die with the thread that started it. Raises OSError where no process or memory is to be had.
    """
    ours, theirs = socket.socketpair()
    given = {"parent": os.getpid(), "control": theirs.fileno(), **arguments}
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *(f"--{name}={value}" for name, value in given.items())],
            pass_fds=(theirs.fileno(), *descriptors),
            stdin=subprocess.DEVNULL,
            preexec_fn=dies_with_this_process(),  # noqa: PLW1509 (it calls prctl alone)
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return Child(process, *await asyncio.open_connection(sock=ours, limit=line_limit))
