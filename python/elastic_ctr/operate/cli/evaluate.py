"""`elastic-ctr evaluate`: how well a version in the store predicts labelled hours or files."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from elastic_ctr.jobs.scoring.order import Order
from elastic_ctr.operate.cli.entrypoint import refuse
from elastic_ctr.operate.cli.next_step import print_next, values_options
from elastic_ctr.operate.cli.scoring import ScoringOptions, end_for_refused, refusals, score
from elastic_ctr.operate.cli.shared_options import Where, grouped
from elastic_ctr.operate.fitted_text import output_console

_COLUMNS = {
    "rows": "{:,}", "refused": "{:,}", "shows": "{:,}", "clicks": "{:,}", "observedCtr": "{:.6f}", "predictedCtr": "{:.6f}",
    "calibration": "{:.4f}", "auc": "{:.6f}", "logloss": "{:.6f}", "mae": "{:.6f}", "rmse": "{:.6f}",
}  # fmt: skip


@grouped
def evaluate(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Files of this machine; hours of data.source if none is given."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR|URL",
            help="Keep what is done there: after an interruption the same command goes on.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    scoring: ScoringOptions = ScoringOptions(),
    where: Where = Where(),
) -> None:
    """Score labelled hours or files with a version in the store, and print AUC, logloss and calibration by hour and in total.

    No cluster and no serving is needed. Rows are read as trainers read them, and scored as serving does.

    Exit codes: 0 done; 1 a file cannot be scored, or more rows than data.maxRefusedShare were refused; 2 the values, the options or
    the version are wrong; 130 stopped.
    """
    if not scoring.stored:
        refuse(
            "say -f VALUES, the values file of the training, which says where rows and versions are; or --pods N in a cluster"
        )
    document = score(Order(deed="evaluate", files=tuple(map(str, files or ())), output=output), scoring, where)
    if as_json:
        typer.echo(json.dumps(document))
    else:
        output_console().print(table_of(document))
    if document["total"]["refused"]:
        typer.echo(refusals(document["total"]), err=True)
    if scoring.values and not as_json:
        print_next("tune", *values_options(scoring.values, scoring.set_file), why="search for better settings")
    end_for_refused(document)


def table_of(document: dict[str, Any]) -> Table:
    table = Table(title=f"version {document['version']}")
    table.add_column("split")
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    for split, measured in document["splits"].items():
        table.add_row(split, *_cells(measured))
    table.add_section()
    table.add_row("total", *_cells(document["total"]))
    return table


def _cells(found: dict[str, Any]) -> list[str]:
    return ["-" if found.get(name) is None else form.format(found[name]) for name, form in _COLUMNS.items()]
