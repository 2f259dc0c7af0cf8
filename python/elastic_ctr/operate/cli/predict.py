"""`elastic-ctr predict`: probabilities of lines or rows, from a running serving or computed with a version in the store."""

import itertools
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from elastic_ctr.config.load import ConfigRefused
from elastic_ctr.formats.inputs import USUAL_WORDS, MissingWords
from elastic_ctr.formats.keys import PADDING_KEY
from elastic_ctr.formats.line import LineRefused, parse_features, parse_line
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.operate.cli.cluster import Target, target_of
from elastic_ctr.operate.cli.entrypoint import reason_of, refuse
from elastic_ctr.operate.cli.kubectl import KubectlFailed
from elastic_ctr.operate.cli.next_step import command
from elastic_ctr.operate.cli.predict_stored import StoredOptions, predict_stored
from elastic_ctr.operate.cli.prediction_rows import RowOptions, Sample, names_of, samples_of_rows
from elastic_ctr.operate.cli.scoring import ScoringOptions
from elastic_ctr.operate.cli.shared_options import PREDICTIONS, ModelName, PredictionsAddress, Where, grouped
from elastic_ctr.operate.local import endpoints
from elastic_ctr.operate.local.run_data import RunData
from elastic_ctr.store.backends.source import FileSource, is_partition
from elastic_ctr.store.backends.temporary import appearing
from elastic_ctr.training.model.evaluation import weighted_auc, weighted_logloss

_SHOWN = 20
_BATCH = 512


@dataclass(frozen=True)
class ServedOptions:
    """Options for requests to a running serving."""

    address: PredictionsAddress = None
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, max=100_000, help="Lines or rows in one request.", show_default=str(_BATCH)),
    ] = None
    model: ModelName = None

    def given(self) -> str | None:
        """An option that was given, by its name."""
        by_name = {"--address": self.address, "--batch": self.batch, "--model": self.model}
        return next((name for name, value in by_name.items() if value is not None), None)


@grouped
def predict(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|FOLDER|-",
            help="Lines or rows as in training; of a folder its files; - is standard input. With -f: files, else hours.",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE|DIR|URL",
            help="Write there, whole or not at all, instead of to stdout. With -f: the folder, or store, for one file a task.",
        ),
    ] = None,
    served: ServedOptions = ServedOptions(),
    no_clicks: Annotated[
        bool,
        typer.Option("--no-clicks", help="Of lines: they have no show and click. Of rows: their label is not read."),
    ] = False,
    rows: RowOptions = RowOptions(),
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object a line, with the version. With -f: the summary as one object."),
    ] = False,
    stored: StoredOptions = StoredOptions(),
    scoring: ScoringOptions = ScoringOptions(),
    where: Where = Where(),
) -> None:
    """Print one probability of a click for each line or row, by a running serving; or write them, by a version in the store.

    A model of columns takes rows: csv, tsv, jsonl or parquet, csv and tsv with a header or with --columns; .gz and .zst
    are decompressed. Columns that no feature reads are left out, and one that the file lacks is named. Format and label of a run
    on this machine are known.

    With show and click in the lines, or a label in the rows, AUC and logloss weighted by them are printed on standard error, and
    whether the version has been trained on them. A bad line is named by its number, gets `nan` (null with --json) so that the lines
    of the answer stay those of the file, and makes the exit code 1; 2 means that serving did not answer.

    With -f VALUES --output DIR no serving is needed: hours of data.source (--from, --to) or files are scored with a version in the
    store. Each row gets one row of output, in its order; a refused one has no probability but its reason. An interrupted command
    goes on where it was. Exit codes are those of evaluate.
    """
    if scoring.stored:
        if option := served.given() or rows.given():
            refuse(f"{option} is for a running serving, and -f or --pods for a version in the store: leave one out")
        predict_stored(files or [], output, scoring, stored, where, no_clicks=no_clicks, as_json=as_json)
        return
    if option := scoring.given() or stored.given():
        refuse(
            f"{option} is for a version in the store: say -f VALUES, the values file of its training, as well; or --pods N"
        )
    if not files or ("-" in files and len(files) > 1):
        refuse(
            "name a FILE, the folder of an hour, or - alone for standard input; all hours are for -f VALUES --output DIR"
        )
    to = None if output is None else Path(output)
    _predict_served(files, to, served, rows, where, no_clicks=no_clicks, as_json=as_json)


