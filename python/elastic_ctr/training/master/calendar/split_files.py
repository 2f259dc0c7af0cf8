"""The files of splits: which splits have a folder, which are complete, and what came too late."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from elastic_ctr.config.addresses import is_bucket
from elastic_ctr.config.data import Data, split_end, split_time
from elastic_ctr.store.backends.source import FolderListing, Source

# Seconds. Older modification times count as settled without a watch, so that a backlog of hours does not wait one by one. Younger ones do
# not: the clock of a file server may differ from this one's, but hardly by an hour.
_LONG_SETTLED = 3600.0
# End of the names of empty objects that Hadoop writes beside a bucket's folders; with one alone a split is not complete.
_MARKER = "_$folder$"


@dataclass(frozen=True)
class ListedSplits:
    """`files` are those of all splits with their bytes, and `fingerprints` the state of each split.

    `missing` is the first split that is not complete, "" if all are; then there are no files.
    """

    files: dict[str, int]
    fingerprints: list[str]
    missing: str = ""


class SplitFiles:
    """Lists splits. A split is complete with its donefile, or with `data.settleSeconds` once it has not changed for so long.

    `at_once` takes modification times at their word, as a command must, which sees a split only once. `clock` is in seconds, `wall` in
    Unix seconds.
    """

    def __init__(
        self,
        source: Source,
        data: Data,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        *,
        at_once: bool = False,
    ) -> None:
        self._source = source
        self._data = data
        self._clock = clock
        self._wall = wall
        self._at_once = at_once
        # By split, its fingerprint and when it was first seen with it.
        self._seen: dict[str, tuple[str, float]] = {}

    def look(self, splits: Sequence[str]) -> ListedSplits:
        """Return the files of splits. Paths are relative to the source; hidden files and the donefile are left out. Raises StoreError."""
        files: dict[str, int] = {}
        fingerprints: list[str] = []
        missing = ""
        self._seen = {split: seen for split, seen in self._seen.items() if split >= splits[0]}
        for split in splits:
            listed = self._source.listing(self._data.folder_of(split))
            found = data_files(self._data, split, listed)
            if not self._is_complete(split, listed, found):
                missing = missing or split
                # With a donefile, the splits behind the first that is missing need no look.
                if self._data.settle_seconds is None:
                    break
            files.update(found)
            fingerprints.append(listed.fingerprint)
        return ListedSplits({} if missing else files, fingerprints, missing)

    def _is_complete(self, split: str, listed: FolderListing, found: Mapping[str, int]) -> bool:
        settle = self._data.settle_seconds
        if settle is None:
            return any(name == self._data.donefile for name, _ in listed.files)
        fingerprint, since = self._seen.get(split, ("", 0.0))
        if fingerprint != listed.fingerprint:
            since = self._clock()
            self._seen[split] = listed.fingerprint, since
        age = self._wall() - split_end(split, self._data.split_interval, self._data.time_zone)
        # An empty folder is none yet: its writer may be late.
        if not found or age < settle:
            return False
        if self._clock() - since >= settle:
            return True
        long = settle if self._at_once else max(settle, _LONG_SETTLED)
        changed_at = max(listed.changed_at, self._source.changed_at(self._data.folder_of(split)))
        return self._wall() - changed_at >= long


def data_files(data: Data, split: str, listed: FolderListing) -> dict[str, int]:
    """Return the files of a split that have data, by their paths in the source, with their bytes."""
    folder = data.folder_of(split)
    return {
        f"{folder}/{name}": size
        for name, size in listed.files
        if (last := name.rpartition("/")[2]) != data.donefile
        and not last.startswith((".", "_"))
        and not last.endswith(_MARKER)
    }


def splits_there(source: Source, data: Data) -> list[str]:
    """Return the splits from data.start to data.end that have a folder, complete or not. Raises StoreError."""
    first, last = split_time(data.start), None if data.end is None else split_time(data.end)
    found = sorted(
        moment
        for moment in data.template.find(source.folders, first, last)
        if moment >= first and (last is None or moment <= last)
    )
    return [split for moment in found if (split := data.split_at(moment)) is not None]


def missing_folder(source: Source, data: Data) -> str:
    """Return an error message if the folder that all splits are in does not exist, else "". Raises StoreError."""
    folder = data.template.root
    if source.exists(folder):
        return ""
    if is_bucket(source.url):
        return f"{source.url.rstrip('/')}/{folder} has no object yet: is data.source.url or data.path right?"
    return f"the folder {source.url.rstrip('/')}/{folder} does not exist: is data.source.url or data.path right?"


def late_files(
    source: Source, data: Data, split: str, listed: Mapping[str, int], written: dict[str, str] | None = None
) -> list[str]:
    """Return the files of a split that came, or were written, after they were `listed` for its pass. Raises StoreError.

    A file of the same size is noticed if it was written after an earlier call with the same `written`, which is filled.
    """
    now = source.listing(folder := data.folder_of(split))
    known = {} if written is None else written
    return [
        path
        for path, size in data_files(data, split, now).items()
        if known.setdefault(path, at := now.written[path.removeprefix(f"{folder}/")]) != at or listed.get(path) != size
    ]
