"""Finds the data of the next pass: complete hours, the next offsets of a stream, or the next commits of a table."""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, cast

from elastic_ctr.config.data import Data
from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.runtime.status.master_status import StreamPartition, StreamStatus, TopicStatus
from elastic_ctr.sources.streams.interface import Kept, Places, Stream
from elastic_ctr.sources.tables.table_log import TableLog
from elastic_ctr.store.backends import StoreError, StoreUnavailable
from elastic_ctr.store.backends.source import FileSource, Source
from elastic_ctr.training.master.calendar.schedule import (
    ChangedFiles,
    order_of_tasks,
    ranges,
    tasks_of,
)
from elastic_ctr.training.master.calendar.split_files import ListedSplits, SplitFiles, late_files, missing_folder
from elastic_ctr.training.master.calendar.stream_schedule import (
    Arrivals,
    Window,
    cut_window,
    first_offsets,
    lag_of,
    ranges_in,
    vanished,
)
from elastic_ctr.training.master.coordinator import Coordinator
from elastic_ctr.training.master.ledger.rows import PassRow

log = logging.getLogger(__name__)

# The least size of a task, because each has a fixed cost of a fifth of a second.
_LEAST_OFFSETS = {"records": 5_000, "bytes": 1 << 20}
_PAUSE_SECONDS = 2.0
# Seconds between two polls while a pass is under way; longer if the stream does not answer, because such a poll takes long.
_LOOK_ON_SECONDS, _AWAY_SECONDS = 1.0, 10.0
_TELL_SECONDS = 1.0
# Passes whose splits are looked at again for late files. A day of hours: later ones are rare, and each look costs a listing.
_LATE_PASSES = 24


class Finder(Protocol):
    """`waits_for` is the data that the next pass waits for, for operators; "" if it waits for none.

    The defaults are of a source that has no such thing.
    """

    waits_for: str

    def refuse_missing(self) -> None:
        """Raises ValueError naming a local folder that does not exist.

        Called only for a new ledger: a misspelt folder never appears, but the folder of a running training may return.
        """

    def find(self, coordinator: Coordinator, wanted: PassRow) -> None:
        """Begin the pass `wanted` if its data is complete. Raises StoreError, ValueError."""

    def look_on(self, coordinator: Coordinator) -> None:
        """Poll the source while no pass waits for data. Raises nothing."""

    def is_changed(self, stopped: PassRow) -> bool:  # noqa: ARG002 (of subclasses)
        """True if the files of a stopped pass were changed. Raises StoreError."""
        return False

    def lag(self) -> int:
        """Return the number of offsets that no pass has yet."""
        return 0

    def away(self) -> list[str]:
        """Return the partitions that cannot be read now although others can."""
        return []

    def status(self) -> StreamStatus | None:
        """Return the status of the stream."""
        return None

    @property
    def late(self) -> int:
        """The number of files that came after their pass was listed."""
        return 0


