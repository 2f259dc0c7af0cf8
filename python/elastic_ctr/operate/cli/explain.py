"""`elastic-ctr explain`: the contribution of each feature of one line or row to its probability, from a running serving."""

import json
import math
import sys
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from elastic_ctr.formats.line import LineRefused, parse_line
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.operate.cli.cluster import target_of
from elastic_ctr.operate.cli.entrypoint import reason_of, refuse
from elastic_ctr.operate.cli.kubectl import KubectlFailed
from elastic_ctr.operate.cli.shared_options import PREDICTIONS, ModelName, PredictionsAddress, Where, grouped
from elastic_ctr.operate.fitted_text import output_console, ruled_table
from elastic_ctr.operate.local import endpoints

_SHOWN_KEYS = 4


@grouped
def explain(
    row: Annotated[
        str,
        typer.Argument(
            metavar="ROW|-", help="A row as a JSON object, or a line with or without show and click; - reads it."
        ),
    ],
    address: PredictionsAddress = None,
    model: ModelName = None,
    top: Annotated[
        int | None, typer.Option("--top", min=1, help="Only so many features, those with the largest contributions.")
    ] = None,
    where: Where = Where(),
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object, as serving's `:explain` answers it, features by contribution."),
    ] = False,
) -> None:
    """Show what each feature of one line or row adds to its probability, and which of its keys the version knows.

    The contribution of a feature is the probability minus the mean of those with its usual values instead, by how often the statistics
    of the model have them. A feature without statistics, a cross, a list and words are held against a row without them. Contributions do
    not add up, since features act together; a crossed feature is one of its own. All is answered by one version.

    A key that the version does not know has no vector: it was never trained, or fell below a threshold. How often a key was
    shown and clicked is known to the parameter servers alone, and no part of a version: it is not shown here.

    Exit codes: 0 it is explained, 1 the row is refused, 2 serving did not answer.
    """
    target = target_of(where, {"--address": address})
    try:
        text = sys.stdin.read() if row == "-" else row
        with target.reached(PREDICTIONS, address) as found:
            serving, name = found.removeprefix("http://"), target.model(model)
            endpoints.ready(serving, name)
            instance = _instance(text.strip(), endpoints.metadata(serving, name))
            answer = endpoints.explain(serving, name, instance)
    except (endpoints.RequestRejected, _RowRefused) as refused:
        typer.echo(f"the row is refused: {reason_of(refused)}", err=True)
        raise typer.Exit(1) from None
    except (KubectlFailed, OSError, ValueError) as failed:
        refuse(reason_of(failed))
    features = sorted(answer["features"], key=lambda each: -abs(each["contribution"]))
    answer = {**answer, "features": features[:top]}
    if as_json:
        typer.echo(json.dumps(answer))
        return
    probability = answer["probability"]
    logit = math.log(probability) - math.log1p(-probability)
    headline = f"version {answer['version']}: probability {probability:.6g}, logit {logit:.4f}"
    output_console().print(headline, _table(answer), sep="\n", highlight=False)
    if len(features) > len(answer["features"]):
        typer.echo(f"… and {len(features) - len(answer['features'])} more features with smaller contributions")


class _RowRefused(ValueError):
    """The row does not fit the model."""


def _instance(text: str, inputs: endpoints.Metadata) -> Any:
    """Return the instance of the request: a row unchanged, or a line's features. Raises _RowRefused."""
    if inputs.columns:
        if not text.startswith("{"):
            raise _RowRefused('the model takes rows of columns; give a JSON object, as \'{"user": "u1"}\'')
        try:
            return json.loads(text, object_pairs_hook=_without_repeats)
        except _RowRefused:
            raise
        except ValueError as wrong:
            raise _RowRefused(f"it is not JSON: {wrong}") from None
        except RecursionError:
            raise _RowRefused("its JSON is nested too deeply") from None
    if text.startswith("{"):
        raise _RowRefused("the model takes lines of feasigns, not rows of columns; give one as '17:0 5:7'")
    if "\n" in text:
        raise _RowRefused(f"there are {len(text.splitlines())} lines; give one")
    first = text.split(None, 1)[:1]
    if not first or ":" in first[0]:
        return text
    try:
        parse_line(text.encode(), SlotList(tuple(inputs.slots)), None)
    except LineRefused as wrong:
        raise _RowRefused(str(wrong)) from None
    return " ".join(text.split()[2:])


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raises _RowRefused for a repeated name, of which serving would get only the last value."""
    row = dict(pairs)
    if len(row) < len(pairs):
        twice = next(name for name in row if sum(name == other for other, _ in pairs) > 1)
        raise _RowRefused(f"{twice!r} is there twice; which of its values counts is not said")
    return row


def _table(answer: dict[str, Any]) -> Table:
    names = ("feature", "contribution", "without", "against", "known keys", "keys or number")
    shown = ruled_table(names, left=("feature", "against", "keys or number"))
    for each in answer["features"]:
        keys = each.get("keys")
        known, what = ("-", f"{each['number']:.6g} (missing: {each['missing']:.6g})") if keys is None else _keys(keys)
        contribution = Text(
            f"{each['contribution']:+.6f}",
            "green" if each["contribution"] > 0 else "red" if each["contribution"] < 0 else "",
        )
        shown.add_row(Text(each["feature"]), contribution, f"{each['without']:.6f}", each["against"], known, what)
    return shown


def _keys(keys: list[dict[str, Any]]) -> tuple[str, str]:
    if not keys:
        return "-", "none"
    # Unknown keys come first, because they explain most.
    first = sorted(keys, key=lambda each: each["known"])[:_SHOWN_KEYS]
    named = ", ".join(each["key"] + ("" if each["known"] else " (unknown)") for each in first)
    more = f" … {len(keys) - len(first)} more" if len(keys) > len(first) else ""
    return f"{sum(each['known'] for each in keys)}/{len(keys)}", named + more
