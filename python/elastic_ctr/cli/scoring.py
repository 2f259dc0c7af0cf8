"""What `elastic-ctr evaluate` and `elastic-ctr predict --output` share: their options, and a job of scoring on this machine."""

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from elastic_ctr.cli.cluster import Target, target_of
from elastic_ctr.cli.entrypoint import reason_of, refuse
from elastic_ctr.cli.kubectl import KubectlFailed, ending_in_order
from elastic_ctr.cli.local import load_values
from elastic_ctr.cli.progress import progress_of
from elastic_ctr.cli.shared_options import TRANSFER, TokenFile, TransferAddress, Where
from elastic_ctr.config.data import Data
from elastic_ctr.config.load import ConfigRefused, settings
from elastic_ctr.config.values_file import Values
from elastic_ctr.cube.builder.job import BuildFailed
from elastic_ctr.local.endpoints import release_document
from elastic_ctr.local.plan import Places
from elastic_ctr.local.run_folder import DEFAULT_FOLDER
from elastic_ctr.scoring.hours import Listing, NothingToRead, complete_hours, given_files
from elastic_ctr.scoring.job import Job, Options, OtherJob, Outcome, OutputFormat
from elastic_ctr.scoring.quality import measures
from elastic_ctr.scoring.run import Given, JobFailed, Progress, Report, how_read, run_job
from elastic_ctr.scoring.version import LATEST, LIVE, VersionUnusable
from elastic_ctr.scoring.worker import Place
from elastic_ctr.store import open_source

STOPPED = 130
PANEL = "With a version in the store (-f)"


@dataclass(frozen=True)
class ScoringOptions:
    """Options of commands that score with a version in the store."""

    values: Annotated[
        list[Path] | None,
        typer.Option(
            "--values", "-f", rich_help_panel=PANEL,
            help="The values file of the training, which says where rows and versions are; of several the later one wins.",
        ),
    ] = None  # fmt: skip
    set_file: Annotated[
        list[str] | None,
        typer.Option(
            "--set-file", rich_help_panel=PANEL, help="KEY=FILE: the file's text as a value, as helm takes it."
        ),
    ] = None
    version: Annotated[
        str | None,
        typer.Option(
            metavar="ID|latest|live", rich_help_panel=PANEL, show_default=LATEST,
            help="The version; `latest` is the newest one in the store that is not refused. `live` asks cube-transfer.",
        ),
    ] = None  # fmt: skip
    first: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="YYYYMMDD/HH", rich_help_panel=PANEL, show_default="data.start",
            help="The first hour of data.source.",
        ),
    ] = None  # fmt: skip
    last: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="YYYYMMDD/HH", rich_help_panel=PANEL, show_default="data.end, or the last that is there",
            help="The last hour, included.",
        ),
    ] = None  # fmt: skip
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL|DIR", rich_help_panel=PANEL, show_default="store.config.url, or that of the run in --dir",
            help="The store with the versions.",
        ),
    ] = None  # fmt: skip
    processes: Annotated[
        int | None,
        typer.Option(min=1, rich_help_panel=PANEL, show_default="one a core", help="How many score at once."),
    ] = None
    transfer: TransferAddress = None
    token_file: TokenFile = None

    def given(self) -> str | None:
        """An option beside the values file that was given, by its name."""
        by_name = {
            "--set-file": self.set_file, "--version": self.version, "--from": self.first, "--to": self.last,
            "--store": self.store, "--processes": self.processes, "--transfer": self.transfer,
        }  # fmt: skip
        return next((name for name, value in by_name.items() if value is not None), None)


@dataclass(frozen=True)
class Asked:
    """What is done with the rows. `output` is a folder or the address of a store; None: one that goes with the command."""

    deed: Literal["predict", "evaluate"]
    files: Sequence[Path]
    output: str | None
    no_clicks: bool = False
    form: OutputFormat = "csv"
    copied: tuple[str, ...] = ()


def score(asked: Asked, options: ScoringOptions, where: Where) -> tuple[Report, Data]:
    """The report of a job that is done. Ends with a sentence where it cannot be."""
    try:
        values = load_values(options.values or [], options.set_file)
        data = _at_hours(values.data, options)
    except ConfigRefused as wrong:
        refuse(str(wrong))
    if asked.files and (options.first or options.last):
        refuse("name either files, or hours by --from and --to: not both")
    target = target_of(where, {"--transfer": options.transfer}) if options.version == LIVE else None
    # SIGTERM, too, leaves no process and no scratch behind.
    with ending_in_order(), tempfile.TemporaryDirectory(prefix="elastic-ctr-scoring-") as scratch:
        shown = _Shown(options)
        try:
            with closing(shown):
                return run_job(_given(asked, options, values, data, where, target, Path(scratch)), shown), data
        except (VersionUnusable, OtherJob, NothingToRead) as wrong:
            refuse(str(wrong))
        except (JobFailed, BuildFailed, KubectlFailed, OSError, ValueError) as failed:
            refuse(reason_of(failed), 1)
        except KeyboardInterrupt:
            _stopped(asked)


