"""A file of a followed folder, and the identity by which it is recognised after a rename, copy or compression."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, NamedTuple

from elastic_ctr.formats.blocks import COMPRESSED, open_lines

HEAD_BYTES = 1 << 10
"""Lines of clicks differ within a few of them, so the first ones tell files apart. More would be read at each look at a file that grows."""
_TAIL_BYTES = 4 << 10
_PIECE_BYTES = 1 << 20
# data.maxLineBytes is at most 64 MiB, so the end of a longer line is not needed.
_PAST_END_BYTES = 65 << 20
# Timestamps of file systems have ticks of a few milliseconds; a second change within a tick does not show.
_SETTLED_NS = 100_000_000
_DIGEST = "[0-9a-f]{16}"
_TEXT = re.compile(
    rf"(?P<absent>/?)(?P<name>.*)@(?P<inode>\d+)-(?P<length>\d+)-(?P<digest>{_DIGEST})-(?P<least>\d+)-(?P<start>{_DIGEST})",
    re.DOTALL,
)


class FollowedFileChanged(Exception):
    """The path has another file, or the file was cut, since it was listed; the folder must be listed again."""


class FileIdentity(NamedTuple):
    """Inode and first lines of a file. The device is not part of it, because its number changes with each mount.

    Attributes:
        name: the path below the root where it was last seen.
        inode: a renamed file keeps it, a copy has another one, and a new file may get that of a deleted one.
        length, digest: length and digest of its first whole lines, up to `HEAD_BYTES`.
        least, start: length and digest of fewer lines, at most half of the file, because a copy may lack the last lines.
        is_absent: it was missing in the last listing.
    """

    name: str
    inode: int
    length: int
    digest: str
    least: int
    start: str
    is_absent: bool = False

    def __str__(self) -> str:
        return f"{'/' * self.is_absent}{self.name}@{self.inode}-{self.length}-{self.digest}-{self.least}-{self.start}"

    @classmethod
    def parse(cls, text: str) -> "FileIdentity | None":
        found = _TEXT.fullmatch(text)
        if found is None:
            return None
        inode, length, least = (int(found[each]) for each in ("inode", "length", "least"))
        return cls(found["name"], inode, length, found["digest"], least, found["start"], bool(found["absent"]))

    @classmethod
    def of(cls, file: "FollowedFile", head: bytes, end: int) -> "FileIdentity":
        """Return the identity of a file that begins with `head`; `end` is the offset after its last whole line."""
        length = min(end, len(head))
        least = head.rfind(b"\n", 0, end // 2) + 1 or head.find(b"\n") + 1 or length
        return cls(file.name, file.inode, length, digest_of(head[:length]), least, digest_of(head[:least]))

    def begins(self, head: bytes) -> bool:
        """True if a file that begins with `head` has this identity's first bytes."""
        return len(head) >= self.length and digest_of(head[: self.length]) == self.digest

    def may_begin(self, head: bytes) -> bool:
        """True if `head` may be the whole of a shorter copy, because it has the first lines."""
        return self.least <= len(head) < self.length and digest_of(head[: self.least]) == self.start


@dataclass(frozen=True)
class FollowedFile:
    """A file as the folder's listing found it. `name`: its path below the root. `is_settled`: a later change will change its `state`."""

    path: Path
    name: str
    device: int
    inode: int
    size: int
    changed: tuple[int, int]
    is_settled: bool

    @classmethod
    def of(cls, path: Path, name: str, status: os.stat_result) -> "FollowedFile":
        times = (status.st_mtime_ns, status.st_ctime_ns)
        is_settled = time.time_ns() - max(times) > _SETTLED_NS
        return cls(path, name, status.st_dev, status.st_ino, status.st_size, times, is_settled)

    @property
    def key(self) -> tuple[int, int]:
        """Return the device and the inode, which all hard links to a file share."""
        return self.device, self.inode

    @property
    def state(self) -> tuple[int, int, int, tuple[int, int]]:
        """Return a value that changes whenever a settled file is written to."""
        return self.device, self.inode, self.size, self.changed

    @property
    def is_compressed(self) -> bool:
        return self.name.endswith(COMPRESSED)

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Yield the uncompressed lines. Raises FollowedFileChanged if another file has the path by now, OSError."""
        try:
            raw = self.path.open("rb")
        except FileNotFoundError as gone:
            raise FollowedFileChanged(self.name) from gone
        with raw:
            status = os.fstat(raw.fileno())
            if (status.st_dev, status.st_ino) != self.key:
                raise FollowedFileChanged(self.name)
            yield open_lines(raw, self.name)

    def head(self) -> bytes:
        with self.opened() as lines:
            return lines.read(HEAD_BYTES)


def digest_of(head: bytes) -> str:
    return blake2b(head, digest_size=8).hexdigest()


def end_of_lines(lines: BinaryIO, size: int, known: int) -> int:
    """Return the end of the last whole line of an uncompressed file, whose rest is being written. `known` is an earlier end."""
    stop, piece = size, _TAIL_BYTES
    while stop > known:
        start = max(known, stop - piece)
        lines.seek(start)
        found = lines.read(stop - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        stop, piece = start, 2 * piece
    return known


def end_when_unpacked(lines: BinaryIO) -> int:
    """Return the end of the last whole line of a compressed file, which must be read to its end."""
    end = at = 0
    while piece := lines.read(_PIECE_BYTES):
        found = piece.rfind(b"\n")
        end = at + found + 1 if found >= 0 else end
        at += len(piece)
    return end


def bytes_between(lines: BinaryIO, start: int, stop: int) -> bytes:
    """Return the bytes between two offsets and the rest of the line that `stop` cuts; fewer if the file ends before `stop`."""
    if lines.seekable():
        lines.seek(start)
    else:
        left = start
        while left and (piece := lines.read(min(left, _PIECE_BYTES))):
            left -= len(piece)
    pieces, left = list[bytes](), stop - start
    while left > 0 and (piece := lines.read(left)):
        pieces.append(piece)
        left -= len(piece)
    past = 0
    while pieces and b"\n" not in pieces[-1][-1:] and past < _PAST_END_BYTES and (piece := lines.read(_TAIL_BYTES)):
        pieces.append(piece[: piece.find(b"\n") + 1] or piece)
        past += len(piece)
    return b"".join(pieces)
