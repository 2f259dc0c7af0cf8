"""`elastic-ctr dict stat`: what a dictionary part holds, and whether it is whole."""

import json
from pathlib import Path
from typing import Annotated

import typer

from elastic_ctr.cli.entrypoint import reason_of
from elastic_ctr.cube.dictionary.format import DictionaryDamaged, describe

app = typer.Typer(name="dict", help="Look into dictionary parts.", no_args_is_help=True)


@app.callback()
def dictionary() -> None:
    """Look into dictionary parts."""


@app.command()
def stat(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Dictionary parts.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Check every byte of dictionary parts and print what they hold. Exits with 2 when one is damaged."""
    failed = False
    for file in files:
        try:
            facts = describe(file)
        except (DictionaryDamaged, OSError) as refused:
            typer.echo(reason_of(refused), err=True)
            failed = True
            continue
        if as_json:
            typer.echo(json.dumps(facts))
        else:
            for name, value in facts.items():
                typer.echo(f"{name:<12} {'-' if value is None else value}")
    if failed:
        raise typer.Exit(2)
