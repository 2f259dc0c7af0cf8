"""elastic-ctr cube-server"""

import logging
from pathlib import Path

import typer

from elastic_ctr.cli.roles import ConfigFile, settings_of, token_of
from elastic_ctr.config.role_files import CubeServerFile
from elastic_ctr.cube.server.parent import DEFAULT_SCRUB, CubeServer, PortInUse
from elastic_ctr.cube.server.workers import CannotCompile

_log = logging.getLogger(__name__)


def run_cube_server(
    dict_dir: Path,
    host: str,
    port: int,
    admin_port: int,
    workers: int,
    max_keys: int,
    awake_us: int,
    token: str | None,
    admin_host: str = "127.0.0.1",
    scrub_megabytes_per_second: float = DEFAULT_SCRUB,
) -> None:
    """Answer lookups from the dictionary parts that the agent gives it, until told to end.

    Raises typer.Exit(2), after a sentence on standard error, when a port is taken.
    """
    server = CubeServer(
        dict_dir,
        host,
        port,
        admin_port,
        workers,
        max_keys,
        token,
        admin_host=admin_host,
        awake_us=awake_us,
        scrub_megabytes_per_second=scrub_megabytes_per_second,
    )
    try:
        server.run()
    except (PortInUse, CannotCompile) as failed:
        typer.echo(str(failed), err=True)
        raise typer.Exit(2) from failed


def cube_server(config: ConfigFile) -> None:
    """Answer lookups from the dictionary parts that the agent gives it."""
    settings = settings_of(CubeServerFile, config, "cube-server")
    run_cube_server(
        Path(settings.cube.cache_dir),
        settings.host,
        settings.cube.port,
        settings.cube.admin_port,
        settings.cube.workers,
        settings.cube.max_keys,
        settings.cube.awake_us,
        token_of(settings.auth),
        admin_host=settings.host,
        scrub_megabytes_per_second=settings.cube.scrub_megabytes_per_second,
    )
