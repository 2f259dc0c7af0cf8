"""elastic-ctr local: the whole pipeline as processes of one machine."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from elastic_ctr.cli.roles import refuse
from elastic_ctr.config.load import ConfigRefused, read_yaml, settings
from elastic_ctr.config.values import Values
from elastic_ctr.local.endpoints import EndpointUnavailable, ask
from elastic_ctr.local.plan import Places
from elastic_ctr.local.progress import following, stage
from elastic_ctr.local.report import table
from elastic_ctr.local.session import RunFailed, Session, write_report
from elastic_ctr.local.supervisor import RoleRefused
from elastic_ctr.runtime.lifecycle import stop_on_signal
from elastic_ctr.runtime.lock import StateInUse, StateLock
from elastic_ctr.runtime.logging import configure
from elastic_ctr.store import StoreError

app = typer.Typer(
    help="Run everything on this machine, from the values file that a cluster takes.", no_args_is_help=True
)

ValuesFile = Annotated[list[Path], typer.Option("--values", "-f", help="A values file; of several the later one wins.")]
Folder = Annotated[Path, typer.Option("--dir", help="Where state, logs and published versions are kept.")]
SetFile = Annotated[
    list[str] | None,
    typer.Option(
        "--set-file", help="KEY=FILE: the file's text as a value, as helm takes it; for data.slots=slot.conf."
    ),
]
DEFAULT_FOLDER = Path("elastic-ctr-local")
_GRACE_SECONDS = 20


def _merged(below: dict[str, object], above: dict[str, object]) -> dict[str, object]:
    """Later files win key by key, as in Helm."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def load_values(files: list[Path], set_files: list[str] | None) -> Values:
    """Raises ConfigRefused."""
    given: dict[str, object] = {}
    for file in files:
        given = _merged(given, read_yaml(file))
    for each in set_files or []:
        key, equals, file_name = each.partition("=")
        if not equals:
            raise ConfigRefused(f"--set-file {each!r} is not KEY=FILE")
        try:
            value: object = Path(file_name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as failed:
            raise ConfigRefused(f"--set-file {each!r}: {failed}") from failed
        for step in reversed(key.split(".")):
            value = {step: value}
        given = _merged(given, value)  # type: ignore[arg-type]
    return settings(Values, given, " + ".join(map(str, files)))


def _places(files: list[Path], set_files: list[str] | None, folder: Path) -> Places:
    try:
        return Places(folder.resolve(), load_values(files, set_files))
    except ConfigRefused as wrong:
        refuse(str(wrong))


@app.command()
def run(
    values: ValuesFile,
    folder: Folder = DEFAULT_FOLDER,
    report: Annotated[Path | None, typer.Option("--report", help="Write the report here as JSON.")] = None,
    set_file: SetFile = None,
    keep: Annotated[bool, typer.Option("--keep", help="Go on serving after the last hour, until Ctrl-C.")] = False,
) -> None:
    """Train, publish and serve until data.end is live; then stop everything and write the report.

    Exit codes: 0 the last version is live; 1 the run cannot reach its end (the reason is printed); 2 the values or this
    machine do not allow it; 130 stopped by Ctrl-C.
    """
    places = _places(values, set_file, folder)
    configure("local", "WARNING")
    console = Console(stderr=True)
    code = 0
    try:
        session = Session(places)
        with stop_on_signal() as stop, session.running():
            pid_file = places.folder / "local.pid"
            pid_file.write_text(f"{os.getpid()}\n")
            try:
                with following(console) as show:
                    done = session.wait(stop, show)
                if report is not None and session.status is not None:
                    write_report(report, session.report())
                if session.status is not None:
                    out = Console()
                    # A table squeezed into 80 columns says nothing; a pipe has no width of its own.
                    (out if out.is_terminal else Console(width=160)).print(table(session.report()))
                if not done:
                    code = 130
                elif keep:
                    console.print(f"serving on http://{places.serving}; Ctrl-C ends it")
                    while not stop.wait(1):
                        session.look()
            except (RunFailed, RoleRefused) as failed:
                if report is not None and session.status is not None:
                    write_report(report, session.report())
                console.print(str(failed), style="red", highlight=False)
                code = 2 if isinstance(failed, RoleRefused) else 1
            finally:
                pid_file.unlink(missing_ok=True)
    except (OSError, StoreError) as failed:
        refuse(str(failed))
    raise typer.Exit(code)


@app.command()
def up(values: ValuesFile, folder: Folder = DEFAULT_FOLDER, set_file: SetFile = None) -> None:
    """Start everything in the background and return once predictions are answered, or at the first version's refusal."""
    places = _places(values, set_file, folder)
    if _pid(places.folder) is not None:
        refuse(f"{places.folder} is up already; `elastic-ctr local down --dir {folder}` ends it")
    log_file = places.folder / "logs" / "local.log"
    log_file.parent.mkdir(parents=True, exist_ok=True)
    command = [str(Path(sys.executable).parent / "elastic-ctr"), "local", "run", "--keep", "--dir", str(places.folder)]
    for file in values:
        command += ["--values", str(file.resolve())]
    for each in set_file or []:
        key, _, name = each.partition("=")
        command += ["--set-file", f"{key}={Path(name).resolve()}"]
    with log_file.open("ab") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    console = Console(stderr=True)
    said = ""
    while process.poll() is None:
        status, release = _look(places)
        now = stage(status, release)
        if now.partition(" (")[0] != said:
            said = now.partition(" (")[0]
            console.print(now, highlight=False)
        if release is not None and release.get("live") is not None:
            console.print(f"predictions: http://{places.serving}, folder {places.folder}")
            return
        time.sleep(0.5)
    last = log_file.read_text(errors="replace").strip().splitlines()[-3:]
    refuse("\n".join(last) or f"it ended with {process.returncode}")


@app.command()
def down(folder: Folder = DEFAULT_FOLDER) -> None:
    """End what `up` or `run` started in this folder. What was published stays.

    Exit codes: 0 nothing runs any more; 2 something does not end.
    """
    pid = _pid(folder.resolve())
    if pid is None:
        typer.echo(f"nothing runs in {folder}")
        return
    os.kill(pid, signal.SIGTERM)
    ends = time.monotonic() + _GRACE_SECONDS + 10
    while _pid(folder.resolve()) is not None and time.monotonic() < ends:
        time.sleep(0.1)
    if _pid(folder.resolve()) is not None:
        refuse(f"process {pid} was told to end and has not; {folder}/logs says what it waits for")
    typer.echo(f"ended {pid}")


@app.command()
def status(
    values: ValuesFile,
    folder: Folder = DEFAULT_FOLDER,
    set_file: SetFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="The roles' own answers.")] = False,
) -> None:
    """Say where the run in this folder is. Exit code 1 when nothing answers."""
    places = _places(values, set_file, folder)
    master, release = _look(places)
    if as_json:
        typer.echo(json.dumps({"master": master, "release": release}))
    else:
        typer.echo(stage(master, release) if master is not None else "nothing answers")
        if release is not None:
            typer.echo(f"live: {release.get('live')}")
    raise typer.Exit(0 if master is not None else 1)


def _look(places: Places) -> tuple[dict[str, object] | None, dict[str, object] | None]:
    answers: list[dict[str, object] | None] = []
    for url in (f"{places.master_status}/status", f"http://{places.transfer}/release"):
        try:
            answers.append(ask(url, timeout=2))
        except EndpointUnavailable:  # noqa: PERF203 (the other may answer)
            answers.append(None)
    return answers[0], answers[1]


def _pid(folder: Path) -> int | None:
    """The runner of a folder, if it is alive."""
    try:
        pid = int((folder / "local.pid").read_text())
        # The number alone may be another process's by now: a runner holds the lock.
        with StateLock(folder / "state"):
            return None
    except StateInUse:
        return pid
    except (OSError, ValueError):
        return None
