"""A one-thread executor; while it is idle its owner may run short jobs inline.

Any thread may run such jobs, one at a time. To hand a short job over costs more than the job itself: two switches of
threads, a wake-up of the event loop through a pipe, and a wait for the GIL.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class InlineExecutor(ThreadPoolExecutor):
    """One thread with one owner, which submits and asks for `idle` from one thread of its own."""

    def __init__(self, name: str) -> None:
        super().__init__(1, thread_name_prefix=name)
        self._counting = threading.Lock()
        self._under_way = 0

    @property
    def idle(self) -> bool:
        """Whether all submitted jobs are done: until the owner submits again, an inline job runs alone."""
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
