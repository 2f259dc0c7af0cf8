"""The text of `elastic-ctr status`: problems, the live version and its freshness, hours, then everything else."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from elastic_ctr.operate.cli.fitted_text import Column, FittedTable, Sentence, lines_of, shortened
from elastic_ctr.operate.local.report import dated, figure, learned, number, total
from elastic_ctr.operate.local.run_view import stage
from elastic_ctr.operate.local.session import troubles

# Limits of the population stability index.
MUCH, SOME = 0.25, 0.1
_NOTICES = 3
_INDENT = 11
_SHOWN_RECOVERIES = 5
_SHOWN_VERSIONS = 8
_SHOWN_REFUSED = 3
# A screen always shows so many hours, and problems take at most this share of its lines.
_FEWEST_HOURS = 3
_SHARE_OF_PROBLEMS = 0.5
_QUALITY = {
    "auc": "AUC", "gauc": "GAUC", "logloss": "logloss", "calibration": "calibration", "predictedCtr": "predicted CTR",
    "observedCtr": "observed CTR", "bucketError": "bucket error", "mae": "MAE", "rmse": "RMSE",
}  # fmt: skip

Answer = dict[str, Any]
Parts = list[RenderableType]


@dataclass(frozen=True)
class Picture:
    """A status in the order of importance for a reader. `rest` has sections by name."""

    problems: Parts
    live: Parts
    training: Parts
    hours: FittedTable | None
    rest: dict[str, Parts]


def picture_of(answers: dict[str, Any], errors: dict[str, str]) -> Picture:
    """Lay out the roles' own answers: `master`, `transfer`, `serving`, in a cluster also `pods`, on one machine also `run`."""
    master, transfer, serving = (answers.get(role) for role in ("master", "transfer", "serving"))
    live: Parts = []
    if transfer is not None:
        live += [*_live(transfer), *_freshness(transfer)]
    if transfer is not None or serving is not None:
        live += _serving(transfer or {}, serving)
    if (pods := answers.get("pods")) is not None:
        live += _pods(pods)
    rest: dict[str, Parts] = {}
    if transfer is not None:
        rest |= {"shards": list(_shards(transfer)), "serving pods": list(_readers(transfer))}
    if master is not None:
        how = learned(master)
        rest |= {
            "quality": list(_quality(master)),
            "drift": list(_drift(master)),
            "learned": [_line("learned", how)] if how else [],
            "table": list(_sparse_table(master)),
            "ledger": list(_ledger(master)),
        }
    if transfer is not None:
        rest["versions"] = list(_versions(transfer))
    return Picture(
        list(_problems(answers, errors)),
        live,
        [] if master is None else list(_training(master, transfer)),
        None if master is None else _hours(master),
        {name: parts for name, parts in rest.items() if parts},
    )


def stages(answers: dict[str, Any], errors: dict[str, str], *, passes: int = 24) -> Group:
    """Return the whole status, of any length."""
    found = picture_of(answers, errors)
    hours = [] if found.hours is None else [found.hours.last(passes)]
    rest = [part for parts in found.rest.values() for part in parts]
    return Group(*found.problems, *found.live, *found.training, *hours, *rest)


def screen(answers: dict[str, Any], errors: dict[str, str], console: Console) -> Group:
    """Return as much as the console has lines for, the most important first; the last line names the sections left out."""
    width, height = console.size
    found = picture_of(answers, errors)

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
        shown += lines([found.hours.last(min(wanted, room))])
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


def _problems(answers: dict[str, Any], errors: dict[str, str]) -> Iterator[RenderableType]:
    """Yield everything that an operator should check first."""
    master, transfer, serving = (answers.get(role) for role in ("master", "transfer", "serving"))
    for role in ("transfer", "run"):
        yield from (_line("problem", each, "red") for each in (answers.get(role) or {}).get("problems", ()))
    yield from (_line("silent", sentence, "red") for sentence in errors.values())
    if master is not None:
        yield from (_line("problem", each, "red") for each in _troubles_of(master))
        refused = [each for each in master["versions"] if each["state"] == "refused"][-_SHOWN_REFUSED:]
        yield from (_line("refused", f"version {each['id']}: {each['reason']}", "red") for each in refused)
    if transfer is not None:
        build = transfer["building"]
        if build is not None and build["error"]:
            yield _line("problem", f"version {build['version']} is not built: {build['error']}", "red")
        for version, reason in transfer["refused"].items():
            yield _line("refused", f"{version} is refused: {reason}", "red")
    if serving is not None and serving["transfer"]["error"]:
        yield _line("problem", serving["transfer"]["error"], "red")


