"""elastic-ctr cube: lookups at cube-servers."""

import json
from typing import Annotated

import typer

from elastic_ctr.operate.cli.entrypoint import refuse
from elastic_ctr.operate.cli.shared_options import Folder, TransferAddress, Where
from elastic_ctr.operate.local.endpoints import EndpointUnavailable, release_document

app = typer.Typer(name="cube", help="Ask the cube.", no_args_is_help=True, callback=lambda: None)


@app.command()
def seek(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Keys, unsigned 64-bit decimal.")],
    address: Annotated[
        list[str] | None,
        typer.Option(
            "--address",
            "-a",
            metavar="HOST:PORT",
            help="A cube-server, may be repeated; when absent those that the release document names as holders.",
        ),
    ] = None,
    version: Annotated[int | None, typer.Option("--version", help="Which version; the live one when absent.")] = None,
    transfer: TransferAddress = None,
    folder: Folder = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Print the values of keys. Exits with 0 when all were found, 1 when some are missing, 2 on an error."""
    import numpy as np

    from elastic_ctr.cube.client.blocking import BlockingCubeClient
    from elastic_ctr.cube.client.connection import CubeUnavailable, VersionNotHeld

    try:
        wanted = np.array([_key(text) for text in keys], np.uint64)
        given = [part for each in address or [] for part in each.split(",")]
        if version is not None and given:
            asked, servers = version, given
        else:
            from elastic_ctr.operate.cli.cluster import target_of
            from elastic_ctr.operate.cli.shared_options import TRANSFER

            asked, servers = _placed(transfer or target_of(Where(folder), {}).address(TRANSFER), version, given)
        with BlockingCubeClient(servers, busy_poll=False) as client:
            values, missing = client.lookup(asked, wanted)
    except (ValueError, CubeUnavailable, VersionNotHeld) as refused:
        refuse(str(refused))
    for key, row, absent in zip(wanted.tolist(), values, missing.tolist(), strict=True):
        if as_json:
            found = None if absent else [float(value) for value in row]
            typer.echo(json.dumps({"key": key, "version": asked, "values": found}))
        else:
            typer.echo(f"{key}\t{asked}\t" + ("missing" if absent else " ".join(f"{value:.6g}" for value in row)))
    if missing.any():
        raise typer.Exit(1)


def _placed(transfer: str, version: int | None, given: list[str]) -> tuple[int, list[str]]:
    """Return the version and its holders, from the release document unless given. Ends the command with a sentence."""
    try:
        document = release_document(transfer)
    except EndpointUnavailable as closed:
        refuse(f"{closed}; say --transfer, or --version and --address to ask a cube-server without it")
    asked = document.live if version is None else version
    if asked is None:
        refuse(f"no version is live yet at {transfer}; say --version for one that is held")
    holders = document.holders.get(asked, {})
    if not given and not holders:
        held = ", ".join(str(each) for each in sorted(document.holders)) or "none"
        refuse(f"no cube-server holds version {asked}; held are: {held}")
    return asked, given or sorted(holders, key=lambda each: (holders[each].draining, each))


def _key(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 64:
        raise ValueError(f"{text!r} is not a key: keys are decimal numbers from 0 to {(1 << 64) - 1}")
    return int(text)
