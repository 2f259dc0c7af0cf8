"""The commands of the roles: each runs one process until SIGTERM or SIGINT.

A role's modules are imported in its function, because a machine may start a dozen roles at once.
"""

import json
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from elastic_ctr.config.load import ConfigRefused, load
from elastic_ctr.config.role_files import (
    CubeBuilderFile,
    CubeServerFile,
    CubeTransferFile,
    IntakeFile,
    MasterFile,
    PserverFile,
    ScoringFile,
    ServingFile,
    TrainerFile,
)
from elastic_ctr.config.section import Section
from elastic_ctr.operate.cli.entrypoint import checked, reason_of, refuse
from elastic_ctr.runtime.documents import DocumentDamaged, read_document
from elastic_ctr.runtime.lifecycle import stop_on_signal
from elastic_ctr.runtime.logging import configure_from_environment

if TYPE_CHECKING:
    from elastic_ctr.store.backends import Store

_AWAY_SECONDS = 2.0

ConfigFile = Annotated[
    Path,
    typer.Option(
        "--config", "-c", help="The role's config.yaml, as the chart renders it.", envvar="ELASTIC_CTR_CONFIG"
    ),
]
S = TypeVar("S", bound=Section)


def master(config: ConfigFile) -> None:
    """Find passes, lease tasks to trainers, keep the ledger, order checkpoints and recoveries."""
    from elastic_ctr.config.addresses import OWN_INTAKE
    from elastic_ctr.sources.streams.interface import Stream
    from elastic_ctr.sources.streams.open import open_stream
    from elastic_ctr.sources.tables.table_address import open_table
    from elastic_ctr.sources.tables.table_log import TableLog
    from elastic_ctr.store.backends import open_source, open_store
    from elastic_ctr.store.backends.source import Source
    from elastic_ctr.training.master.ledger.ledger_file import LEDGER, naming_damage
    from elastic_ctr.training.master.server import Master

    settings = _settings_of(MasterFile, config, "master")
    checked(settings.auth)

    def run(stop: threading.Event) -> int:
        given = settings.data.source
        own = settings.intake_address is not None and given.url == f"{OWN_INTAKE}{settings.intake_address}"
        source: Source | Stream | TableLog
        if settings.data.is_stream:
            source = open_stream(given.url, given.kafka.properties, given.tokens(), own=own)
        else:
            source = open_table(given) if settings.data.is_table else open_source(given)
        store = open_store(settings.store, tokens=settings.auth.internal())
        ledger = Path(settings.master.state_dir) / LEDGER
        if settings.restore.url is not None and not ledger.exists():
            _restore(settings, store, ledger)
        with naming_damage(ledger):
            return Master(settings, source=source, store=store).run(stop)

    _run_until_signal(run)


def _restore(settings: MasterFile, store: "Store", ledger: Path) -> None:
    """Restore the backup into the empty release, while the master's status shows that. Raises BackupRefused, StoreError, OSError."""
    from elastic_ctr.runtime.lock import StateLock
    from elastic_ctr.runtime.status.master_status import LineCounts, TrainingStatus
    from elastic_ctr.store.backends import open_store
    from elastic_ctr.store.versions import backup, restore
    from elastic_ctr.training.master.ledger.ledger_file import SCHEMA

    log, url = logging.getLogger(__name__), settings.restore.url
    assert url is not None
    now = TrainingStatus(passes=(), ledger=LineCounts(), waits_for=f"the restore of {url}")
    with (
        StateLock(ledger.parent),
        backup.scratch_in(ledger.parent) as folder,
        _health_server("master", now.to_dict, settings.host, settings.master.status_port),
    ):
        source = open_store(settings.restore.at(url, settings.restore.user, settings.store))
        found = restore.restore(
            source, store, {backup.LEDGER: restore.RestoredDatabase(ledger, SCHEMA)}, folder, log.info
        )
    if backup.CLICKS in found.state:
        log.warning(
            "the backup has a log of clicks, which this release does not get; docs/operations/backup.md has the way out"
        )


