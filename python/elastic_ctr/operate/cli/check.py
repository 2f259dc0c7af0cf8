"""elastic-ctr check: tests of values before an install, and that serving and cube give right answers, for Helm and for operators."""

import json
import math
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from elastic_ctr.cube.client.blocking import BlockingCubeClient
from elastic_ctr.cube.client.connection import CubeUnavailable, VersionNotHeld
from elastic_ctr.cube.release import Holder
from elastic_ctr.formats.keys import PADDING_KEY
from elastic_ctr.operate.cli.cluster import target_of
from elastic_ctr.operate.cli.given_values import SetFile, ValuesFile, values_of
from elastic_ctr.operate.cli.shared_options import (
    PREDICTIONS,
    TRANSFER,
    Folder,
    ModelName,
    PredictionsAddress,
    TransferAddress,
    Where,
)
from elastic_ctr.operate.local.endpoints import EndpointUnavailable, metadata, predict, ready, release_document

SETTLE_SECONDS = 15.0
"""A promotion or an ending pod may be seen half way: longer than cube-transfer takes to forget a pod."""
_BETWEEN_LOOKS = 0.5

app = typer.Typer(
    help="Say whether values can be installed, and in one sentence whether predictions or lookups are answered right.",
    no_args_is_help=True,
)
Wait = Annotated[float, typer.Option("--wait", min=0, metavar="SECONDS", help="Repeat a failing check for so long.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object, with `ok` and the facts or the reason.")]


class CheckFailed(RuntimeError):
    """The check fails; the text is one sentence. `may_pass`: the cause may be a change under way, which ends soon. `is_wrong`: an
    answer was wrong, and a later answer will be no better.
    """

    def __init__(self, sentence: str, *, may_pass: bool = False, is_wrong: bool = False) -> None:
        super().__init__(sentence)
        self.may_pass = may_pass
        self.is_wrong = is_wrong


class Checked(NamedTuple):
    """The result of a check that passed, as a sentence and as JSON."""

    sentence: str
    facts: dict[str, Any]


@app.command()
def serving(
    address: PredictionsAddress = None,
    model: ModelName = None,
    folder: Folder = None,
    wait: Wait = 0,
    as_json: AsJson = False,
) -> None:
    """Is a prediction answered with a version that is live there?

    Asks for one line with a made-up feasign in each slot of the model, or for one row with a made-up value in each column of text and no
    number, for which the version has one, as a rule the mean of its statistics. This tries the whole path, not how good the model is. The
    probability must lie between 0 and 1, and the version be the one that serving names.

    Exit codes: 0 yes; 1 no.
    """
    target = target_of(Where(folder), {})
    found, name = address or target.address(PREDICTIONS), target.model(model)
    _print_result(lambda: verify_serving(found, name), wait, as_json=as_json)


@app.command()
def cube(transfer: TransferAddress = None, folder: Folder = None, wait: Wait = 0, as_json: AsJson = False) -> None:
    """Is the live version answered whole?

    Asks every cube-server that the release document names for the live version: the padding key, and a key of each
    partition that it is said to hold. Every partition needs a holder, and copies must agree.

    Exit codes: 0 yes; 1 no.
    """
    found = transfer or target_of(Where(folder), {}).address(TRANSFER)
    _print_result(lambda: verify_cube(found), wait, as_json=as_json)


@app.command()
def values(values: ValuesFile, set_file: SetFile = None) -> None:
    """Can a release be installed with these values?

    Reads the settings of the program as all roles do; nulls that templates cannot have, and Kubernetes' rules, are refused by the chart
    alone. Helm runs this check before it installs or upgrades a release.

    Exit codes: 0 yes; 2 no, with one sentence for each error.
    """
    values_of(values, set_file, for_helm=True)
    typer.echo(f"{' + '.join(map(str, values))}: every setting of the program is right")


def _print_result(look: Callable[[], Checked], wait: float, *, as_json: bool) -> None:
    try:
        checked = until(look, wait, lambda reason: typer.echo(f"waiting: {reason}", err=True))
    except CheckFailed as failed:
        if as_json:
            typer.echo(json.dumps({"ok": False, "reason": str(failed)}))
        else:
            typer.echo(str(failed), err=True)
        raise typer.Exit(1) from failed
    typer.echo(json.dumps({"ok": True, **checked.facts}) if as_json else checked.sentence)


def until(look: Callable[[], Checked], wait: float, say: Callable[[str], None] = lambda _: None) -> Checked:
    """Repeat the check until it passes or the time is over; the callback gets each new reason for a repetition. Raises CheckFailed."""
    started, said = time.monotonic(), ""
    while True:
        try:
            return look()
        except CheckFailed as failed:
            seconds = max(wait, SETTLE_SECONDS if failed.may_pass else 0)
            if time.monotonic() - started >= seconds:
                raise
            if str(failed) != said:
                say(said := str(failed))
        time.sleep(_BETWEEN_LOOKS)


