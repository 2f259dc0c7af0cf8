"""`elastic-ctr predict`: ask a running serving for the probabilities of a file of lines."""

import itertools
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple

import httpx
import typer

from elastic_ctr.cli.cluster import PREDICTIONS, target_of
from elastic_ctr.cli.entrypoint import reason_of
from elastic_ctr.cli.kubectl import KubectlFailed
from elastic_ctr.cli.shared_options import Where, grouped
from elastic_ctr.features.keys import PADDING_KEY
from elastic_ctr.features.line import LineRefused, parse_features, parse_line
from elastic_ctr.features.slots import SlotList
from elastic_ctr.model.evaluation import weighted_auc, weighted_logloss

BAD_LINES, NOT_ANSWERED = 1, 2
_SHOWN = 20


class NotAnswered(RuntimeError):
    """Serving could not be reached, or refused: the sentence that says why."""


class Line(NamedTuple):
    """A line of the file, counted from 1. `features` is what is sent, None for a bad line with its `reason`."""

    number: int
    show: int
    click: int
    features: str | None
    reason: str = ""


class Answer(NamedTuple):
    """What serving said of a line; probability is NaN for a bad one."""

    line: Line
    probability: float
    version: int | None


@grouped
def predict(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="Lines as in training; - is standard input.")],
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            "-a",
            metavar="HOST:PORT",
            help="A serving's port for predictions.",
            show_default=PREDICTIONS.default,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write there, whole or not at all, instead of to stdout.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, max=100_000, help="Lines in one request.")] = 512,
    model: Annotated[
        str | None, typer.Option("--model", help="The name that the server gives its model.", show_default="ctr")
    ] = None,
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
    name = target.model(model)
    try:
        with (
            _lines_of(file) as lines,
            _sink(output) as out,
            target.reached(PREDICTIONS, address) as found,
            _client(found) as client,
        ):
            slots = _slots(client, name)
            for chunk in _chunks(lines, batch):
                asked = [_read(number, line, slots, no_clicks=no_clicks) for number, line in chunk]
                for answer in _ask(client, name, asked):
                    tally.add(answer)
                    out.write(_written(answer, as_json=as_json))
    except BrokenPipeError:
        # Nobody reads on, as in `… | head`: click ends the command without a word.
        raise
    except (NotAnswered, KubectlFailed, OSError) as failed:
        typer.echo(reason_of(failed), err=True)
        raise typer.Exit(NOT_ANSWERED) from failed
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
    """One line of the file, judged by the rules of training."""
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


def _ask(client: httpx.Client, model: str, lines: list[Line]) -> Iterator[Answer]:
    """Answers in the order of the lines. Raises NotAnswered."""
    good = [line.features for line in lines if line.features is not None]
    answers: Iterator[tuple[float, int]] = iter(())
    if good:
        tensor = {"name": "line", "shape": [len(good)], "datatype": "BYTES", "data": good}
        said = _call(client, "POST", f"/v2/models/{model}/infer", {"inputs": [tensor]})
        try:
            outputs = {each["name"]: each["data"] for each in said["outputs"]}
            answers = iter(zip(outputs["probability"], outputs["version"], strict=True))
        except (KeyError, TypeError) as strange:
            raise _not_serving(client) from strange
    for line in lines:
        probability, version = (float("nan"), None) if line.features is None else next(answers)
        yield Answer(line, probability, version)


def _slots(client: httpx.Client, model: str) -> SlotList:
    """The slots of the live version. Raises NotAnswered, with the server's words while there is none."""
    _call(client, "GET", f"/v2/models/{model}/ready")
    told = _call(client, "GET", f"/v2/models/{model}")
    try:
        return SlotList(tuple(each["name"] for each in told["inputs"] if each["datatype"] == "UINT64"))
    except (KeyError, TypeError, ValueError) as strange:
        raise _not_serving(client) from strange


def _not_serving(client: httpx.Client) -> NotAnswered:
    return NotAnswered(f"{client.base_url} does not answer as serving does; give the port for predictions")


def _call(client: httpx.Client, method: str, path: str, body: Any = None) -> dict[str, Any]:
    try:
        answer = client.request(method, path, json=body)
        said = answer.json()
    except httpx.HTTPError as failed:
        raise NotAnswered(
            f"{client.base_url} does not answer ({type(failed).__name__}: {failed}); is serving running there?"
        ) from failed
    except ValueError as strange:
        raise NotAnswered(f"{client.base_url} does not speak JSON; give the port for predictions") from strange
    if answer.is_error or not isinstance(said, dict):
        sentence = said.get("error") if isinstance(said, dict) else None
        raise NotAnswered(f"{client.base_url} answered {answer.status_code}: {sentence or answer.text[:200]}")
    return said


def _client(address: str) -> httpx.Client:
    try:
        return httpx.Client(base_url=f"http://{address.removeprefix('http://')}", timeout=60, trust_env=False)
    except httpx.InvalidURL as wrong:
        raise NotAnswered(f"{address!r} is no HOST:PORT") from wrong


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
def _sink(output: Path | None) -> Iterator[IO[str]]:
    """Standard output, or a file that appears when all is written."""
    if output is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    handle, name = tempfile.mkstemp(prefix=f".{output.name}-", dir=output.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w") as stream:
            yield stream
        temporary.chmod(0o644)
        temporary.replace(output)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
