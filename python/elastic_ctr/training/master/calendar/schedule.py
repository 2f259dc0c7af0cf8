"""The schedule of passes: their splits, the discovery of complete ones, the save after a pass, its end."""

import json
import logging
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count, islice, pairwise
from random import Random
from zoneinfo import ZoneInfo

from elastic_ctr.config.data import Data, split_end, split_exists, split_name, split_time
from elastic_ctr.config.training_settings import MasterConfig
from elastic_ctr.formats.blocks import COMPRESSED
from elastic_ctr.store.backends.source import Source
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.ledger.rows import Pass, PassRow

log = logging.getLogger(__name__)


def splits(data: Data, behind: str | None = None) -> Iterator[str]:
    """Yield the splits from `start`, or from after the split `behind`, to `end` inclusive; without an end, for ever."""
    last = None if data.end is None else split_time(data.end)
    for moment in _moments(data, behind):
        if last is not None and moment > last:
            return
        yield split_name(moment, data.split_interval)


def _moments(data: Data, behind: str | None) -> Iterator[datetime]:
    """Yield the start of each split by the wall clock, as folders are named. Skipped times are left out; repeated times come once."""
    step = timedelta(minutes=data.split_interval)
    first = split_time(data.start) if behind is None else split_time(behind) + step
    for number in count():
        moment = first + number * step
        if split_exists(moment, data.split_interval, data.time_zone):
            yield moment


def passes(data: Data, done: int = 0, behind: str | None = None) -> Iterator[Pass]:
    """Yield passes of `splitsPerPass` splits; the last may have fewer. A pass with a day's last split ends the day.

    They follow `done` passes, the last of which ended with the split `behind` and may have been short.
    """
    coming = splits(data, behind)
    for ordinal in count(done + 1):
        group = tuple(islice(coming, data.splits_per_pass))
        if not group:
            return
        end = split_end(group[-1], data.split_interval, data.time_zone)
        ends_day = any(next(_moments(data, split)).date() != split_time(split).date() for split in group)
        yield Pass(ordinal, group[-1], group, end, ends_day)


@dataclass(frozen=True)
class SavePlan:
    """The steps of the save after a pass, in order. `kind` is that of the published version, if any."""

    steps: tuple[str, ...]
    kind: str | None


def save_plan(
    one: Pass,
    master: MasterConfig,
    *,
    records: int,
    has_base: bool,
    base_due: bool,
    is_last: bool,
    checkpoint_due: bool | None = None,
) -> SavePlan:
    """Return checkpoint, then delta; at day end and for a first base: shrink (day end), base, batch model (day end), checkpoint.

    A checkpoint always follows a base, so no recovery goes back beyond one. A delta's checkpoint precedes it, so that after a
    recovery the changes since the last version are still marked. A pass without records makes no version. The last pass of a
    bounded run always saves.

    `checkpoint_due` is set for a stream: its deltas have the touched keys, so only a checkpoint walks the table.
    """
    if one.ends_day and (has_base or records):
        return SavePlan(("shrink", "base", "batch", "checkpoint"), "base")
    if not records:
        return SavePlan((), None)
    if (not has_base and (master.first_base or is_last)) or (has_base and base_due):
        return SavePlan(("base", "checkpoint"), "base")
    if checkpoint_due is not None and has_base:
        return SavePlan(("checkpoint", "touched") if checkpoint_due else ("touched",), "delta")
    checkpoint = is_last or one.ordinal % master.checkpoint_per_pass == 0
    delta = has_base and (is_last or one.ordinal % master.delta_per_pass == 0)
    steps = (("checkpoint",) if checkpoint else ()) + (("delta",) if delta else ())
    return SavePlan(steps, "delta" if delta else None)