def _predict_served(
    given: list[str],
    output: Path | None,
    served: ServedOptions,
    rows: RowOptions,
    where: Where,
    *,
    no_clicks: bool,
    as_json: bool,
) -> None:
    target = target_of(where, {"--address": served.address})
    # The serving at a given address may belong to another run.
    run = RunData.of(target.run) if target.run is not None and served.address is None else None
    try:
        files = _files_of(given, run)
        with (
            # The file appears once it is complete.
            nullcontext(sys.stdout.buffer) if output is None else appearing(output) as out,
            target.reached(PREDICTIONS, served.address) as found,
        ):
            serving, name = found.removeprefix("http://"), target.model(served.model)
            endpoints.ready(serving, name)
            inputs = endpoints.metadata(serving, name)
            tally = _PredictionTally("line" if inputs.slots else "row")
            words = USUAL_WORDS if inputs.slots else _missing_words(target, run)
            for file in files:
                with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as stream:
                    tally.file = file if len(files) > 1 else ""
                    if inputs.slots:
                        samples, tally.labelled = _lines(stream, inputs.slots, rows, no_clicks=no_clicks), not no_clicks
                    else:
                        options = _of_run(stream, file, rows, run, no_clicks=no_clicks)
                        samples, tally.labelled = (
                            _rows(stream, file, inputs.columns, options, words),
                            options.label is not None,
                        )
                    while asked := list(itertools.islice(samples, served.batch or _BATCH)):
                        for sample, probability, version in _ask(serving, name, asked):
                            tally.add(sample, probability, version)
                            out.write(tally.written(sample, probability, version, as_json=as_json).encode())
                        out.flush()
    except BrokenPipeError:
        # The reader has closed the pipe, as in `… | head`; click ends the command without a message.
        raise
    except (KubectlFailed, OSError, ValueError) as failed:
        refuse(reason_of(failed))
    if tally.report() and run is not None:
        typer.echo(memory_sentence(run, files, tally.versions), err=True)
    if tally.bad:
        raise typer.Exit(1)


def _missing_words(target: Target, run: RunData | None) -> MissingWords:
    """Return the words for missing numbers of the run or release; the usual ones where only an address is known."""
    if run is not None:
        return run.data.missing_words
    if target.cluster is None:
        return USUAL_WORDS
    try:
        return target.cluster.missing_words()
    except (KubectlFailed, ConfigRefused) as failed:
        typer.echo(f"data.missing of the release is unknown: {failed}; the usual words are missing numbers", err=True)
        return USUAL_WORDS


def _files_of(given: list[str], run: RunData | None) -> list[str]:
    """Return the files, for a folder those that training would read. Raises ValueError, OSError."""
    donefile = "donefile" if run is None else run.data.donefile
    found: list[str] = []
    for name in given:
        path = Path(name)
        if not path.is_dir():
            found.append(name)
            continue
        inside = sorted(path.iterdir())
        values = path / "values.yaml"
        if not inside or any(each.is_dir() and not is_partition(each.name) for each in inside):
            way = command("predict", "-f", values if values.exists() else "VALUES", "--output", "DIR")
            raise ValueError(
                f"{name} is not the folder of one hour: name one, or a file; `{way}` scores all hours with a version in the store"
            )
        listed = (path / each for each, _ in FileSource(path.resolve()).listing("").files)
        found += [str(each) for each in listed if each.name != donefile and not each.name.startswith((".", "_"))]
    return found


def _of_run(stream: BinaryIO, file: str, rows: RowOptions, run: RunData | None, *, no_clicks: bool) -> RowOptions:
    """Return the options of a file of rows, completed by the settings of the run. Raises ValueError."""
    if no_clicks and (rows.label or rows.shows):
        raise ValueError("--no-clicks reads no label, and --label or --shows names one: leave one out")
    if run is None:
        return rows
    options = rows.completed(run.data, file)
    # Parquet cannot be read from a pipe; the reading of rows refuses that.
    if no_clicks or options.file_format is None or (file == "-" and options.file_format == "parquet"):
        return options
    return options.labelled(run.data, names_of(stream, file, options.format_of(file)))


def memory_sentence(run: RunData, files: list[str], versions: list[int]) -> str:
    """Return a sentence on whether the versions that answered were trained on these rows, whose AUC is too good then."""
    splits = [run.split_of(Path(file)) for file in files if file != "-"]
    until = max((moment for version in versions if (moment := run.learned_until(version)) is not None), default=None)
    which = f"version {versions[-1]}" if len(versions) == 1 else "one of the versions"
    if any(run.follows(Path(file)) for file in files if file != "-"):
        return (
            f"the run follows these files, so {which} may have been trained on these rows: AUC is that of memory then"
        )
    if until is None or not splits or None in splits:
        return "these rows are in no hour of the run: if they were trained, AUC is that of memory and says too much"
    learned = sorted({split for split in splits if split is not None and run.has_learned(split, until)})
    if learned:
        return (
            f"{which} was trained on these rows (hour {', '.join(learned)}): AUC is that of memory and says too much; "
            "ask for a later hour, or see `AUC before` in the status"
        )
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(until))
    return f"{which} knows events until {at} and was not trained on these rows: AUC is that of new rows"


