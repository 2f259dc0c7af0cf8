"""elastic-ctr status: passes, tasks, recoveries, versions, shards, the live version and its freshness."""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Annotated, NoReturn

import typer
from rich.live import Live

from elastic_ctr.operate.cli.cluster import PortForwards, Target, port_forwards, target_of
from elastic_ctr.operate.cli.kubectl import KubectlFailed, ending_in_order
from elastic_ctr.operate.cli.next_step import dir_option, print_next
from elastic_ctr.operate.cli.shared_options import (
    MASTER_STATUS,
    SERVING_ADMIN,
    TRANSFER,
    Endpoint,
    MasterAddress,
    ServingAdminAddress,
    TransferAddress,
    Where,
    grouped,
)
from elastic_ctr.operate.cli.snapshot import Snapshot
from elastic_ctr.operate.cli.status_text import screen, stages
from elastic_ctr.operate.fitted_text import output_console
from elastic_ctr.operate.local.endpoints import ROLES, EndpointUnavailable, role_status
from elastic_ctr.operate.local.session import troubles

WATCH_SECONDS = 2.0
_ENDPOINTS = {"master": MASTER_STATUS, "transfer": TRANSFER, "serving": SERVING_ADMIN}
Look = Callable[[], Snapshot]


@grouped
def status(
    master: MasterAddress = None,
    transfer: TransferAddress = None,
    serving: ServingAdminAddress = None,
    where: Where = Where(),
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again every two seconds, until Ctrl-C.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The roles' own answers, by role; with --watch one object a line.")
    ] = False,
) -> None:
    """Show the state of training, versions and serving.

    Exit codes: 0 all roles of the release or run answer (with --watch: it was ended), 1 some do, 2 none does.
    """
    given = {"--address": master, "--transfer": transfer, "--serving": serving}
    target = target_of(where, given)
    addresses = {role: address for role, address in zip(_ENDPOINTS, given.values(), strict=True) if address is not None}
    with ending_in_order(), ExitStack() as stack:
        look: Look = partial(local_snapshot, target, addresses)
        if target.cluster is not None:
            look = partial(cluster_snapshot, stack.enter_context(port_forwards(target.cluster)))
        if watch:
            with suppress(KeyboardInterrupt):
                _watch(look, as_json=as_json)
            return
        seen = look()
    if as_json:
        typer.echo(json.dumps(seen.to_dict()))
    else:
        output_console().print(stages(seen), highlight=False)
        if target.run is not None and seen.problems:
            print_next("logs", "--tail", "20", *dir_option(target.run.path), why="what the roles say of it")
    raise typer.Exit(0 if not seen.errors else 2 if seen.is_silent else 1)


def local_snapshot(
    target: Target, addresses: dict[str, str], endpoints: Mapping[str, Endpoint] = _ENDPOINTS
) -> Snapshot:
    """Return the snapshot of the run of a folder, or of the roles at addresses."""
    seen = Snapshot()
    info = None
    if target.run is not None and not addresses:
        info = target.run.read()
        if target.run.runner() is None:
            seen.errors["run"] = target.run.absence()
            return seen
    for role, endpoint in endpoints.items():
        try:
            seen.add(role_status(ROLES[role], addresses.get(role) or target.address(endpoint)))
        except EndpointUnavailable as closed:  # noqa: PERF203 (the others may answer)
            seen.errors[role] = str(closed)
    if info is not None:
        # The master's own problems are in its lines already.
        told = troubles(seen.master)
        seen.problems = [each for each in info.problems if each not in told]
        seen.folder = str(target.run and target.run.path)
    return seen


def cluster_snapshot(forwards: PortForwards, endpoints: Mapping[str, Endpoint] = _ENDPOINTS) -> Snapshot:
    """Return the snapshot of a release in a cluster. Pods come first, because they explain why a role does not answer."""
    seen = Snapshot()
    cluster = forwards.cluster
    try:
        seen.pods = [each for each in cluster.pods() if each.component != "client"]
    except KubectlFailed as failed:
        seen.errors["pods"] = str(failed)
        return seen
    with_pods = {each.component for each in seen.pods}
    for role, endpoint in endpoints.items():
        try:
            if endpoint.component in with_pods or cluster.has(endpoint.component):
                seen.add(role_status(ROLES[role], forwards.address(endpoint)))
        except KubectlFailed as failed:  # noqa: PERF203 (the others may answer)
            seen.errors[role] = str(failed)
        except EndpointUnavailable as closed:
            forwards.forget(endpoint)
            seen.errors[role] = f"{endpoint.component}: {closed}"
    return seen


def _watch(look: Look, *, as_json: bool) -> NoReturn:
    console = output_console()
    if as_json or not console.is_terminal:
        while True:
            seen = look()
            if as_json:
                typer.echo(json.dumps(seen.to_dict()))
            else:
                console.print(stages(seen), highlight=False)
                console.print()
            time.sleep(WATCH_SECONDS)
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            live.update(screen(look(), console), refresh=True)
            time.sleep(WATCH_SECONDS)