def verify_serving(address: str, model: str) -> Checked:
    """Raises CheckFailed."""
    try:
        ready(address, model)
        slots, columns, named = metadata(address, model)
        if slots:
            sample = " ".join(f"{n}:{slot}" for n, slot in enumerate(slots, 1))
        else:
            # Leave numbers out, because a made-up number may be far from all that training has seen.
            sample = json.dumps({column: "1" for column, datatype in columns.items() if datatype == "BYTES"})
        [probability], [version] = predict(address, model, [sample])
        if version not in named:
            # The version may have gone live between the two calls.
            named = metadata(address, model).versions
    except EndpointUnavailable as closed:
        wrong = closed.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.INTERNAL_SERVER_ERROR)
        raise CheckFailed(f"serving at {address}: {closed}", is_wrong=wrong) from closed
    if not math.isfinite(probability) or not 0 < probability < 1:
        raise CheckFailed(
            f"serving at {address} answers {probability}, which is not a probability between 0 and 1", is_wrong=True
        )
    if version not in named:
        raise CheckFailed(
            f"serving at {address} answers by version {version} and names {', '.join(map(str, named)) or 'none'}",
            may_pass=True,
        )
    size = {"slots": len(slots)} if slots else {"columns": len(columns)}
    facts = {"address": address, "model": model, "version": version, "probability": probability, **size}
    asked = f"a line of {len(slots)} slots" if slots else f"a row of {len(columns)} columns"
    return Checked(f"serving at {address} answers {asked} with {probability:.6g}, by version {version}", facts)


class _HolderRows(NamedTuple):
    """The answer of one cube-server; `rows` are values and miss of one key of each partition, by partition."""

    address: str
    draining: bool
    partitions: int
    dim: int
    rows: dict[int, tuple[tuple[float, ...], bool]]


def verify_cube(transfer: str) -> Checked:
    """Raises CheckFailed."""
    try:
        document = release_document(transfer)
    except EndpointUnavailable as closed:
        raise CheckFailed(f"cube-transfer: {closed}") from closed
    live = document.live
    if live is None:
        raise CheckFailed(f"no version is live yet at cube-transfer {transfer}")
    named = document.holders.get(live, {})
    if not named:
        raise CheckFailed(f"no cube-server holds the live version {live}", may_pass=True)
    holders = [_ask_holder(address, holder, live) for address, holder in named.items()]
    _require_agreement(holders, live)
    partitions, dim = holders[0].partitions, holders[0].dim
    lacking = sorted(set(range(partitions)) - {number for each in holders for number in each.rows})
    if lacking:
        shown = ", ".join(map(str, lacking[:8])) + (", …" if len(lacking) > 8 else "")
        raise CheckFailed(
            f"{len(lacking)} of {partitions} partitions of version {live} have no holder: {shown}", may_pass=True
        )
    misses = [missing for each in holders for _, missing in each.rows.values()]
    facts = {
        "transfer": transfer,
        "version": live,
        "partitions": partitions,
        "dim": dim,
        "keysAsked": len(misses),
        "keysFound": misses.count(False),
        "holders": [
            {"address": each.address, "partitions": len(each.rows), "draining": each.draining} for each in holders
        ],
    }
    return Checked(
        f"version {live} is answered whole: {partitions} partitions of {dim} floats a key by {len(holders)} cube-servers; "
        f"of {len(misses)} keys made up, {misses.count(False)} are known",
        facts,
    )


def _ask_holder(address: str, holder: Holder, version: int) -> _HolderRows:
    """Raises CheckFailed."""
    numbers = sorted(set(holder.partitions))
    try:
        with BlockingCubeClient([address], busy_poll=False) as client:
            partitions, dim = client.partitions, client.dim
            # The padding key, and one other key of each partition.
            keys = np.array([PADDING_KEY, *(number + partitions for number in numbers)], np.uint64)
            values, missing = client.lookup(version, keys)
    except (CubeUnavailable, VersionNotHeld) as failed:
        raise CheckFailed(f"the holder {address} of version {version}: {failed}", may_pass=True) from failed
    where = f"{address} answers version {version} wrong"
    if values.shape != (keys.size, dim) or missing.shape != (keys.size,):
        raise CheckFailed(f"{where}: values of shape {values.shape} for {keys.size} keys of {dim} floats")
    if missing[0] or values[0].any():
        raise CheckFailed(f"{where}: the padding key {PADDING_KEY} is not known with zeros")
    if not np.isfinite(values).all():
        raise CheckFailed(f"{where}: some values are not finite numbers")
    if values[missing].any():
        raise CheckFailed(f"{where}: some keys are missing and have values")
    rows = zip(map(tuple, values[1:].tolist()), missing[1:].tolist(), strict=True)
    return _HolderRows(address, holder.draining, partitions, dim, dict(zip(numbers, rows, strict=True)))


def _require_agreement(holders: list[_HolderRows], version: int) -> None:
    """Raises CheckFailed unless all holders have one shape, and copies of a partition one content."""
    first = holders[0]
    seen: dict[int, _HolderRows] = {}
    for each in holders:
        if (each.partitions, each.dim) != (first.partitions, first.dim):
            raise CheckFailed(
                f"holders of version {version} differ: {first.address} has {first.partitions} partitions of {first.dim} "
                f"floats, {each.address} {each.partitions} of {each.dim}"
            )
        for number, answer in each.rows.items():
            other = seen.setdefault(number, each)
            if other.rows[number] != answer:
                raise CheckFailed(
                    f"{other.address} and {each.address} answer partition {number} of version {version} differently"
                )
