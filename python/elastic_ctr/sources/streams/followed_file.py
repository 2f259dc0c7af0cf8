"""A file of a followed folder, and what it is known by after it was renamed, copied or compressed."""

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
# data.maxLineBytes is at most 64 MB: the end of a longer line is not needed.
_PAST_END_BYTES = 65 << 20
# File systems tell times in ticks of a few milliseconds: within one, a file may change and look the same.
_SETTLED_NS = 100_000_000
_DIGEST = "[0-9a-f]{16}"
_TEXT = re.compile(
    rf"(?P<absent>/?)(?P<name>.*)@(?P<inode>\d+)-(?P<length>\d+)-(?P<digest>{_DIGEST})-(?P<least>\d+)-(?P<start>{_DIGEST})",
    re.DOTALL,
)


class FileChanged(Exception):
    """The file is another one than a moment ago; a new look tells which."""


class Identity(NamedTuple):
    """Inode and first lines of a file. The device is no part of it: its number changes with each mount.

    Attributes:
        name: below the root where it was last seen.
        inode: a renamed file keeps it, a copy has another one, and a new file may get that of a deleted one.
        length, digest: of its first bytes, up to `HEAD_BYTES` of whole lines.
        least, start: the same of fewer lines, at most half of the file. A copy may lack the last lines that a file had.
        is_absent: it was not there at the last look.
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
    def parse(cls, text: str) -> "Identity | None":
        found = _TEXT.fullmatch(text)
        if found is None:
            return None
        inode, length, least = (int(found[each]) for each in ("inode", "length", "least"))
        return cls(found["name"], inode, length, found["digest"], least, found["start"], bool(found["absent"]))

    @classmethod
    def of(cls, file: "FollowedFile", head: bytes, end: int) -> "Identity":
        """`end`: of its last whole line."""
        length = min(end, len(head))
        least = head.rfind(b"\n", 0, end // 2) + 1 or head.find(b"\n") + 1 or length
        return cls(file.name, file.inode, length, digest_of(head[:length]), least, digest_of(head[:least]))

    def begins(self, head: bytes) -> bool:
        """Whether a file that begins with `head` has its first bytes."""
        return len(head) >= self.length and digest_of(head[: self.length]) == self.digest

    def may_begin(self, head: bytes) -> bool:
        """Whether `head` is the whole of a shorter file, which has the first lines."""
        return self.least <= len(head) < self.length and digest_of(head[: self.least]) == self.start


@dataclass(frozen=True)
class FollowedFile:
    """A file as a listing of the folder found it. `name`: its path below the root; `is_settled`: a change of it would show in its state."""

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
        """Links to one file have one."""
        return self.device, self.inode

    @property
    def state(self) -> tuple[int, int, int, tuple[int, int]]:
        """The same until it is written to, once it is settled."""
        return self.device, self.inode, self.size, self.changed

    @property
    def is_compressed(self) -> bool:
        return self.name.endswith(COMPRESSED)

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Its lines, unpacked. Raises FileChanged where another file has its path by now, OSError."""
        try:
            raw = self.path.open("rb")
        except FileNotFoundError as gone:
            raise FileChanged(self.name) from gone
        with raw:
            status = os.fstat(raw.fileno())
            if (status.st_dev, status.st_ino) != self.key:
                raise FileChanged(self.name)
            yield open_lines(raw, self.name)

    def head(self) -> bytes:
        with self.opened() as lines:
            return lines.read(HEAD_BYTES)


def digest_of(head: bytes) -> str:
    return blake2b(head, digest_size=8).hexdigest()


def end_of_lines(lines: BinaryIO, size: int, known: int) -> int:
    """Of a file that is not compressed, the end of its last whole line: what stands behind it is being written. `known`: an end of earlier."""
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
    """The same of a compressed file, whose end is known once it was read."""
    end = at = 0
    while piece := lines.read(_PIECE_BYTES):
        found = piece.rfind(b"\n")
        end = at + found + 1 if found >= 0 else end
        at += len(piece)
    return end


def bytes_between(lines: BinaryIO, start: int, stop: int) -> bytes:
    """The bytes between two offsets and the rest of the line that `stop` cuts. Fewer: the file ends before `stop`."""
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
