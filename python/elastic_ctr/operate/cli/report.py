"""elastic-ctr report: one HTML page of a run."""

import json
from contextlib import ExitStack
from typing import Annotated

import typer

from elastic_ctr.operate.cli.cluster import Target, port_forwards, target_of
from elastic_ctr.operate.cli.entrypoint import reason_of, refuse
from elastic_ctr.operate.cli.kubectl import ending_in_order
from elastic_ctr.operate.cli.shared_options import (
    MASTER_STATUS,
    SERVING_ADMIN,
    TRANSFER,
    MasterAddress,
    OutputFile,
    TransferAddress,
    Where,
    grouped,
)
from elastic_ctr.operate.cli.snapshot import Snapshot
from elastic_ctr.operate.cli.status import cluster_snapshot, local_snapshot
from elastic_ctr.operate.local.finished_run import RunUnreadable, answers_of_finished
from elastic_ctr.operate.report.document import Report
from elastic_ctr.operate.report.page import page
from elastic_ctr.store.backends.temporary import appearing

_ENDPOINTS = {"master": MASTER_STATUS, "transfer": TRANSFER}


@grouped
def report(
    output: OutputFile = None,
    master: MasterAddress = None,
    transfer: TransferAddress = None,
    where: Where = Where(),
    as_json: Annotated[
        bool, typer.Option("--json", help="What the page is made of instead: the roles' own answers, by role.")
    ] = False,
) -> None:
    """Write one HTML page of a run: passes, quality, versions, ledger, recoveries, seconds.

    The page needs no server and no network. A run on this machine that has ended is read from its folder.

    Exit codes: 0 written; 1 written without cube-transfer, which did not answer; 2 nothing is written.
    """
    target = target_of(where, {"--address": master, "--transfer": transfer})
    addresses = {role: each for role, each in (("master", master), ("transfer", transfer)) if each is not None}
    seen = _look(target, addresses)
    if seen.master is None:
        refuse("\n".join(seen.errors.values()))
    freshness = None if seen.serving is None else seen.serving.click_freshness
    found = Report(_source(target, addresses), seen.master, seen.transfer, freshness)
    text = json.dumps(seen.to_dict()) + "\n" if as_json else page(found)
    if output is None:
        typer.echo(text, nl=False)
    else:
        try:
            with appearing(output) as stream:
                stream.write(text.encode())
        except OSError as failed:
            refuse(f"{output} cannot be written: {reason_of(failed)}")
        typer.echo(f"{output}: {len(found.training.passes):,} passes, {len(text.encode()) / 1e3:,.0f} KB", err=True)
    for sentence in seen.errors.values():
        typer.echo(sentence, err=True)
    raise typer.Exit(1 if seen.errors else 0)


def _look(target: Target, addresses: dict[str, str]) -> Snapshot:
    # The serving at the default address may belong to another run than the roles whose addresses are given.
    endpoints = _ENDPOINTS if addresses else {**_ENDPOINTS, "serving": SERVING_ADMIN}
    if target.cluster is not None:
        with ending_in_order(), ExitStack() as stack:
            seen = cluster_snapshot(stack.enter_context(port_forwards(target.cluster)), endpoints)
    elif target.run is None or addresses or target.run.runner() is not None:
        seen = local_snapshot(target, addresses, endpoints)
    else:
        try:
            return Snapshot(*answers_of_finished(target.run))
        except RunUnreadable as wrong:
            refuse(str(wrong))
    # The page is complete without serving, which only gives the freshness of clicks.
    seen.errors.pop("serving", None)
    return seen


def _source(target: Target, addresses: dict[str, str]) -> str:
    """Return the name of the training, for the head of the page."""
    if target.cluster is not None:
        return f"release {target.cluster.release} in namespace {target.cluster.kubectl.namespace}"
    if target.run is not None and not addresses:
        return str(target.run.path)
    return addresses.get("master") or MASTER_STATUS.default
