"""Tables of the passes: records, learning, quality, and the time of each stage."""

from collections.abc import Sequence
from itertools import groupby
from statistics import median

from elastic_ctr.operate.report.document import Pass, Report, Training
from elastic_ctr.operate.report.html import Html, element, joined, number, table
from elastic_ctr.operate.report.summary import learned

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


def passes(training: Training) -> Html:
    columns: tuple[str, ...] = (
        "pass", "state", "records", "refused", "AUC before", "AUC after", "logloss before", "logloss after",
        "calibration before", "calibration after", "GAUC before", "GAUC after", "epochs", "batch sizes", "held out", "shift", "version", "reason",
    )  # fmt: skip
    rows = [_row(each) for each in reversed(training.passes)]
    if not any(each.reason for each in training.passes):
        columns, rows = columns[:-1], [each[:-1] for each in rows]
    if all(each.gauc is None for one in training.passes for each in one.quality.moments):
        first = columns.index("GAUC before")
        columns, rows = _without(columns, first), [_without(each, first) for each in rows]
    shown = table("Passes, newest first", columns, rows, words=("state", "batch sizes", "reason"))
    return joined([shown, element("p", learned(training), class_="none")])


def _without(cells: tuple[str, ...], first: int) -> tuple[str, ...]:
    """Return the cells without the two from `first` on."""
    return (*cells[:first], *cells[first + 2 :])


def _row(one: Pass) -> tuple[str, ...]:
    return (
        one.id,
        one.state,
        f"{one.records:,}",
        f"{one.refused:,}",
        number(one.auc_before),
        number(one.auc),
        *(number(each.logloss) for each in one.quality.moments),
        *(number(each.calibration, 3) for each in one.quality.moments),
        *(number(each.gauc) for each in one.quality.moments),
        str(one.learning.epochs),
        batches(one.learning.batch_sizes),
        f"{one.learning.held_out:,}",
        number(one.learning.shift),
        "-" if one.version is None else str(one.version),
        one.reason,
    )


def batches(sizes: Sequence[int]) -> str:
    """Return the batch size of each epoch; runs of equal sizes are counted."""
    runs = [(size, len(list(run))) for size, run in groupby(sizes)]
    return ", ".join(f"{size}" if count == 1 else f"{count} x {size}" for size, count in runs) or "-"


def stages(report: Report) -> Html:
    """Return the seconds of each stage: bars of the last passes, their median and maximum, and a table of all passes."""
    timed = [each for each in report.training.passes if each.seconds]
    names = stage_names(timed)
    if not names:
        return element("p", "No stage of a pass has ended yet.", class_="none")
    seconds = {each.id: _by_stage(each, names) for each in timed}
    live = {each.id: _to_live(report, each) for each in timed}
    sums = {name: sum(taken or 0.0 for taken in found) for name, found in seconds.items()}
    last = list(seconds)[-_BARS:]
    longest = max(sums[name] for name in last) or 1.0
    bars = [(name, _bar(names, seconds[name], longest), f"{sums[name]:,.1f}") for name in reversed(last)]
    whole = [
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
            table("Stages of the last passes", ("pass", "stages", "seconds"), bars, words=("stages",)),
            table("Seconds by stage, of the passes that had it", ("stage", "median", "largest", "sum"), whole),
            table("Seconds of each pass", ("pass", *names, "published to live"), rows),
            element("p", note, class_="none"),
        ]
    )


def stage_names(timed: Sequence[Pass]) -> list[str]:
    found = {name for each in timed for name in each.seconds}
    order = [name for name in _STAGES if name in found] + sorted(found - set(_STAGES))
    return order if len(order) <= MOST_STAGES else [*order[: MOST_STAGES - 1], _OTHERS]


def _by_stage(one: Pass, names: Sequence[str]) -> list[float | None]:
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


def _to_live(report: Report, one: Pass) -> str:
    times = None if report.release is None or one.version is None else report.release.versions.get(one.version)
    return number(None if times is None else times.seconds_to_live, 2)
