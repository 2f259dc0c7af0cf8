"""elastic-ctr check: is what runs of use? For `helm test`, and for whoever wants to know."""

import json
import time
from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from elastic_ctr.cli.check_cube import verify_cube
from elastic_ctr.cli.check_serving import verify_serving
from elastic_ctr.cli.checked import Checked, CheckFailed
from elastic_ctr.cli.cluster import PREDICTIONS, TRANSFER, target_of
from elastic_ctr.cli.shared_options import Folder, Where

SETTLE_SECONDS = 15.0
"""A version that goes live, or a pod that goes, may be seen half way: longer than transfer takes to forget a pod."""
_BETWEEN_LOOKS = 0.5
C = TypeVar("C", bound=Checked)

app = typer.Typer(
    help="Say in one sentence whether predictions or lookups are answered, and answered right.", no_args_is_help=True
)
Wait = Annotated[float, typer.Option("--wait", min=0, metavar="SECONDS", help="Wait so long for it to be so.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object, with `ok` and what was seen or the reason.")]


@app.command()
def serving(
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            "-a",
            metavar="HOST:PORT",
            help="A serving's port for predictions.",
            show_default=PREDICTIONS.default,
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="The name that the server gives its model.", show_default="ctr")
    ] = None,
    folder: Folder = None,
    wait: Wait = 0,
    as_json: AsJson = False,
) -> None:
    """Is a prediction answered with a version that is live there?

    Asks for one line with a made-up feasign in each slot of the model: the whole path, not how good the model is. The
    probability must lie between 0 and 1, and the version be the one that serving names.

    Exit codes: 0 yes; 1 no.
    """
    target = target_of(Where(folder), {})
    found, name = address or target.address(PREDICTIONS), target.model(model)
    _tell(lambda: verify_serving(found, name), wait, as_json=as_json)


@app.command()
def cube(
    transfer: Annotated[
        str | None,
        typer.Option("--transfer", metavar="HOST:PORT", help="Where cube-transfer is.", show_default=TRANSFER.default),
    ] = None,
    folder: Folder = None,
    wait: Wait = 0,
    as_json: AsJson = False,
) -> None:
    """Is the live version answered whole?

    Asks every cube-server that the release document names for the live version: the padding key, and a key of each
    partition that it is said to hold. Every partition needs a holder, and copies must agree.

    Exit codes: 0 yes; 1 no.
    """
    found = transfer or target_of(Where(folder), {}).address(TRANSFER)
    _tell(lambda: verify_cube(found), wait, as_json=as_json)


def _tell(look: Callable[[], Checked], wait: float, *, as_json: bool) -> None:
    try:
        seen = until(look, wait)
    except CheckFailed as failed:
        if as_json:
            typer.echo(json.dumps({"ok": False, "reason": str(failed)}))
        else:
            typer.echo(str(failed), err=True)
        raise typer.Exit(1) from failed
    typer.echo(json.dumps({"ok": True, **seen.as_dict()}) if as_json else seen.sentence())


def until(look: Callable[[], C], wait: float) -> C:
    """What is seen, looking again until the time is over. Raises CheckFailed."""
    started = time.monotonic()
    while True:
        try:
            return look()
        except CheckFailed as failed:
            seconds = max(wait, SETTLE_SECONDS if failed.may_pass else 0)
            if time.monotonic() - started >= seconds:
                raise
        time.sleep(_BETWEEN_LOOKS)