class _PredictionTally:
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.bad = 0
        # The name of the present file if there are several, and whether its clicks are known.
        self.file = ""
        self.labelled = False
        self._answers: list[tuple[float, int, int]] = []
        self._versions: Counter[int | None] = Counter()

    @property
    def versions(self) -> list[int]:
        return sorted(version for version in self._versions if version is not None)

    def add(self, sample: Sample, probability: float, version: int | None) -> None:
        if sample.text is None:
            self.bad += 1
            if self.bad <= _SHOWN:
                of_file = f"{self.file} " if self.file else ""
                typer.echo(f"{of_file}{self.kind} {sample.number}: {sample.reason}", err=True)
            return
        self._versions[version] += 1
        if self.labelled:
            self._answers.append((probability, sample.click, sample.show))

    def written(self, sample: Sample, probability: float, version: int | None, *, as_json: bool) -> str:
        if not as_json:
            return f"{probability:.9g}\n"
        of_file = {"file": self.file} if self.file else {}
        found = None if sample.text is None else probability
        return json.dumps({**of_file, self.kind: sample.number, "probability": found, "version": version}) + "\n"

    def report(self) -> bool:
        """Print the summary of all answers. Return True if it had measures."""
        if self.bad > _SHOWN:
            typer.echo(f"… and {self.bad - _SHOWN} more bad {self.kind}s", err=True)
        if len(self._versions) > 1:
            shares = ", ".join(f"{version} ({count} {self.kind}s)" for version, count in self._versions.items())
            typer.echo(f"the live version changed meanwhile; answers are of versions {shares}", err=True)
        if not self._answers:
            return False
        probabilities, clicks, shows = zip(*self._answers, strict=True)
        auc = weighted_auc(probabilities, clicks, shows)
        told = "none (it takes a click and a show without one)" if auc is None else f"{auc:.6f}"
        loss = weighted_logloss(probabilities, clicks, shows)
        counts = f"{len(self._answers)} {self.kind}s, {sum(shows)} shows, {sum(clicks)} clicks"
        typer.echo(f"{counts}: AUC {told}, logloss {loss:.6f}", err=True)
        return True


def _lines(stream: BinaryIO, slots: list[str], rows: RowOptions, *, no_clicks: bool) -> Iterator[Sample]:
    """Return the samples of lines. Raises ValueError."""
    if option := rows.given():
        raise ValueError(f"{option} is for models of columns, and this one takes lines of feasigns; leave it out")
    known = SlotList(tuple(slots))
    return (_read(number, line, known, no_clicks=no_clicks) for number, line in enumerate(stream, 1))


def _rows(
    stream: BinaryIO, file: str, columns: dict[str, str], rows: RowOptions, words: MissingWords
) -> Iterator[Sample]:
    """Return the samples of rows of columns. Raises ValueError."""
    if file != "-":
        return samples_of_rows(stream, file, columns, rows, words)
    if rows.file_format in {None, "parquet"}:
        raise ValueError("rows from standard input need --format csv, tsv or jsonl; Parquet is read from a file")
    return samples_of_rows(stream, "standard input", columns, rows, words)


def _read(number: int, line: bytes, slots: SlotList, *, no_clicks: bool) -> Sample:
    """Read one line of the file, by the rules of training."""
    line = line.removesuffix(b"\n")
    try:
        if no_clicks:
            parse_features(line, slots, None)
            return Sample(number, 0, 0, line.decode("ascii").strip())
        instance = parse_line(line, slots, None)
    except LineRefused as refused:
        return Sample(number, 0, 0, None, str(refused))
    rest = line.decode("ascii").split(None, 2)[2:]
    # A line without features is sent as the padding key.
    features = rest[0].strip() if rest else f"{PADDING_KEY}:{slots.names[0]}"
    return Sample(number, instance.show, instance.click, features)


def _ask(serving: str, model: str, samples: list[Sample]) -> Iterator[tuple[Sample, float, int | None]]:
    """Yield each sample with its probability, NaN for a bad one, and the version. Raises EndpointUnavailable."""
    answers: Iterator[tuple[float, int]] = iter(())
    while good := [place for place, sample in enumerate(samples) if sample.text is not None]:
        try:
            answers = zip(*endpoints.predict(serving, model, [samples[at].text or "" for at in good]), strict=True)
        except endpoints.EndpointUnavailable as refused:
            # Serving may refuse a row that was read from the file: for too many keys, a list in a column, or a NaN as its probability.
            row = re.match(r"instances\[(\d+)\]", refused.reason)
            if row is None:
                raise
            at = good[int(row[1])]
            samples[at] = samples[at]._replace(text=None, reason=f"serving refuses {refused.reason}")
            continue
        break
    for sample in samples:
        yield sample, *((float("nan"), None) if sample.text is None else next(answers))
