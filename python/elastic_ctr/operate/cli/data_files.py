"""elastic-ctr dict and elastic-ctr seqfile: inspection of dictionary parts and SequenceFiles."""

from __future__ import annotations

import itertools
import json
import struct
from pathlib import Path
from typing import Annotated

import typer

from elastic_ctr.cube.dictionary.format import DictionaryDamaged, describe
from elastic_ctr.formats.seqfile.file_format import SequenceFileDamaged
from elastic_ctr.formats.seqfile.file_reader import SequenceFileReader
from elastic_ctr.operate.cli.entrypoint import reason_of, refuse

dict_app = typer.Typer(help="Look into dictionary parts.", no_args_is_help=True)
dict_app.callback()(lambda: None)
seqfile_app = typer.Typer(
    no_args_is_help=True, help="Look into the SequenceFiles that carry a model's keys and vectors."
)
seqfile_app.callback()(lambda: None)


@dict_app.command()
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


@seqfile_app.command()
def dump(
    file: Annotated[Path, typer.Argument(help="The SequenceFile.", exists=True, dir_okay=False)],
    limit: Annotated[int | None, typer.Option(min=0, help="Records to print; all of them if it is not given.")] = None,
    inner_lengths: Annotated[
        bool,
        typer.Option(help="Whether keys and values begin with their length; files of the old cube builder do not."),
    ] = True,
    hexadecimal: Annotated[
        bool, typer.Option("--hex", help="Print key and value as bytes, as Hadoop's own tools do.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line; keys are text, as they have 64 bits.")
    ] = False,
) -> None:
    """Print the records of a SequenceFile, uncompressed or compressed with DefaultCodec: key, tab, value.

    Ends with 1 at the place where a file is damaged, after the records before it.
    """
    try:
        with SequenceFileReader(file, inner_lengths=inner_lengths) as reader:
            for key, value in itertools.islice(reader.records(), limit):
                number = None if hexadecimal or len(key) != 8 or len(value) % 4 else int.from_bytes(key, "little")
                floats = [] if number is None else [f"{x:.9g}" for x in struct.unpack(f"<{len(value) // 4}f", value)]
                if as_json and number is None:
                    typer.echo(json.dumps({"key": key.hex(), "value": value.hex()}))
                elif as_json:
                    typer.echo(json.dumps({"key": str(number), "value": [float(text) for text in floats]}))
                elif number is None:
                    typer.echo(f"{key.hex()}\t{value.hex()}")
                else:
                    typer.echo(f"{number}\t{' '.join(floats)}")
    except SequenceFileDamaged as error:
        refuse(str(error), 1)
