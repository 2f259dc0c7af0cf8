"""elastic-ctr rollback: make an earlier version live again, and hold it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from elastic_ctr.cli.roles import refuse
from elastic_ctr.local.doors import DoorClosed, ask
from elastic_ctr.runtime.http import read_token

LOCAL_TOKEN = Path("elastic-ctr-local/token")


def rollback(
    version: Annotated[
        int | None, typer.Argument(min=1, help="A version that was live before; `status` lists them.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the newest version.")] = False,
    transfer: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where cube-transfer is.")] = "127.0.0.1:8300",
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="ELASTIC_CTR_TOKEN_FILE",
            help="The file with the token of the run: `token` in the folder of a local run, "
            f"{LOCAL_TOKEN} unless told otherwise.",
        ),
    ] = None,
) -> None:
    """Make an earlier version live and hold it: nothing newer goes live until --resume.

    Exit codes: 0 it is ordered; 2 it is refused or nobody answers (the reason is printed).
    """
    if resume == (version is not None):
        refuse("say either a VERSION to go back to, or --resume to go on with the newest")
    try:
        given = token_file or (LOCAL_TOKEN if LOCAL_TOKEN.exists() else None)
        token = read_token(given)
    except (OSError, ValueError) as wrong:
        refuse(f"the token cannot be read: {wrong}")
    order: dict[str, Any] = {"resume": True} if resume else {"version": version}
    try:
        state = ask(f"http://{transfer}/rollback", order, token=token)
    except DoorClosed as closed:
        refuse(str(closed))
    typer.echo(_told(state))


def _told(state: dict[str, Any]) -> str:
    live = "no version" if state["live"] is None else f"version {state['live']}"
    coming = "" if state["candidate"] is None else f"; version {state['candidate']} is loaded and then goes live"
    if state["held"]:
        return f"{live} is live{coming}; nothing newer goes live until `elastic-ctr rollback --resume`"
    return f"{live} is live{coming}; the newest version goes live when it has passed"
