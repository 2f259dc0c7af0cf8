"""The options and the local jobs that `elastic-ctr evaluate` and `elastic-ctr predict --output` share."""

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from elastic_ctr.config.load import ConfigRefused
from elastic_ctr.config.values_file import Values
from elastic_ctr.cube.builder.job import BuildFailed
from elastic_ctr.jobs.scoring.listing import NothingToRead
from elastic_ctr.jobs.scoring.order import Order
from elastic_ctr.jobs.scoring.run import JobFailed, Progress, run_job
from elastic_ctr.jobs.scoring.scoring_job import Job, OutputRefused
from elastic_ctr.jobs.scoring.version import LATEST, LIVE, VersionUnusable
from elastic_ctr.jobs.scoring.worker import Place
from elastic_ctr.operate.cli.cluster import Target, target_of, tokens_of
from elastic_ctr.operate.cli.entrypoint import reason_of, refuse
from elastic_ctr.operate.cli.given_values import values_of
from elastic_ctr.operate.cli.kubectl import KubectlFailed, ending_in_order
from elastic_ctr.operate.cli.kubernetes_job import score_in_cluster
from elastic_ctr.operate.cli.progress import progress_of
from elastic_ctr.operate.cli.shared_options import TRANSFER, StoreTokenFile, TransferAddress, Where
from elastic_ctr.operate.local.endpoints import release_document
from elastic_ctr.operate.local.plan import RunPlaces
from elastic_ctr.operate.local.run_folder import DEFAULT_FOLDER
from elastic_ctr.runtime.scratch import scratch_folder

STOPPED = 130
PANEL = "With a version in the store (-f, or --pods)"


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
            help="The first hour of data.source; the commit of a table behind which rows are scored, or `earliest`.",
        ),
    ] = None  # fmt: skip
    last: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="YYYYMMDD/HH", rich_help_panel=PANEL, show_default="data.end, or the last that is there",
            help="The last hour or commit, included.",
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
        typer.Option(
            min=1,
            rich_help_panel=PANEL,
            show_default="scoring.config.processes, else one a core",
            help="How many score at once.",
        ),
    ] = None
    transfer: TransferAddress = None
    token_file: StoreTokenFile = None
    pods: Annotated[
        int | None,
        typer.Option(
            min=1, max=1000, rich_help_panel=PANEL,
            help="Score in a cluster, by a Job of so many pods of the release: --namespace, and no -f.",
        ),
    ] = None  # fmt: skip

    @property
    def stored(self) -> bool:
        """True if the options select a version in the store."""
        return bool(self.values) or self.pods is not None

    def given(self) -> str | None:
        """Return the name of a given option that needs the values file or pods, or None."""
        by_name = {"--version": self.version, "--from": self.first, "--to": self.last, **self._of_machine()}
        return next((name for name, value in by_name.items() if value is not None), None)

    def of_machine(self) -> str | None:
        """Return the name of a given option that is not for a cluster, or None."""
        by_name = {"-f": self.values, **self._of_machine()}
        return next((name for name, value in by_name.items() if value is not None), None)

    def _of_machine(self) -> dict[str, object]:
        return {
            "--set-file": self.set_file, "--store": self.store, "--processes": self.processes, "--transfer": self.transfer,
        }  # fmt: skip

    def order(self, order: Order) -> Order:
        """Return the order with the version and the hours of the options."""
        return order.model_copy(update={"version": self.version or LATEST, "first": self.first, "last": self.last})


def score(order: Order, options: ScoringOptions, where: Where) -> dict[str, Any]:
    """Run a job and return its report, see `Report.document`. Ends the command with a sentence if the job fails."""
    order = options.order(order)
    if order.files and (options.first or options.last):
        refuse("name either files, or hours by --from and --to: not both")
    if options.pods is None:
        return _score_here(order, options, where)
    if option := options.of_machine():
        refuse(f"{option} is for this machine, and --pods for a cluster: leave one out")
    if order.files:
        refuse("pods do not see the files of this machine; name hours of data.source by --from and --to")
    target = target_of(where, {})
    if target.cluster is None:
        refuse("--pods needs --namespace: the Job is one of a release in a cluster")
    try:
        with ending_in_order():
            return score_in_cluster(target.cluster, order, options.pods)
    except KubectlFailed as failed:
        refuse(str(failed), 1)


