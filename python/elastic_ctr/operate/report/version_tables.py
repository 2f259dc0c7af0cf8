"""Tables of the versions, of the ledger's counts, and of the recoveries."""

from elastic_ctr.operate.report.document import Report
from elastic_ctr.operate.report.html import Html, element, joined, moment, table
from elastic_ctr.operate.text_table import Marked, TextTable, columns, number
from elastic_ctr.runtime.status.master_status import TrainingStatus, VersionStatus
from elastic_ctr.runtime.status.transfer_status import ReleaseStatus


def versions(report: Report) -> Html:
    names = {each.ordinal: each.id for each in report.training.passes}
    words = ("kind", "state", "reason")
    shown = TextTable(
        columns(
            "version", "pass", "kind", "parent", "keys", "published", "seconds to live", "state", "reason", words=words
        )
    )
    for each in reversed(report.training.versions):
        state, reason = state_of(each, report.release)
        shown.add(
            str(each.id),
            names.get(each.ordinal, f"pass {each.ordinal}"),
            each.kind,
            "-" if each.parent is None else str(each.parent),
            f"{each.keys:,}",
            moment(each.at),
            number(report.seconds_to_live(each.id), 1),
            Marked(state, state) if state in ("live", "refused") else state,
            reason or "-",
        )
    return table("Versions, newest first", shown)


def state_of(version: VersionStatus, release: ReleaseStatus | None) -> tuple[str, str]:
    """Return the state of a version, and the reason of its refusal by the master or cube-transfer."""
    if release is not None and version.id in release.refused:
        return "refused", release.refused[version.id]
    if release is not None and version.id == release.live:
        return "live", version.reason
    is_previous = release is not None and version.id == release.previous
    return "previous" if is_previous else version.state, version.reason


def ledger(training: TrainingStatus) -> Html:
    """Return the table of counts, in which each line of each file is in one of the rows."""
    counts = training.ledger
    parts = {
        "trained": counts.trained,
        "refused": counts.refused,
        "parked": counts.parked,
        "held out": counts.held_out,
        "not trained yet": counts.records - counts.trained - counts.refused - counts.parked - counts.held_out,
        "all lines": counts.records,
    }
    shown = TextTable(columns("lines", "count", "share"))
    for name, lines in parts.items():
        shown.add(name, f"{lines:,}", f"{lines / counts.records:.2%}" if counts.records else "-")
    more = (
        f"In {counts.files:,} files. {counts.repeated:,} records were pushed more than once in an epoch, after the loss of a "
        f"trainer; {counts.rolled_back:,} were trained in vain before a recovery."
    )
    return joined([table("Lines, each counted once", shown), element("p", more, class_="none")])


def recoveries(training: TrainingStatus) -> Html:
    shown = TextTable(columns("at (UTC)", "role", "seconds", "rolled back", "reason", words=("role", "reason")))
    for each in reversed(training.recoveries):
        seconds = "under way" if each.seconds is None else number(each.seconds, 1)
        shown.add(moment(each.at), each.role, seconds, f"{each.rolled_back:,}", each.reason)
    return table("Recoveries, newest first", shown)
