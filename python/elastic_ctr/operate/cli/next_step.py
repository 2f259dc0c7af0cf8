"""The next command that a person is likely to want, ready to paste."""

import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import typer

from elastic_ctr.operate.local.run_folder import DEFAULT_FOLDER

_NAME = "elastic-ctr"


def program() -> str:
    """The name by which this program was started, so that the command works where this one did."""
    given = Path(sys.argv[0])
    if given.name != _NAME or shutil.which(_NAME) == str(given):
        return _NAME
    return str(given)


def command(*words: object) -> str:
    return shlex.join([program(), *map(str, words)])


def dir_option(folder: Path) -> tuple[str, ...]:
    """Of a run: nothing for the folder that commands look into by themselves."""
    return () if folder.resolve() == DEFAULT_FOLDER.resolve() else ("--dir", shown(folder))


def shown(path: Path) -> str:
    """From where the user is, if it lies below."""
    whole, here = path.resolve(), Path.cwd()
    return str(whole.relative_to(here)) if whole.is_relative_to(here) and whole != here else str(whole)


def each_of(option: str, values: Iterable[object]) -> list[str]:
    """`option` before each value."""
    return [word for value in values for word in (option, str(value))]


def print_next(*words: object, why: str) -> None:
    """On standard error: standard output has what was asked for."""
    typer.echo(f"next: {command(*words)}    # {why}", err=True)
