"""elastic-ctr status: hours, tasks, recoveries, versions, shards, what is live, how fresh it is."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from elastic_ctr.local.doors import DoorClosed, ask
from elastic_ctr.local.report import number
from elastic_ctr.local.view import stage, troubles


def status(
    master: Annotated[str, typer.Option("--address", help="HOST:PORT of the master's status door.")] = "127.0.0.1:8701",
    transfer: Annotated[str, typer.Option(help="HOST:PORT of cube-transfer.")] = "127.0.0.1:8300",
    serving: Annotated[str, typer.Option(help="HOST:PORT of serving's admin door.")] = "127.0.0.1:8401",
    as_json: Annotated[bool, typer.Option("--json", help="The roles' own answers, by role.")] = False,
) -> None:
    """Say where training, versions and serving are.

    Exit codes: 0 all three answer, 1 one or two do, 2 nobody does.
    """
    doors = {"master": master, "transfer": transfer, "serving": serving}
    answers: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for role, address in doors.items():
        try:
            answers[role] = ask(f"http://{address}/status", timeout=5)
        except DoorClosed as closed:  # noqa: PERF203 (the others may answer)
            errors[role] = str(closed)
    if as_json:
        typer.echo(json.dumps({**answers, "errors": errors}))
    else:
        out = Console()
        # As in `local run`: a pipe has no width of its own.
        _show(out if out.is_terminal else Console(width=160), answers, errors)
    raise typer.Exit(0 if not errors else 1 if answers else 2)


def _show(console: Console, answers: dict[str, Any], errors: dict[str, str]) -> None:
    if (master := answers.get("master")) is not None:
        console.print(f"training  {stage(master, None)}", highlight=False)
        if master["waitsFor"]:
            console.print(f"          waits for {master['waitsFor']}", highlight=False)
        for trouble in troubles(master):
            console.print(f"          {trouble}", style="red", highlight=False)
        console.print(_passes(master["passes"]))
        counts = ", ".join(f"{name} {value:,}" for name, value in master["ledger"].items())
        console.print(f"ledger    {counts}", highlight=False)
        for each in master["recoveries"][-5:]:
            seconds = "under way" if each["seconds"] is None else f"{each['seconds']:.1f} s"
            console.print(f"recovery  {each['role']}: {each['reason']} ({seconds})", highlight=False)
    for role in ("transfer", "serving"):
        if (answer := answers.get(role)) is not None:
            console.print(f"{role}", style="bold")
            for key, value in answer.items():
                if value not in (None, [], {}, ""):
                    console.print(f"  {key}: {json.dumps(value)}", highlight=False, soft_wrap=True)
    for sentence in errors.values():
        console.print(sentence, style="red", highlight=False)


def _passes(passes: list[dict[str, Any]]) -> Table:
    shown = Table(header_style="bold", pad_edge=False)
    for name in ("pass", "state", "records", "refused", "AUC before", "AUC after", "version", "kind", "keys"):
        shown.add_column(name, justify="left" if name in ("pass", "state", "kind") else "right")
    for each in passes[-24:]:
        shown.add_row(
            each["pass"],
            each["state"],
            f"{each['records']:,}",
            f"{each['refused']:,}",
            number(each["aucBefore"]),
            number(each["auc"]),
            str(each["version"] or "-"),
            each["kind"] or "-",
            f"{each['keys']:,}",
        )
    return shown
