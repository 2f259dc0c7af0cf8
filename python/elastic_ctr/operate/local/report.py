"""The report of a local run, as JSON and as a table."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from elastic_ctr.operate.local.processes import Restart

_OF_PASS = (
    "pass",
    "records",
    "refused",
    "repeated",
    "aucBefore",
    "auc",
    "quality",
    "learning",
    "table",
    "version",
    "kind",
    "keys",
)


@dataclass
class SampleResult:
    """Predictions of a version's sample lines, requested from serving when the version went live."""

    live_at: float
    samples: int
    max_abs_diff: float
    auc: float | None
    auc_published: float | None


SampleResults = dict[int, SampleResult]
"""By version."""


def build(
    status: Mapping[str, Any], live: int | None, seen: SampleResults, restarts: Sequence[Restart]
) -> dict[str, Any]:
    """Return the content of the report file."""
    passes = []
    for each in status["passes"]:
        if each["state"] != "done":
            continue
        asked, trained = seen.get(each["version"]), each["trainedAt"]
        passes.append(
            {
                **{name: each[name] for name in _OF_PASS},
                "secondsToLive": None if asked is None or trained is None else round(asked.live_at - trained, 3),
                "aucServed": None if asked is None else asked.auc,
                "samplesServed": None if asked is None else asked.samples,
                "maxAbsDiff": None if asked is None else asked.max_abs_diff,
                "aucPublished": None if asked is None else asked.auc_published,
            }
        )
    names = {each["ordinal"]: each["pass"] for each in status["passes"]}
    refused = [
        {"version": each["id"], "pass": names.get(each["pass"]), "reason": each["reason"]}
        for each in status["versions"]
        if each["state"] == "refused"
    ]
    recoveries = [{name: each[name] for name in ("role", "at", "seconds", "reason")} for each in status["recoveries"]]
    recoveries += [
        {"role": r.role, "at": r.at, "seconds": r.seconds, "reason": f"{r.name} {r.reason}"} for r in restarts
    ]
    return {
        "passes": passes,
        "curves": status["curves"],
        "offset": status["offset"],
        "refused": refused,
        "live": live,
        "parity": {
            "samples": sum(each.samples for each in seen.values()),
            "maxAbsDiff": max((each.max_abs_diff for each in seen.values()), default=0.0),
        },
        "ledger": status["ledger"],
        "recoveries": sorted(recoveries, key=lambda each: each["at"]),
    }


def table(report: Mapping[str, Any]) -> Table:
    """Return the report as a table for a terminal."""
    shown = Table(title=None, header_style="bold", pad_edge=False)
    columns = (
        "pass, records, refused, AUC before, AUC after, logloss before, calibration before, version, kind, keys, seconds to live, "
        "largest difference"
    )
    for name in columns.split(", "):
        shown.add_column(name, justify="left" if name in ("pass", "kind") else "right")
    for each in report["passes"]:
        shown.add_row(
            each["pass"],
            f"{each['records']:,}",
            f"{each['refused']:,}",
            number(each["aucBefore"]),
            number(each["auc"]),
            number(figure(each, "before", "logloss")),
            number(figure(each, "before", "calibration")),
            "-" if each["version"] is None else str(each["version"]),
            each["kind"] or "-",
            f"{each['keys']:,}",
            "-" if each["secondsToLive"] is None else f"{each['secondsToLive']:.1f}",
            "-" if each["maxAbsDiff"] is None else f"{each['maxAbsDiff']:.1e} of {each['samplesServed']}",
        )
    return shown


def figure(one: Mapping[str, Any], moment: str, name: str) -> float | None:
    """Return one figure of a pass's quality; None if it is undefined, or the master is of an earlier release."""
    figures = (one.get("quality") or {}).get(moment) or {}
    value: float | None = figures.get(name)
    return value


def learned(status: Mapping[str, Any]) -> str:
    """Return one line on the learning of the last pass that is done; empty without one, or if the master is of an earlier release."""
    done = [each for each in status["passes"] if each.get("state", "done") == "done" and each.get("learning")]
    if not done:
        return ""
    last, learning = done[-1], done[-1]["learning"]
    epochs, sizes = learning["epochs"], ", ".join(map(str, learning["batchSizes"]))
    said = [
        f"pass {last['pass']} in {epochs} epoch{'' if epochs == 1 else 's'}"
        + (f" of batches of {sizes}" if sizes else "")
    ]
    if learning["heldOut"]:
        said.append(f"{learning['heldOut']:,} records held out")
    if learning["shift"] is not None:
        said.append(f"logits shifted by {learning['shift']:+.4f}")
    if (offset := status.get("offset")) is not None:
        said.append(f"the model's offset is {offset:+.4f}")
    return ", ".join(said)


def total(counts: Iterable[int | None]) -> int | None:
    """Return the sum; None if one of the counts is unknown."""
    found = list(counts)
    return None if any(each is None for each in found) else sum(each or 0 for each in found)


def dated(version: int) -> str:
    """Return a version's id with the time when it was begun, which the id is in unix seconds, in this machine's time zone."""
    if version < 1_000_000_000:
        return str(version)
    begun, today = time.localtime(version), time.localtime()
    form = "%H:%M:%S" if begun[:3] == today[:3] else "%Y-%m-%d %H:%M:%S"
    return f"{version} · {time.strftime(form, begun)}"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
