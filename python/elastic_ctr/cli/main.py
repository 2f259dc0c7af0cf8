"""elastic-ctr: one command, one file for each role or verb."""

import typer

from elastic_ctr import __version__
from elastic_ctr.cli.local import app as local
from elastic_ctr.cli.master import master
from elastic_ctr.cli.pserver import pserver
from elastic_ctr.cli.trainer import trainer

app = typer.Typer(
    help="Click-through-rate training and serving: hours of clicks in, versioned predictions out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(local, name="local")
ROLES = "Roles (a container runs one)"
app.command(rich_help_panel=ROLES)(master)
app.command(rich_help_panel=ROLES)(trainer)
app.command(rich_help_panel=ROLES)(pserver)


@app.command()
def version() -> None:
    """Print this program's version."""
    typer.echo(__version__)


def main() -> None:
    app()
