"""`elastic-ctr network`: a network of the user's own, before it is trained."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from elastic_ctr.config.own_network import OWN
from elastic_ctr.config.values_file import Values
from elastic_ctr.operate.cli.entrypoint import reason_of, refuse
from elastic_ctr.operate.cli.given_values import SetFile, ValuesFile, values_of
from elastic_ctr.operate.fitted_text import output_console
from elastic_ctr.operate.local.network_check import CheckRefused, Trial, try_network
from elastic_ctr.training.model.networks.own import FILE

app = typer.Typer(help="A network of your own: try it before a training does.", no_args_is_help=True)


@app.callback()
def _network() -> None:
    """A group, also while it has one command."""


@app.command()
def check(
    values: ValuesFile,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="The network's Python file; that of model.network if none is given."),
    ] = None,
    set_file: SetFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object, with `ok` and the facts or the reason.")
    ] = False,
) -> None:
    """Build the network, train a few batches of drawn records beside a parameter server, export it, and compare its scores with those of serving.

    Nothing of data.source or of the store is read or written. The file runs in processes of this machine, as in trainers.

    Exit codes: 0 it can be trained and served; 1 it cannot (the reason is printed); 2 the values are wrong; 130 stopped by Ctrl-C.
    """
    given = _values(values, set_file, file)
    name = FILE if file is None else str(file)
    try:
        with Console(stderr=True).status("trains a few batches beside a parameter server"):
            trial = try_network(given)
    except CheckRefused as wrong:
        reason = str(wrong).replace(FILE, name)
        if as_json:
            typer.echo(json.dumps({"ok": False, "reason": reason}))
            raise typer.Exit(1) from wrong
        refuse(reason, 1)
    except OSError as failed:
        refuse(reason_of(failed))
    except KeyboardInterrupt:
        refuse("stopped; nothing runs any more", 130)
    if as_json:
        typer.echo(json.dumps({"ok": True, **trial.model_dump(by_alias=True), "values": trial.values}))
    else:
        _print(name, trial)


def _values(files: list[Path], set_file: list[str] | None, file: Path | None) -> Values:
    if file is not None:
        set_file = [*(set_file or []), f"model.network.source={file}"]
    given = values_of(files, set_file)
    if given.model.network.name != OWN:
        refuse(
            f"model.network is {given.model.network.name}, which is built in; name the FILE of a network of your own, or set "
            "model.network.file"
        )
    return given


def _print(name: str, trial: Trial) -> None:
    table = Table(title=f"{name}: dense parameters")
    table.add_column("parameter")
    table.add_column("shape", justify="right")
    table.add_column("values", justify="right")
    for each in trial.parameters:
        table.add_row(each["name"], " x ".join(map(str, each["shape"])), f"{each['values']:,}")
    table.add_section()
    table.add_row("total", "", f"{trial.values:,}")
    output_console().print(table)
    for unchanged in trial.unchanged:
        typer.echo(f"note: {unchanged} did not change in {trial.records:,} records")
    typer.echo(
        f"{name} can be trained and served: serving scores as training does, largest difference {trial.max_abs_diff:.1e}; a record takes "
        f"{trial.training_microseconds:.1f} us to train and {trial.prediction_microseconds:.1f} us to predict, on one thread"
    )
