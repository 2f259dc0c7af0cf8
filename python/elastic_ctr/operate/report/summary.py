"""The head of the page: the figures of the last pass, and alerts for an operator."""

from elastic_ctr.operate.report.document import Report
from elastic_ctr.operate.report.html import Html, element, moment
from elastic_ctr.operate.text_table import number
from elastic_ctr.runtime.status.master_status import QualityOfPass, TrainingStatus
from elastic_ctr.runtime.status.transfer_status import ReleaseStatus

_MOST_PROBLEMS = 20


def _of_live(release: ReleaseStatus | None) -> str:
    """Return when the live version was begun, by its id, and a note if promotion is paused."""
    if release is None:
        return ""
    begun = "" if release.live is None else f"of {moment(release.live)} UTC"
    return ", ".join(filter(None, [begun, "promotion is paused" if release.promotion_paused else ""]))


def summary(report: Report) -> Html:
    training, release = report.training, report.release
    done = [each for each in training.done if each.records]
    last = done[-1] if done else None
    before, after = (QualityOfPass() if last is None else last.quality).moments
    auc_before, auc = (None, None) if last is None else (last.auc_before, last.auc)
    lines = training.ledger.records
    refused = training.ledger.refused
    earlier = training.earlier_passes
    left_out = f", the first {earlier:,} of them not on this page" if earlier else ""
    tiles = [
        ("passes done", f"{len(training.done) + earlier:,}", f"of {len(training.passes) + earlier:,} found{left_out}"),
        ("lines", f"{lines:,}", f"{refused:,} refused ({refused / max(lines, 1):.2%})"),
        ("AUC before training", number(auc_before), f"{number(auc)} after"),
        ("logloss before training", number(before.logloss), f"{number(after.logloss)} after"),
        ("calibration before", number(before.calibration), f"{number(after.calibration)} after"),
        (
            "live version",
            "unknown" if release is None else "none" if release.live is None else str(release.live),
            _of_live(release),
        ),
        ("recoveries", f"{len(training.recoveries):,}", f"generation {training.generation}"),
    ]
    if (window := training.window) is not None:
        of_window = f"calibration {number(window.calibration)}, {window.clicks:,.0f} clicks"
        tiles.append((f"AUC of the last {window.passes:,} passes", number(window.auc), of_window))
    if (fresh := report.freshness) is not None:
        of_clicks = f"p99 {fresh.p99:.1f} s, at most {fresh.max:.1f} s, of {fresh.records:,} clicks"
        tiles.append(("clicks answered with after", f"p50 {fresh.p50:.1f} s", of_clicks))
    shown = (
        element("div", element("dt", name), element("dd", element("b", value), element("span", more)))
        for name, value, more in tiles
    )
    of = (
        "No pass is done yet." if last is None else f"Quality is of pass {last.id}, done at {moment(last.done_at)} UTC."
    )
    return element("section", element("dl", *shown, class_="tiles"), element("p", of, class_="none"), *_alerts(report))


def _alerts(report: Report) -> list[Html]:
    training, found = report.training, []
    if (current := training.current) is not None:
        reason = f": {current.reason}" if current.reason else ""
        said = f"Pass {current.id} is {current.state}{reason}"
        found.append(element("p", said, class_="alert bad" if current.state == "stopped" else "alert"))
    if training.waits_for:
        found.append(element("p", f"Training waits for {training.waits_for}", class_="alert"))
    problems = [training.error, *(report.release.problems if report.release is not None else ())]
    problems = [each for each in problems if each]
    found += [element("p", each, class_="alert bad") for each in problems[:_MOST_PROBLEMS]]
    if (more := len(problems) - _MOST_PROBLEMS) > 0:
        found.append(element("p", f"{more} more problems: `elastic-ctr status` has all.", class_="alert bad"))
    if report.release is None:
        found.append(element("p", "cube-transfer did not answer: which version is live is unknown.", class_="alert"))
    return found


def learned(training: TrainingStatus) -> str:
    """Return a sentence on the model's offset."""
    if training.offset is None:
        return ""
    return (
        f"The model's offset is {training.offset:+.4f}: the log-odds of a click in its first pass, added to every logit. "
        "Shift is what was added after training, to calibrate."
    )
