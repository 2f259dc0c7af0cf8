"""The frame of every command: settings, logging, token, signals, and one sentence on failure.

`cube drain` uses it in pods that end, so modules of servers are imported inside functions.
"""

import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from elastic_ctr.config.load import ConfigRefused, load
from elastic_ctr.config.role_files import Auth
from elastic_ctr.config.section import Section
from elastic_ctr.runtime.auth import read_token
from elastic_ctr.runtime.lifecycle import stop_on_signal
from elastic_ctr.runtime.logging import configure_from_environment

REFUSED = 2
"""Exit code: the settings or this machine do not allow it; starting it again would not help."""

_AWAY_SECONDS = 2.0

ConfigFile = Annotated[
    Path,
    typer.Option(
        "--config", "-c", help="The role's config.yaml, as the chart renders it.", envvar="ELASTIC_CTR_CONFIG"
    ),
]
S = TypeVar("S", bound=Section)


def refuse(sentence: str, code: int = REFUSED) -> NoReturn:
    """Print the sentence to stderr and end the command."""
    print(sentence, file=sys.stderr)  # noqa: T201 (the last words of a command)
    raise typer.Exit(code)


def reason_of(failed: BaseException) -> str:
    """The sentence of a failure; for an error of the operating system its file and reason, without its number."""
    if isinstance(failed, OSError) and failed.strerror:
        return failed.strerror if failed.filename is None else f"{failed.filename}: {failed.strerror}"
    return str(failed)


def settings_of(kind: type[S], config: Path, role: str) -> S:
    """Set up logging and load the role's settings, or end with one sentence for each thing wrong."""
    configure_from_environment(role)
    try:
        return load(kind, config)
    except ConfigRefused as wrong:
        refuse(str(wrong))


def token_of(auth: Auth) -> str | None:
    try:
        return read_token(None if auth.token_file is None else Path(auth.token_file))
    except (OSError, ValueError) as wrong:
        refuse(f"auth.tokenFile {auth.token_file} cannot be used: {reason_of(wrong)}")


def pod_name(default: str) -> str:
    return os.environ.get("POD_NAME", default)


def advertised_host(host: str, domain: str | None) -> str:
    """The host that others call: the pod's name in its domain, or the host that this process listens on."""
    return host if domain is None else f"{pod_name('')}.{domain}"


def ordinal_of(pod: str) -> int:
    """The number at the end of a pod's name."""
    match = re.search(r"(\d+)$", pod)
    if match is None:
        refuse(f"POD_NAME {pod!r} does not end in a number; set it to <name>-<index>")
    return int(match[1])


@contextmanager
def exit_on_config_error() -> Iterator[None]:
    """An error of settings or machine becomes one sentence and exit code 2."""
    try:
        yield
    except (OSError, ValueError) as failed:
        logging.getLogger(__name__).debug("ended", exc_info=True)
        refuse(reason_of(failed))


@contextmanager
def health_server(role: str, status: Callable[[], dict[str, Any]], host: str, port: int) -> Iterator[None]:
    """Health, metrics and status of a role that has no other HTTP server."""
    from elastic_ctr.runtime.http import HttpThread, application
    from elastic_ctr.runtime.metrics import Metrics

    page = HttpThread(application([], status=status, metrics=Metrics(role)), host, port).start()
    try:
        yield
    finally:
        page.stop()


def run_until_signal(run: Callable[[threading.Event], int]) -> None:
    """SIGTERM and SIGINT end a role in order. A role that needs its store to begin waits while the store is unavailable."""
    with stop_on_signal() as stop, exit_on_config_error():
        code = _retry_until_store_up(run, stop)
    raise typer.Exit(code)


def _retry_until_store_up(run: Callable[[threading.Event], int], stop: threading.Event) -> int:
    from elastic_ctr.store import StoreUnavailable

    while not stop.is_set():
        try:
            return run(stop)
        except StoreUnavailable as away:  # noqa: PERF203 (seconds lie between two tries)
            logging.getLogger(__name__).warning("%s; the role begins once the store answers", away)
            stop.wait(_AWAY_SECONDS)
    return 0
