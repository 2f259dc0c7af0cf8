"""elastic-ctr serving"""

from pathlib import Path

import typer

from elastic_ctr.cli.entrypoint import ConfigFile, pod_name, refuse, settings_of, token_of
from elastic_ctr.config.role_files import ServingFile
from elastic_ctr.runtime.lifecycle import PortInUse
from elastic_ctr.serving.app import Serving, run_serving
from elastic_ctr.store import StoreError, open_store


def start_serving(told: Serving) -> None:
    """Answer predictions with the live version, until told to end.

    Raises typer.Exit(2), after a sentence on standard error, when a port is taken or the scratch folder cannot be
    written.
    """
    try:
        run_serving(told)
    except PortInUse as taken:
        typer.echo(taken.strerror, err=True)
        raise typer.Exit(2) from taken
    except OSError as failed:
        typer.echo(str(failed), err=True)
        raise typer.Exit(2) from failed


def serving(config: ConfigFile) -> None:
    """Answer predictions: one lookup, one dense network, one version."""
    settings = settings_of(ServingFile, config, "serving")
    try:
        store = open_store(settings.store.url, user=settings.store.user, token=token_of(settings.auth))
    except StoreError as wrong:
        refuse(str(wrong))
    told = Serving(
        store=store,
        transfer_url=f"http://{settings.transfer_address}",
        pod=pod_name("serving-0"),
        scratch=Path(settings.serving.scratch_dir),
        host=settings.host,
        port=settings.serving.port,
        admin_port=settings.serving.admin_port,
        grpc_port=settings.serving.grpc_port or None,
        workers=settings.serving.workers,
        model_name=settings.serving.model_name,
        max_instances=settings.serving.max_instances,
        max_body_bytes=settings.serving.max_body_bytes,
        max_batch_rows=settings.serving.max_batch_rows,
        max_abs_diff=settings.serving.max_abs_diff,
        lookup_timeout_ms=settings.cube.lookup_timeout_ms,
        lookup_deadline_ms=settings.cube.lookup_deadline_ms,
        hedge_ms=settings.cube.hedge_ms,
        grace_seconds=settings.grace_seconds,
        token=token_of(settings.auth),
    )
    start_serving(told)
