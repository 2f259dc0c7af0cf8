"""Starts the forwarders of a pserver and of a trainer, each a process of its own that ends with this one."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from elastic_ctr.training.control.server_sockets import socket_name

_COMMAND = [sys.executable, "-m", "elastic_ctr.training.control.forwarder"]


class NoSecret(ValueError):
    """Forwarders have no secret to prove."""


def expose(server: Path, *, listen: str, life: str, token: str | None, tls: str | None) -> "subprocess.Popen[bytes]":
    """Lead the TCP address `listen` to the Unix socket `server`, for those that prove the secret and mean this life. Raises NoSecret."""
    return _start(["expose", "--listen", listen, "--socket", str(server), "--life", life], token, tls)


def reach(folder: Path, addresses: Sequence[str], *, token: str | None, tls: str | None) -> "subprocess.Popen[bytes]":
    """Make a socket in `folder` for each server, which leads to its address. Raises NoSecret."""
    servers = [f"{socket_name(index)}={address}" for index, address in enumerate(addresses)]
    return _start(["reach", "--folder", str(folder), *servers], token, tls)


def _start(arguments: list[str], token: str | None, tls: str | None) -> "subprocess.Popen[bytes]":
    if token is None:
        raise NoSecret("auth.internalFile is missing; trainers and pservers of several pods need a secret in common")
    files = ["--token", token, *(["--tls", tls] if tls else []), "--parent", str(os.getpid())]
    return subprocess.Popen([*_COMMAND, *arguments, *files], stdin=subprocess.DEVNULL)
