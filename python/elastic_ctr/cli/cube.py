"""`elastic-ctr cube`: ask cube-servers directly."""

import json
from collections.abc import Callable
from typing import Annotated

import numpy as np
import typer

from elastic_ctr.cube.client import BlockingCubeClient, CubeUnavailable, VersionNotHeld

app = typer.Typer(name="cube", help="Ask the cube.", no_args_is_help=True)

EXIT_MISSING, EXIT_ERROR = 1, 2


class NoLiveVersion(RuntimeError):
    """There is nobody to say which version is live, or nothing is live yet: the sentence that says so."""


def _nobody_knows() -> int:
    raise NoLiveVersion("nobody here knows which version is live: say --version")


# Who knows the live version: set by whoever knows where cube-transfer is.
live_version: Callable[[], int] = _nobody_knows


@app.callback()
def cube() -> None:
    """Ask the cube."""


@app.command()
def seek(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Keys, unsigned 64-bit decimal.")],
    address: Annotated[
        list[str] | None, typer.Option("--address", "-a", help="host:port of a cube-server; may be repeated.")
    ] = None,
    version: Annotated[int | None, typer.Option("--version", help="Which version; the live one when absent.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Print the values of keys. Exits with 0 when all were found, 1 when some are missing, 2 on an error."""
    try:
        wanted = np.array([_key(text) for text in keys], np.uint64)
        asked = live_version() if version is None else version
        with BlockingCubeClient(
            [part for given in address or ["127.0.0.1:8027"] for part in given.split(",")]
        ) as client:
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


def _key(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 64:
        raise ValueError(f"{text!r} is no key: keys are decimal numbers from 0 to {(1 << 64) - 1}")
    return int(text)
