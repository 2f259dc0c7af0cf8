"""Finds the commits of a table for the next pass."""

import logging
import math
import time
from collections.abc import Callable

from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.sources.tables.table_log import TableLog, TableRefused
from elastic_ctr.store.backends import StoreError
from elastic_ctr.training.master.calendar.schedule import order_of_tasks, ranges, tasks_of
from elastic_ctr.training.master.calendar.table_schedule import TableWindow, table_window
from elastic_ctr.training.master.coordinator import Coordinator
from elastic_ctr.training.master.ledger.rows import PassRow, TablePlace
from elastic_ctr.training.master.work.finder import Finder

log = logging.getLogger(__name__)

_NOTICES = 5


class TableFinder(Finder):
    """Looks for new commits each data.sleepSeconds. A pass that begins again has the files that it had, whatever the table has now."""

    def __init__(self, table: TableLog, settings: MasterFile, clock: Callable[[], float] = time.monotonic) -> None:
        self.waits_for = ""
        self._table = table
        self._data = settings.data
        self._seed = settings.model.seed
        self._clock = clock
        self._looked_at = -math.inf
        self._failed: StoreError | None = None

    def refuse_missing(self) -> None:
        """Refuse nothing: a table may be created later."""

    def find(self, coordinator: Coordinator, wanted: PassRow) -> None:
        if wanted.splits:
            files = coordinator.found.files_of(wanted)
            coordinator.found.hours_found(wanted, files, self._tasks(wanted, files))
            return
        now = self._clock()
        if self.waits_for and now - self._looked_at < self._data.sleep_seconds:
            if self._failed is not None:
                raise self._failed
            return
        self._looked_at, self._failed = now, None
        try:
            self._find(coordinator, wanted)
        except StoreError as failed:
            self._failed = failed
            raise

    def _find(self, coordinator: Coordinator, wanted: PassRow) -> None:
        place = coordinator.facts.table
        self.waits_for = f"commits of {self._table.url}" + (f" after {place.commit}" if place and place.commit else "")
        if place is None:
            place = self._first(coordinator)
        place, window = self._look(place)
        after = self._after(place, window)
        if window.commits:
            coordinator.found.table_found(wanted, window, after, self._tasks(wanted, window.files))
            # The next look follows at once, because there may be more commits already.
            self.waits_for = ""
            return
        if after != coordinator.facts.table:
            coordinator.found.table_moves(after)
        if after.commit == self._data.end:
            coordinator.found.table_ends(wanted)

    def _first(self, coordinator: Coordinator) -> TablePlace | None:
        """Return the place at which training begins; None: with the rows of all commits up to now. Raises StoreError."""
        newest, start = self._table.newest(), self._data.start
        if start == "earliest" and newest:
            return None
        first = start if start.isdecimal() else newest
        place = TablePlace(commit=first, mark=self._table.mark(first), start=start)
        # Set at once, so that with `latest` rows that are written from now on are trained.
        coordinator.found.table_moves(place)
        return place

    def _tasks(self, one: PassRow, files: dict[str, int]) -> list[list[tuple[str, int, int]]]:
        parts = ranges(files, self._data.task_bytes, order_of_tasks(self._data, self._seed, one.id))
        return tasks_of(parts, files, self._data.task_bytes)

    def _look(self, place: TablePlace | None) -> tuple[TablePlace | None, TableWindow]:
        """Return the place from which passes go on, and the next commits with rows. Raises StoreError; TableRefused with the way out."""
        table, start, end = self._table, self._data.start, self._data.end
        if place is None:
            first = end or table.newest()
            return None, table_window(table.url, [table.whole(first)], first, self._data)
        if end is not None and not table.may_follow(end, place.commit):
            raise TableRefused(
                f"data.end {end} is no commit of {table.url} behind {place.commit}, up to which passes have it; give a later one, or none"
            )
        try:
            found = table_window(table.url, table.since(place.commit, place.mark), place.commit, self._data)
        except TableRefused:
            # The way out: an operator has named the commit behind which passes go on.
            if start == place.start or not start.isdecimal() or not table.may_follow(start, place.commit):
                raise
            notice = (
                f"rows between commits {place.commit} and {start} of {table.url} were left out, as data.start orders"
            )
            return place.model_copy(update={"start": start}), TableWindow(start, notices=[notice])
        if start != place.start:
            raise TableRefused(
                f"data.start was {place.start} when passes began and is {start} now: rows of {table.url} would be left out or trained "
                "twice; put it back, or begin with an empty state and store (another --dir)"
            )
        return place, found

    def _after(self, place: TablePlace | None, window: TableWindow) -> TablePlace:
        """Return the place behind the window."""
        if place is not None and place.commit == window.last:
            return place
        for notice in window.notices:
            log.warning("%s", notice)
        mark = self._table.mark(window.last)
        if place is None:
            return TablePlace(commit=window.last, mark=mark, start=self._data.start)
        notices = (*place.notices, *window.notices)[-_NOTICES:]
        left_out = place.left_out + len(window.notices)
        changed = {"commit": window.last, "mark": mark, "notices": notices, "left_out": left_out}
        return place.model_copy(update=changed)

    def look_on(self, coordinator: Coordinator) -> None:
        """Do nothing: a look takes no time that a save would notice."""
