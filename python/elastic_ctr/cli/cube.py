"""`elastic-ctr cube`: ask cube-servers directly, and end a cube pod in order.

Its functions import what they need: `drain` runs in pods that are going, and must not start half a server for that.
"""

import json
from typing import Annotated

import typer

from elastic_ctr.cli.cube_drain import drain
from elastic_ctr.cli.shared_options import Folder, Where
from elastic_ctr.local.endpoints import EndpointUnavailable, ask

app = typer.Typer(name="cube", help="Ask the cube, or end one of its pods in order.", no_args_is_help=True)
app.command()(drain)

EXIT_MISSING, EXIT_ERROR = 1, 2


class NoLiveVersion(RuntimeError):
    """There is nobody to say which version is live or who holds it, or nothing is live yet: the sentence that says so."""


@app.callback()
def cube() -> None:
    """Ask the cube, or end one of its pods in order."""


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
    transfer: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where cube-transfer is, asked for what --version and --address leave out.",
            show_default="127.0.0.1:8300",
        ),
    ] = None,
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
            from elastic_ctr.cli.cluster import TRANSFER, target_of

            asked, servers = _placed(transfer or target_of(Where(folder), {}).address(TRANSFER), version, given)
        with BlockingCubeClient(servers, busy_poll=False) as client:
            values, missing = client.lookup(asked, wanted)
    except (ValueError, NoLiveVersion, CubeUnavailable, VersionNotHeld) as refused:
        typer.echo(str(refused), err=True)
        raise typer.Exit(EXIT_ERROR) from refused
    for key, row, absent in zip(wanted.tolist(), values, missing.tolist(), strict=True):
        if as_json:
            found = None if absent else [float(value) for value in row]
            typer.echo(json.dumps({"key": key, "version": asked, "values": found}))
        else:
            typer.echo(f"{key}\t{asked}\t" + ("missing" if absent else " ".join(f"{value:.6g}" for value in row)))
    if missing.any():
        raise typer.Exit(EXIT_MISSING)


def _placed(transfer: str, version: int | None, given: list[str]) -> tuple[int, list[str]]:
    """The version and who holds it, from the release document for what is not given. Raises NoLiveVersion."""
    from pydantic import ValidationError

    from elastic_ctr.cube.release import ReleaseDocument

    try:
        document = ReleaseDocument.model_validate(ask(f"http://{transfer}/release"))
    except (EndpointUnavailable, ValidationError) as closed:
        raise NoLiveVersion(
            f"{closed}; say --transfer, or --version and --address to ask a cube-server without it"
        ) from closed
    asked = document.live if version is None else version
    if asked is None:
        raise NoLiveVersion(f"no version is live yet at {transfer}; say --version for one that is held")
    holders = document.holders.get(asked, {})
    if not given and not holders:
        held = ", ".join(str(each) for each in sorted(document.holders)) or "none"
        raise NoLiveVersion(f"no cube-server holds version {asked}; held are: {held}")
    return asked, given or sorted(holders, key=lambda each: (holders[each].draining, each))


def _key(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 64:
        raise ValueError(f"{text!r} is no key: keys are decimal numbers from 0 to {(1 << 64) - 1}")
    return int(text)
