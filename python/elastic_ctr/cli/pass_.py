"""elastic-ctr pass: orders about one pass of the training."""

from pathlib import Path
from typing import Annotated

import typer

from elastic_ctr.cli.cluster import MASTER_STATUS, target_of
from elastic_ctr.cli.entrypoint import refuse
from elastic_ctr.cli.kubectl import KubectlFailed
from elastic_ctr.cli.shared_options import Where, grouped
from elastic_ctr.local.endpoints import EndpointUnavailable, ask
from elastic_ctr.local.run_folder import DEFAULT_FOLDER

app = typer.Typer(help="Retry a pass that is stopped.", no_args_is_help=True)
app.callback()(lambda: None)


@app.command()
@grouped
def retry(
    name: Annotated[str, typer.Argument(metavar="PASS", help="A stopped pass, as `status` names it: 20251103/12.")],
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where the master's status is.", show_default=MASTER_STATUS.default),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="ELASTIC_CTR_TOKEN_FILE",
            help="The file with the token of the run: `token` in the folder of a local run, "
            f"{DEFAULT_FOLDER / 'token'} by default. In a cluster the Secret is read, if you may.",
        ),
    ] = None,
    where: Where = Where(),
) -> None:
    """Begin a stopped pass again after its cause was mended. Nothing else is restarted.

    Exit codes: 0 the pass is retried; 2 the master refuses or does not answer (the reason is printed).
    """
    target = target_of(where, {"--address": address})
    try:
        token = target.token(token_file)
        with target.reached(MASTER_STATUS, address) as reached:
            ask(f"http://{reached}/retry", {"pass": name}, token=token)
    except (EndpointUnavailable, KubectlFailed) as closed:
        refuse(str(closed))
    typer.echo(f"pass {name} is looked at again; `elastic-ctr status` shows how it goes on")
