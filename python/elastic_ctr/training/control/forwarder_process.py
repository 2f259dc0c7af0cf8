"""Starts the forwarder of a pserver or of a trainer as a process that ends with this one."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from elastic_ctr.runtime.child_process import python_module, start_child
from elastic_ctr.training.control.server_sockets import socket_name


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
