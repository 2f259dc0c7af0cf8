"""elastic-ctr: the table of all commands.

Only the modules of the given command are imported, because a machine may start a dozen roles at once.
"""

import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated

import typer

from elastic_ctr import __version__

ROLES = "Roles (a container runs one)"
COMMANDS: dict[str, tuple[str, str, str | None]] = {
    # name: module (for a role also the module that it runs), its command or group, panel of the help
    "local": ("elastic_ctr.operate.cli.local", "app", None),
    "predict": ("elastic_ctr.operate.cli.predict", "predict", None),
    "explain": ("elastic_ctr.operate.cli.explain", "explain", None),
    "evaluate": ("elastic_ctr.operate.cli.evaluate", "evaluate", None),
    "status": ("elastic_ctr.operate.cli.status", "status", None),
    "report": ("elastic_ctr.operate.cli.report", "report", None),
    "logs": ("elastic_ctr.operate.cli.logs", "logs", None),
    "audit": ("elastic_ctr.operate.cli.audit", "audit", None),
    "backup": ("elastic_ctr.operate.cli.backup_commands", "backup", None),
    "restore": ("elastic_ctr.operate.cli.backup_commands", "restore", None),
    "pass": ("elastic_ctr.operate.cli.orders", "pass_app", None),
    "rollback": ("elastic_ctr.operate.cli.orders", "rollback", None),
    "check": ("elastic_ctr.operate.cli.check", "app", None),
    "network": ("elastic_ctr.operate.cli.network", "app", None),
    "values": ("elastic_ctr.operate.cli.values", "values", None),
    "import": ("elastic_ctr.operate.cli.import_data", "app", None),
    "propose": ("elastic_ctr.operate.cli.propose", "propose", None),
    "analyze": ("elastic_ctr.operate.cli.analyze", "analyze", None),
    "tune": ("elastic_ctr.operate.cli.tune", "tune", None),
    "synth": ("elastic_ctr.operate.cli.synth", "synth", None),
    "cube": ("elastic_ctr.operate.cli.cube", "app", None),
    "dict": ("elastic_ctr.operate.cli.data_files", "dict_app", None),
    "seqfile": ("elastic_ctr.operate.cli.data_files", "seqfile_app", None),
    "version": ("elastic_ctr.operate.cli.main", "version", None),
    "master": ("elastic_ctr.training.master.server", "master", ROLES),
    "trainer": ("elastic_ctr.training.trainer.supervisor", "trainer", ROLES),
    "pserver": ("elastic_ctr.training.pserver.supervisor", "pserver", ROLES),
    "intake": ("elastic_ctr.sources.intake.intake_api", "intake", ROLES),
    "cube-transfer": ("elastic_ctr.cube.transfer.transfer_api", "cube_transfer", ROLES),
    "cube-builder": ("elastic_ctr.cube.builder.build_server", "cube_builder", ROLES),
    "cube-server": ("elastic_ctr.cube.server.cube_server", "cube_server", ROLES),
    "serving": ("elastic_ctr.serving.app", "serving", ROLES),
    "scoring": ("elastic_ctr.jobs.scoring.pod", "scoring", ROLES),
}


def version() -> None:
    """Print this program's version."""
    typer.echo(__version__)


def _absent(name: str, cause: ModuleNotFoundError) -> Callable[[], None]:
    """Return a substitute for a command whose packages are not installed: it is listed, and reports the package that it needs."""
    if (cause.name or "").startswith("elastic_ctr"):
        raise cause
    extra = "local" if name in ("local", "evaluate", "network", "trainer", "pserver", "serving", "scoring") else "cube"
    needs = f"needs {cause.name}, which is not installed: install elastic-ctr's wheel with [{extra}]"

    def command(words: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
        del words
        typer.echo(f"elastic-ctr {name} {needs}", err=True)
        raise typer.Exit(2)

    # Escaped, because the help would take [cube] for a style.
    command.__doc__ = f"Absent: {needs}.".replace("[", "\\[")
    return command


def _show_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


def _common(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version and exit.")
    ] = False,
) -> None:
    del version


def build(only: str | None = None) -> typer.Typer:
    """Return the command line, with all commands or only one."""
    app = typer.Typer(
        help="Click-through-rate training and serving: hours of clicks in, versioned predictions out.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    # A callback keeps the command's name on the line when there is only one.
    app.callback()(_common)
    for name, (module, attribute, panel) in COMMANDS.items():
        if only in (None, name):
            try:
                commands = import_module("elastic_ctr.operate.cli.role_commands" if panel == ROLES else module)
                # A role whose packages are missing is replaced here, before its command would fail to import them.
                import_module(module)
                command = getattr(commands, attribute)
            except ModuleNotFoundError as absent:
                command = _absent(name, absent)
                # Accept any arguments, because the answer is always the missing package.
                any_words = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
                app.command(name, rich_help_panel=panel, context_settings=any_words)(command)
                continue
            if isinstance(command, typer.Typer):
                app.add_typer(command, name=name, rich_help_panel=panel)
            else:
                app.command(name, rich_help_panel=panel)(command)
    return app


def main() -> None:
    if os.getpid() == 1:
        # The kernel drops a signal without a handler to the first process of a container. A role sets its own handler later.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    asked = sys.argv[1] if len(sys.argv) > 1 else None
    build(asked if asked in COMMANDS else None)()
