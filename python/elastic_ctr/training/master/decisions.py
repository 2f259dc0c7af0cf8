"""The lock of the master's decisions, and the objects that the coordinator makes once for its parts."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.training.master.calendar.stream_schedule import schedule_of
from elastic_ctr.training.master.generations.members import Generations
from elastic_ctr.training.master.generations.store_queries import StoreQueries
from elastic_ctr.training.master.ledger.ledger import Ledger


class DecisionLock:
    """A reentrant lock around a ledger, with a revision number whose change wakes waiting calls.

    After a failed write the state in memory may be ahead of the ledger; once writes work again, `resume` is called in a transaction.
    """

    def __init__(self, ledger: Ledger, resume: Callable[[], None]) -> None:
        self._ledger = ledger
        self._resume = resume
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._revision = 0

    @contextmanager
    def reading(self) -> Iterator[Ledger]:
        """Yield the ledger for reading."""
        with self._lock:
            yield self._ledger

    @contextmanager
    def writing(self) -> Iterator[Ledger]:
        """Yield the ledger for changes, and wake waiting calls if it was changed. After a failed write the master resumes as after a
        restart, once writes work again.

        Raises sqlite3.OperationalError until then.
        """
        with self._lock:
            if self._ledger.torn:
                with self._ledger:
                    self._resume()
                self._ledger.torn = False
            before = self._ledger.changes
            try:
                yield self._ledger
            finally:
                if self._ledger.changes != before:
                    self._revision += 1
                    self._news.notify_all()

    @property
    def revision(self) -> int:
        """Return a number that grows with every change of the ledger."""
        return self._revision

    def wait_for_news(self, revision: int, seconds: float) -> None:
        """Wait until the revision is another one, at most `seconds`."""
        with self._news:
            self._news.wait_for(lambda: self._revision != revision, seconds)


class DecisionContext:
    """The objects that all parts share. `clock` returns the time of the ledger: Unix seconds without the clock's jumps."""

    def __init__(self, ledger: Ledger, settings: MasterFile, store: StoreQueries, clock: Callable[[], float]) -> None:
        self.ledger = ledger
        self.settings = settings
        self.store = store
        self.clock = clock
        self.schedule = schedule_of(ledger, settings.data, clock)
        self.generations = Generations(ledger, clock)


class Part:
    """A part of the coordinator. Its callers take the lock, except those of a thread-safe part."""

    def __init__(self, context: DecisionContext) -> None:
        self._ledger = context.ledger
        self._settings = context.settings
        self._config = context.settings.master
        self._store = context.store
        self._clock = context.clock
        self._schedule = context.schedule
        self._generations = context.generations
        features = context.settings.features
        self._needs_statistics = features is not None and bool(features.needs_statistics)
