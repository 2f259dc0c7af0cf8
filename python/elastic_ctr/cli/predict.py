"""`elastic-ctr predict`: ask a running serving for the probabilities of a file of lines."""

import itertools
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, NamedTuple

import typer

from elastic_ctr.cli.cluster import target_of
from elastic_ctr.cli.entrypoint import reason_of
from elastic_ctr.cli.kubectl import KubectlFailed
from elastic_ctr.cli.shared_options import PREDICTIONS, ModelName, OutputFile, PredictionsAddress, Where, grouped
from elastic_ctr.features.keys import PADDING_KEY
from elastic_ctr.features.line import LineRefused, parse_features, parse_line
from elastic_ctr.features.slots import SlotList
from elastic_ctr.local import endpoints
from elastic_ctr.model.evaluation import weighted_auc, weighted_logloss
from elastic_ctr.store.temporary import appearing

BAD_LINES, UNAVAILABLE = 1, 2
_SHOWN = 20


class Line(NamedTuple):
    """A line of the file, counted from 1. `features` are sent to serving; None for a bad line with its `reason`."""

    number: int
    show: int
    click: int
    features: str | None
    reason: str = ""


class Answer(NamedTuple):
    """The prediction for a line; probability is NaN for a bad one."""

    line: Line
    probability: float
    version: int | None


@grouped
def predict(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="Lines as in training; - is standard input.")],
    address: PredictionsAddress = None,
    output: OutputFile = None,
    batch: Annotated[int, typer.Option("--batch", min=1, max=100_000, help="Lines in one request.")] = 512,
    model: ModelName = None,
    no_clicks: Annotated[bool, typer.Option("--no-clicks", help="The lines have no show and click.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, with the version.")] = False,
    where: Where = Where(),
) -> None:
    """Print one probability of a click per line.

    With show and click in the lines, AUC and logloss weighted by them are printed on standard error. A bad line is
    named by its number, gets `nan` (null with --json) so that the lines of the answer stay those of the file, and makes
    the exit code 1; 2 means that serving did not answer.
    """
    tally = _Tally()
    target = target_of(where, {"--address": address})
    try:
        with (
            _lines_of(file) as lines,
            _sink(output) as write,
            target.reached(PREDICTIONS, address) as found,
        ):
            serving, name = found.removeprefix("http://"), target.model(model)
            endpoints.ready(serving, name)
            slots = SlotList(tuple(endpoints.metadata(serving, name)[0]))
            for chunk in _chunks(lines, batch):
                asked = [_read(number, line, slots, no_clicks=no_clicks) for number, line in chunk]
                for answer in _ask(serving, name, asked):
                    tally.add(answer)
                    write(_written(answer, as_json=as_json))
    except BrokenPipeError:
        # The reader has closed the pipe, as in `… | head`: click ends the command without a message.
        raise
    except (KubectlFailed, OSError, ValueError) as failed:
        typer.echo(reason_of(failed), err=True)
        raise typer.Exit(UNAVAILABLE) from failed
    tally.report(with_clicks=not no_clicks)
    if tally.bad:
        raise typer.Exit(BAD_LINES)


class _Tally:
    def __init__(self) -> None:
        self.bad = 0
        self._answers: list[tuple[float, int, int]] = []
        self._versions: Counter[int | None] = Counter()

    def add(self, answer: Answer) -> None:
        line = answer.line
        if line.features is None:
            self.bad += 1
            if self.bad <= _SHOWN:
                typer.echo(f"line {line.number}: {line.reason}", err=True)
            return
        self._answers.append((answer.probability, line.click, line.show))
        self._versions[answer.version] += 1

    def report(self, *, with_clicks: bool) -> None:
        if self.bad > _SHOWN:
            typer.echo(f"… and {self.bad - _SHOWN} more bad lines", err=True)
        if len(self._versions) > 1:
            shares = ", ".join(f"{version} ({count} lines)" for version, count in self._versions.items())
            typer.echo(f"the live version changed meanwhile; answers are of versions {shares}", err=True)
        if not with_clicks or not self._answers:
            return
        probabilities, clicks, shows = zip(*self._answers, strict=True)
        auc = weighted_auc(probabilities, clicks, shows)
        told = "none (it takes a click and a show without one)" if auc is None else f"{auc:.6f}"
        loss = weighted_logloss(probabilities, clicks, shows)
        typer.echo(
            f"{len(self._answers)} lines, {sum(shows)} shows, {sum(clicks)} clicks: AUC {told}, logloss {loss:.6f}",
            err=True,
        )


def _read(number: int, line: bytes, slots: SlotList, *, no_clicks: bool) -> Line:
    """One line of the file, by the rules of training."""
    line = line.removesuffix(b"\n")
    try:
        if no_clicks:
            parse_features(line, slots, None)
            return Line(number, 0, 0, line.decode("ascii").strip())
        instance = parse_line(line, slots, None)
    except LineRefused as refused:
        return Line(number, 0, 0, None, str(refused))
    rest = line.decode("ascii").split(None, 2)[2:]
    # A line may have no features; the padding key says so.
    features = rest[0].strip() if rest else f"{PADDING_KEY}:{slots.names[0]}"
    return Line(number, instance.show, instance.click, features)


def _ask(serving: str, model: str, lines: list[Line]) -> Iterator[Answer]:
    """Answers in the order of the lines. Raises EndpointUnavailable."""
    good = [line.features for line in lines if line.features is not None]
    answers = zip(*endpoints.predict(serving, model, good), strict=True) if good else iter(())
    for line in lines:
        probability, version = (float("nan"), None) if line.features is None else next(answers)
        yield Answer(line, probability, version)


def _written(answer: Answer, *, as_json: bool) -> str:
    if not as_json:
        return f"{answer.probability:.9g}\n"
    probability = None if answer.line.features is None else answer.probability
    return json.dumps({"line": answer.line.number, "probability": probability, "version": answer.version}) + "\n"


def _chunks(lines: Iterable[bytes], size: int) -> Iterator[list[tuple[int, bytes]]]:
    numbered = enumerate(lines, 1)
    while chunk := list(itertools.islice(numbered, size)):
        yield chunk


@contextmanager
def _lines_of(file: str) -> Iterator[IO[bytes]]:
    if file == "-":
        yield sys.stdin.buffer
        return
    with Path(file).open("rb") as stream:
        yield stream


@contextmanager
def _sink(output: Path | None) -> Iterator[Callable[[str], object]]:
    """Standard output, or a file that appears when all is written."""
    if output is None:
        yield sys.stdout.write
        sys.stdout.flush()
        return
    with appearing(output) as stream:
        yield lambda text: stream.write(text.encode())
