"""elastic-ctr status: hours, tasks, recoveries, versions, shards, what is live, how fresh it is."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from rich.console import Console
from rich.live import Live

from elastic_ctr.cli.cluster import (
    MASTER_STATUS,
    SERVING_ADMIN,
    TRANSFER,
    Cluster,
    Endpoint,
    PortForwards,
    Target,
    port_forwards,
    target_of,
)
from elastic_ctr.cli.kubectl import KubectlFailed, ending_in_order
from elastic_ctr.cli.shared_options import Where, grouped
from elastic_ctr.cli.status_text import stages
from elastic_ctr.local.endpoints import EndpointUnavailable, ask

WATCH_SECONDS = 2.0
_DOORS = {"master": MASTER_STATUS, "transfer": TRANSFER, "serving": SERVING_ADMIN}
# What every version of a role says of itself, and no other role does.
_SAYS = {
    "master": {"passes", "ledger", "pservers", "recoveries"},
    "transfer": {"live", "candidate", "shards", "problems"},
    "serving": {"stage", "rows", "lastRefusal", "transfer"},
}


class Snapshot(NamedTuple):
    """One look: the roles' own answers, of a cluster also its `pods`, and a sentence for each that did not answer."""

    answers: dict[str, Any]
    errors: dict[str, str]

    @property
    def exit_code(self) -> int:
        answered = self.answers.keys() & _DOORS.keys()
        return 0 if not self.errors else 1 if answered else 2


Look = Callable[[], Snapshot]


@grouped
def status(
    master: Annotated[
        str | None,
        typer.Option(
            "--address", help="HOST:PORT of the master's status endpoint.", show_default=MASTER_STATUS.default
        ),
    ] = None,
    transfer: Annotated[
        str | None, typer.Option(help="HOST:PORT of cube-transfer.", show_default=TRANSFER.default)
    ] = None,
    serving: Annotated[
        str | None, typer.Option(help="HOST:PORT of serving's admin endpoint.", show_default=SERVING_ADMIN.default)
    ] = None,
    where: Where = Where(),
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again every two seconds, until Ctrl-C.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The roles' own answers, by role; with --watch one object a line.")
    ] = False,
) -> None:
    """Say where training, versions and serving are.

    Exit codes: 0 all roles of the release or run answer (with --watch: it was ended), 1 some do, 2 none does.
    """
    given = {"--address": master, "--transfer": transfer, "--serving": serving}
    target = target_of(where, given)
    addresses = {role: address for role, address in zip(_DOORS, given.values(), strict=True) if address is not None}
    with ending_in_order(), _looking(target, addresses) as look:
        if watch:
            with suppress(KeyboardInterrupt):
                _watch(look, as_json=as_json)
            return
        seen = look()
    if as_json:
        typer.echo(_json(seen))
    else:
        _console().print(stages(*seen), highlight=False)
    raise typer.Exit(seen.exit_code)


@contextmanager
def _looking(target: Target, addresses: dict[str, str]) -> Iterator[Look]:
    if target.cluster is None:
        yield lambda: _at(target, addresses)
        return
    with port_forwards(target.cluster) as forwards:
        yield lambda: _in(forwards.cluster, forwards)


def _at(target: Target, addresses: dict[str, str]) -> Snapshot:
    """The run of a folder, or the roles at addresses."""
    seen = Snapshot({}, {})
    info = None
    if target.run is not None and not addresses:
        info = target.run.read()
        if target.run.runner() is None:
            seen.errors["run"] = target.run.absence()
            return seen
    for role, endpoint in _DOORS.items():
        try:
            seen.answers[role] = _said(role, addresses.get(role) or target.address(endpoint))
        except EndpointUnavailable as closed:  # noqa: PERF203 (the others may answer)
            seen.errors[role] = str(closed)
    if info is not None:
        seen.answers["run"] = {"folder": str(target.run and target.run.path), "problems": info.problems}
    return seen


def _in(cluster: Cluster, forwards: PortForwards) -> Snapshot:
    """What is in a cluster. Pods come first: they say why a role does not answer."""
    seen = Snapshot({}, {})
    try:
        pods = [each for each in cluster.pods() if each.component != "client"]
    except KubectlFailed as failed:
        seen.errors["pods"] = str(failed)
        return seen
    seen.answers["pods"] = [each.as_dict() for each in pods]
    with_pods = {each.component for each in pods}
    for role, endpoint in _DOORS.items():
        try:
            if endpoint.component in with_pods or cluster.has(endpoint.component):
                seen.answers[role] = _asked(role, forwards, endpoint)
        except (EndpointUnavailable, KubectlFailed) as closed:  # noqa: PERF203 (the others may answer)
            seen.errors[role] = str(closed)
    return seen


def _said(role: str, address: str) -> Any:
    """What it says of itself. Raises EndpointUnavailable, of another role too."""
    said = ask(f"http://{address}/status")
    if not isinstance(said, dict) or not _SAYS[role] <= said.keys():
        raise EndpointUnavailable(f"http://{address}/status is not {role}'s; give the address of its status endpoint")
    return said


def _asked(role: str, forwards: PortForwards, endpoint: Endpoint) -> Any:
    """Raises EndpointUnavailable, KubectlFailed."""
    try:
        return _said(role, forwards.address(endpoint))
    except EndpointUnavailable as closed:
        forwards.forget(endpoint)
        raise EndpointUnavailable(f"{endpoint.component}: {closed}") from closed


def _watch(look: Look, *, as_json: bool) -> NoReturn:
    console = _console()
    if as_json or not console.is_terminal:
        while True:
            seen = look()
            if as_json:
                typer.echo(_json(seen))
            else:
                console.print(stages(*seen), highlight=False)
                console.print()
            time.sleep(WATCH_SECONDS)
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            # Hours that do not fit are those that matter least.
            live.update(stages(*look(), passes=max(3, console.height - 30)), refresh=True)
            time.sleep(WATCH_SECONDS)


def _json(seen: Snapshot) -> str:
    return json.dumps({**seen.answers, "errors": seen.errors})


def _console() -> Console:
    out = Console()
    # A pipe has no width of its own, and sentences in it are not broken.
    return out if out.is_terminal else Console(width=1000)
