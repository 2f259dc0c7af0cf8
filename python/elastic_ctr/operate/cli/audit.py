"""elastic-ctr audit: the changes to a run on this machine or to a release with their callers, and the refused calls."""

import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Annotated

import typer

from elastic_ctr.operate.cli.cluster import Cluster, target_of
from elastic_ctr.operate.cli.entrypoint import reason_of, refuse
from elastic_ctr.operate.cli.kubectl import KubectlFailed, ending_in_order, running
from elastic_ctr.operate.cli.shared_options import Where, grouped
from elastic_ctr.operate.local.run_folder import DEFAULT_FOLDER, RunFolder
from elastic_ctr.runtime.audit import LOG_PREFIX, AuditLine, lines_below

_COLUMNS = ("time", "role", "token", "call", "on", "result")


@grouped
def audit(
    where: Where = Where(),
    tail: Annotated[int, typer.Option("--tail", min=1, help="The last lines.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, with `at` in Unix seconds.")] = False,
) -> None:
    """Print who changed what: orders, posts of clicks, replaced tokens, and refused calls, the last ones at the end.

    A release's lines come from the logs of its pods. A run's lines outlive its processes.

    Exit codes: 0 printed; 2 kubectl refuses, or there is no such run.
    """
    target = target_of(where, {})
    try:
        if target.cluster is None:
            run = target.run or RunFolder(where.folder or DEFAULT_FOLDER)
            if target.run is None:
                refuse(run.absence())
            found = [*lines_below(run.path / "state"), *lines_below(run.path / "scratch")]
        else:
            found = list(_of_pods(target.cluster))
    except (KubectlFailed, OSError) as failed:
        refuse(reason_of(failed))
    last = sorted(found, key=lambda each: each.at)[-tail:]
    for line in map(json.dumps, map(asdict, last)) if as_json else _table(last):
        typer.echo(line)


def _of_pods(cluster: Cluster) -> Iterator[AuditLine]:
    """Raises KubectlFailed."""
    # Refuse an absent release here, because kubectl would report it with exit code 0.
    cluster.pods()
    words = ["logs", "--selector", cluster.selector_of(None), "--all-containers", "--ignore-errors", "--tail=-1"]
    with ending_in_order(), running(cluster.kubectl, *words, stdout=subprocess.PIPE) as process:
        yield from filter(None, map(line_in, process.stdout or ()))
        if process.wait() != 0:
            # kubectl has printed the reason.
            raise typer.Exit(2)


def line_in(logged: str) -> AuditLine | None:
    """Return the audit line in a line of a role's log, which is text or JSON; None for any other line."""
    if LOG_PREFIX not in logged:
        return None
    try:
        message = str(json.loads(logged)["message"])
    except (ValueError, KeyError, TypeError):
        message = logged
    match = re.search(rf"(?:^|\s){re.escape(LOG_PREFIX)}(\{{.*\}})\s*$", message)
    return None if match is None else AuditLine.parse(match[1])


def _table(lines: Iterable[AuditLine]) -> Iterator[str]:
    rows = [(_shown(each.at), each.role, each.token, each.call, each.on, each.result) for each in lines]
    if not rows:
        yield "nothing was changed, and no call was refused"
        return
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    for row in (_COLUMNS, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _shown(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
