"""A folder of files that are appended to. Each file is a partition; offsets count bytes.

A file is recognised by its inode and a fingerprint of its first bytes (`FileIdentity`), so rotation neither loses nor repeats a line. A
file that is renamed, moved, copied and truncated, or compressed stays the same partition; a new file under an old name is a new one.
"""

import io
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from elastic_ctr.formats.blocks import DamagedFile
from elastic_ctr.sources.streams.folder_listing import files_below
from elastic_ctr.sources.streams.followed_file import (
    HEAD_BYTES,
    FileIdentity,
    FollowedFile,
    FollowedFileChanged,
    bytes_between,
)
from elastic_ctr.sources.streams.interface import Kept, Lines, Places, Stream
from elastic_ctr.sources.streams.recognition import Recognition
from elastic_ctr.store.backends import NotInStore, StoreError, StoreUnavailable

log = logging.getLogger(__name__)

# Retries of a listing during which names change. A rotation takes milliseconds.
_LOOKS, _PAUSE_SECONDS = 5, 0.02
_ABSENT_LOOKS = 3
# Searches for a file in the folder: clients of an NFS server see a new name a few seconds late.
_SEARCHES, _SEARCH_PAUSE_SECONDS = 4, 1.0


class FollowedFolder(Stream):
    """The master recognises files in each listing. A trainer, which only reads ranges, finds each file by its identity."""

    unit = "bytes"

    def __init__(self, root: Path) -> None:
        self.url = f"file://{root}?follow"
        self._root = root
        self._known = Recognition(str(root))
        self._said = frozenset[str]()

    def know(self, places: Places) -> None:
        self._known.know(places)

    def files(self) -> dict[str, str]:
        return self._known.files()

    def partitions(self) -> dict[str, Kept]:
        for look in range(_LOOKS):
            if look:
                time.sleep(_PAUSE_SECONDS)
            notices = list[str]()
            try:
                found = self._known.look(files_below(self._root, notices.append), notices.append)
            except FollowedFileChanged:
                continue
            except StoreError:
                raise
            except OSError as failed:
                raise StoreError(f"{self.url} cannot be read: {failed.strerror or failed}") from failed
            # A listing may miss a file that is renamed meanwhile.
            if found.absent and look < _ABSENT_LOOKS - 1:
                continue
            self._say([*notices, *self._known.accept(found)])
            return found.kept
        raise StoreUnavailable(f"the files of {self.url} change faster than they can be looked at")

    def _say(self, notices: list[str]) -> None:
        for each in notices:
            if each not in self._said:
                log.warning("%s", each)
        self._said, self.notices = frozenset(notices), tuple(notices)

    def read(self, partition: str, start: int, stop: int, most_bytes: int | None = None) -> Lines:
        """`partition` is an identity, or the name of a file if the ledger is of a release without identities. The lines are copied into
        memory, because the file may change while they are used.
        """
        following = stop if most_bytes is None else min(stop, start + most_bytes)
        identity = FileIdentity.parse(partition)
        name = partition if identity is None else identity.name
        begin, most, unreadable = max(start - 1, 0), None, ""
        for search in range(_SEARCHES):
            if search:
                time.sleep(_SEARCH_PAUSE_SECONDS)
            for file, is_part in self._candidates(name, identity):
                try:
                    found = _read(file, identity, begin, following, is_part=is_part)
                except (FollowedFileChanged, DamagedFile):
                    continue
                except OSError as failed:
                    # The wanted file may be another candidate.
                    unreadable = f"{file.name} in {self.url} cannot be read: {failed.strerror or failed}"
                    continue
                if found is not None and begin + len(found) >= following:
                    return _lines(found, begin, start, following)
                if found is None and not is_part and (file.name, file.inode) == (name, identity and identity.inode):
                    # The same inode has other content at the same path: the file was truncated.
                    most = most or b""
                if found is not None and identity is None:
                    raise StoreError(
                        f"{name} in {self.url} has {begin + len(found)} bytes where it had {following}: a followed file may only grow"
                    )
                if found is not None:
                    most = max(most or b"", found, key=len)
        if most is None and unreadable:
            raise StoreError(unreadable)
        if most is None:
            raise NotInStore(
                f"{name} is not in {self.url}, under any name, and its bytes {start} to {stop} were not read; put it back, or leave it: a pass "
                "that is retried counts what is not there as dropped"
            )
        # Rotation by copy and truncate loses the bytes that were written between the two: they are in neither file.
        whole = most[: most.rfind(b"\n") + 1]
        return _lines(whole, begin, start, following, gone=following - max(start, begin + len(whole)))

    def _candidates(self, name: str, identity: FileIdentity | None) -> Iterator[tuple[FollowedFile, bool]]:
        """Yield (file, may be a partial copy): the last known path, then files by likelihood, the same inode first."""
        try:
            yield FollowedFile.of(self._root / name, name, (self._root / name).stat()), False
        except OSError:
            log.debug("%s is not where it was", name)
        if identity is not None:
            files = sorted(
                files_below(self._root, log.debug),
                key=lambda each: (each.inode != identity.inode, each.is_compressed, -each.size, each.name),
            )
            yield from ((each, False) for each in files)
            yield from ((each, True) for each in files if each.inode != identity.inode)


def _lines(found: bytes, begin: int, start: int, following: int, gone: int = 0) -> Lines:
    return Lines(io.BytesIO(found), start - begin, following - begin, gone, following=following, base=begin)


def _read(file: FollowedFile, identity: FileIdentity | None, start: int, stop: int, *, is_part: bool) -> bytes | None:
    """Return the bytes of a range, fewer if the file has fewer; None if it is another file. `is_part`: it may be a partial copy."""

    def is_it(head: bytes) -> bool:
        return identity is None or (identity.may_begin(head) if is_part else identity.begins(head))

    if file.is_compressed:
        if identity is None or not is_it(file.head()):
            return None
        with file.opened() as lines:
            return bytes_between(lines, start, stop)
    with file.opened() as lines:
        if not is_it(os.pread(lines.fileno(), HEAD_BYTES, 0)):
            return None
        found = bytes_between(lines, start, stop)
        # Read from the file again, not from a buffer.
        if not is_it(os.pread(lines.fileno(), HEAD_BYTES, 0)):
            # The file was truncated during the read.
            raise FollowedFileChanged(file.name)
        # It may have been truncated after its head; only the bytes within its present size are valid.
        return found[: max(0, os.fstat(lines.fileno()).st_size - start)]
