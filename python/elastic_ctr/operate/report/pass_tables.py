"""Tables of the passes: records, learning, quality, the rows that each save left in the sparse table, and the time of each stage."""

from collections.abc import Sequence
from itertools import groupby
from statistics import median

from elastic_ctr.operate.report.document import Report
from elastic_ctr.operate.report.html import Html, element, joined, table
from elastic_ctr.operate.report.summary import learned
from elastic_ctr.operate.text_table import ROW_COUNTS, TextTable, columns, count, number, row_totals, rows_by_pserver
from elastic_ctr.runtime.status.master_status import PassStatus, TrainingStatus

# The number of last passes with bars; the table has all passes.
_BARS = 24
# Stages in the order in which they happen; other stages follow by name.
_STAGES = (
    "train", "denseExport", "shrink", "base", "delta", "batch", "checkpoint", "checkpointUpload", "exportUpload", "score",
)  # fmt: skip
# The number of colours; further stages are summed up.
MOST_STAGES = 10
_OTHERS = "other stages"
# No stage takes longer, so a larger number is ignored as an error.
_LONGEST_SECONDS = 1e9


def passes(training: TrainingStatus) -> Html:
    shown = TextTable(
        columns(
            "pass", "state", "records", "refused", "AUC before", "AUC after", "logloss before", "logloss after",
            "calibration before", "calibration after", "GAUC before", "GAUC after", "epochs", "batch sizes", "held out",
            "shift", "version", "reason", words=("state", "batch sizes", "reason"),
        )
    )  # fmt: skip
    for each in reversed(training.passes):
        figures = each.quality.moments
        shown.add(
            each.id,
            each.state,
            f"{each.records:,}",
            f"{each.refused:,}",
            number(each.auc_before),
            number(each.auc),
            *(number(of_moment.logloss) for of_moment in figures),
            *(number(of_moment.calibration, 3) for of_moment in figures),
            *(number(of_moment.gauc) for of_moment in figures),
            str(each.learning.epochs),
            batches(each.learning.batch_sizes),
            f"{each.learning.held_out:,}",
            number(each.learning.shift),
            "-" if each.version is None else str(each.version),
            each.reason,
        )
    without = ["reason"]
    if all(figures.gauc is None for each in training.passes for figures in each.quality.moments):
        without += ["GAUC before", "GAUC after"]
    found = table("Passes, newest first", shown.without_empty(*without))
    return joined([found, element("p", learned(training), class_="none")])


def batches(sizes: Sequence[int]) -> str:
    """Return the batch size of each epoch; runs of equal sizes are counted."""
    runs = [(size, len(list(run))) for size, run in groupby(sizes)]
    return ", ".join(f"{size}" if count == 1 else f"{count} x {size}" for size, count in runs) or "-"


def rows_of_table(training: TrainingStatus) -> Html:
    """Return the tables. Passes without a save, or saved by an earlier release, are left out."""
    saved = [each for each in reversed(training.passes) if each.table]
    if not saved:
        return element("p", "No save has counted the rows of the table yet.", class_="none")
    by_pass = TextTable(columns("pass", *ROW_COUNTS))
    for each in saved:
        by_pass.add(each.id, *map(count, row_totals(each.table or ())))
    note = "New: created since the save before. Expired: deleted by the shrink of a day end. Other saves delete no row."
    return joined(
        [
            table(f"Pservers, after the save of {saved[0].id}", rows_by_pserver(training, saved[0])),
            table("Rows after each save, newest first", by_pass),
            element("p", note, class_="none"),
        ]
    )


def stages(report: Report) -> Html:
    """Return the seconds of each stage: bars of the last passes, their median and maximum, and a table of all passes."""
    timed = [each for each in report.training.passes if each.seconds]
    names = stage_names(timed)
    if not names:
        return element("p", "No stage of a pass has ended yet.", class_="none")
    seconds = {each.id: _by_stage(each, names) for each in timed}
    live = {each.id: number(report.seconds_to_live(each.version), 2) for each in timed}
    sums = {name: sum(taken or 0.0 for taken in found) for name, found in seconds.items()}
    last = list(seconds)[-_BARS:]
    longest = max(sums[name] for name in last) or 1.0
    bars: list[tuple[str, ...]] = [
        (name, _bar(names, seconds[name], longest), f"{sums[name]:,.1f}") for name in reversed(last)
    ]
    whole: list[tuple[str, ...]] = [
        (stage, f"{median(found):,.2f}", f"{max(found):,.2f}", f"{sum(found):,.1f}")
        for place, stage in enumerate(names)
        if (found := [each[place] or 0.0 for each in seconds.values() if each[place] is not None])
    ]
    rows = [(name, *(number(taken, 2) for taken in seconds[name]), live[name]) for name in reversed(seconds)]
    note = (
        "Stages of a save overlap, so their sum may exceed the time that a pass took. "
        "cube-transfer remembers when the last 64 versions went live."
    )
    return joined(
        [
            element(
                "ul",
                *(element("li", element("i", class_=f"swatch s{place}"), name) for place, name in enumerate(names)),
                class_="legend",
            ),
            table(
                "Stages of the last passes", TextTable(columns("pass", "stages", "seconds", words=("stages",)), bars)
            ),
            table(
                "Seconds by stage, of the passes that had it",
                TextTable(columns("stage", "median", "largest", "sum"), whole),
            ),
            table("Seconds of each pass", TextTable(columns("pass", *names, "published to live"), rows)),
            element("p", note, class_="none"),
        ]
    )


def stage_names(timed: Sequence[PassStatus]) -> list[str]:
    found = {name for each in timed for name in each.seconds}
    order = [name for name in _STAGES if name in found] + sorted(found - set(_STAGES))
    return order if len(order) <= MOST_STAGES else [*order[: MOST_STAGES - 1], _OTHERS]


def _by_stage(one: PassStatus, names: Sequence[str]) -> list[float | None]:
    """Return the seconds of each stage; None for a stage that the pass did not have."""
    shown = {name: taken for name, taken in one.seconds.items() if 0 <= taken <= _LONGEST_SECONDS}
    if others := [taken for name, taken in shown.items() if name not in names]:
        shown[_OTHERS] = sum(others)
    return [shown.get(name) for name in names]


def _bar(names: Sequence[str], seconds: Sequence[float | None], longest: float) -> Html:
    parts, left = [], 0.0
    taken_by = [(name, taken or 0.0) for name, taken in zip(names, seconds, strict=True)]
    for place, (name, taken) in enumerate(taken_by):
        width = 1000 * taken / longest
        if width >= 0.5:
            tip = element("title", f"{name}: {taken:,.2f} s")
            parts.append(
                element("rect", tip, x=f"{left:.0f}", y=0, width=f"{width:.0f}", height=10, class_=f"s{place}")
            )
        left += width
    said = ", ".join(f"{name} {taken:,.1f} s" for name, taken in taken_by if taken)
    return element(
        "svg", *parts, viewBox="0 0 1000 10", preserveAspectRatio="none", class_="bar", role="img", aria_label=said
    )
