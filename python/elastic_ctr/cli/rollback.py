"""elastic-ctr rollback: make an earlier version live again, and hold it."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from elastic_ctr.cli.cluster import TRANSFER, target_of
from elastic_ctr.cli.entrypoint import refuse
from elastic_ctr.cli.kubectl import KubectlFailed
from elastic_ctr.cli.shared_options import Where, grouped
from elastic_ctr.local.endpoints import EndpointUnavailable, ask
from elastic_ctr.local.run_folder import DEFAULT_FOLDER


@grouped
def rollback(
    version: Annotated[
        int | None, typer.Argument(min=1, help="A version that was live before; `status` lists them.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the newest version.")] = False,
    transfer: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where cube-transfer is.", show_default=TRANSFER.default),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="ELASTIC_CTR_TOKEN_FILE",
            help="The file with the token of the run: `token` in the folder of a local run, "
            f"{DEFAULT_FOLDER / 'token'} unless told otherwise. In a cluster the Secret is read, where you may.",
        ),
    ] = None,
    where: Where = Where(),
    as_json: Annotated[bool, typer.Option("--json", help="cube-transfer's own answer.")] = False,
) -> None:
    """Make an earlier version live and hold it: nothing newer goes live until --resume.

    Exit codes: 0 it is ordered; 2 it is refused or nobody answers (the reason is printed).
    """
    if resume == (version is not None):
        refuse("say either a VERSION to go back to, or --resume to go on with the newest")
    target = target_of(where, {"--transfer": transfer})
    order: dict[str, Any] = {"resume": True} if resume else {"version": version}
    try:
        token = target.token(token_file)
        with target.reached(TRANSFER, transfer) as address:
            state = ask(f"http://{address}/rollback", order, token=token)
            if not isinstance(state, dict) or not {"live", "candidate", "promotionPaused"} <= state.keys():
                refuse(f"{address} does not answer as cube-transfer does; give the address of its release document")
    except (EndpointUnavailable, KubectlFailed) as closed:
        refuse(str(closed))
    typer.echo(json.dumps(state) if as_json else _told(state))


def _told(state: dict[str, Any]) -> str:
    live = "no version" if state["live"] is None else f"version {state['live']}"
    coming = "" if state["candidate"] is None else f"; version {state['candidate']} is loaded and then goes live"
    if state["promotionPaused"]:
        return f"{live} is live{coming}; nothing newer goes live until `elastic-ctr rollback --resume`"
    return f"{live} is live{coming}; the newest version goes live when it has passed"