def _troubles_of(master: Answer) -> Iterator[str]:
    if hold := master.get("hold"):
        yield f"publishing is held: {hold['reason']}"
    if reason := (master["current"] or {}).get("reason"):
        yield reason
    yield from troubles(master)
    stream = master.get("stream") or {}
    # A master of an older version does not report `away`.
    if away := sorted(name for name, each in stream.get("partitions", {}).items() if each.get("away")):
        yield f"{', '.join(away)} cannot be read, for no broker leads it; the others are trained"
    topic = stream.get("topicBefore")
    if topic is not None and topic["error"] is not None:
        what = "all of " if topic["lag"] is not None else ""
        yield f"the intake does not read {what}{topic['url']}: {topic['error']}"


def _line(name: str, text: str, style: str = "") -> Sentence:
    return Sentence(name, text, style, _INDENT)


def _more(text: str, style: str = "") -> Sentence:
    return Sentence("", text, style, _INDENT)


def _table(*columns: Column) -> FittedTable:
    return FittedTable(columns, _INDENT)


def _numbers(*names: str) -> list[Column]:
    """Return columns of numbers, of which the first is dropped last."""
    return [Column(name, need, right=True) for need, name in enumerate(names, 1)]


def _pods(pods: list[Answer]) -> Iterator[RenderableType]:
    total = Counter(each["component"] for each in pods)
    ready = Counter(each["component"] for each in pods if each["ready"])
    yield _line("pods", ", ".join(f"{component} {ready[component]}/{count}" for component, count in total.items()))
    for each in pods:
        if not each["ready"]:
            going = ", terminating" if each["terminating"] else ""
            yield _more(f"{each['pod']} is {each['state']}{going}", "yellow")


def _started_from(started: Answer) -> Iterator[RenderableType]:
    if started.get("version"):
        network = started["network"] or "not loaded yet"
        yield _more(f"began with version {started['version']} of {started['store']}; of its network: {network}")
    if started["ignored"]:
        yield _more(started["ignored"], "yellow")


def _training(master: Answer, transfer: Answer | None) -> Iterator[RenderableType]:
    candidate = None if transfer is None or transfer["candidate"] is None else transfer["candidate"]["version"]
    yield _line("training", stage(master, candidate))
    if master["waitsFor"]:
        yield _more(f"waits for {master['waitsFor']}")
    if stream := master.get("stream"):
        gone = master["streamGone"]
        lost = f"; {gone:,} were dropped before they were read" if gone else ""
        yield _more(
            f"{stream['lag']:,} {stream['unit']} of {stream['url']} are not read yet{lost}", "yellow" if lost else ""
        )
        topic = stream.get("topicBefore")
        # If an intake reads a topic, training's own lag does not include the topic's.
        if topic is not None and topic["lag"] is not None:
            yield _more(f"{topic['lag']:,} records of {topic['url']} are not in the intake yet")
        notices = stream.get("notices", [])
        for notice in notices[:_NOTICES]:
            yield _more(notice, "yellow")
        if more := notices[_NOTICES:]:
            yield _more(f"and {len(more)} more such files, which the master's log names", "yellow")
    if window := master.get("window"):
        figures = f"AUC {window['auc']:.4f}, calibration {window['calibration']:.3f}"
        yield _more(f"{figures} over the last {window['passes']} passes, {window['clicks']:,.0f} clicks")
    if due := master.get("baseDue"):
        yield _more(due, "yellow")
    # A master of an older version does not report `startedFrom`.
    if started := master.get("startedFrom"):
        yield from _started_from(started)
    if before := master.get("handover"):
        yield _more(f"training {before} was replaced and is saved once more; the new one waits for it")
    serving = sum(1 for each in master["pservers"] if each["serving"])
    yield _line(
        "tasks",
        f"generation {master['generation']}, {serving} of {len(master['pservers'])} pservers serve, "
        f"{len(master['trainers'])} trainers work",
    )


def _hours(master: Answer) -> FittedTable:
    shown = _table(
        Column("hours"), Column("state", 3), Column("tasks", 7, right=True), Column("records", 4, right=True),
        Column("refused", 5, right=True), Column("AUC before", 1, right=True), Column("AUC after", 2, right=True),
        Column("version", 6, right=True), Column("kind", 9), Column("keys", 8, right=True),
    )  # fmt: skip
    for each in master["passes"]:
        parked = f", {each['parked']} parked" if each["parked"] else ""
        shown.add(
            each["pass"],
            each["state"],
            f"{each['tasksDone']}/{each['tasks']}{parked}",
            f"{each['records']:,}",
            f"{each['refused']:,}",
            number(each["aucBefore"]),
            number(each["auc"]),
            str(each["version"] or "-"),
            each["kind"] or "-",
            f"{each['keys']:,}",
        )
    return shown


