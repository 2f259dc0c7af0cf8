"""elastic-ctr local: the whole pipeline as processes of one machine."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer

from elastic_ctr.config.data import split_time
from elastic_ctr.config.load import ConfigRefused
from elastic_ctr.config.values_file import Values
from elastic_ctr.cube.release import ReleaseDocument
from elastic_ctr.formats.readers.files import names_of
from elastic_ctr.jobs.scoring.listing import NothingToRead, complete_hours
from elastic_ctr.operate.cli.check import SETTLE_SECONDS, CheckFailed, verify_serving
from elastic_ctr.operate.cli.entrypoint import reason_of, refuse
from elastic_ctr.operate.cli.given_values import SetFile, ValuesFile, load_values
from elastic_ctr.operate.cli.next_step import dir_option, print_next, shown, values_options
from elastic_ctr.operate.cli.shared_options import RunDir
from elastic_ctr.operate.cli.status import status
from elastic_ctr.operate.fitted_text import FittedTable, output_console
from elastic_ctr.operate.local.plan import RunPlaces
from elastic_ctr.operate.local.report import learned, table
from elastic_ctr.operate.local.run_data import RunData
from elastic_ctr.operate.local.run_folder import DEFAULT_FOLDER, RunFolder, process_tree, still_running, write_json
from elastic_ctr.operate.local.run_view import following, stage
from elastic_ctr.operate.local.session import (
    RoleRefused,
    RunFailed,
    Session,
    failure,
    find_ports_free,
    has_come_to_its_end,
    pause_of,
    status_and_release,
    troubles,
)
from elastic_ctr.runtime.lifecycle import stop_on_signal
from elastic_ctr.runtime.logging import configure
from elastic_ctr.runtime.status.master_status import TrainingStatus
from elastic_ctr.store.backends import StoreError, open_source
from elastic_ctr.training.trainer.conversions import format_of

app = typer.Typer(
    help="Run everything on this machine, from the values file that a cluster takes.", no_args_is_help=True
)

Last = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="YYYYMMDD/HH",
        show_default="data.end",
        help="The last hour to train: later ones are held back, to see how well they are predicted.",
    ),
]
_GRACE_SECONDS = 30
_STARTED_BY_UP = "ELASTIC_CTR_STARTED_BY_UP"
_GO_ON = b"\n"
# Free bytes needed for configs and the beginning of each log.
_LEAST_ROOM = 1 << 20


def _places(files: list[Path], set_files: list[str] | None, folder: Path, last: str | None) -> RunPlaces:
    """Return the places of a run. Ends the command with a sentence for each error in the values, or about the folder."""
    try:
        values = load_values(files, set_files, last)
        check_columns(values)
        places = RunPlaces(folder.resolve(), values)
        RunFolder(places.folder).create()
    except ConfigRefused as wrong:
        refuse(str(wrong))
    except OSError as failed:
        refuse(f"--dir {folder} cannot be used: {reason_of(failed)}")
    if not os.access(places.folder, os.W_OK):
        refuse(f"--dir {folder} cannot be used: {places.folder} may not be written by this user")
    try:
        # On a full disk a folder and an empty log can be created, but nothing can be written.
        with tempfile.TemporaryFile(dir=places.folder) as probe:
            probe.write(bytes(_LEAST_ROOM))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as full:
        refuse(
            f"--dir {folder} cannot be used: {places.folder}: {full.strerror}; make room there, or name another folder by --dir"
        )
    return places


@app.command()
def run(
    values: ValuesFile,
    folder: RunDir = DEFAULT_FOLDER,
    report: Annotated[Path | None, typer.Option("--report", help="Write the report here as JSON.")] = None,
    set_file: SetFile = None,
    last: Last = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Go on serving, also after the last hour and with problems, until Ctrl-C.")
    ] = False,
) -> None:
    """Train, publish and serve until data.end is live; then stop everything and write the report.

    Without --keep the run ends when it cannot reach its end. With it every problem is named and everything else goes on.

    Exit codes: 0 the last version is live; 1 the run cannot reach its end (the reason is printed); 2 the values or this
    machine do not allow it; 130 stopped by Ctrl-C.
    """
    places = _places(values, set_file, folder, last)
    configure("local", "WARNING")
    console = output_console(stderr=True)
    try:
        session = Session(places)
        with stop_on_signal() as stop, session.running():
            if os.environ.pop(_STARTED_BY_UP, None):
                threading.Thread(target=_stop_without_up, args=(stop,), daemon=True).start()
            code = 0
            try:
                with following(console) as show:
                    done = session.wait(stop, show, keep=keep)
                    _tell_report(session, report)
                    if not done:
                        code = 130
                    elif keep:
                        console.print(f"serving on http://{places.serving}; Ctrl-C ends it")
                        while not stop.wait(1):
                            session.look()
                            show(session)
                    else:
                        session.end_reason = f"version {session.live} is live, which is the last one"
            except RunFailed as failed:
                _tell_report(session, report)
                console.print(str(failed), style="red", highlight=False)
                session.end_reason = str(failed)
                code = 2 if isinstance(failed, RoleRefused) else 1
    except (OSError, StoreError, ValueError) as failed:
        refuse(reason_of(failed))
    if code == 0 and not keep:
        again = values_options(values, set_file, last)
        print_next("local", "up", *again, *dir_option(folder), why="answer predictions with what was trained")
    raise typer.Exit(code)


def _tell_report(session: Session, file: Path | None) -> None:
    if session.status is None:
        return
    if file is not None:
        write_json(file, session.report())
    out = output_console()
    out.print(FittedTable(table(session.status, session.seen), indent=0))
    if how := learned(session.status):
        out.print(f"learned: {how}", highlight=False, soft_wrap=True)


def _stop_without_up(stop: threading.Event) -> None:
    """Stop a run in the background if the `local up` that started it ends before it has reported that the run may continue."""
    if os.read(sys.stdin.fileno(), 1) != _GO_ON:
        stop.set()


@app.command()
def up(values: ValuesFile, folder: RunDir = DEFAULT_FOLDER, set_file: SetFile = None, last: Last = None) -> None:
    """Start everything in the background and return once predictions are answered; with --to, once that hour is in them.

    Exit codes: 0 serving answers with the live version; 1 predictions or training do not go on until the problem that is printed
    is mended, and everything else does; 2 nothing runs (the reason is printed).
    """
    places = _places(values, set_file, folder, last)
    run_folder = RunFolder(places.folder)
    if run_folder.runner() is not None:
        refuse(f"{places.folder} is up already; `elastic-ctr local down --dir {folder}` ends it")
    try:
        find_ports_free(places)
        process = _started(values, set_file, last, run_folder)
        try:
            _follow_start(process, places, run_folder, last)
        except KeyboardInterrupt:
            if process.stdin is not None and not process.stdin.closed:
                process.stdin.close()
                process.wait()
                refuse("stopped; everything that was started has ended", 130)
            refuse(f"it goes on in the background; `elastic-ctr local down --dir {places.folder}` ends it", 130)
    except OSError as failed:
        refuse(reason_of(failed))


def _started(
    values: list[Path], set_file: list[str] | None, last: str | None, run_folder: RunFolder
) -> "subprocess.Popen[bytes]":
    """Start the runner in the background. It ends with this process, unless `_go_on` is called before."""
    program = str(Path(sys.executable).parent / "elastic-ctr")
    texts = [(key, Path(name).resolve()) for key, _, name in (each.partition("=") for each in set_file or ())]
    options = values_options([file.resolve() for file in values], [f"{key}={file}" for key, file in texts], last)
    command = [program, "local", "run", "--keep", "--dir", str(run_folder.path), *options]
    environment = {**os.environ, _STARTED_BY_UP: "1"}
    with run_folder.private(), run_folder.runner_log.open("ab") as out:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=out, start_new_session=True, env=environment
        )


def _go_on(process: "subprocess.Popen[bytes]") -> None:
    """Let the runner outlive this process from now on."""
    assert process.stdin is not None
    if not process.stdin.closed:
        with suppress(BrokenPipeError):
            process.stdin.write(_GO_ON)
            process.stdin.close()


def _follow_start(
    process: "subprocess.Popen[bytes]", places: RunPlaces, run_folder: RunFolder, last: str | None
) -> None:
    """Wait until predictions are answered, if `last` is given by the version of that hour, or until they cannot be."""
    said, before = list[str](), list[str]()
    wrong_since: float | None = None

    def say(sentence: str) -> None:
        if sentence.partition(" (")[0] not in said:
            said.append(sentence.partition(" (")[0])
            output_console(stderr=True).print(sentence, highlight=False)

    while process.poll() is None:
        status_, release = status_and_release(places)
        if status_ is not None:
            _go_on(process)
        say(stage(status_, None if release is None else release.candidate))
        found = _problems_of(run_folder, status_, release)
        for each in found:
            say(each)
        # One look may see a problem that has gone, and problems that the master retries are not final.
        problems = [each for each in found if each in before and each not in troubles(status_)]
        before = found
        if release is None:
            # Until cube-transfer answers, a version may be live although training is stopped, so only problems of processes are final.
            problems = [each for each in problems if each.startswith("ctr-")]
        under_way = last is not None and status_ is not None and not has_come_to_its_end(status_, release)
        pause = pause_of(status_, release) if under_way and status_ is not None else ""
        live = None if release is None or (under_way and not pause and not problems) else release.live
        # A master may refuse an old folder although serving answers with the version in it.
        if live is not None and (status_ is not None or problems):
            stays = under_way and not pause
            stays |= any(each.startswith("ctr-master-") and " cannot run: " in each for each in problems)
            # Only problems of these roles prevent predictions.
            problems = [each for each in problems if each.startswith(("ctr-serving", "ctr-cube"))]
            unanswered = _unanswered(places.info.predictions, places.info.model, live)
            if unanswered is None:
                say(f"predictions: http://{places.serving}, folder {places.folder}")
                if pause:
                    say(f"they do not know {last} yet: {pause}")
                if stays:
                    _go_on(process)
                    ends = f"`elastic-ctr local down --dir {places.folder}` ends all"
                    refuse(f"training does not go on until this is mended ({ends})", 1)
                _print_next_of_up(places)
                return
            say(str(unanswered))
            wrong_since = (wrong_since or time.monotonic()) if unanswered.is_wrong else None
            if wrong_since is not None and time.monotonic() - wrong_since >= SETTLE_SECONDS:
                problems.append(str(unanswered))
        if problems:
            _go_on(process)
            refuse(
                "no prediction is answered until this is mended; everything else goes on "
                f"(`elastic-ctr local status --dir {places.folder}`, `elastic-ctr local down --dir {places.folder}`)",
                1,
            )
        time.sleep(0.5)
    refuse(run_folder.absence())


def _problems_of(run_folder: RunFolder, status: TrainingStatus | None, release: ReleaseDocument | None) -> list[str]:
    """Return the problems of the processes, and the reason why training stands still."""
    info = run_folder.read()
    found = [] if info is None else list(info.problems)
    stands_still = failure(status, release)
    return [*found, stands_still] if stands_still and stands_still not in found else found


def _print_next_of_up(places: RunPlaces) -> None:
    where = dir_option(places.folder)
    data = RunData(places.data, places.store)
    if (newest := data.newest_folder()) is not None:
        split, folder = newest
        held_back = places.data.end is not None and split_time(split) > split_time(places.data.end)
        rows = "rows of an hour that was held back" if held_back else "rows that it was trained on"
        print_next("predict", shown(folder), *where, why=f"probabilities and AUC of {rows}")
    print_next("status", "--watch", *where, why="passes, versions, freshness")
    print_next("local", "down", *where, why="end it; versions stay")


def _unanswered(predictions: list[str], model: str, live: int) -> CheckFailed | None:
    """Return the reason why not every serving answers with the live version, or None."""
    try:
        versions = [verify_serving(each, model).facts["version"] for each in predictions]
    except CheckFailed as failed:
        return failed
    if all(version == live for version in versions):
        return None
    return CheckFailed(
        f"serving answers with version {min(versions)}, and {live} is live; waiting until it has changed"
    )


@app.command()
def down(folder: RunDir = DEFAULT_FOLDER) -> None:
    """End the processes that `up` or `run` started in this folder, and return when all have ended. Published versions stay.

    Exit codes: 0 nothing runs any more; 2 a process does not end, or the run is another user's.
    """
    run_folder = RunFolder(folder)
    pid = run_folder.runner()
    if pid is None:
        if run_folder.stranger() is not None:
            refuse(run_folder.absence())
        typer.echo(run_folder.absence())
        return
    processes = process_tree(pid)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    ends = time.monotonic() + _GRACE_SECONDS
    while (running := still_running(processes)) and time.monotonic() < ends:
        time.sleep(0.1)
    if running:
        names = ", ".join(str(each.pid) for each in running)
        refuse(f"{len(running)} of {len(processes)} processes have not ended ({names}); {run_folder.logs} says why")
    typer.echo(f"{len(processes)} processes of {run_folder.path} have ended")


app.command("status")(status)


def check_columns(values: Values) -> None:
    """Raises ConfigRefused if the header lacks a column that is read. If the file cannot be read now, the master reports that later."""
    found = None
    with suppress(NothingToRead, OSError, ValueError):
        found = _header(values)
    if found is None or values.features is None:
        return
    path, names = found
    wanted = [(f"features.{feature}", column) for feature, column in values.features.columns()]
    wanted += [
        (f"data.{key}", column) for key in ("label", "shows") if (column := getattr(values.data, key)) is not None
    ]
    wrong = []
    for key, column in wanted:
        if column not in names:
            [near, *_] = [*get_close_matches(column, names, 1), None]
            way_out = f"did you mean {near!r}?" if near else "name one of them"
            wrong.append(f"{key} reads the column {column!r}, which {path} lacks: it has {', '.join(names)}; {way_out}")
    if wrong:
        raise ConfigRefused("\n".join(wrong))


def _header(values: Values) -> tuple[str, tuple[str, ...]] | None:
    data = values.data
    if values.features is None or data.is_stream or not data.source.url.startswith("file:///"):
        return None
    with closing(open_source(data.source)) as source:
        for path in complete_hours(source, data, chosen=False).files:
            with source.open(path) as stream:
                if (names := names_of(stream, path, format_of(data), data.max_line_bytes)) is not None:
                    return path, names
    return None
