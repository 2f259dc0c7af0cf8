"""Queries of the coordinator to the store."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from elastic_ctr.store import NotInStore, Store, StoreError
from elastic_ctr.store.versions.manifest import ManifestDamaged, published_versions, read_checkpoint
from elastic_ctr.store.versions.refusals import read_refusals

T = TypeVar("T")

_FRESH_SECONDS = 10.0
_PUBLISHED = "versions and refusals"


class Pending(StoreError):
    """The store is being asked; nothing is wrong."""


class Published(NamedTuple):
    """`versions`: ids of all published ones. `refused`: those that cube-transfer refused, with its reasons."""

    versions: list[int]
    refused: dict[int, str]


class StoreQueries:
    """Queries of the coordinator, noted under its lock and sent to the store without it.

    Every call of a trainer or a pserver waits for the coordinator's lock, and an unreachable store may take a minute to fail:
    leases would run out meanwhile. An answer is used once and expires soon, so that no stale one is used.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, Callable[[], object]] = {}
        self._answers: dict[str, tuple[float, object]] = {}

    def published(self) -> Published:
        """Raises Pending."""
        return self._answer(_PUBLISHED, self._look)

    def expect_published(self) -> None:
        """It will be wanted soon: asked now, the answer is there by then. One that nobody took is of before: a version may have been
        refused since.
        """
        with self._lock:
            self._answers.pop(_PUBLISHED, None)
            self._open[_PUBLISHED] = self._look

    def _look(self) -> Published:
        return Published(published_versions(self._store), read_refusals(self._store))

    def rows_of(self, checkpoint: str) -> dict[int, int]:
        """Rows by partition of a checkpoint in the store. Raises Pending."""
        return self._answer(f"rows of {checkpoint}", lambda: read_checkpoint(self._store, checkpoint).rows)

    def whole_checkpoint(self, names: Sequence[str]) -> str:
        """The first of these checkpoints whose files are all there, else "". Raises Pending."""
        return self._answer(
            f"which of {', '.join(names)} is whole",
            lambda: next((name for name in names if _is_whole(self._store, name)), ""),
        )

    def _answer(self, name: str, ask: Callable[[], T]) -> T:
        with self._lock:
            came, answer = self._answers.pop(name, (-math.inf, None))
            if self._clock() - came < _FRESH_SECONDS:
                return answer  # type: ignore[return-value]
            self._open[name] = ask
        raise Pending(f"the store is being asked for {name}")

    def ask(self) -> bool:
        """Ask what is open, if anything is. Raises StoreError, ManifestDamaged; it stays open then."""
        with self._lock:
            noted = dict(self._open)
        for name, question in noted.items():
            answer = question()
            with self._lock:
                self._answers[name] = (self._clock(), answer)
                del self._open[name]
        return bool(noted)


def _is_whole(store: Store, checkpoint: str) -> bool:
    """By names and sizes; a pserver that fetches the files compares their digests."""
    try:
        return all(store.size(each.path) == each.bytes for each in read_checkpoint(store, checkpoint).files)
    except (NotInStore, ManifestDamaged):
        return False