def _ledger(master: Answer) -> Iterator[RenderableType]:
    yield _line("ledger", ", ".join(f"{name} {value:,}" for name, value in master["ledger"].items()))
    for each in master["recoveries"][-_SHOWN_RECOVERIES:]:
        seconds = "under way" if each["seconds"] is None else f"{each['seconds']:.1f} s"
        yield _line("recovery", f"{each['role']}: {each['reason']} ({seconds})")


def _quality(master: Answer) -> Iterator[RenderableType]:
    """Yield the quality of the last pass that is done and has records."""
    # A master of an earlier release does not report quality.
    done = [each for each in master["passes"] if each["state"] == "done" and any((each.get("quality") or {}).values())]
    if not done:
        return
    moments = ("before", "after")
    grouped = any(figure(done[-1], moment, "gauc") is not None for moment in moments)
    names = [name for name in _QUALITY if grouped or name != "gauc"]
    shown = _table(Column("predicted"), *_numbers(*(_QUALITY[name] for name in names)))
    for moment in moments:
        shown.add(moment, *(number(figure(done[-1], moment, name)) for name in names))
    yield _line("quality", f"of the predictions of {done[-1]['pass']} before and after it was trained")
    yield shown


def _sparse_table(master: Answer) -> Iterator[RenderableType]:
    """Yield the rows of each pserver after the last save, and the expired rows of the last day end if that was another save."""
    # A master of an earlier release does not report tables.
    saved = [each for each in master["passes"] if each.get("table")]
    if not saved:
        return
    last = saved[-1]
    memory = {each["index"]: each.get("memoryBytes") for each in master["pservers"]}
    shown = _table(Column("pserver"), *_numbers("rows", "new", "expired", "checkpoint bytes", "memory bytes"))
    parts = [
        (*map(part.get, ("rows", "new", "expired", "bytes")), memory.get(i)) for i, part in enumerate(last["table"])
    ]
    for index, part in enumerate(parts):
        shown.add(str(index), *map(_count, part))
    if len(parts) > 1:
        shown.add("all", *(_count(total(each)) for each in zip(*parts, strict=True)))
    yield _line("table", f"rows after the save of {last['pass']}: new since the save before, expired by its shrink")
    yield shown
    shrunk = next((each for each in reversed(saved) if total([part["expired"] for part in each["table"]])), None)
    if shrunk is not None and shrunk is not last:
        expired = total([part["expired"] for part in shrunk["table"]])
        yield _more(f"{_count(expired)} rows expired at the day end of {shrunk['pass']}")


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _drift(master: Answer) -> Iterator[RenderableType]:
    """Yield the columns that moved most in the last pass that was compared with the pinned statistics."""
    # A master of an older version does not report drift.
    last = master.get("drift")
    if last is None:
        return
    worst = next((each["drift"] for each in master["passes"] if each["pass"] == last["pass"]), None) or []
    shown = [_moved(each) for each in worst]
    yield _line("drift", f"of {len(last['columns'])} columns in {last['pass']}, by {last['rows']:,} rows; most of all:")
    for text, style in shown:
        yield _more(text, style)


def _moved(drift: Answer) -> tuple[str, str]:
    psi, missing, before = drift["psi"], drift["missing"], drift["pinnedMissing"]
    text = f"{drift['column']}: PSI {'-' if psi is None else f'{psi:.3f}'}, missing {missing:.1%} ({before:.1%} pinned)"
    if drift["unseen"] is not None:
        text += f", unseen {drift['unseen']:.1%} ({drift['pinnedUnseen'] or 0:.1%} pinned)"
    gone = psi is None and missing > before
    return text, "red" if gone or (psi or 0) > MUCH else "yellow" if (psi or 0) > SOME else ""


def _live(transfer: Answer) -> Iterator[RenderableType]:
    paused = (
        ", promotion is paused: nothing newer goes live until `elastic-ctr rollback --resume`"
        if transfer["promotionPaused"]
        else ""
    )
    live = "none is live yet" if transfer["live"] is None else f"version {dated(transfer['live'])}{paused}"
    yield _line("live", live + (", cube-transfer listens for what pods carry" if transfer["listening"] else ""))
    candidate = transfer["candidate"]
    if candidate is not None:
        waits = "; ".join(candidate["waitsFor"]) or "nothing any more"
        yield _more(f"version {dated(candidate['version'])} is loaded and validated, waits for: {waits}")
    build = transfer["building"]
    if build is not None and not build["error"] and build["stage"] not in ("idle", "done"):
        yield _more(
            f"version {build['version']} is built ({build['stage']}): {build['partitionsDone']} of "
            f"{build['partitions']} partitions"
        )


