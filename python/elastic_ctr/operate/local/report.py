"""The report of a local run, as JSON and as a table."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from elastic_ctr.operate.local.processes import Restart
from elastic_ctr.operate.text_table import Column, TextTable, number
from elastic_ctr.runtime.status.master_status import PassStatus, TrainingStatus

_OF_PASS = (
    "pass", "records", "refused", "repeated", "aucBefore", "auc", "quality", "learning", "table", "version", "kind", "keys",
)  # fmt: skip


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


def build(status: TrainingStatus, live: int | None, seen: SampleResults, restarts: Sequence[Restart]) -> dict[str, Any]:
    """Return the content of the report file."""
    passes = []
    for each in status.done:
        asked, shown = _sample_of(each, seen), each.to_dict()
        passes.append(
            {
                **{name: shown[name] for name in _OF_PASS},
                "secondsToLive": _seconds_to_live(each, asked),
                "aucServed": None if asked is None else asked.auc,
                "samplesServed": None if asked is None else asked.samples,
                "maxAbsDiff": None if asked is None else asked.max_abs_diff,
                "aucPublished": None if asked is None else asked.auc_published,
            }
        )
    names = {each.ordinal: each.id for each in status.passes}
    recoveries = [(each.role, each.at, each.seconds, each.reason) for each in status.recoveries]
    recoveries += [(each.role, each.at, each.seconds, f"{each.name} {each.reason}") for each in restarts]
    return {
        "passes": passes,
        "curves": [each.to_dict() for each in status.curves],
        "offset": status.offset,
        "refused": [
            {"version": each.id, "pass": names.get(each.ordinal), "reason": each.reason}
            for each in status.versions
            if each.state == "refused"
        ],
        "live": live,
        "parity": {
            "samples": sum(each.samples for each in seen.values()),
            "maxAbsDiff": max((each.max_abs_diff for each in seen.values()), default=0.0),
        },
        "ledger": status.ledger.to_dict(),
        "recoveries": [
            {"role": role, "at": at, "seconds": seconds, "reason": reason}
            for role, at, seconds, reason in sorted(recoveries, key=lambda each: each[1])
        ],
    }


def _sample_of(one: PassStatus, seen: SampleResults) -> SampleResult | None:
    return None if one.version is None else seen.get(one.version)


def _seconds_to_live(one: PassStatus, asked: SampleResult | None) -> float | None:
    return None if asked is None or one.trained_at is None else round(asked.live_at - one.trained_at, 3)


def table(status: TrainingStatus, seen: SampleResults) -> TextTable:
    """Return the report as a table for a terminal."""
    shown = TextTable(
        [
            Column("pass"), Column("records", 6, right=True), Column("refused", 7, right=True),
            Column("AUC before", 5, right=True), Column("AUC after", 1, right=True), Column("logloss before", 8, right=True),
            Column("calibration before", 9, right=True), Column("version", 4, right=True), Column("kind", 11),
            Column("keys", 10, right=True), Column("seconds to live", 3, right=True), Column("largest difference", 2, right=True),
        ]
    )  # fmt: skip
    for each in status.done:
        asked, (before, _) = _sample_of(each, seen), each.quality.moments
        shown.add(
            each.id,
            f"{each.records:,}",
            f"{each.refused:,}",
            number(each.auc_before),
            number(each.auc),
            number(before.logloss),
            number(before.calibration),
            "-" if each.version is None else str(each.version),
            each.kind or "-",
            f"{each.keys:,}",
            number(_seconds_to_live(each, asked), 1),
            "-" if asked is None else f"{asked.max_abs_diff:.1e} of {asked.samples}",
        )
    return shown


def learned(status: TrainingStatus) -> str:
    """Return one line on the learning of the last pass that is done; empty without one, or if the master is of an earlier release."""
    done = [each for each in status.done if each.learning.epochs]
    if not done:
        return ""
    last, learning = done[-1], done[-1].learning
    sizes = ", ".join(map(str, learning.batch_sizes))
    said = [
        f"pass {last.id} in {learning.epochs} epoch{'' if learning.epochs == 1 else 's'}"
        + (f" of batches of {sizes}" if sizes else "")
    ]
    if learning.held_out:
        said.append(f"{learning.held_out:,} records held out")
    if learning.shift is not None:
        said.append(f"logits shifted by {learning.shift:+.4f}")
    if status.offset is not None:
        said.append(f"the model's offset is {status.offset:+.4f}")
    return ", ".join(said)


def dated(version: int) -> str:
    """Return a version's id with the time when it was begun, which the id is in unix seconds, in this machine's time zone."""
    if version < 1_000_000_000:
        return str(version)
    begun, today = time.localtime(version), time.localtime()
    form = "%H:%M:%S" if begun[:3] == today[:3] else "%Y-%m-%d %H:%M:%S"
    return f"{version} · {time.strftime(form, begun)}"
