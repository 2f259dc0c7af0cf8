"""`elastic-ctr predict -f VALUES --output DIR`: predictions of hours or files as files, without a serving."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, cast, get_args

import typer

from elastic_ctr.jobs.scoring.dumps import Dump
from elastic_ctr.jobs.scoring.order import Order
from elastic_ctr.jobs.scoring.outputs import OWN
from elastic_ctr.jobs.scoring.scoring_job import OutputFormat
from elastic_ctr.operate.cli.entrypoint import refuse
from elastic_ctr.operate.cli.scoring import PANEL, ScoringOptions, end_for_refused, score, told
from elastic_ctr.operate.cli.shared_options import Where


@dataclass(frozen=True)
class StoredOptions:
    """Options of the written files."""

    output_format: Annotated[
        str | None, typer.Option("--output-format", rich_help_panel=PANEL, help="csv or parquet.", show_default="csv")
    ] = None
    copy: Annotated[
        str | None,
        typer.Option(
            "--copy", metavar="A,B,…", rich_help_panel=PANEL,
            help="Of rows: columns of text or whole numbers that are written behind the predictions.",
        ),
    ] = None  # fmt: skip

    dump: Annotated[
        list[str] | None,
        typer.Option(
            "--dump", metavar="keys,pooled", rich_help_panel=PANEL,
            help="For finding errors: columns with each slot's keys, or its pooled values (and the numbers) that the network gets.",
        ),
    ] = None  # fmt: skip

    def given(self) -> str | None:
        """Return the name of an option that was given, or None."""
        by_name = {"--output-format": self.output_format, "--copy": self.copy, "--dump": self.dump}
        return next((name for name, value in by_name.items() if value is not None), None)

    def form(self) -> OutputFormat:
        """Ends with a sentence."""
        form = self.output_format or "csv"
        if form not in get_args(OutputFormat):
            refuse(f"--output-format {form} is neither csv nor parquet")
        return cast("OutputFormat", form)

    def copied(self) -> tuple[str, ...]:
        """Ends with a sentence."""
        columns = tuple(self.copy.split(",")) if self.copy else ()
        if strange := [column for column in columns if not column or columns.count(column) > 1 or column in OWN]:
            refuse(f"--copy {self.copy}: {strange[0]!r} is empty, named twice, or a column of the predictions' own")
        return columns

    def dumps(self) -> tuple[Dump, ...]:
        """Ends with a sentence."""
        dumps = tuple(each for given in self.dump or () for each in given.split(","))
        if strange := [each for each in dumps if each not in get_args(Dump) or dumps.count(each) > 1]:
            refuse(f"--dump {','.join(dumps)}: {strange[0]!r} is neither keys nor pooled, or is named twice")
        return cast("tuple[Dump, ...]", dumps)


def predict_stored(
    files: Sequence[str],
    output: str | None,
    scoring: ScoringOptions,
    stored: StoredOptions,
    where: Where,
    *,
    no_clicks: bool,
    as_json: bool,
) -> None:
    """Score and write the files. Ends the command with a sentence if that fails."""
    if output is None:
        refuse("say --output DIR: with -f the predictions are files, one for each part of the input")
    if "-" in files:
        refuse("standard input cannot be cut into tasks and read again: name files, or hours by --from and --to")
    order = Order(
        deed="predict",
        output=output,
        files=tuple(files),
        no_clicks=no_clicks,
        form=stored.form(),
        copied=stored.copied(),
        dumps=stored.dumps(),
    )
    document = score(order, scoring, where)
    if as_json:
        typer.echo(json.dumps({**document, "output": output}))
    typer.echo(told(document), err=True)
    end_for_refused(document)
