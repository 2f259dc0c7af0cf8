"""The lock of the master's decisions, and the revision number whose change wakes waiting calls."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from elastic_ctr.training.master.ledger.ledger import Ledger


class DecisionLock:
    """A reentrant lock around a ledger.

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