class HourFinder(Finder):
    """Looks for complete splits of the next pass, also while the pass before it is under way, so that it begins right after the save."""

    def __init__(
        self,
        source: Source,
        settings: MasterFile,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.waits_for = ""
        self._source = source
        self._data = settings.data
        self._seed = settings.model.seed
        self._changed = ChangedFiles(source, settings.data)
        self._splits = SplitFiles(source, settings.data, clock, wall)
        self._late = LateFiles(source, settings.data)
        self._clock = clock
        self._looked_at = -math.inf
        self._ahead: LookAhead | None = None

    def refuse_missing(self) -> None:
        if isinstance(self._source, FileSource) and (missing := missing_folder(self._source, self._data)):
            raise ValueError(f"data.source: {missing}")

    def find(self, coordinator: Coordinator, wanted: PassRow) -> None:
        found = self._found_ahead(wanted)
        if found is None:
            now = self._clock()
            if self.waits_for and now - self._looked_at < self._data.sleep_seconds:
                return
            self._looked_at = now
            found = self._splits.look(wanted.splits)
        if found.missing:
            self._wait(found.missing)
            self._late.look(self._late.choose(coordinator))
            return
        self._changed.remember(wanted, found.fingerprints)
        # The look ahead begins at once, because a pass may be shorter than data.sleepSeconds.
        self.waits_for, self._looked_at = "", -math.inf
        seed = order_of_tasks(self._data, self._seed, wanted.id)
        parts = ranges(found.files, self._data.task_bytes, seed)
        coordinator.found.hours_found(wanted, found.files, tasks_of(parts, found.files, self._data.task_bytes))

    def _wait(self, missing: str) -> None:
        template = self._data.template
        folder = self._data.folder_of(missing).removeprefix(template.root).lstrip("/")
        waits = f"{folder}/{self._data.donefile}"
        if self._data.settle_seconds is not None:
            waits = f"{folder}, which has no file yet, or was not seen unchanged for {self._data.settle_seconds:g} s"
        if no_folder := missing_folder(self._source, self._data):
            waits = f"{self._source.url.rstrip('/')}/{template.root}/{waits}: {no_folder}"
        if waits != self.waits_for:
            log.info("waits for %s", waits)
        self.waits_for = waits

    def _found_ahead(self, wanted: PassRow) -> ListedSplits | None:
        """Return the complete pass that was found ahead, or None. Waits for a look under way, which no second one may overlap."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        found = ahead.result()
        return found if found is not None and not found.missing and ahead.splits == wanted.splits else None

    def look_on(self, coordinator: Coordinator) -> None:
        """Look for the pass after the one under way, in a thread, because a listing may take long and the master has saves to commit."""
        now = self._clock()
        if now - self._looked_at < self._data.sleep_seconds or self.looks_ahead:
            return
        self._looked_at = now
        coming = coordinator.found.coming_hours()
        if coming is None:
            return
        begun = self._late.choose(coordinator)

        def look() -> ListedSplits:
            found = self._splits.look(coming.splits)
            with suppress(StoreError):
                self._late.look(begun)
            return found

        self._ahead = LookAhead(coming.splits, look)

    @property
    def looks_ahead(self) -> bool:
        """True while a look ahead is under way."""
        return self._ahead is not None and not self._ahead.is_done

    def is_changed(self, stopped: PassRow) -> bool:
        if self._ahead is not None:
            self._ahead.result()
        return self._changed.look(stopped)

    @property
    def late(self) -> int:
        return self._late.count


class LookAhead:
    """A look in a thread of its own. The process may end before the thread does."""

    def __init__(self, splits: tuple[str, ...], look: Callable[[], ListedSplits]) -> None:
        self.splits = splits
        self._look = look
        self._found: ListedSplits | None = None
        self._thread = threading.Thread(target=self._run, name="look-ahead", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        # The pass looks again once it is wanted, and reports the failure then.
        with suppress(StoreError):
            self._found = self._look()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> ListedSplits | None:
        """Return what was found; None if the source failed. Waits for the end of the look."""
        self._thread.join()
        return self._found


class LateFiles:
    """Finds files of trained splits that came, or were written, after their pass was listed. One split is looked at in a call."""

    def __init__(self, source: Source, data: Data) -> None:
        self._source = source
        self._data = data
        self._last = ""
        self._known: set[str] = set()
        # By split, when each of its files was written at the first look.
        self._written: dict[str, dict[str, str]] = {}

    @property
    def count(self) -> int:
        return len(self._known)

    def choose(self, coordinator: Coordinator) -> tuple[str, dict[str, int]] | None:
        """Return the next split of the newest passes and the files of its pass, or None."""
        return coordinator.found.begun_split(self._last, _LATE_PASSES)

    def look(self, begun: tuple[str, dict[str, int]] | None) -> None:
        """Look at a split that was chosen. Raises StoreError."""
        if begun is None:
            return
        self._last, listed = begun
        written = self._written.setdefault(self._last, {})
        found = late_files(self._source, self._data, self._last, listed, written)
        if len(self._written) > _LATE_PASSES * self._data.splits_per_pass:
            del self._written[min(self._written)]
        late = [path for path in found if path not in self._known]
        if late:
            self._known.update(late)
            log.error(
                "%d files of %s came or changed after its pass was listed, such as %s: they are not trained; move them into the folder of "
                "a split to come, and write donefiles last or raise data.settleSeconds",
                len(late),
                self._last,
                late[0],
            )


class WindowFinder(Finder):
    """Polls for new records of a stream, and begins a pass when the window is over or full."""

    def __init__(
        self,
        stream: Stream,
        settings: MasterFile,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.waits_for = ""
        self._stream = stream
        self._start = settings.data.start
        self._settings = settings.data.stream
        self._limit = {"records": self._settings.max_records, "bytes": self._settings.max_bytes}[stream.unit]
        self._clock = clock
        self._wall = wall
        # When the first record of the next pass was seen, or may have arrived.
        self._since: float | None = None
        self._arrivals: Arrivals | None = None
        self._kept: dict[str, Kept] = {}
        self._following: dict[str, int] = {}
        # Unread offsets of partitions that have disappeared; the next pass counts them.
        self._gone = 0
        # The last failure and when to poll again: a call to an unresponsive stream takes long, and the master has other work in between.
        self._failed: StoreError | None = None
        self._again_at = 0.0
        self._look_on_at = 0.0
        self._tell_at = 0.0
        # The last error of `keep_from`, which is logged once.
        self._untold = ""

    def refuse_missing(self) -> None:
        """Refuse nothing: a topic may be created later."""

    def find(self, coordinator: Coordinator, wanted: PassRow) -> None:
        if wanted.splits:
            # The pass begins again with the offsets that it had.
            if absent := self._absent(coordinator, wanted):
                coordinator.found.window_is_gone(wanted, absent)
                return
            coordinator.found.window_found(wanted, Window([]), Places({}, {}), _LEAST_OFFSETS[self._stream.unit])
            return
        self._look(coordinator)
        if self._arrivals is None:
            begun = coordinator.facts.stream
            self._arrivals = Arrivals(begun.arrivals[-1].last if begun is not None and begun.arrivals else None)
        self._arrivals.look(self._wall(), self._readable())
        window = cut_window(self._kept, self._following, self._limit)
        if not window.size:
            self._since = None
            self.waits_for = f"records of {self._stream.url}"
            return
        now = self._clock()
        self._since = now if self._since is None else self._since
        if window.size < self._limit and now - self._since < self._settings.window_ms / 1000:
            return
        # The next window begins now, so that records that arrive while this pass is trained wait no longer.
        self._since, self.waits_for = now, ""
        came = self._arrivals.take(window.gone + window.size)
        window = replace(window, gone=window.gone + self._gone)
        # Skip the deleted offsets of a partition without new records, so that they are counted once.
        places = {name: max(place, self._kept[name].first) for name, place in self._following.items()}
        coordinator.found.window_found(
            wanted, window, Places(places, self._stream.files()), _LEAST_OFFSETS[self._stream.unit], came
        )
        self._gone = 0
        self._following = _following(coordinator)

    def _absent(self, coordinator: Coordinator, again: PassRow) -> set[str]:
        """Return the partitions of the pass whose files are no longer in the followed folder."""
        places = coordinator.facts.stream
        if places is None or not places.files:
            return set()
        self._look(coordinator)
        return {name for name, _, _ in ranges_in(again.splits)} - self._kept.keys()

    def look_on(self, coordinator: Coordinator) -> None:
        """Poll while a pass is under way or stopped, so that the lag and the arrival times stay up to date."""
        if self._arrivals is None or self._clock() < self._look_on_at:
            return
        self._look_on_at = self._clock() + _LOOK_ON_SECONDS
        try:
            self._look(coordinator)
        except StoreError:
            # The next pass that needs the stream reports the failure.
            self._look_on_at = self._clock() + _AWAY_SECONDS
            return
        self._arrivals.look(self._wall(), self._readable())

    def _look(self, coordinator: Coordinator) -> None:
        """Poll the offsets that the stream keeps, and the next pass's first ones. Raises StoreError."""
        if self._failed is not None and self._clock() < self._again_at:
            raise self._failed
        try:
            self._tell(coordinator)
            places = coordinator.facts.stream
            self._stream.know(Places({}, {}) if places is None else Places(places.following, places.files))
            kept = self._stream.partitions()
            following = None if places is None else places.following
            if following is None and self._start == "latest":
                self._require_all(kept)
        except StoreError as failed:
            self._failed, self._again_at = failed, self._clock() + _PAUSE_SECONDS
            raise
        self._failed = None
        for name, lost in vanished(self._kept, kept, following or {}).items():
            # The deletion of a file that was read is normal.
            log.log(
                logging.ERROR if lost else logging.INFO,
                "%s is not in %s any more; %d %s of it were not read",
                name,
                self._stream.url,
                lost,
                self._stream.unit,
            )
            self._gone += lost
        self._kept, self._following = kept, first_offsets(kept, following, self._start)
        if following is None:
            # Set before the first pass, so that with `latest` it begins at the ends of this poll.
            coordinator.found.stream_begins(Places(self._following, self._stream.files()))

    def _require_all(self, kept: Mapping[str, Kept]) -> None:
        """Raises StoreUnavailable if a partition is unavailable: with `latest`, training begins at its end, which is unknown."""
        if away := sorted(name for name, each in kept.items() if each.away):
            raise StoreUnavailable(
                f"{', '.join(away)} of {self._stream.url} cannot be read, and with data.start latest the first pass waits until every "
                "partition says where it ends; bring its broker back, or begin with data.start earliest"
            )

    def _tell(self, coordinator: Coordinator) -> None:
        """Report the needed offsets to the stream, once a second. Training goes on if that fails."""
        if self._clock() < self._tell_at:
            return
        self._tell_at = self._clock() + _TELL_SECONDS
        if needed := coordinator.found.stream_needed():
            try:
                self._stream.keep_from(needed, _following(coordinator))
            except StoreError as failed:
                if str(failed) != self._untold:
                    log.warning("%s is not told what training needs of it: %s", self._stream.url, failed)
                self._untold = str(failed)
            else:
                self._untold = ""

    def lag(self) -> int:
        return lag_of(self._kept, self._following)

    def away(self) -> list[str]:
        return sorted(name for name, each in self._kept.items() if each.away)

    def _readable(self) -> int:
        """Return the lag of readable partitions. Records of the others count as arriving when their partition is available again."""
        return lag_of({name: each for name, each in self._kept.items() if not each.away}, self._following)

    def status(self) -> StreamStatus | None:
        before = self._stream.topic_before
        return StreamStatus(
            url=self._stream.url,
            unit=self._stream.unit,
            lag=self.lag(),
            partitions={
                name: StreamPartition(
                    first=each.first,
                    end=each.end,
                    following=self._following.get(name, each.first),
                    away=each.away,
                )
                for name, each in self._kept.items()
            },
            topic_before=None if before is None else TopicStatus.model_validate(before),
            notices=tuple(self._stream.notices),
        )


def _following(coordinator: Coordinator) -> dict[str, int]:
    """Return the first offset of the next pass for each partition; {} before the first poll of the stream."""
    places = coordinator.facts.stream
    return {} if places is None else places.following


def finder_of(source: Source | Stream | TableLog, settings: MasterFile) -> Finder:
    if settings.data.is_table:
        from elastic_ctr.training.master.work.table_finder import TableFinder

        return TableFinder(cast("TableLog", source), settings)
    return (
        HourFinder(source, settings) if isinstance(source, Source) else WindowFinder(cast("Stream", source), settings)
    )