def trainer(config: ConfigFile) -> None:
    """Lease tasks from the master, convert and check them, train them against the parameter servers."""
    from elastic_ctr.runtime.mlflow import TrackingServer
    from elastic_ctr.training.trainer.supervisor import HostMetrics, TrainerSupervisor

    settings = _settings_of(TrainerFile, config, "trainer")
    # Check the token files here; the training process reads them again.
    checked(settings.auth)
    with _exit_on_config_error():
        settings.data.source.kafka.properties()
        settings.data.source.tokens()
    name = _pod_name("trainer-0")

    def run(stop: threading.Event) -> int:
        supervisor = TrainerSupervisor(name, settings)
        with ExitStack() as ends:
            if (tracked := settings.tracking) is not None:
                server = TrackingServer(tracked.url)
                ends.callback(HostMetrics(server, name, settings.training, tracked.experiment).start().stop)
            ends.enter_context(_health_server("trainer", supervisor.status, settings.host, settings.trainer.admin_port))
            return supervisor.run(stop)

    _run_until_signal(run)


def pserver(config: ConfigFile) -> None:
    """Run one of Paddle's parameter servers: start it, watch it, upload its saves."""
    from elastic_ctr.store.backends import open_store
    from elastic_ctr.training.control.channel import MasterClient
    from elastic_ctr.training.pserver.supervisor import PserverSupervisor

    settings = _settings_of(PserverFile, config, "pserver")
    pod = _pod_name("pserver-0")
    match = re.search(r"(\d+)$", pod)
    if match is None:
        refuse(f"POD_NAME {pod!r} does not end in a number; set it to <name>-<index>")
    index = int(match[1])
    if index >= settings.pservers:
        refuse(f"pserver {index} is not one of {settings.pservers}; pserver.replicas and the pod's name must agree")
    tokens = checked(settings.auth).internal()

    def run(stop: threading.Event) -> int:
        supervisor = PserverSupervisor(
            index,
            settings,
            host=_advertised_host(settings),
            client=MasterClient(settings.master_address, tokens),
            store=open_store(settings.store, tokens=tokens),
        )
        with _health_server("pserver", supervisor.status, settings.host, settings.pserver.admin_port):
            return supervisor.run(stop)

    _run_until_signal(run)


def intake(config: ConfigFile) -> None:
    """Take clicks over HTTP into a log, which master and trainers read as a stream."""
    from elastic_ctr.sources.intake.intake_api import run_intake

    settings = _settings_of(IntakeFile, config, "intake")
    with _exit_on_config_error():
        checked(settings.auth)
        run_intake(settings)


def cube_transfer(config: ConfigFile) -> None:
    """Say which versions cube must hold and which one is live."""
    from elastic_ctr.cube.transfer.transfer_api import run_cube_transfer

    settings = _settings_of(CubeTransferFile, config, "cube-transfer")
    with _exit_on_config_error():
        checked(settings.auth)
        run_cube_transfer(settings)


def cube_builder(config: ConfigFile) -> None:
    """Build dictionary parts from SequenceFiles when cube-transfer asks for a version."""
    from elastic_ctr.cube.builder.build_server import run_cube_builder

    settings = _settings_of(CubeBuilderFile, config, "cube-builder")
    with _exit_on_config_error():
        checked(settings.auth)
        run_cube_builder(settings)


def cube_server(config: ConfigFile) -> None:
    """Answer lookups from the dictionary parts that this pod's shard owes: fetch, verify, load and report them."""
    from elastic_ctr.cube.server.cube_server import run_cube_server
    from elastic_ctr.runtime.process_pool import CannotWork

    settings = _settings_of(CubeServerFile, config, "cube-server")
    address = f"{_advertised_host(settings)}:{settings.cube.port}"
    try:
        with _exit_on_config_error():
            checked(settings.auth)
            run_cube_server(settings, pod=_pod_name("cube-s0-0"), address=address)
    except CannotWork as failed:
        refuse(str(failed))


def serving(config: ConfigFile) -> None:
    """Answer predictions: one lookup, one dense network, one version."""
    from elastic_ctr.serving.app import run_serving
    from elastic_ctr.store.backends import StoreError, open_store

    settings = _settings_of(ServingFile, config, "serving")
    tokens = checked(settings.auth).internal()
    try:
        store = open_store(settings.store, tokens=tokens)
        run_serving(settings, store, _pod_name("serving-0"), tokens)
    except (StoreError, OSError) as failed:
        refuse(reason_of(failed))


