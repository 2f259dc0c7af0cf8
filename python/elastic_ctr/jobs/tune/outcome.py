"""The result of a search, as a leaderboard, as JSON and as values to add."""

from collections.abc import Mapping
from typing import Any

import yaml
from rich.table import Table

from elastic_ctr.config.helm_yaml import Dumper
from elastic_ctr.jobs.tune.passes import Hours
from elastic_ctr.jobs.tune.search import CheckedTrial, Found
from elastic_ctr.jobs.tune.space import Candidate
from elastic_ctr.jobs.tune.study import Result, best_first

_SHOWN = 10


def changes(base: Candidate, other: Candidate) -> dict[str, Any]:
    """Return the values of `other` that differ, as a values file: passed after the base's file, it gives `other`."""
    found: dict[str, Any] = {}
    model = _differences(_whole(base)["model"], _whole(other)["model"])
    model.pop("network", None)
    if network := _network_changes(base, other):
        model = {"network": network, **model}
    if model:
        found["model"] = model
    if trainer := _differences(_whole(base)["trainer"], _whole(other)["trainer"]):
        found["trainer"] = {"config": trainer}
    return found


def _whole(candidate: Candidate) -> dict[str, Any]:
    return {
        "model": candidate.model.model_dump(mode="json", by_alias=True, exclude={"seed"}),
        "trainer": candidate.trainer.model_dump(mode="json", by_alias=True),
    }


def _differences(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in other.items():
        if value == base[key]:
            continue
        found[key] = _differences(base[key], value) if isinstance(value, dict) and key != "network" else value
    return found


def _network_changes(base: Candidate, other: Candidate) -> dict[str, Any]:
    """Return all settings of another network; settings that only the present one has are removed by null."""
    before, after = (each.model.network.model_dump(mode="json", by_alias=True) for each in (base, other))
    if before == after:
        return {}
    if before.get("name") == after.get("name"):
        return _differences(before, after)
    given, mine = (
        each.model.network.model_dump(mode="json", by_alias=True, exclude_unset=True) for each in (base, other)
    )
    return {**mine, **{key: None for key in given if key not in mine}}


def described(base: Candidate, other: Candidate) -> str:
    """Return the differences in one line, which always names the network."""
    words = [f"network {getattr(other.model.network, 'name', '')}"]
    for key, value in _flat(changes(base, other)):
        if key == "model.network.name" or value is None:
            continue
        short = key.removeprefix("model.").removeprefix("trainer.config.").removeprefix("table.")
        words.append(f"{short.removeprefix('network.')} {_text(value)}")
    return ", ".join(words) if len(words) > 1 else f"{words[0]}, all as it is"


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in tree.items():
        found += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return found


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "-".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def leaderboard(base: Candidate, found: Found) -> Table:
    """Return the trials as a table, the winner first, then by logloss; the present values are always shown."""
    again = {each.result.number: each for each in found.checked if each.again is not None}
    winner = found.winner
    ranked = sorted(
        best_first(found.results),
        key=lambda each: (winner is None or each.number != winner.result.number, each.logloss),
    )
    shown = ranked[:_SHOWN] + [each for each in ranked[_SHOWN:] if each.is_baseline]
    table = Table(title="validation, the best first")
    for name in ("trial", "logloss", "other seed", "AUC", "calibration", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("settings", overflow="fold")
    for each in shown:
        other = again[each.number].again if each.number in again else None
        table.add_row(
            f"#{each.number}",
            f"{each.logloss:.5f}",
            "-" if other is None else f"{other['logloss']:.5f}",
            *("-" if (value := each.found.get(name)) is None else f"{value:.4f}" for name in ("auc", "calibration")),
            f"{each.seconds:.0f}",
            ("present values: " if each.is_baseline else "") + described(base, each.candidate),
        )
    return table


def verdict(found: Found) -> str:
    """Return the result in one sentence."""
    winner, baseline = found.winner, found.baseline
    if winner is None or baseline is None:
        return "the present values were not trained to their end, so nothing can be said"
    if winner is baseline:
        return f"nothing was better than the present values, logloss {baseline.logloss:.5f}"
    seeds = "of one seed" if winner.again is None else "means of two seeds"
    return (
        f"trial #{winner.result.number} is better than the present values: logloss {winner.logloss:.5f} instead of {baseline.logloss:.5f}, "
        f"AUC {winner.mean('auc'):.4f} instead of {baseline.mean('auc'):.4f} ({seeds})"
    )


def tuned_yaml(base: Candidate, found: Found, hours: Hours) -> str:
    """Return a values file with the winner's values that differ from the present ones, and a comment about the search."""
    winner = found.winner
    added, said = {} if winner is None else changes(base, winner.result.candidate), verdict(found)
    ended = f"{len(found.results)} trials" + (", stopped before the end" if found.interrupted else "")
    lines = [
        f"Found by elastic-ctr tune: {ended}.",
        f"Trained with {hours.records:,} records: {hours.trained}.",
        f"Validated with {hours.validation_records:,} records: {hours.validated}.",
        f"{said[0].upper()}{said[1:]}.",
        "Give it as the last values file. A model that is being trained keeps its settings: these begin another one.",
    ]
    return "".join(f"# {line}\n" for line in lines) + yaml.dump(added, Dumper=Dumper, sort_keys=False, width=1000)


def document(base: Candidate, found: Found, hours: Hours) -> dict[str, Any]:
    """Return the result as JSON for programs."""
    winner = found.winner
    return {
        "trained": {
            "passes": [each.id for each in hours.passes], "records": hours.records, "share": round(hours.share, 6)
        },
        "validated": {"with": hours.validated, "records": hours.validation_records},
        "baseline": _checked(base, found.baseline),
        "winner": _checked(base, winner),
        "values": {} if winner is None else changes(base, winner.result.candidate),
        "checked": [_checked(base, each) for each in found.checked],
        "trials": [_trial(base, each) for each in sorted(found.results, key=lambda each: each.number)],
        "interrupted": found.interrupted,
    }  # fmt: skip


def _checked(base: Candidate, each: CheckedTrial | None) -> dict[str, Any] | None:
    if each is None:
        return None
    means = {name: each.mean(name) for name in ("logloss", "auc", "calibration")}
    return {**_trial(base, each.result), "otherSeed": each.again, "mean": means}


def _trial(base: Candidate, each: Result) -> dict[str, Any]:
    return {
        "trial": each.number,
        "state": each.state,
        "isBaseline": each.is_baseline,
        "values": changes(base, each.candidate),
        **{name: each.found.get(name) for name in ("logloss", "auc", "calibration")},
        "seconds": round(each.seconds, 3),
        **({"reason": each.reason} if each.reason else {}),
    }
