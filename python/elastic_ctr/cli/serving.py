"""elastic-ctr serving"""

from pathlib import Path

import typer

from elastic_ctr.cli.roles import ConfigFile, pod_name, refuse, settings_of, token_of
from elastic_ctr.config.role_files import ServingFile
from elastic_ctr.runtime.lifecycle import PortInUse
from elastic_ctr.serving.app import Serving, run_serving
from elastic_ctr.store import Store, StoreError, open_store


def start_serving(
    store: Store,
    transfer_url: str,
    pod: str,
    scratch_dir: Path,
    host: str,
    port: int,
    admin_port: int,
    grpc_port: int | None,
    binary_port: int | None,
    workers: int,
    model_name: str,
    max_instances: int,
    max_body_bytes: int,
    max_batch_rows: int,
    max_abs_diff: float,
    lookup_timeout_ms: float,
    lookup_patience_ms: float,
    hedge_ms: float | None,
    grace_seconds: float,
    token: str | None,
) -> None:
    """Answer predictions with the live version, until told to end.

    Raises typer.Exit(2), after a sentence on standard error, when a port is taken or the scratch folder cannot be
    written.
    """
    told = Serving(
        store=store,
        transfer_url=transfer_url,
        pod=pod,
        scratch=scratch_dir,
        host=host,
        port=port,
        admin_port=admin_port,
        grpc_port=grpc_port,
        binary_port=binary_port,
        workers=workers,
        model_name=model_name,
        max_instances=max_instances,
        max_body_bytes=max_body_bytes,
        max_batch_rows=max_batch_rows,
        max_abs_diff=max_abs_diff,
        lookup_timeout_ms=lookup_timeout_ms,
        lookup_patience_ms=lookup_patience_ms,
        hedge_ms=hedge_ms,
        grace_seconds=grace_seconds,
        token=token,
    )
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
    start_serving(
        store=store,
        transfer_url=f"http://{settings.transfer_address}",
        pod=pod_name("serving-0"),
        scratch_dir=Path(settings.serving.scratch_dir),
        host=settings.host,
        port=settings.serving.port,
        admin_port=settings.serving.admin_port,
        grpc_port=settings.serving.grpc_port or None,
        binary_port=settings.serving.binary_port or None,
        workers=settings.serving.workers,
        model_name=settings.serving.model_name,
        max_instances=settings.serving.max_instances,
        max_body_bytes=settings.serving.max_body_bytes,
        max_batch_rows=settings.serving.max_batch_rows,
        max_abs_diff=settings.serving.max_abs_diff,
        lookup_timeout_ms=settings.cube.lookup_timeout_ms,
        lookup_patience_ms=settings.cube.lookup_patience_ms,
        hedge_ms=settings.cube.hedge_ms,
        grace_seconds=settings.grace_seconds,
        token=token_of(settings.auth),
    )
