"""The retries of calls to an unavailable store."""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import stamina
import stamina.instrumentation

from elastic_ctr.store.backends.backend import StoreUnavailable

log = logging.getLogger(__name__)
T = TypeVar("T")

# stamina would log each try, without the path or the reason.
stamina.instrumentation.set_on_retry_hooks(())

_TOLD_AFTER = 5.0
_LONGEST_PAUSE = 5.0


@dataclass(frozen=True)
class RetryPolicy:
    """Retries StoreUnavailable with growing, random pauses until `seconds` after the first one.

    The default suits callers that retry by themselves; a caller that would lose work needs a longer time.
    Each further try calls `give_up` first.
    """

    seconds: float = 5.0
    give_up: Callable[[], bool] = lambda: False

    def attempts(self) -> Iterator[stamina.Attempt]:
        """Return attempts for `for attempt in retry.attempts(): with attempt: …`. Raises the last error."""
        since: float | None = None
        told = False

        def again(failed: Exception) -> bool | float:
            nonlocal since, told
            if not isinstance(failed, StoreUnavailable) or self.give_up():
                return False
            now = time.monotonic()
            since = now if since is None else since
            if now - since >= self.seconds:
                return False
            if not told and now - since > _TOLD_AFTER:
                told = True
                log.warning("%s; it is tried again for up to %g s", failed, self.seconds)
            return True if failed.after is None else min(failed.after, _LONGEST_PAUSE)

        return iter(
            stamina.retry_context(again, attempts=None, timeout=None, wait_initial=0.1, wait_max=2.0, wait_jitter=0.5)
        )

    def call(self, ask: Callable[[], T]) -> T:
        """Return the function's result. Raises the last error."""
        if not self.seconds:
            return ask()  # without the overhead of stamina
        for attempt in self.attempts():
            with attempt:
                return ask()
        raise AssertionError("an attempt either returns or raises")


def resumed(part: Callable[[int], Iterator[bytes]], start: int, retry: RetryPolicy) -> Iterator[bytes]:
    """Yield the blocks of `part(start)`. If it breaks off with StoreUnavailable, `part` is called for the rest.

    Each byte that arrives restarts the time for retries, so a long file over a bad connection is slow but succeeds.
    """
    reached, done = start, False
    while not done:
        for attempt in retry.attempts():
            with attempt:
                before = reached
                try:
                    for block in part(reached):
                        reached += len(block)
                        yield block
                    done = True
                except StoreUnavailable:
                    if reached == before:
                        raise
