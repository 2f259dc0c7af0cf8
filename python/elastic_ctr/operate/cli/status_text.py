"""The text of `elastic-ctr status`: problems, the live version and its freshness, hours, then everything else."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.text import Text

from elastic_ctr.operate.cli.cluster import Pod
from elastic_ctr.operate.cli.snapshot import Snapshot
from elastic_ctr.operate.fitted_text import FittedTable, Sentence, lines_of, shortened
from elastic_ctr.operate.local.report import dated, learned
from elastic_ctr.operate.local.run_view import stage
from elastic_ctr.operate.local.session import troubles
from elastic_ctr.operate.text_table import (
    Column,
    Marked,
    TextTable,
    columns,
    count,
    number,
    row_totals,
    rows_by_pserver,
)
from elastic_ctr.runtime.status.master_status import (
    ColumnDrift,
    PassStatus,
    StartedFromStatus,
    StreamStatus,
    TrainingStatus,
)
from elastic_ctr.runtime.status.serving_status import ServingStatus
from elastic_ctr.runtime.status.transfer_status import CubePodStatus, ReleaseStatus

# Limits of the population stability index.
MUCH, SOME = 0.25, 0.1
_NOTICES = 3
_SHOWN_RECOVERIES = 5
_SHOWN_VERSIONS = 8
_SHOWN_REFUSED = 3
# A screen always shows so many hours, and problems take at most this share of its lines.
_FEWEST_HOURS = 3
_SHARE_OF_PROBLEMS = 0.5
# Fields of QualityFigures.
_QUALITY = {
    "auc": "AUC", "gauc": "GAUC", "logloss": "logloss", "calibration": "calibration", "predicted_ctr": "predicted CTR",
    "observed_ctr": "observed CTR", "bucket_error": "bucket error", "mae": "MAE", "rmse": "RMSE",
}  # fmt: skip

Parts = list[RenderableType]


@dataclass(frozen=True)
class Picture:
    """A status in the order of importance for a reader. `rest` has sections by name."""

    problems: Parts
    live: Parts
    training: Parts
    hours: TextTable | None
    rest: dict[str, Parts]


def picture_of(seen: Snapshot) -> Picture:
    master, transfer, serving = seen.master, seen.transfer, seen.serving
    live: Parts = []
    rest: dict[str, Iterator[RenderableType]] = {}
    if transfer is not None:
        live += [*_live(transfer), *_freshness(transfer)]
        rest |= {"shards": _shards(transfer), "serving pods": _readers(transfer)}
    live += _serving(transfer, serving)
    if seen.pods is not None:
        live += _pods(seen.pods)
    if master is not None:
        rest |= {
            "quality": _quality(master),
            "drift": _drift(master),
            "learned": _learned(master),
            "table": _sparse_table(master),
            "ledger": _ledger(master),
        }
    if transfer is not None:
        rest["versions"] = _versions(transfer)
    sections = {name: list(parts) for name, parts in rest.items()}
    return Picture(
        list(_problems(seen)),
        live,
        [] if master is None else list(_training(master, transfer)),
        None if master is None else _hours(master),
        {name: parts for name, parts in sections.items() if parts},
    )


def stages(seen: Snapshot, *, passes: int = 24) -> Group:
    """Return the whole status, of any length."""
    found = picture_of(seen)
    hours = [] if found.hours is None else [FittedTable(found.hours.last(passes))]
    rest = [part for parts in found.rest.values() for part in parts]
    return Group(*found.problems, *found.live, *found.training, *hours, *rest)


def screen(seen: Snapshot, console: Console) -> Group:
    """Return as much as the console has lines for, the most important first; the last line names the sections left out."""
    width, height = console.size
    found = picture_of(seen)

    def lines(parts: Parts) -> list[Text]:
        return list(lines_of(parts, console, width))

    problems = lines(found.problems)
    most = max(1, int(height * _SHARE_OF_PROBLEMS))
    if len(problems) > most:
        words = f"… {len(problems) - most + 1} more lines of problems: `elastic-ctr status`"
        problems = [*problems[: most - 1], Text(shortened(words, width), "red")]
    rest = {name: lines(parts) for name, parts in found.rest.items()}
    shown = [*problems, *lines([*found.live, *found.training])]
    if found.hours is not None:
        room = height - len(shown) - 1
        wanted = max(_FEWEST_HOURS, room - sum(map(len, rest.values())), (room - 1) * 2 // 3)
        shown += lines([FittedTable(found.hours.last(min(wanted, room)))])
    left_out = []
    for name, section in rest.items():
        # One line is reserved for the names of the sections left out.
        if len(shown) + len(section) < height:
            shown += section
        else:
            left_out.append(name)
    if len(shown) > height or left_out:
        names = ", ".join(left_out) or "the end"
        words = shortened(f"… no room for {names}: `elastic-ctr status`", width)
        shown = [*shown[: height - 1], Text(words, "dim")]
    return Group(*shown)


def _problems(seen: Snapshot) -> Iterator[RenderableType]:
    """Yield everything that an operator should check first."""
    master, transfer, serving = seen.master, seen.transfer, seen.serving
    for each in (*(() if transfer is None else transfer.problems), *seen.problems):
        yield Sentence("problem", each, "red")
    yield from (Sentence("silent", sentence, "red") for sentence in seen.errors.values())
    if master is not None:
        yield from (Sentence("problem", each, "red") for each in _troubles_of(master))
        refused = [each for each in master.versions if each.state == "refused"][-_SHOWN_REFUSED:]
        yield from (Sentence("refused", f"version {each.id}: {each.reason}", "red") for each in refused)
    if transfer is not None:
        build = transfer.building
        if build is not None and build.error:
            yield Sentence("problem", f"version {build.version} is not built: {build.error}", "red")
        for version, reason in transfer.refused.items():
            yield Sentence("refused", f"{version} is refused: {reason}", "red")
    if serving is not None and serving.transfer.error:
        yield Sentence("problem", serving.transfer.error, "red")


def _troubles_of(master: TrainingStatus) -> Iterator[str]:
    if master.hold is not None:
        yield f"publishing is held: {master.hold.reason}"
    if master.current is not None and master.current.reason:
        yield master.current.reason
    yield from troubles(master)
    if master.archive is not None and master.archive.error:
        yield master.archive.error
    if (stream := master.stream) is None:
        return
    if away := sorted(name for name, each in stream.partitions.items() if each.away):
        yield f"{', '.join(away)} cannot be read, for no broker leads it; the others are trained"
    topic = stream.topic_before
    if topic is not None and topic.error is not None:
        what = "all of " if topic.lag is not None else ""
        yield f"the intake does not read {what}{topic.url}: {topic.error}"


def _more(text: str, style: str = "") -> Sentence:
    return Sentence("", text, style)


def _pods(pods: Sequence[Pod]) -> Iterator[RenderableType]:
    total = Counter(each.component for each in pods)
    ready = Counter(each.component for each in pods if each.ready)
    yield Sentence("pods", ", ".join(f"{component} {ready[component]}/{of}" for component, of in total.items()))
    for each in pods:
        if not each.ready:
            yield _more(f"{each.name} is {each.state}{', terminating' if each.going else ''}", "yellow")


def _started_from(started: StartedFromStatus) -> Iterator[RenderableType]:
    if started.version is not None:
        network = started.network or "not loaded yet"
        yield _more(f"began with version {started.version} of {started.store}; of its network: {network}")
    if started.ignored:
        yield _more(started.ignored, "yellow")


def _training(master: TrainingStatus, transfer: ReleaseStatus | None) -> Iterator[RenderableType]:
    candidate = None if transfer is None or transfer.candidate is None else transfer.candidate.version
    yield Sentence("training", stage(master, candidate))
    if master.waits_for and (master.current is None or master.current.state != "waiting"):
        yield _more(f"waits for {master.waits_for}")
    if master.late_files:
        yield _more(
            f"{master.late_files:,} files came after their pass was listed; the master's log names them", "yellow"
        )
    if master.stream is not None:
        yield from _stream(master.stream, master.stream_gone)
    if (table := master.table) is not None:
        yield from (_more(notice, "yellow") for notice in table.notices)
    if (window := master.window) is not None:
        figures = f"AUC {window.auc:.4f}, calibration {window.calibration:.3f}"
        yield _more(f"{figures} over the last {window.passes} passes, {window.clicks:,.0f} clicks")
    if master.base_due:
        yield _more(master.base_due, "yellow")
    if master.started_from is not None:
        yield from _started_from(master.started_from)
    if master.handover:
        yield _more(f"training {master.handover} was replaced and is saved once more; the new one waits for it")
    serving = sum(each.serving for each in master.pservers)
    yield Sentence(
        "tasks",
        f"generation {master.generation}, {serving} of {len(master.pservers)} pservers serve, "
        f"{len(master.trainers)} trainers work",
    )


def _stream(stream: StreamStatus, gone: int) -> Iterator[RenderableType]:
    lost = f"; {gone:,} were dropped before they were read" if gone else ""
    yield _more(f"{stream.lag:,} {stream.unit} of {stream.url} are not read yet{lost}", "yellow" if lost else "")
    topic = stream.topic_before
    # If an intake reads a topic, training's own lag does not include the topic's.
    if topic is not None and topic.lag is not None:
        yield _more(f"{topic.lag:,} records of {topic.url} are not in the intake yet")
    for notice in stream.notices[:_NOTICES]:
        yield _more(notice, "yellow")
    if more := stream.notices[_NOTICES:]:
        yield _more(f"and {len(more)} more such files, which the master's log names", "yellow")


def _hours(master: TrainingStatus) -> TextTable:
    shown = TextTable(
        [
            Column("hours"), Column("state", 3), Column("tasks", 7, right=True), Column("records", 4, right=True),
            Column("refused", 5, right=True), Column("AUC before", 1, right=True), Column("AUC after", 2, right=True),
            Column("version", 6, right=True), Column("kind", 9), Column("keys", 8, right=True),
        ]
    )  # fmt: skip
    for each in master.passes:
        parked = f", {each.parked} parked" if each.parked else ""
        shown.add(
            each.id,
            each.state,
            f"{each.tasks_done}/{each.tasks}{parked}",
            f"{each.records:,}",
            f"{each.refused:,}",
            number(each.auc_before),
            number(each.auc),
            str(each.version or "-"),
            each.kind or "-",
            f"{each.keys:,}",
        )
    return shown


def _ledger(master: TrainingStatus) -> Iterator[RenderableType]:
    yield Sentence("ledger", ", ".join(f"{name} {value:,}" for name, value in master.ledger.to_dict().items()))
    for each in master.recoveries[-_SHOWN_RECOVERIES:]:
        seconds = "under way" if each.seconds is None else f"{each.seconds:.1f} s"
        yield Sentence("recovery", f"{each.role}: {each.reason} ({seconds})")


def _quality(master: TrainingStatus) -> Iterator[RenderableType]:
    """Yield the quality of the last pass that is done and has records."""
    done = [each for each in master.done if each.quality.before is not None or each.quality.after is not None]
    if not done:
        return
    before, after = done[-1].quality.moments
    shown = TextTable(columns("predicted", *_QUALITY.values()))
    for name, figures in (("before", before), ("after", after)):
        shown.add(name, *(number(getattr(figures, each)) for each in _QUALITY))
    yield Sentence("quality", f"of the predictions of {done[-1].id} before and after it was trained")
    yield FittedTable(shown.without_empty("GAUC"))


def _learned(master: TrainingStatus) -> Iterator[RenderableType]:
    if how := learned(master):
        yield Sentence("learned", how)


def _sparse_table(master: TrainingStatus) -> Iterator[RenderableType]:
    """Yield the rows of each pserver after the last save, and the expired rows of the last day end if that was another save."""
    saved = [each for each in master.passes if each.table]
    if not saved:
        return
    last = saved[-1]
    yield Sentence("table", f"rows after the save of {last.id}: new since the save before, expired by its shrink")
    yield FittedTable(rows_by_pserver(master, last))
    shrunk = next((each for each in reversed(saved) if _expired(each)), None)
    if shrunk is not None and shrunk is not last:
        yield _more(f"{count(_expired(shrunk))} rows expired at the day end of {shrunk.id}")


def _expired(saved: PassStatus) -> int | None:
    _, _, expired, _ = row_totals(saved.table or ())
    return expired


def _drift(master: TrainingStatus) -> Iterator[RenderableType]:
    """Yield the columns that moved most in the last pass that was compared with the pinned statistics."""
    if (last := master.drift) is None:
        return
    yield Sentence("drift", f"of {len(last.columns)} columns in {last.id}, by {last.rows:,} rows; most of all:")
    for each in next((each.drift for each in master.passes if each.id == last.id), None) or ():
        yield _moved(each)


def _moved(drift: ColumnDrift) -> Sentence:
    psi, missing, before = drift.psi, drift.missing, drift.pinned_missing
    text = f"{drift.column}: PSI {number(psi, 3)}, missing {missing:.1%} ({before:.1%} pinned)"
    if drift.unseen is not None:
        text += f", unseen {drift.unseen:.1%} ({drift.pinned_unseen or 0:.1%} pinned)"
    gone = psi is None and missing > before
    return _more(text, "red" if gone or (psi or 0) > MUCH else "yellow" if (psi or 0) > SOME else "")


def _live(transfer: ReleaseStatus) -> Iterator[RenderableType]:
    paused = (
        ", promotion is paused: nothing newer goes live until `elastic-ctr rollback --resume`"
        if transfer.promotion_paused
        else ""
    )
    live = "none is live yet" if transfer.live is None else f"version {dated(transfer.live)}{paused}"
    yield Sentence("live", live + (", cube-transfer listens for what pods carry" if transfer.listening else ""))
    if (candidate := transfer.candidate) is not None:
        waits = "; ".join(candidate.waits_for) or "nothing any more"
        yield _more(f"version {dated(candidate.version)} is loaded and validated, waits for: {waits}")
    build = transfer.building
    if build is not None and not build.error and build.stage not in ("idle", "done"):
        done = f"{build.partitions_done} of {build.partitions} partitions"
        yield _more(f"version {build.version} is built ({build.stage}): {done}")


def _versions(transfer: ReleaseStatus) -> Iterator[RenderableType]:
    title = "versions"
    for name, versions in (
        ("published", transfer.published),
        ("built", transfer.built),
        ("skipped", transfer.skipped),
        ("abandoned", transfer.abandoned),
    ):
        if versions:
            last = ", ".join(map(str, versions[-_SHOWN_VERSIONS:]))
            shown = last if len(versions) <= _SHOWN_VERSIONS else f"{len(versions)}, the last are {last}"
            yield Sentence(title, f"{name}: {shown}")
            title = ""


def _shards(transfer: ReleaseStatus) -> Iterator[RenderableType]:
    live = transfer.live or 0
    shown = TextTable(
        [
            Column("shard", right=True), Column("holders", 1, right=True), Column("pod", 4), Column("live", 3, right=True),
            Column("other versions", 5), Column("state", 2),
        ]
    )  # fmt: skip
    for shard in transfer.shards:
        holders = sum(1 for pod in shard.pods if pod.loaded.get(live) and not pod.draining)
        named = (str(shard.shard), str(holders))
        if not shard.pods:
            shown.add(*named, "-", "-", "-", Marked("no pod is up", "red"))
        for pod in shard.pods:
            others = [f"{version}: {parts}" for version, parts in pod.loaded.items() if version != live]
            shown.add(*named, pod.pod, str(pod.loaded.get(live, 0)), ", ".join(others[-3:]) or "-", _state_of(pod))
            named = ("", "")
    yield Sentence("shards", "holders of the live version, and how many of its partitions each pod answers")
    yield FittedTable(shown)


def _state_of(pod: CubePodStatus) -> str:
    if pod.errors:
        return Marked("; ".join(pod.errors), "red")
    return Marked("draining", "yellow") if pod.draining else "up"


def _serving(transfer: ReleaseStatus | None, serving: ServingStatus | None) -> Iterator[RenderableType]:
    readers = () if transfer is None else transfer.readers
    if serving is not None:
        which = f" of one of {len(readers)} pods" if len(readers) > 1 else ""
        load = f"{serving.rows:,} lines so far"
        if serving.p50_seconds is not None and serving.p99_seconds is not None:
            load += f", p50 ≤ {serving.p50_seconds * 1e3:.1f} ms, p99 ≤ {serving.p99_seconds * 1e3:.1f} ms"
        yield Sentence("serving", f"{serving.stage}; {load}{which}")
        if (fresh := serving.click_freshness) is not None:
            spread = f"p50 {fresh.p50:.1f} s, p90 {fresh.p90:.1f} s, p99 {fresh.p99:.1f} s, at most {fresh.max:.1f} s"
            yield Sentence("clicks", f"answered with after {spread} (last five minutes)")
        if serving.last_refusal:
            yield _more(f"last refusal: {serving.last_refusal}", "yellow")
    if transfer is not None and not readers:
        yield Sentence("serving", "no pod reports to cube-transfer")


def _readers(transfer: ReleaseStatus) -> Iterator[RenderableType]:
    if not transfer.readers:
        return
    live = transfer.live
    shown = TextTable(
        [
            Column("serving pod"), Column("live", 1), Column("answers with", 2),
            Column("largest difference", 3, right=True), Column("refuses", 4),
        ]
    )  # fmt: skip
    for each in transfer.readers:
        difference = None if live is None else each.max_abs_diff.get(live)
        shown.add(
            each.pod,
            "-" if live is None else "passed" if live in each.validated else "not yet",
            ", ".join(map(str, each.pinned)) or "-",
            "-" if difference is None else f"{difference:.1e}",
            "; ".join(f"{version}: {reason}" for version, reason in each.refused.items()) or "-",
        )
    yield FittedTable(shown)


def _freshness(transfer: ReleaseStatus) -> Iterator[RenderableType]:
    newest, age = transfer.event_time_max, transfer.freshness_seconds
    if newest is None or age is None:
        yield Sentence("freshness", "nothing is known yet")
        return
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(newest))
    to_live = transfer.seconds_to_live
    spread = "" if to_live is None else f"; it took {to_live:.1f} s from published to live"
    yield Sentence("freshness", f"events until {at}, {_age(age)}{spread}")


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min ago"
    return f"{seconds / 3600:,.1f} h ago" if seconds < 72 * 3600 else f"{seconds / 86400:,.1f} days ago"
