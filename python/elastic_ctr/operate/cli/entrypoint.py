"""Common code of commands: the check of token files, and one sentence on failure."""

import sys
from typing import NoReturn

import typer

from elastic_ctr.config.role_files import Auth


def refuse(sentence: str, code: int = 2) -> NoReturn:
    """Print the sentence to stderr and end the command; code 2 means that starting it again would not help."""
    print(sentence, file=sys.stderr)  # noqa: T201 (the last words of a command)
    raise typer.Exit(code)


def reason_of(failed: BaseException) -> str:
    """Return the sentence of a failure; for an error of the operating system its file and reason, without its number."""
    if isinstance(failed, OSError) and failed.strerror:
        return failed.strerror if failed.filename is None else f"{failed.filename}: {failed.strerror}"
    return str(failed)


def checked(auth: Auth) -> Auth:
    """Return `auth`. Ends the command with a sentence unless each of its token files has tokens."""
    try:
        auth.rights()
    except (OSError, ValueError) as wrong:
        refuse(f"auth cannot be used: {reason_of(wrong)}")
    return auth
