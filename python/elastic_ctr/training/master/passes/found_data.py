"""Reports of data for the next pass: its hours or window of a stream, the statistics of its columns, and the copied checkpoint of
another model.

The searching components work without the lock and report here.
"""

import logging
from collections.abc import Callable, Sequence

from elastic_ctr.sources.streams.interface import Places
from elastic_ctr.training.master.calendar.schedule import FilePart, day_of
from elastic_ctr.training.master.calendar.stream_schedule import (
    Span,
    StreamSchedule,
    Window,
    day_after,
    following_after,
    pieces,
)
from elastic_ctr.training.master.calendar.table_schedule import TableSchedule, TableWindow
from elastic_ctr.training.master.decisions import DecisionContext, DecisionLock, Part
from elastic_ctr.training.master.ledger.rows import DriftRow, Pass, PassRow, StreamPlaces, TablePlace

log = logging.getLogger(__name__)


class FoundData(Part):
    """Thread-safe. `advance` moves the current pass on, `trainers` returns the number of living trainers."""

    def __init__(
        self, context: DecisionContext, lock: DecisionLock, advance: Callable[[], None], trainers: Callable[[], int]
    ) -> None:
        super().__init__(context)
        self._lock = lock
        self._advance = advance
        self._trainers = trainers

    def wants_hours(self) -> PassRow | None:
        """Return the pass that waits for its data, or None."""
        with self._lock.writing():
            return self._schedule.wanted()

    def coming_hours(self) -> Pass | None:
        """Return the pass behind the one under way, or None."""
        with self._lock.reading():
            return self._schedule.coming()

    def begun_split(self, after: str, newest: int) -> tuple[str, dict[str, int]] | None:
        """Return the split after `after`, in a circle, of the newest passes that have begun, and the files of its pass with their bytes."""
        with self._lock.reading() as ledger:
            passes = [
                one
                for one in ledger.passes.after(ledger.passes.first_of_newest(newest) - 1)
                if one.state not in ("waiting", "stopped")
            ]
            ordinals = {split: one.ordinal for one in passes for split in one.splits}
            if not ordinals:
                return None
            split = min((each for each in ordinals if each > after), default=min(ordinals))
            return split, ledger.passes.files(ordinals[split])

    def hours_found(self, one: PassRow, files: dict[str, int], tasks: Sequence[Sequence[FilePart]]) -> None:
        """Begin a pass with its files and their bytes, and the parts of each task."""
        with self._lock.writing() as ledger, ledger:
            pinned = not self._needs_statistics or ledger.facts.statistics
            self._schedule.begin(one, files, tasks, state="checking" if pinned else "analyzing")
            self._advance()

    def stream_needed(self) -> dict[str, int]:
        """Return, for each partition of the stream, the first offset that a recovery may train again."""
        with self._lock.reading() as ledger:
            checkpoints = ledger.saves.checkpoints()
            if not checkpoints:
                return following_after(ledger, 0)
            last = checkpoints[-1]
            # After a recovery to a mid-pass checkpoint, the rest of its pass is read again.
            return following_after(ledger, int(last["pass"]) - bool(last["mid"]))

    def stream_begins(self, places: Places) -> None:
        """Set the positions of the first poll of the stream."""
        with self._lock.writing() as ledger:
            ledger.set_facts(stream=StreamPlaces(following=dict(places.following), files=dict(places.files)))

    def window_found(self, one: PassRow, window: Window, now: Places, least: int, came: Sequence[Span] = ()) -> None:
        """Begin a micro-pass with its offsets: one task for each trainer, but none of fewer than `least` offsets."""
        with self._lock.writing() as ledger, ledger:
            assert isinstance(self._schedule, StreamSchedule)
            ranges = self._schedule.give(one, window, now, came)
            files: dict[str, int] = {}
            for name, start, stop in ranges:
                files[name] = files.get(name, 0) + stop - start
            tasks = [[each] for each in pieces(ranges, max(1, self._trainers()), least)]
            self.hours_found(one, files, tasks)

    def window_is_gone(self, one: PassRow, absent: set[str]) -> None:
        """Drop partitions whose files were deleted before the pass, which begins again, has read them."""
        with self._lock.writing() as ledger, ledger:
            assert isinstance(self._schedule, StreamSchedule)
            self._schedule.drop(one, absent)

    def files_of(self, one: PassRow) -> dict[str, int]:
        """Return the files that a pass was begun with, and their bytes."""
        with self._lock.reading() as ledger:
            return ledger.passes.files(one.ordinal)

    def table_moves(self, place: TablePlace) -> None:
        """Set the place in the table's log."""
        with self._lock.writing() as ledger:
            ledger.set_facts(table=place)

    def table_found(
        self, one: PassRow, window: TableWindow, place: TablePlace, tasks: Sequence[Sequence[FilePart]]
    ) -> None:
        """Begin a pass with the files of these commits, and set the place behind them."""
        with self._lock.writing() as ledger, ledger:
            at = max(each.at for each in window.commits)
            day, ends_day = day_after(place.day, day_of(at, self._settings.data))
            ids = [each.id for each in window.commits]
            ledger.passes.begin_micro_pass(one.ordinal, ids, at, ends_day=ends_day)
            self.table_moves(place.model_copy(update={"day": day}))
            self.hours_found(one, window.files, tasks)

    def table_ends(self, one: PassRow) -> None:
        """End training: no commit up to data.end has rows for the waiting pass."""
        with self._lock.writing() as ledger, ledger:
            assert isinstance(self._schedule, TableSchedule)
            self._schedule.end(one)
            self._advance()

    def collected_pass(self) -> tuple[PassRow, dict[str, tuple[str, bytes]], str] | None:
        """Return a pass with all parts collected, (task, head) of each part by name, and the digest of the pinned statistics, if any;
        or None.

        The caller merges the parts without the lock, and reads them by `collected_series`, because they may not fit into memory.
        """
        with self._lock.writing() as ledger:
            current = ledger.passes.current()
            if current is None or current.state not in ("analyzing", "checking"):
                return None
            if not ledger.tasks.collected_records(current.ordinal):
                return None
            if any(task.state != "done" for task in ledger.tasks.of(current.ordinal)):
                return None
            return current, ledger.tasks.collected(current.ordinal), ledger.facts.statistics

    def collected_series(self, task: str, place: int) -> bytes:
        """Return one series of a part. Raises ValueError if the pass was begun anew since."""
        with self._lock.reading() as ledger:
            found = ledger.tasks.collected_series(task, place)
        if found is None:
            raise ValueError(
                f"what task {task} collected was dropped: its pass was begun anew; it is merged once it is collected again"
            )
        return found

    def statistics_pinned(self, current: PassRow, digest: str) -> None:
        """Pin the statistics of this pass, which are in the store, for the model's life."""
        with self._lock.writing() as ledger, ledger:
            ledger.set_facts(statistics=digest, statistics_of=current.ordinal)
            if current.state == "analyzing":
                ledger.begin_check(current.ordinal)
            else:
                ledger.tasks.drop_collected(current.ordinal)
            log.info("the statistics of pass %s are pinned: %s", current.id, digest)
            self._advance()

    def drift_found(self, current: PassRow, drift: DriftRow) -> None:
        """Set the drift of a checked pass from the pinned statistics."""
        with self._lock.writing() as ledger, ledger:
            ledger.set_drift(current.ordinal, drift)
            self._advance()

    def start_copied(self) -> None:
        """Add the copied checkpoint of another model, to which recoveries return until the first save."""
        with self._lock.writing() as ledger, ledger:
            started = ledger.facts.started_from
            if started is not None:
                ledger.set_facts(started_from=started.model_copy(update={"copied": True}))
                ledger.saves.add_checkpoint(started.name, 0, None, None, self._clock())
