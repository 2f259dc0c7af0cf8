"""Tables of the versions, of the ledger's counts, and of the recoveries."""

from elastic_ctr.operate.report.document import Release, Report, Training, Version
from elastic_ctr.operate.report.html import Html, element, joined, moment, number, table


def versions(report: Report) -> Html:
    release = report.release or Release()
    names = {each.ordinal: each.id for each in report.training.passes}
    columns = ("version", "pass", "kind", "parent", "keys", "published", "seconds to live", "state", "reason")
    rows = []
    for each in reversed(report.training.versions):
        times = release.versions.get(each.id)
        state, reason = state_of(each, release)
        shown = element("b", state, class_=state) if state in ("live", "refused") else state
        rows.append(
            (
                str(each.id),
                names.get(each.ordinal, f"pass {each.ordinal}"),
                each.kind,
                "-" if each.parent is None else str(each.parent),
                f"{each.keys:,}",
                moment(each.at),
                number(None if times is None else times.seconds_to_live, 1),
                shown,
                reason or "-",
            )
        )
    return table("Versions, newest first", columns, rows, words=("kind", "state", "reason"))


def state_of(version: Version, release: Release) -> tuple[str, str]:
    """Return the state of a version, and the reason of its refusal by the master or cube-transfer."""
    if version.id in release.refused:
        return "refused", release.refused[version.id]
    if version.id == release.live:
        return "live", version.reason
    return "previous" if version.id == release.previous else version.state, version.reason


def ledger(training: Training) -> Html:
    """Return the table of counts, in which each line of each file is in one of the rows."""
    counts = training.ledger
    trained, refused, parked, held_out = (counts.get(name, 0) for name in ("trained", "refused", "parked", "heldOut"))
    lines = counts.get("records", 0)
    rows = [
        ("trained", f"{trained:,}", _part(trained, lines)),
        ("refused", f"{refused:,}", _part(refused, lines)),
        ("parked", f"{parked:,}", _part(parked, lines)),
        ("held out", f"{held_out:,}", _part(held_out, lines)),
        ("not trained yet", *_rest(lines - trained - refused - parked - held_out, lines)),
        ("all lines", f"{lines:,}", _part(lines, lines)),
    ]
    files, repeated, back = (counts.get(name, 0) for name in ("files", "repeated", "rolledBack"))
    more = (
        f"In {files:,} files. {repeated:,} records were pushed more than once in an epoch, after the loss of a trainer; "
        f"{back:,} were trained in vain before a recovery."
    )
    return joined(
        [table("Lines, each counted once", ("lines", "count", "share"), rows), element("p", more, class_="none")]
    )


def _rest(count: int, of: int) -> tuple[str, str]:
    return f"{count:,}", _part(count, of)


def _part(count: int, of: int) -> str:
    return f"{count / of:.2%}" if of else "-"


def recoveries(training: Training) -> Html:
    rows = [
        (
            moment(each.at),
            each.role,
            "under way" if each.seconds is None else number(each.seconds, 1),
            f"{each.rolled_back:,}",
            each.reason,
        )
        for each in reversed(training.recoveries)
    ]
    return table(
        "Recoveries, newest first",
        ("at (UTC)", "role", "seconds", "rolled back", "reason"),
        rows,
        words=("role", "reason"),
    )
