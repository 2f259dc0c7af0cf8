"""Programs that some tests need and a fresh machine may lack; the end of a run lists those that were absent."""

import os
import shutil

import pytest


def needs(name: str, command: str | None = None) -> str:
    """The reason of a skip, in the form that the summary of a run collects: what is absent, what brings it."""
    return f"needs {name}: {command or f'tools/get {name}'}"


def program(name: str) -> str:
    """The path of a program; skips the test where it is absent."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip(needs(name))
    return found