def _score_here(order: Order, options: ScoringOptions, where: Where) -> dict[str, Any]:
    values = values_of(options.values or [], options.set_file)
    own = values.scoring.config.processes if "processes" in values.scoring.config.model_fields_set else None
    target = target_of(where, {"--transfer": options.transfer}) if order.version == LIVE else None
    shown = _Shown(order.version)
    # After SIGTERM, too, no process and no scratch folder is left.
    with ending_in_order(), scratch_folder("elastic-ctr-scoring-") as scratch, closing(shown):
        try:
            given = order.model_copy(update={"output": _url(order.output)}).given(
                values.data,
                _models(options, values, where),
                tokens_given=options.token_file is not None,
                live=lambda: _live(target, options),
                told=shown.noted,
                processes=options.processes or own or len(os.sched_getaffinity(0)),
                scratch=scratch,
            )
            return run_job(given, shown).document()
        except (ConfigRefused, VersionUnusable, OutputRefused, NothingToRead) as wrong:
            refuse(str(wrong))
        except (JobFailed, BuildFailed, KubectlFailed, OSError, ValueError) as failed:
            refuse(reason_of(failed), 1)
        except KeyboardInterrupt:
            kept = "nothing is kept" if order.output is None else "what is done is kept, and the same command goes on"
            refuse(f"stopped; {kept}", STOPPED)


def _models(options: ScoringOptions, values: Values, where: Where) -> Place:
    """Return the store with the versions, with the token that a file-server needs for every change."""
    folder = (where.folder or DEFAULT_FOLDER).resolve()
    url = _url(options.store) or RunPlaces(folder, values).store_url
    return Place(values.store.config.moved(url), None if options.token_file is None else tokens_of(options.token_file))


def _url(where: str | None) -> str | None:
    """Return a folder of this machine as an address, and an address unchanged."""
    return where if where is None or "://" in where else Path(where).resolve().as_uri()


def _live(target: Target | None, options: ScoringOptions) -> int | None:
    """Return the live version. Raises EndpointUnavailable, KubectlFailed."""
    assert target is not None
    with target.reached(TRANSFER, options.transfer) as address:
        return release_document(address).live


class _Shown(Progress):
    """Progress on standard error, until `close`."""

    def __init__(self, asked: str) -> None:
        self._asked = asked
        self._shown = ExitStack()
        self._tell: Callable[[int, str], None] | None = None
        self._done = 0

    def begun(self, job: Job, done: set[int], *, again: bool) -> None:
        files = len({task.path for task in job.tasks})
        named = again and self._asked in {LATEST, LIVE}
        known = f", which was the {self._asked} one when this output was begun" if named else ""
        rest = f"; {len(done)} are done already" if again else ""
        typer.echo(f"version {job.version}{known}: {files} files in {len(job.tasks)} tasks{rest}", err=True)
        if len(done) < len(job.tasks):
            size = sum(task.bytes for task in job.tasks)
            self._tell = self._shown.enter_context(progress_of(size, "the version is fetched"))
        self.done(job, done)

    def done(self, job: Job, tasks: set[int]) -> None:
        self._done += len(tasks)
        if tasks and self._tell is not None:
            self._tell(sum(job.tasks[task].bytes for task in tasks), f"{self._done} of {len(job.tasks)} tasks")

    def noted(self, sentence: str) -> None:
        typer.echo(sentence, err=True)

    def close(self) -> None:
        self._shown.close()


def told(document: dict[str, Any]) -> str:
    """Return a sentence on the report, and one more on refused rows."""
    total = document["total"]
    text = f"{total['rows']:,} rows with version {document['version']}"
    if "shows" in total:
        auc = "none (it takes a click and a show without one)" if total["auc"] is None else f"{total['auc']:.6f}"
        text += f", {total['shows']:,} shows, {total['clicks']:,} clicks: AUC {auc}"
        text += "" if total["logloss"] is None else f", logloss {total['logloss']:.6f}"
    return f"{text}\n{refusals(total)}" if total["refused"] else text


def refusals(total: dict[str, Any]) -> str:
    examples, by_reason = total["refusedExamples"], sorted(total["refusedByReason"].items(), key=lambda each: -each[1])
    reasons = ", ".join(f"{reason} {count:,} (such as {examples.get(reason, '')})" for reason, count in by_reason)
    return f"{total['refused']:,} of {total['rows']:,} rows were refused: {reasons}"


def end_for_refused(document: dict[str, Any]) -> None:
    """End with exit code 1 if more rows were refused than a training accepts."""
    total, share = document["total"], document["maxRefusedShare"]
    if total["rows"] and total["refused"] / total["rows"] > share:
        refuse(f"more rows were refused than data.maxRefusedShare {share:g} of them", 1)
