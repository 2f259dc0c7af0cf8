"""A one-thread executor. While it is idle, its owner may run short jobs inline.

Any thread may run such jobs, one at a time. Handing a short job over costs more than the job itself: two thread
switches, a wake-up of the event loop through a pipe, and a wait for the GIL.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class InlineExecutor(ThreadPoolExecutor):
    """One thread with one owner, which calls `submit` and reads `idle` from a single thread."""

    def __init__(self, name: str) -> None:
        super().__init__(1, thread_name_prefix=name)
        self._counting = threading.Lock()
        self._under_way = 0

    @property
    def idle(self) -> bool:
        """True if all submitted jobs are done. Until the owner submits again, an inline job runs alone."""
        return not self._under_way

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run the job in the thread, after all earlier ones. Raises RuntimeError after `shutdown`."""
        future = super().submit(function, *args, **kwargs)
        with self._counting:
            self._under_way += 1
        future.add_done_callback(self._over)
        return future

    def _over(self, _: Future[T]) -> None:
        with self._counting:
            self._under_way -= 1
