"""elastic-ctr cube drain: how a cube pod ends, for preStop of both its containers."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from elastic_ctr.config.load import ConfigRefused, read_yaml, settings
from elastic_ctr.config.role_files import CubeAgentFile, CubeServerFile
from elastic_ctr.cube.agent.drain_client import LONGEST_DRAIN_SECONDS, DrainRefused, run_cube_drain

EXIT_GRACE_OVER, EXIT_REFUSED = 1, 2


def drain(
    config: Annotated[
        Path,
        typer.Option("--config", "-c", help="The config.yaml of the container that ends.", envvar="ELASTIC_CTR_CONFIG"),
    ],
    grace_seconds: Annotated[
        float,
        typer.Option("--grace-seconds", min=0, help="Wait no longer; Kubernetes ends the wait with its own grace."),
    ] = LONGEST_DRAIN_SECONDS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Have the pod's agent drain, and return when it has ended: readers ask other pods by then.

    Exit codes: 0 the agent has ended (or had before); 1 the grace was over first; 2 it cannot be asked.
    """
    try:
        file = _file(config)
        token = _token(file.auth.token_file)
        agent_url = f"http://{_reached(file.host)}:{file.cube.agent_port}"
        ended = run_cube_drain(agent_url=agent_url, token=token, grace_seconds=grace_seconds)
    except (ConfigRefused, DrainRefused) as refused:
        print(refused, file=sys.stderr)  # noqa: T201 (the last words of a command)
        raise typer.Exit(EXIT_REFUSED) from refused
    if as_json:
        typer.echo(json.dumps({"agent": agent_url, "ended": ended}))
    else:
        told = "has ended" if ended else f"still drains after {grace_seconds:g} s"
        typer.echo(f"the agent at {agent_url} {told}")
    if not ended:
        raise typer.Exit(EXIT_GRACE_OVER)


def _file(config: Path) -> CubeAgentFile | CubeServerFile:
    """Raises ConfigRefused."""
    given = read_yaml(config)
    # Both containers of a pod call this, each with its own file; only an agent knows transfer.
    if "transferAddress" in given:
        return settings(CubeAgentFile, given, str(config))
    return settings(CubeServerFile, given, str(config))


def _token(name: str | None) -> str | None:
    """Raises ConfigRefused. As runtime.http.read_token, whose module brings a whole web server along."""
    if name is None:
        return None
    try:
        token = Path(name).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as unread:
        raise ConfigRefused(f"auth.tokenFile {name} cannot be read: {unread}") from unread
    if not token.isascii() or not token.isprintable() or len(token.split()) != 1:
        # Never shown: whatever it is, it may be a secret.
        raise ConfigRefused(f"auth.tokenFile {name} holds no token, which is one word on one line")
    return token


def _reached(host: str) -> str:
    """Where this pod reaches what listens on a host."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 (compared, not bound)
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
