"""What was found outside of the ledger for the next pass: its hours, its window of a stream, the statistics of its columns, and the
checkpoint of another model that the first one begins with.

Those who look do so without the lock, and report here.
"""

import logging
from collections.abc import Callable, Sequence

from elastic_ctr.sources.streams.interface import Places
from elastic_ctr.training.master.calendar.arrivals import Span
from elastic_ctr.training.master.calendar.schedule import FilePart, Schedule
from elastic_ctr.training.master.calendar.stream_schedule import StreamSchedule, following_after
from elastic_ctr.training.master.calendar.windows import Window, pieces
from elastic_ctr.training.master.decision_lock import DecisionLock
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.ledger.rows import DriftRow, PassRow, StartedFrom, StreamPlaces

log = logging.getLogger(__name__)


class FoundData:
    """Every method may be called from any thread. `advance` moves the present pass on, `trainers` is how many are heard."""

    def __init__(
        self,
        lock: DecisionLock,
        schedule: Schedule,
        clock: Callable[[], float],
        advance: Callable[[], None],
        trainers: Callable[[], int],
        *,
        needs_statistics: bool,
    ) -> None:
        self._lock = lock
        self._clock = clock
        self._schedule = schedule
        self._advance = advance
        self._trainers = trainers
        self._needs_statistics = needs_statistics

    def wants_hours(self) -> PassRow | None:
        """The pass whose folders are to be looked for now."""
        with self._lock.reading():
            return self._schedule.wanted()

    def hours_found(self, one: PassRow, files: dict[str, int], tasks: Sequence[Sequence[FilePart]]) -> None:
        """Files with their bytes, and the parts of each task."""
        with self._lock.writing() as ledger, ledger:
            pinned = not self._needs_statistics or ledger.facts.statistics
            self._schedule.begin(one, files, tasks, state="checking" if pinned else "analyzing")
            self._advance()

    def stream_following(self) -> dict[str, int] | None:
        """By partition of the stream, the offset that the next pass begins with; None before the first look at it."""
        with self._lock.reading() as ledger:
            places = ledger.facts.stream
            return None if places is None else places.following

    def stream_needed(self) -> dict[str, int]:
        """By partition of the stream, the first offset that a recovery may train again."""
        with self._lock.reading() as ledger:
            checkpoints = ledger.checkpoints()
            if not checkpoints:
                return following_after(ledger, 0)
            last = checkpoints[-1]
            # What a checkpoint in mid pass lacks of its pass is converted again.
            return following_after(ledger, int(last["pass"]) - bool(last["mid"]))

    def stream_places(self) -> Places | None:
        """As `stream_following`, with what files are known by."""
        with self._lock.reading() as ledger:
            places = ledger.facts.stream
            return None if places is None else Places(places.following, places.files)

    def stream_begins(self, places: Places) -> None:
        """The first look at the stream."""
        with self._lock.writing() as ledger:
            ledger.set_facts(stream=StreamPlaces(following=dict(places.following), files=dict(places.files)))

    def stream_known_since(self) -> float | None:
        """Until when the arrivals of a stream's records are known; None before its first pass."""
        with self._lock.reading() as ledger:
            places = ledger.facts.stream
            return places.arrivals[-1].last if places is not None and places.arrivals else None

    def window_found(self, one: PassRow, window: Window, now: Places, least: int, came: Sequence[Span] = ()) -> None:
        """The offsets of a micro-pass; each trainer gets a task, but none of fewer than `least` offsets."""
        with self._lock.writing() as ledger, ledger:
            assert isinstance(self._schedule, StreamSchedule)
            ranges = self._schedule.give(one, window, now, came)
            files: dict[str, int] = {}
            for name, start, stop in ranges:
                files[name] = files.get(name, 0) + stop - start
            tasks = [[each] for each in pieces(ranges, max(1, self._trainers()), least)]
            self.hours_found(one, files, tasks)

    def window_is_gone(self, one: PassRow, absent: set[str]) -> None:
        """The files of these partitions were deleted before the pass, which is begun again, has read them."""
        with self._lock.writing() as ledger, ledger:
            assert isinstance(self._schedule, StreamSchedule)
            self._schedule.drop(one, absent)

    def collected_pass(self) -> tuple[PassRow, dict[str, tuple[str, bytes]], str] | None:
        """A pass whose columns are collected, task and head of each part by its name, and the digest of the pinned statistics; empty:
        none are.

        The caller merges the parts without the lock, and reads them by `collected_series`: together they may be larger than memory.
        """
        with self._lock.writing() as ledger:
            current = ledger.current_pass()
            if current is None or current.state not in ("analyzing", "checking"):
                return None
            if not ledger.collected_records(current.ordinal):
                return None
            if any(task.state != "done" for task in ledger.tasks(current.ordinal)):
                return None
            return current, ledger.collected(current.ordinal), ledger.facts.statistics

    def collected_series(self, task: str, place: int) -> bytes:
        """Raises ValueError where the pass was begun anew since."""
        with self._lock.reading() as ledger:
            found = ledger.collected_series(task, place)
        if found is None:
            raise ValueError(
                f"what task {task} collected was dropped: its pass was begun anew; it is merged once it is collected again"
            )
        return found

    def statistics_pinned(self, current: PassRow, digest: str) -> None:
        """The statistics of this pass are in the store: features are made with them for the model's life."""
        with self._lock.writing() as ledger, ledger:
            ledger.set_facts(statistics=digest, statistics_of=current.ordinal)
            if current.state == "analyzing":
                ledger.begin_check(current.ordinal)
            else:
                ledger.drop_collected(current.ordinal)
            log.info("the statistics of pass %s are pinned: %s", current.id, digest)
            self._advance()

    def drift_found(self, current: PassRow, drift: DriftRow) -> None:
        """The collected part of a check is compared with the pinned statistics."""
        with self._lock.writing() as ledger, ledger:
            ledger.set_drift(current.ordinal, drift)
            self._advance()

    def started_from(self) -> StartedFrom | None:
        with self._lock.reading() as ledger:
            return ledger.facts.started_from

    def start_again(self, choose: Callable[[Ledger], None]) -> None:
        """Another checkpoint of the other model, before the first one was copied. Raises what `choose` raises."""
        with self._lock.writing() as ledger, ledger:
            choose(ledger)

    def start_copied(self) -> None:
        """The checkpoint of another model is in this one's store: until the first save, recoveries return to it."""
        with self._lock.writing() as ledger, ledger:
            started = ledger.facts.started_from
            if started is not None:
                ledger.set_facts(started_from=started.model_copy(update={"copied": True}))
                ledger.add_checkpoint(started.name, 0, None, None, self._clock())