def _versions(transfer: Answer) -> Iterator[RenderableType]:
    names = [name for name in ("published", "built", "skipped", "abandoned") if transfer[name]]
    for place, name in enumerate(names):
        yield Sentence("" if place else "versions", f"{name}: {_some(transfer[name])}", "", _INDENT)


def _some(versions: list[int]) -> str:
    last = ", ".join(map(str, versions[-_SHOWN_VERSIONS:]))
    return last if len(versions) <= _SHOWN_VERSIONS else f"{len(versions)}, the last are {last}"


def _shards(transfer: Answer) -> Iterator[RenderableType]:
    live = str(transfer["live"])
    shown = _table(
        Column("shard", right=True), Column("holders", 1, right=True), Column("pod", 4), Column("live", 3, right=True),
        Column("other versions", 5), Column("state", 2),
    )  # fmt: skip
    for shard in transfer["shards"]:
        pods = shard["pods"]
        holders = sum(1 for pod in pods if pod["loaded"].get(live) and not pod["draining"])
        for place, pod in enumerate(pods or [None]):
            named = (str(shard["shard"]), str(holders)) if place == 0 else ("", "")
            if pod is None:
                shown.add(*named, "-", "-", "-", Text("no pod is up", "red"))
                continue
            others = [f"{version}: {count}" for version, count in pod["loaded"].items() if version != live]
            state = Text("draining", "yellow") if pod["draining"] else Text("up")
            if pod["errors"]:
                state = Text("; ".join(pod["errors"]), "red")
            shown.add(*named, pod["pod"], str(pod["loaded"].get(live, 0)), ", ".join(others[-3:]) or "-", state)
    yield _line("shards", "holders of the live version, and how many of its partitions each pod answers")
    yield shown


def _serving(transfer: Answer, serving: Answer | None) -> Iterator[RenderableType]:
    readers = transfer.get("readers", [])
    if serving is not None:
        which = f" of one of {len(readers)} pods" if len(readers) > 1 else ""
        load = f"{serving['rows']:,} lines so far"
        if serving["p50Seconds"] is not None and serving["p99Seconds"] is not None:
            load += f", p50 ≤ {serving['p50Seconds'] * 1e3:.1f} ms, p99 ≤ {serving['p99Seconds'] * 1e3:.1f} ms"
        yield _line("serving", f"{serving['stage']}; {load}{which}")
        if fresh := serving["clickFreshness"]:
            spread = ", ".join(f"{name} {fresh[name]:.1f} s" for name in ("p50", "p90", "p99"))
            yield _line("clicks", f"answered with after {spread}, at most {fresh['max']:.1f} s (last five minutes)")
        if serving["lastRefusal"]:
            yield _more(f"last refusal: {serving['lastRefusal']}", "yellow")
    if not readers and transfer:
        yield _line("serving", "no pod reports to cube-transfer")


def _readers(transfer: Answer) -> Iterator[RenderableType]:
    live = transfer["live"]
    shown = _table(
        Column("serving pod"), Column("live", 1), Column("answers with", 2), Column("largest difference", 3, right=True),
        Column("refuses", 4),
    )  # fmt: skip
    for each in transfer["readers"]:
        passed = "-" if live is None else "passed" if live in each["validated"] else "not yet"
        difference = each["maxAbsDiff"].get(str(live))
        shown.add(
            each["pod"],
            passed,
            ", ".join(map(str, each["pinned"])) or "-",
            "-" if difference is None else f"{difference:.1e}",
            "; ".join(f"{version}: {reason}" for version, reason in each["refused"].items()) or "-",
        )
    if shown.rows:
        yield shown


def _freshness(transfer: Answer) -> Iterator[RenderableType]:
    newest, live = transfer["eventTimeMax"], transfer["live"]
    if newest is None:
        yield _line("freshness", "nothing is known yet")
        return
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(newest))
    to_live = transfer["versions"].get(str(live), {}).get("secondsToLive")
    spread = "" if to_live is None else f"; it took {to_live:.1f} s from published to live"
    yield _line("freshness", f"events until {at}, {_age(transfer['freshnessSeconds'])}{spread}")


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min ago"
    return f"{seconds / 3600:,.1f} h ago" if seconds < 72 * 3600 else f"{seconds / 86400:,.1f} days ago"