def scoring(
    config: ConfigFile,
    order: Annotated[
        str | None,
        typer.Option(
            "--order", help="What to score, as JSON: `elastic-ctr evaluate` and `elastic-ctr predict` write it."
        ),
    ] = None,
) -> None:
    """Score hours with a version in the store, together with the other pods of the Job; print the report as JSON."""
    from elastic_ctr.cube.builder.job import BuildFailed
    from elastic_ctr.jobs.scoring.listing import NothingToRead
    from elastic_ctr.jobs.scoring.order import Order
    from elastic_ctr.jobs.scoring.pod import run_order
    from elastic_ctr.jobs.scoring.run import JobFailed
    from elastic_ctr.jobs.scoring.scoring_job import OutputRefused
    from elastic_ctr.jobs.scoring.version import VersionUnusable
    from elastic_ctr.jobs.scoring.worker import Place
    from elastic_ctr.operate.cli.kubectl import ending_in_order
    from elastic_ctr.operate.local.endpoints import release_document

    settings = _settings_of(ScoringFile, config, "scoring")
    if order is None:
        refuse(
            "this pod has no --order; `elastic-ctr evaluate --pods N` and `elastic-ctr predict --output DIR --pods N` create Jobs "
            "that have one"
        )
    models = Place(settings.store, checked(settings.auth).internal())
    try:
        wanted = read_document(Order, order)
    except DocumentDamaged as wrong:
        refuse(f"--order is not what the commands of this release write: {wrong}")
    try:
        with ending_in_order():
            report = run_order(wanted, settings, models, lambda: release_document(settings.transfer_address).live)
    except (ConfigRefused, NothingToRead, OutputRefused, VersionUnusable) as wrong:
        refuse(str(wrong))
    except (BuildFailed, JobFailed, OSError, ValueError) as failed:
        # A retry by another pod may succeed, for example once the store is back.
        refuse(reason_of(failed), 1)
    typer.echo(json.dumps(report.document()))


def _settings_of(kind: type[S], config: Path, role: str) -> S:
    """Set up logging and load the role's settings, or end the process with one sentence per error."""
    configure_from_environment(role)
    try:
        return load(kind, config)
    except ConfigRefused as wrong:
        refuse(str(wrong))


def _pod_name(default: str) -> str:
    return os.environ.get("POD_NAME", default)


def _advertised_host(settings: PserverFile | CubeServerFile) -> str:
    """Return the host that others call: the pod's name in its domain, or the host on which this process listens."""
    return settings.host if settings.pod_domain is None else f"{_pod_name('')}.{settings.pod_domain}"


@contextmanager
def _exit_on_config_error() -> Iterator[None]:
    """Turn an error of settings or machine into one sentence and exit code 2."""
    try:
        yield
    except (OSError, ValueError) as failed:
        logging.getLogger(__name__).debug("ended", exc_info=True)
        refuse(reason_of(failed))


@contextmanager
def _health_server(role: str, status: Callable[[], dict[str, Any]], host: str, port: int) -> Iterator[None]:
    """Serve health, metrics and status for a role that has no other HTTP server."""
    from elastic_ctr.runtime.http import HttpThread, application
    from elastic_ctr.runtime.metrics import Metrics

    page = HttpThread(application([], status=status, metrics=Metrics(role)), host, port).start()
    try:
        yield
    finally:
        page.stop()


def _run_until_signal(run: Callable[[threading.Event], int]) -> NoReturn:
    """Run a role until SIGTERM or SIGINT, which end it in order. A role that needs its store waits while that is unavailable."""
    from elastic_ctr.store.backends import StoreUnavailable

    code = 0
    with stop_on_signal() as stop, _exit_on_config_error():
        while not stop.is_set():
            try:
                code = run(stop)
                break
            except StoreUnavailable as away:
                logging.getLogger(__name__).warning("%s; the role begins once the store answers", away)
                stop.wait(_AWAY_SECONDS)
    raise typer.Exit(code)