def cut(size: int, task_bytes: int, *, whole: bool) -> list[tuple[int, int]]:
    """Return byte ranges of a file, equal within one byte; (0, 0) is the whole file. Compressed files cannot be cut (`whole`)."""
    if whole or size <= task_bytes:
        return [(0, 0)]
    count = -(-size // task_bytes)
    edges = [size * number // count for number in range(count + 1)]
    # The last range is open (0: to the end of the file), because the file may have grown.
    return [*pairwise(edges[:-1]), (edges[-2], 0)]


def pick_samples(offered: Sequence[Sequence[object]], wanted: int) -> list[tuple[int, int]]:
    """Return (task, position) of the sample lines to take, spread evenly over the tasks that offer them."""
    deepest = max(map(len, offered), default=0)
    found = [(number, depth) for depth in range(deepest) for number, lines in enumerate(offered) if depth < len(lines)]
    return sorted(found[:wanted])


def day_of(moment: float, data: Data) -> str:
    """Return the day of Unix seconds in data.timeZone, YYYYMMDD."""
    return datetime.fromtimestamp(moment, ZoneInfo(data.time_zone)).strftime("%Y%m%d")


FilePart = tuple[str, int, int]
"""Path, first byte, byte after the last; 0: to the end."""
# The most bytes of small files that share a task; training them takes a second or two.
_SHARED_BYTES = 8 << 20
# The longest time between two checks of a stopped pass, as a multiple of data.sleepSeconds.
_RARELY = 16


class ChangedFiles:
    """Detects changes to the files of a stopped pass since the master listed them."""

    def __init__(self, source: Source, data: Data, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._data = data
        self._clock = clock
        self._ordinal = 0
        self._known: list[str] = []
        self._changed: list[str] = []
        self._pause = 0.0
        self._next = 0.0

    def _fingerprint(self, one: PassRow) -> list[str]:
        return [self._source.listing(self._data.folder_of(split)).fingerprint for split in one.splits]

    def remember(self, one: PassRow, listed: list[str] | None = None) -> None:
        """Record the fingerprints with which a pass was `listed`, or those of now. Raises StoreError."""
        self._known = self._changed = self._fingerprint(one) if listed is None else listed
        self._ordinal = one.ordinal
        self._pause = self._data.sleep_seconds
        self._next = self._clock() + self._pause

    def look(self, stopped: PassRow) -> bool:
        """True if the files have changed and are stable since the last check. Checks become rarer over time. Raises StoreError."""
        if self._ordinal != stopped.ordinal:
            self.remember(stopped)
        now = self._clock()
        if now < self._next:
            return False
        found = self._fingerprint(stopped)
        done = found != self._known and found == self._changed
        writing = found != self._changed
        self._changed = found
        self._pause = self._data.sleep_seconds if writing else min(2 * self._pause, _RARELY * self._data.sleep_seconds)
        self._next = now + self._pause
        return done


def ranges(files: dict[str, int], task_bytes: int, seed: str | None = None) -> list[FilePart]:
    """Return the files of a pass in parts of at most `task_bytes`; an empty file has none.

    They are in the order of the file names, or shuffled by `seed`.
    """
    found = [
        (path, start, stop)
        for path, size in sorted(files.items())
        if size
        for start, stop in cut(size, task_bytes, whole=path.endswith(COMPRESSED))
    ]
    if seed is not None:
        Random(seed).shuffle(found)  # noqa: S311 (an order, no secret)
    return found


def tasks_of(found: Sequence[FilePart], files: Mapping[str, int], task_bytes: int) -> list[list[FilePart]]:
    """Return the parts in the same order, grouped into tasks. Small parts share a task, because each task has a fixed cost; the shared
    size is bounded, so that every trainer still gets tasks.
    """
    most = min(task_bytes, _SHARED_BYTES)
    tasks: list[list[FilePart]] = []
    room = 0
    for path, start, stop in found:
        size = (stop or files[path]) - start
        if size > room:
            tasks.append([])
            room = most
        tasks[-1].append((path, start, stop))
        room -= size
    return tasks


def order_of_tasks(data: Data, seed: int, pass_id: str) -> str | None:
    """Return the seed of the order of a pass's tasks; None: the order of the file names."""
    return f"{seed} {pass_id}" if data.shuffle else None


def order_of_records(data: Data, seed: int, path: str, start: int) -> int:
    """Return the seed of the order of a task's records, which depends on the task alone; 0: the order of the file.

    A stream keeps its order, in which events happened, and its tasks are small.
    """
    return zlib.crc32(f"{seed} {path} {start}".encode()) or 1 if data.shuffle and not data.is_stream else 0


class Schedule:
    """The sequence of passes by `data`. All its state is in the ledger."""

    _also_retries = " (changed files of the pass retry it, too)"

    def __init__(self, ledger: Ledger, data: Data, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._data = data
        self._clock = clock

    @property
    def finished(self) -> bool:
        """True if all passes up to `data.end` are done."""
        return self._ledger.facts.finished

    def wanted(self) -> PassRow | None:
        """Return the pass that waits for its data, or None. The next pass is added if all known ones are done."""
        current = self._ledger.passes.current()
        if current is None and not self.finished:
            last = self._ledger.passes.last()
            coming = self._behind([] if last is None else [last])
            if coming is None:
                self._ledger.set_facts(finished=True)
                return None
            self._ledger.passes.add(coming)
            current = self._ledger.passes.current()
        return current if current is not None and current.state == "waiting" else None

    def _behind(self, done: list[PassRow]) -> Pass | None:
        """Return the pass after the last of these, or None after data.end."""
        last = done[-1] if done else None
        return next(passes(self._data) if last is None else passes(self._data, last.ordinal, last.splits[-1]), None)

    def coming(self) -> Pass | None:
        """Return the pass after one that is under way, or None."""
        current, last = self._ledger.passes.current(), self._ledger.passes.last()
        if current is None or last is None or current.state in ("waiting", "stopped"):
            return None
        return self._behind([last])

    def begin(
        self, one: PassRow, files: dict[str, int], tasks: Sequence[Sequence[FilePart]], *, state: str = "checking"
    ) -> None:
        """Write the files, with their bytes, and the tasks of a complete pass into the ledger."""
        # A trainer's scratch folder may outlive the ledger and have converted lines of a file that has changed since. So task names contain
        # the ledger's id and the number of this listing.
        look = self._ledger.increment("looks")
        prefix = f"{self._ledger.facts.id or 'ledger'}-{one.ordinal}-{look}"
        named = {f"{prefix}.{number}": parts for number, parts in enumerate(tasks)}
        self._ledger.passes.fill(one.ordinal, files, [(name, *parts[0]) for name, parts in named.items()], state=state)
        self._ledger.tasks.set_further(one.ordinal, {name: parts[1:] for name, parts in named.items()})
        log.info("pass %s: %d files, %d tasks", one.id, len(files), len(named))

    def stop(self, current: PassRow, reason: str) -> None:
        """Stop a pass until an operator retries it. `reason` ends with the way out."""
        reason = f"{reason}; then run `elastic-ctr pass retry {current.id}`{self._also_retries}"
        self._ledger.passes.update(current.ordinal, state="stopped", reason=reason)
        log.error("pass %s is stopped: %s", current.id, reason)

    def finish(self, current: PassRow) -> None:
        self._ledger.passes.update(current.ordinal, state="done", done_at=self._clock())
        self._ledger.forget()
        if self.is_last(current):
            self._ledger.set_facts(finished=True)
            log.info("all passes up to %s are done", self._data.end)

    def is_last(self, current: PassRow) -> bool:
        """True if there is no later pass up to `data.end`."""
        known = self._ledger.passes.all()
        return known[-1].ordinal == current.ordinal and self._behind(known) is None

    def cut_again(self) -> bool:
        """Apply a changed `data.end`: a last pass that still waits gets other splits, or is dropped if it has none now.

        A pass that has begun is trained to its end, also after a recovery, because later passes may have begun. Called within a
        transaction. Return True if training had finished and there is more to do now.
        """
        while (known := self._ledger.passes.all()) and known[-1].state == "waiting":
            *before, last = known
            now = self._behind(before)
            if now is not None:
                if now.splits != last.splits:
                    self._ledger.passes.update(last.ordinal, **{**vars(now), "splits": json.dumps(now.splits)})
                    log.info("data.end is %s now: pass %s is %s", self._data.end, last.id, now.id)
                break
            self._ledger.passes.drop(last.ordinal)
            log.info("%s is after data.end %s and is not waited for any more", last.id, self._data.end)
            if self._ledger.passes.current() is None:
                self._ledger.set_facts(finished=True)
        return self.finished and self._behind(self._ledger.passes.all()) is not None
