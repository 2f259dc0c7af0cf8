"""`elastic-ctr predict`: ask a running serving for the probabilities of a file of lines."""

import itertools
import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from elastic_ctr.cli.cluster import target_of
from elastic_ctr.cli.entrypoint import reason_of, refuse
from elastic_ctr.cli.kubectl import KubectlFailed
from elastic_ctr.cli.shared_options import PREDICTIONS, ModelName, OutputFile, PredictionsAddress, Where, grouped
from elastic_ctr.features.keys import PADDING_KEY
from elastic_ctr.features.line import LineRefused, parse_features, parse_line
from elastic_ctr.features.slots import SlotList
from elastic_ctr.local import endpoints
from elastic_ctr.model.evaluation import weighted_auc, weighted_logloss
from elastic_ctr.store.temporary import appearing

_SHOWN = 20


class Line(NamedTuple):
    """A line of the file, counted from 1. `features` are sent to serving; None for a bad line with its `reason`."""

    number: int
    show: int
    click: int
    features: str | None
    reason: str = ""


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
            nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as lines,
            # The file appears when all is written.
            nullcontext(sys.stdout.buffer) if output is None else appearing(output) as out,
            target.reached(PREDICTIONS, address) as found,
        ):
            serving, name = found.removeprefix("http://"), target.model(model)
            endpoints.ready(serving, name)
            slots = SlotList(tuple(endpoints.metadata(serving, name)[0]))
            numbered = enumerate(lines, 1)
            while chunk := list(itertools.islice(numbered, batch)):
                asked = [_read(number, line, slots, no_clicks=no_clicks) for number, line in chunk]
                for line, probability, version in _ask(serving, name, asked):
                    tally.add(line, probability, version)
                    out.write(_written(line, probability, version, as_json=as_json).encode())
                out.flush()
    except BrokenPipeError:
        # The reader has closed the pipe, as in `… | head`: click ends the command without a message.
        raise
    except (KubectlFailed, OSError, ValueError) as failed:
        refuse(reason_of(failed))
    tally.report(with_clicks=not no_clicks)
    if tally.bad:
        raise typer.Exit(1)


class _Tally:
    def __init__(self) -> None:
        self.bad = 0
        self._answers: list[tuple[float, int, int]] = []
        self._versions: Counter[int | None] = Counter()

    def add(self, line: Line, probability: float, version: int | None) -> None:
        if line.features is None:
            self.bad += 1
            if self.bad <= _SHOWN:
                typer.echo(f"line {line.number}: {line.reason}", err=True)
            return
        self._answers.append((probability, line.click, line.show))
        self._versions[version] += 1

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


def _ask(serving: str, model: str, lines: list[Line]) -> Iterator[tuple[Line, float, int | None]]:
    """Each line with its probability, NaN for a bad one, and the version. Raises EndpointUnavailable."""
    good = [line.features for line in lines if line.features is not None]
    answers = zip(*endpoints.predict(serving, model, good), strict=True) if good else iter(())
    for line in lines:
        yield line, *((float("nan"), None) if line.features is None else next(answers))


def _written(line: Line, probability: float, version: int | None, *, as_json: bool) -> str:
    if not as_json:
        return f"{probability:.9g}\n"
    found = None if line.features is None else probability
    return json.dumps({"line": line.number, "probability": found, "version": version}) + "\n"
