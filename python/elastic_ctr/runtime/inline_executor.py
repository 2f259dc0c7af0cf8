"""A thread that lends its turn: while it has nothing to do, who gives it work may do some in its place.

For what may be done by any thread, but by one at a time. Handing short work over and its result back costs more than
the work: two switches of threads, the loop woken through a pipe, and the wait for the interpreter's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class InlineExecutor(ThreadPoolExecutor):
    """One thread, for one owner: who submits is who asks whether it is `idle`, from one thread of its own."""

    def __init__(self, name: str) -> None:
        super().__init__(1, thread_name_prefix=name)
        self._counting = threading.Lock()
        self._under_way = 0

    @property
    def idle(self) -> bool:
        """Whether everything submitted is over: until the owner submits again, what it does itself is beside nothing."""
        return not self._under_way

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Do it in the thread, after all that was submitted before. Raises RuntimeError after `shutdown`."""
        future = super().submit(function, *args, **kwargs)
        with self._counting:
            self._under_way += 1
        future.add_done_callback(self._over)
        return future

    def _over(self, _: Future[T]) -> None:
        with self._counting:
            self._under_way -= 1
