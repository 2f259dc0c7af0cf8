"""The settings and commands of a page of the documents, run as they are written."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import yaml

from pipeline.running import values_for


def blocks(text: str, kind: str) -> list[str]:
    """The fenced blocks of a kind, such as sh, also those of the items of a list."""
    return [
        re.sub(r"^ {3}", "", each, flags=re.MULTILINE) if each.startswith("   ") else each
        for each in re.findall(rf"^ *```{kind}\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    ]


def write_values(folder: Path, values: str) -> None:
    """Write values.yaml, of which only the ports and the number of processes are not as written, and a link to the environment."""
    one = {"replicas": 1}
    given = values_for(folder, [0], "20200401/00", "20200401/00", trainer=one, pserver=one)
    rest = yaml.safe_dump({key: block for key, block in given.items() if key != "data"})
    (folder / "values.yaml").write_text(values + rest)
    (folder / ".venv").symlink_to(sys.prefix)


def run_all(folder: Path, commands: Iterable[str], **environment: str) -> list[subprocess.CompletedProcess[str]]:
    """Run commands one after the other; each must succeed."""
    done = []
    for command in commands:
        done.append(
            subprocess.run(
                ["bash", "-c", command],
                cwd=folder,
                env=os.environ | environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=400,
            )
        )
        assert done[-1].returncode == 0, (command, done[-1].stdout, done[-1].stderr)
    return done
