"""Where a click of bench.stream waits between its arrival and the first answer that has learned from it.

The stages: `published`, from the click's arrival to the manifest of the version that answered with it first; `built`, to the release
document that wants it; `loaded`, to holders of all its partitions; `passed`, to the document in which it is live; `answered`, to its first
answer. They add up to the click's freshness, but for a look at the document that came late: such a stage takes no time.
"""

import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from elastic_ctr.cube.release import ReleaseDocument
from elastic_ctr.operate.local.endpoints import EndpointUnavailable, release_document
from elastic_ctr.store.backends import NotInStore, Store
from elastic_ctr.store.versions.manifest import ManifestDamaged
from elastic_ctr.store.versions.published_files import read_version

NAMES = ("published", "built", "loaded", "passed", "answered")
# A look costs the machine a millisecond.
_PAUSE = 0.05
Floats = npt.NDArray[np.float64]
# Unix seconds at which a version was published, wanted, loaded and live.
Times = dict[int, list[float]]


class ReleaseWatcher:
    """Looks at the release document, and notes when it first wanted each version, had its holders, and made it live."""

    def __init__(self, transfer: str, store: Store) -> None:
        self._transfer = transfer
        self._store = store
        self._published: dict[int, tuple[float, int]] = {}
        self._wanted: dict[int, float] = {}
        self._loaded: dict[int, float] = {}
        self._live: dict[int, float] = {}
        self._stop = threading.Event()

    def run(self) -> None:
        while not self._stop.wait(_PAUSE):
            with suppress(EndpointUnavailable):
                self.look(release_document(self._transfer), time.time())

    def stop(self) -> None:
        self._stop.set()

    def look(self, document: ReleaseDocument, now: float) -> None:
        for version in document.wanted:
            self._wanted.setdefault(version, now)
            if version not in self._published:
                with suppress(NotInStore, ManifestDamaged):
                    manifest = read_version(self._store, version)
                    self._published[version] = manifest.created_at, manifest.partitions
            held = {each for holder in document.holders.get(version, {}).values() for each in holder.partitions}
            if version in self._published and len(held) == self._published[version][1]:
                self._loaded.setdefault(version, now)
        if document.live is not None:
            self._live.setdefault(document.live, now)

    def times(self) -> Times:
        """Of each version that was live and was seen before."""
        seen = self._published.keys() & self._wanted.keys() & self._loaded.keys() & self._live.keys()
        return {
            version: [self._published[version][0], self._wanted[version], self._loaded[version], self._live[version]]
            for version in seen
        }


def click_stages(
    noted: Iterable[tuple[float, float, float]], first: Mapping[int, float], knows: Mapping[int, tuple[int, int]], times: Times
) -> tuple[Floats, Floats]:  # fmt: skip
    """Seconds in each stage of each append, float64[appends, stages], and how many clicks each append has; those of a version that the
    watcher has not seen whole are left out.
    """
    order = sorted((first[version], stop, version) for version, (_, stop) in knows.items() if version in first)
    known = np.maximum.accumulate(np.array([stop for _, stop, _ in order], float))
    rows, counts = [], []
    for end, at, clicks in noted:
        place = int(np.searchsorted(known, end))
        if place == len(order) or order[place][2] not in times:
            continue
        answered, _, version = order[place]
        rows.append(np.diff(np.maximum.accumulate([at, *times[version], answered])))
        counts.append(clicks)
    return np.array(rows, float).reshape(-1, len(NAMES)), np.array(counts, float)


def summary(rows: Floats, counts: Floats) -> dict[str, dict[str, float]]:
    """Seconds: mean of all clicks, and of the slowest hundredth; empty without a click."""
    if not len(rows):
        return {}
    order = np.argsort(rows.sum(axis=1))
    slow = order[np.cumsum(counts[order]) > 0.99 * counts.sum()]
    means = np.average(rows, axis=0, weights=counts)
    slowest = np.average(rows[slow], axis=0, weights=counts[slow])
    return {
        name: {"mean": round(float(mean), 3), "slowest": round(float(late), 3)}
        for name, mean, late in zip(NAMES, means, slowest, strict=True)
    }
