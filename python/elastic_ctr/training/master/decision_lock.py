"""The one lock under which the master decides, and the number that tells waiting calls that there may be other work."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from elastic_ctr.training.master.ledger.ledger import Ledger


class DecisionLock:
    """Owns the lock of a ledger. A thread that has it may take it again.

    `resume` is called in a transaction once writes work again after one that failed: what it was about is not known any more.
    """

    def __init__(self, ledger: Ledger, resume: Callable[[], None]) -> None:
        self._ledger = ledger
        self._resume = resume
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._revision = 0

    @contextmanager
    def reading(self) -> Iterator[Ledger]:
        """The ledger as it is."""
        with self._lock:
            yield self._ledger

    @contextmanager
    def writing(self) -> Iterator[Ledger]:
        """The ledger, and news for those that wait where it was changed. After a failed write the master resumes as after a restart,
        once writes work again.

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
        """It grows whenever there may be other work than before."""
        return self._revision

    def wait_for_news(self, revision: int, seconds: float) -> None:
        """Until another revision, but no longer."""
        with self._news:
            self._news.wait_for(lambda: self._revision != revision, seconds)
