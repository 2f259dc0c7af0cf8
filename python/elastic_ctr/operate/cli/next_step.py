"""The next command that a user is likely to need, ready to paste."""

import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import typer

from elastic_ctr.operate.local.run_folder import DEFAULT_FOLDER

_NAME = "elastic-ctr"


def program() -> str:
    """Return the name by which this program was started, so that the next command works in the same shell."""
    given = Path(sys.argv[0])
    if given.name != _NAME or shutil.which(_NAME) == str(given):
        return _NAME
    return str(given)


def command(*words: object) -> str:
    return shlex.join([program(), *map(str, words)])


def dir_option(folder: Path) -> tuple[str, ...]:
    """Return the option for a run's folder; empty for the default folder of all commands."""
    return () if folder.resolve() == DEFAULT_FOLDER.resolve() else ("--dir", shown(folder))


def shown(path: Path) -> str:
    """Return a path relative to the working directory if it is below that."""
    whole, here = path.resolve(), Path.cwd()
    return str(whole.relative_to(here)) if whole.is_relative_to(here) and whole != here else str(whole)


def each_of(option: str, values: Iterable[object]) -> list[str]:
    """Return the values with `option` before each."""
    return [word for value in values for word in (option, str(value))]


def values_options(files: Iterable[Path], set_files: Iterable[str] | None, last: str | None = None) -> list[str]:
    """Return the options that give another command the same values."""
    return [*each_of("-f", files), *each_of("--set-file", set_files or ()), *each_of("--to", [last] if last else ())]


def print_next(*words: object, why: str) -> None:
    """Print the next command to standard error, because standard output is for the result."""
    typer.echo(f"next: {command(*words)}    # {why}", err=True)
