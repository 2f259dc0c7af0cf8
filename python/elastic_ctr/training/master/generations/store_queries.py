"""Asynchronous queries of the coordinator to the store."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from elastic_ctr.store.backends import NotInStore, Store, StoreError
from elastic_ctr.store.backends.backend import Stat
from elastic_ctr.store.versions.manifest import ManifestDamaged
from elastic_ctr.store.versions.published_files import published_versions, read_checkpoint
from elastic_ctr.store.versions.safeguards import read_refusals

T = TypeVar("T")

_FRESH_SECONDS = 10.0
_PUBLISHED = "versions and refusals"


class Pending(StoreError):
    """The query is under way. This is no failure; the caller tries again later."""


class PublishedVersions(NamedTuple):
    """`versions`: ids of all published versions. `refused`: the versions that cube-transfer refused, with its reasons."""

    versions: list[int]
    refused: dict[int, str]


class StoreQueries:
    """Queries that are queued under the coordinator's lock and sent to the store without it.

    Every call of a trainer or pserver waits for that lock, and a request to an unreachable store may take a minute to fail, in which
    leases would expire. An answer is used once and expires after 10 s, so none is used late.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, Callable[[], object]] = {}
        self._answers: dict[str, tuple[float, object]] = {}

    def published(self) -> PublishedVersions:
        """Return the published and refused versions. Raises Pending."""
        return self._answer(_PUBLISHED, self._look)

    def expect_published(self) -> None:
        """Queue the query of `published` ahead of its use. An unused earlier answer is dropped, because a version may have been refused
        since.
        """
        with self._lock:
            self._answers.pop(_PUBLISHED, None)
            # Another object than that of a query under way, whose answer is then dropped.
            self._open[_PUBLISHED] = lambda: self._look()  # noqa: PLW0108 (a new object)

    def _look(self) -> PublishedVersions:
        return PublishedVersions(published_versions(self._store), read_refusals(self._store))

    def rows_of(self, checkpoint: str) -> dict[int, int]:
        """Return the rows of each partition of a checkpoint in the store. Raises Pending."""
        return self._answer(f"rows of {checkpoint}", lambda: read_checkpoint(self._store, checkpoint).rows)

    def whole_checkpoint(self, names: Sequence[str]) -> str:
        """Return the first of these checkpoints whose files are all there, else "". Raises Pending."""
        return self._answer(
            f"which of {', '.join(names)} is whole",
            lambda: next((name for name in names if _is_whole(self._store, name)), ""),
        )

    def _answer(self, name: str, ask: Callable[[], T]) -> T:
        with self._lock:
            came, answer = self._answers.pop(name, (-math.inf, None))
            if self._clock() - came < _FRESH_SECONDS:
                return answer  # type: ignore[return-value]
            self._open.setdefault(name, ask)
        raise Pending(f"the store is being asked for {name}")

    def ask(self) -> bool:
        """Send the open queries. Return True if there were any. Raises StoreError, ManifestDamaged; the query then stays open."""
        with self._lock:
            noted = dict(self._open)
        for name, question in noted.items():
            answer = question()
            with self._lock:
                if self._open[name] is question:
                    self._answers[name] = (self._clock(), answer)
                    del self._open[name]
        return bool(noted)


def _is_whole(store: Store, checkpoint: str) -> bool:
    """True if all files exist with the right size; a pserver that fetches them verifies their digests."""
    try:
        wanted = {each.path: each.bytes for each in read_checkpoint(store, checkpoint).files}
    except (NotInStore, ManifestDamaged):
        return False
    # One list of each folder: a checkpoint has as many files as partitions.
    there: dict[str, Stat] = {}
    for folder in {path.rpartition("/")[0] for path in wanted}:
        there.update(store.walk(folder))
    return all(path in there and there[path].size == size for path, size in wanted.items())
