"""elastic-ctr rollback and elastic-ctr pass: orders to a running training or release."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from elastic_ctr.operate.cli.cluster import Target, target_of
from elastic_ctr.operate.cli.entrypoint import refuse
from elastic_ctr.operate.cli.kubectl import KubectlFailed
from elastic_ctr.operate.cli.shared_options import (
    MASTER_STATUS,
    TRANSFER,
    Endpoint,
    MasterAddress,
    OperatorTokenFile,
    TransferAddress,
    Where,
    grouped,
)
from elastic_ctr.operate.local.endpoints import EndpointUnavailable, ask

pass_app = typer.Typer(help="Retry a pass that is stopped.", no_args_is_help=True)
pass_app.callback()(lambda: None)


@grouped
def rollback(
    version: Annotated[
        int | None, typer.Argument(min=1, help="A version that was live before; `status` lists them.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the newest version; ends a publishing hold, too.")
    ] = False,
    transfer: TransferAddress = None,
    token_file: OperatorTokenFile = None,
    where: Where = Where(),
    as_json: Annotated[bool, typer.Option("--json", help="cube-transfer's own answer.")] = False,
) -> None:
    """Make an earlier version live and pause promotion: nothing newer goes live until --resume.

    Exit codes: 0 it is ordered; 2 it is refused or cube-transfer does not answer (the reason is printed).
    """
    if resume == (version is not None):
        refuse("say either a VERSION to go back to, or --resume to go on with the newest")
    target = target_of(where, {"--transfer": transfer})
    order: dict[str, Any] = {"resume": True} if resume else {"version": version}
    address, state = _order(target, TRANSFER, transfer, token_file, "rollback", order)
    if not isinstance(state, dict) or not {"live", "candidate", "promotionPaused"} <= state.keys():
        refuse(f"{address} does not answer as cube-transfer does; give the address of its release document")
    typer.echo(json.dumps(state) if as_json else _sentence(state))


def _sentence(state: dict[str, Any]) -> str:
    live = "no version" if state["live"] is None else f"version {state['live']}"
    coming = "" if state["candidate"] is None else f"; version {state['candidate']} is loaded and then goes live"
    if reason := state.get("endedHold"):
        return (
            f"{live} is live{coming}; publishing goes on. It was held because {reason}. Windows that are trained from now on are the new measure: if "
            "the clicks are still as wrong, versions of them go live, and right clicks will look worse; then go back with `elastic-ctr rollback "
            "VERSION`, and resume once the clicks are right"
        )
    if state["promotionPaused"]:
        return f"{live} is live{coming}; nothing newer goes live until `elastic-ctr rollback --resume`"
    return f"{live} is live{coming}; the newest version goes live when it is validated, unless it was refused"


@pass_app.command()
@grouped
def retry(
    name: Annotated[str, typer.Argument(metavar="PASS", help="A stopped pass, as `status` names it: 20251103/12.")],
    skip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE:OFFSET",
            help="Leave out the record that begins there, as a refused one; repeat it for more. FILE is relative to the source, of a stream "
            "it is the partition; OFFSET is as in the quarantine: a byte, the number of a row of Parquet, or of a message.",
        ),
    ] = None,
    address: MasterAddress = None,
    token_file: OperatorTokenFile = None,
    where: Where = Where(),
) -> None:
    """Begin a stopped pass again after its cause was mended, or without the records that are its cause. Nothing else is restarted.

    Exit codes: 0 the pass is retried; 2 the master refuses or does not answer (the reason is printed).
    """
    skipped = [_record(each) for each in skip or ()]
    target = target_of(where, {"--address": address})
    order = {"pass": name, **({"skip": skipped} if skipped else {})}
    _order(target, MASTER_STATUS, address, token_file, "retry", order)
    typer.echo(f"pass {name} is looked at again; `elastic-ctr status` shows how it goes on")


def _record(text: str) -> dict[str, Any]:
    path, colon, offset = text.rpartition(":")
    if not (colon and path and offset.isascii() and offset.isdecimal()):
        refuse(f"--skip {text} is not FILE:OFFSET, as clicks/20251103/12/part-0:4096, or of a stream PARTITION:OFFSET")
    return {"path": path, "offset": int(offset)}


def _order(
    target: Target, endpoint: Endpoint, given: str | None, token_file: Path | None, path: str, order: dict[str, Any]
) -> tuple[str, Any]:
    """Send an order. Return the address that was called and its answer. Ends the command with a sentence."""
    try:
        tokens = target.tokens(token_file)
        with target.reached(endpoint, given) as address:
            return address, ask(f"http://{address}/{path}", order, tokens=tokens)
    except (EndpointUnavailable, KubectlFailed) as closed:
        refuse(str(closed))
