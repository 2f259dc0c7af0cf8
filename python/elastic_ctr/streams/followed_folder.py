"""A folder of files that are appended to: each file is a partition, its bytes are the offsets.

Files that are compressed are none of them: what is appended to has lines. Nor are hidden ones.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from elastic_ctr.features.blocks import COMPRESSED
from elastic_ctr.store import NotInStore, StoreError
from elastic_ctr.streams.interface import Kept, Lines, TopicBefore

_TAIL_BYTES = 4 << 10


class FollowedFolder:
    """Files are never shortened. One that is left out of a listing is gone for good; hidden files and folders are no partitions."""

    unit = "bytes"
    topic_before: TopicBefore | None = None

    def __init__(self, root: Path) -> None:
        self.url = f"file://{root}?follow"
        self._root = root
        # Of each file its size at the last look, and the end of its last whole line then.
        self._ends: dict[str, tuple[int, int]] = {}

    def partitions(self) -> dict[str, Kept]:
        try:
            with os.scandir(self._root) as entries:
                names = [
                    each.name
                    for each in entries
                    if each.is_file() and not each.name.startswith((".", "_")) and not each.name.endswith(COMPRESSED)
                ]
        except FileNotFoundError as gone:
            raise NotInStore(f"the folder {self._root} does not exist: is data.source.url right?") from gone
        except OSError as failed:
            raise StoreError(f"{self.url} cannot be read: {failed.strerror or failed}") from failed
        found = {}
        if unreadable := [name for name in names if not name.isprintable()]:
            raise StoreError(
                f"{self.url} has a file {unreadable[0]!r}, whose name is no text: rename it or put a dot before it"
            )
        try:
            for name in sorted(names):
                # One that was deleted since is in no listing from now on.
                with suppress(FileNotFoundError):
                    found[name] = Kept(0, self._end_of(name, (self._root / name).stat().st_size))
        except OSError as failed:
            raise StoreError(f"{self.url} cannot be read: {failed.strerror or failed}") from failed
        self._ends = {name: ends for name, ends in self._ends.items() if name in found}
        return found

    def _end_of(self, name: str, size: int) -> int:
        """The end of the last whole line: what stands behind it is being written."""
        before, end = self._ends.get(name, (0, 0))
        if size == before:
            return end
        if size < before:
            # A shorter file is another one.
            end = 0
        with (self._root / name).open("rb") as file:
            stop, piece = size, _TAIL_BYTES
            while stop > end:
                start = max(end, stop - piece)
                file.seek(start)
                found = file.read(stop - start).rfind(b"\n")
                if found >= 0:
                    end = start + found + 1
                    break
                stop, piece = start, 2 * piece
        self._ends[name] = (size, end)
        return end

    def read(self, partition: str, start: int, stop: int, most_bytes: int | None = None) -> Lines:  # noqa: ARG002 (a file is not in memory)
        path = self._root / partition
        try:
            raw = path.open("rb")
            status = os.fstat(raw.fileno())
        except FileNotFoundError as gone:
            raise NotInStore(f"{partition} is not in {self.url}") from gone
        except OSError as failed:
            raise StoreError(f"{partition} in {self.url} cannot be read: {failed.strerror or failed}") from failed
        if status.st_size < stop:
            raw.close()
            raise StoreError(
                f"{partition} in {self.url} has {status.st_size} bytes where it had {stop}: a followed file may only grow"
            )
        return Lines(raw, start, stop)

    def keep_from(self, needed: Mapping[str, int], following: Mapping[str, int]) -> None:
        """Its files are another program's, which may delete them when it likes."""

    def close(self) -> None:
        """Nothing is kept open."""
