"""elastic-ctr logs: the logs of the pods of a release, or of the processes of a run on this machine."""

import json
import re
import subprocess
import time
from collections import deque
from contextlib import ExitStack, suppress
from typing import Annotated, Literal

import typer

from elastic_ctr.operate.cli.cluster import Cluster, Target, target_of
from elastic_ctr.operate.cli.entrypoint import refuse
from elastic_ctr.operate.cli.kubectl import KubectlFailed, ending_in_order, running
from elastic_ctr.operate.cli.shared_options import Where, grouped
from elastic_ctr.operate.local.run_folder import DEFAULT_FOLDER, RunFolder

_PREFIX = re.compile(r"\[pod/([^/\]]+)/([^\]]+)\] ?")
# Above the pods of any release; kubectl's default limit is 5.
_MOST_FOLLOWED = 1000
_FOLLOW_SECONDS = 0.5
# The component of the pod, for containers that share a pod with another one.
_PODS = {"cube-server": "cube", "cube-transfer": "cube-transfer", "cube-builder": "cube-transfer"}
LogSource = Literal[
    "master", "trainer", "pserver", "file-server", "cube", "cube-server", "cube-transfer", "cube-builder",
    "intake", "serving", "scoring", "tracking",
]  # fmt: skip
"""A component, or one container of its pods."""


def component_of(role: LogSource) -> str:
    """Return the component whose pods have the logs of a role."""
    return _PODS.get(role, role)


@grouped
def logs(
    role: Annotated[LogSource | None, typer.Argument(help="Only this role.", show_default=False)] = None,
    where: Where = Where(),
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on, until Ctrl-C; pods that start later are not in it.")
    ] = False,
    since: Annotated[
        str | None, typer.Option("--since", metavar="DURATION", help="Only lines younger than this, such as 10m or 2h.")
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option("--tail", min=0, help="The last lines of each container.", show_default="100, all with --since"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, with pod, container and line.")
    ] = False,
) -> None:
    """Print the logs of a release or run, or of one of its roles, each line with its pod.

    Exit codes: 0 printed (or ended by Ctrl-C); 2 kubectl refuses, or there is no such pod or run.
    """
    target = target_of(where, {})
    cluster, component = target.cluster, None if role is None else component_of(role)
    if cluster is None:
        _print_files(target, role, follow=follow, since=since, tail=tail, as_json=as_json)
        return
    try:
        if not cluster.pods(component):
            # kubectl would report an absent component with exit code 0.
            refuse(f"release {cluster.release} has no pod of {component} just now")
        # -1 means all lines.
        lines = tail if tail is not None else 100 if since is None else -1
        words = ["logs", "--selector", cluster.selector_of(component), "--prefix", "--ignore-errors", f"--tail={lines}"]
        words += ["--container", role] if role in _PODS else ["--all-containers"]
        words += [] if since is None else [f"--since={since}"]
        words += ["--follow", f"--max-log-requests={_MOST_FOLLOWED}"] if follow else []
        with ending_in_order():
            code = _printed(cluster, words, as_json=as_json)
    except KubectlFailed as failed:
        refuse(str(failed))
    if code != 0:
        # kubectl has printed the reason.
        raise typer.Exit(2)


def _print_files(
    target: Target, role: LogSource | None, *, follow: bool, since: str | None, tail: int | None, as_json: bool
) -> None:
    """Print the log files of a run on this machine, one per process."""
    run = target.run or RunFolder(DEFAULT_FOLDER)
    if since is not None:
        refuse("--since needs --namespace: on this machine say --tail")
    pattern = "*" if role is None else "ctr-cube-s*" if role in ("cube", "cube-server") else f"ctr-{role}-*"
    files = sorted(each for each in run.logs.glob(f"{pattern}.log") if "." not in each.stem)  # as older releases have
    if not files:
        refuse(f"{run.logs} has no log of {role or 'a run'}; --dir names another run")
    with ExitStack() as stack, suppress(KeyboardInterrupt):
        try:
            streams = [(each.stem, stack.enter_context(each.open(errors="replace"))) for each in files]
        except OSError as failed:
            refuse(f"{failed.filename} cannot be read: {failed.strerror}; name a role whose log can be")
        lines = 100 if tail is None else tail
        for name, stream in streams:
            for line in deque(stream, maxlen=lines):
                _print_line(name, line, as_json=as_json)
        while follow:
            new = [(name, line) for name, stream in streams for line in stream]
            for name, line in new:
                _print_line(name, line, as_json=as_json)
            if not new:
                time.sleep(_FOLLOW_SECONDS)


def _print_line(name: str, line: str, *, as_json: bool) -> None:
    text = line.removesuffix("\n")
    typer.echo(_object(name, None, text) if as_json else f"[{name}] {text}")


def _object(pod: str | None, container: str | None, line: str) -> str:
    return json.dumps({"pod": pod, "container": container, "line": line})


def _printed(cluster: Cluster, words: list[str], *, as_json: bool) -> int:
    """Print kubectl's lines. Return its exit code; 0 if it was ended by Ctrl-C."""
    with running(cluster.kubectl, *words, **({"stdout": subprocess.PIPE} if as_json else {})) as process:
        try:
            for line in process.stdout or ():
                text = line.removesuffix("\n")
                match = _PREFIX.match(text)
                pod, container = (None, None) if match is None else match.groups()
                typer.echo(_object(pod, container, text[match.end() :] if match else text))
            return process.wait()
        except KeyboardInterrupt:
            return 0