def _stopped(asked: Asked) -> NoReturn:
    kept = "nothing is kept" if asked.output is None else "what is done is kept, and the same command goes on"
    refuse(f"stopped; {kept}", STOPPED)


def _at_hours(data: Data, options: ScoringOptions) -> Data:
    """Raises ConfigRefused."""
    told = {"start": options.first, "end": options.last}
    changes = {name: split for name, split in told.items() if split is not None}
    if not changes:
        return data
    return settings(Data, {**data.model_dump(by_alias=True, exclude_defaults=True), **changes}, "--from, --to")


def _given(
    asked: Asked,
    options: ScoringOptions,
    values: Values,
    data: Data,
    where: Where,
    target: Target | None,
    scratch: Path,
) -> Given:
    """Raises OSError, ValueError."""
    # Here it is for a file-server, which wants it for every change.
    token = Target(None, None).token(options.token_file)
    models = _url(options.store) or Places((where.folder or DEFAULT_FOLDER).resolve(), values).store_url
    user = values.store.config.user
    output = _url(asked.output) or (scratch / "job").as_uri()
    if asked.files:
        source, listing = Place("file:///"), given_files(asked.files)
        hours, files = "", tuple(sorted(listing.files))
    else:
        source, files = Place(data.source.url, data.source.user), ()
        hours = f"{data.start}..{data.end or ''}"
    return Given(
        options=Options(
            deed=asked.deed,
            version=options.version or LATEST,
            source=source.url,
            data=how_read(data),
            hours=hours,
            files=files,
            no_clicks=asked.no_clicks,
            form=asked.form,
            copied=asked.copied,
        ),
        data=data,
        models=Place(models, user, token),
        folder=Place(output, user, token),
        source=source,
        listing=(lambda: listing) if asked.files else lambda: _hours(data, chosen=options.first is not None),
        live=lambda: _live(target, options),
        processes=options.processes or len(os.sched_getaffinity(0)),
        scratch=scratch,
    )


def _url(where: str | None) -> str | None:
    """A folder of this machine as an address; an address as it is."""
    return where if where is None or "://" in where else Path(where).resolve().as_uri()


def _hours(data: Data, *, chosen: bool) -> Listing:
    source = open_source(data.source.url, data.source.user)
    found = complete_hours(source, data, chosen=chosen and data.end is not None)
    for split in found.waiting:
        typer.echo(f"{split} has no {data.donefile} yet and is left out", err=True)
    return found


def _live(target: Target | None, options: ScoringOptions) -> int | None:
    """Raises EndpointUnavailable, KubectlFailed."""
    assert target is not None
    with target.reached(TRANSFER, options.transfer) as address:
        return release_document(address).live


class _Shown(Progress):
    """Progress on standard error, until `close`."""

    def __init__(self, options: ScoringOptions) -> None:
        self._asked = options.version or LATEST
        self._shown = ExitStack()
        self._tell: Callable[[int, str], None] | None = None
        self._done = 0

    def begun(self, job: Job, done: set[int], *, again: bool) -> None:
        files = len({task.path for task in job.tasks})
        named = again and self._asked in {LATEST, LIVE}
        known = f", which was the {self._asked} one when this output was begun" if named else ""
        rest = f"; {len(done)} are done already" if again else ""
        typer.echo(f"version {job.version}{known}: {files} files in {len(job.tasks)} parts{rest}", err=True)
        if len(done) < len(job.tasks):
            size = sum(task.bytes for task in job.tasks)
            self._tell = self._shown.enter_context(progress_of(size, "the version is fetched"))
        self.done(job, done)

    def done(self, job: Job, tasks: set[int]) -> None:
        self._done += len(tasks)
        if tasks and self._tell is not None:
            self._tell(sum(job.tasks[task].bytes for task in tasks), f"{self._done} of {len(job.tasks)} parts")

    def noted(self, sentence: str) -> None:
        typer.echo(sentence, err=True)

    def close(self) -> None:
        self._shown.close()


def told(outcome: Outcome, version: int) -> str:
    """A sentence, and one more about refused rows."""
    found = measures(outcome)
    text = f"{outcome.rows:,} rows with version {version}"
    if outcome.quality is not None:
        text += f", {outcome.shows:,} shows, {outcome.clicks:,} clicks"
        auc = "none (it takes a click and a show without one)" if found["auc"] is None else f"{found['auc']:.6f}"
        text += f": AUC {auc}" + ("" if found["logloss"] is None else f", logloss {found['logloss']:.6f}")
    return f"{text}\n{refusals(outcome)}" if outcome.refused else text


def refusals(outcome: Outcome) -> str:
    counts = Counter(outcome.refused)
    reasons = ", ".join(
        f"{reason} {count:,} (such as {outcome.examples.get(reason, '')})" for reason, count in counts.most_common()
    )
    return f"{counts.total():,} of {outcome.rows:,} rows were refused: {reasons}"


def end_for_refused(outcome: Outcome, data: Data) -> None:
    """Ends with 1 where more rows were refused than a training would take."""
    if outcome.rows and sum(outcome.refused.values()) / outcome.rows > data.max_refused_share:
        refuse(f"more rows were refused than data.maxRefusedShare {data.max_refused_share:g} of them", 1)
