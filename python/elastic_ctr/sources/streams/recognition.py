"""Matches the files of a followed folder with the partitions of the ledger."""

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from elastic_ctr.formats.blocks import DamagedFile
from elastic_ctr.sources.streams.followed_file import (
    HEAD_BYTES,
    FileIdentity,
    FollowedFile,
    FollowedFileChanged,
    digest_of,
    end_of_lines,
    end_when_unpacked,
)
from elastic_ctr.sources.streams.interface import Kept, Places
from elastic_ctr.store.backends import StoreError

log = logging.getLogger(__name__)

Say = Callable[[str], None]
Key = tuple[int, int]
_NAMED = 3
_LENGTH_BYTES = 4


@dataclass(frozen=True)
class _Partition:
    """
    Attributes:
        identity: None before the first look, if the ledger is of a release without identities.
        place: the first offset of the next pass.
        first: the first offset that is read at all.
        file, end: as of the last look; None if the file is absent.
        seen: the greatest end that any look has found.
    """

    identity: FileIdentity | None
    place: int = 0
    first: int = 0
    file: FollowedFile | None = None
    end: int = 0
    seen: int = 0

    @property
    def kept(self) -> Kept:
        if self.end < self.seen and self.place >= self.end:
            # The copy of a truncated file lacks its last bytes; those that no pass has are lost.
            return Kept(self.seen, self.seen)
        return Kept(self.first, self.end)


class Look(NamedTuple):
    """The result of one listing. `absent`: partitions whose file has disappeared since the last look."""

    partitions: dict[str, _Partition]
    kept: dict[str, Kept]
    absent: list[str]


@dataclass
class _Listing:
    """The files of one look. `free` are those that are not matched yet, `bound` the matched partitions."""

    free: dict[tuple[int, int], FollowedFile]
    bound: dict[str, _Partition] = field(default_factory=dict)

    def bind(self, name: str, partition: _Partition, file: FollowedFile) -> None:
        del self.free[file.key]
        self.bound[name] = partition


class Recognition:
    """The partitions of a followed folder. `look` changes none of them; `accept` takes over its result."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._partitions: dict[str, _Partition] = {}
        # First bytes of settled files, by their state.
        self._heads: dict[object, bytes] = {}
        self._unknown = frozenset[object]()
        self._damaged: dict[object, str] = {}
        # Until the first look is accepted, files of a ledger without identities are matched by name.
        self._believes_names = True
        self._is_old_ledger = False
        self._lost: list[str] = []

    def know(self, places: Places) -> None:
        """Set the positions and identities of the ledger."""
        self._is_old_ledger = self._believes_names and bool(places.following) and not places.files
        for name, place in places.following.items():
            known = self._partitions.get(name)
            if known is None:
                identity = FileIdentity.parse(places.files.get(name, ""))
                known = _Partition(identity, seen=place)
            self._partitions[name] = _moved(known, place)
        self._partitions = {
            name: each for name, each in self._partitions.items() if name in places.following or each.file is not None
        }

    def files(self) -> dict[str, str]:
        """Return the identity of each partition's file."""
        return {
            name: str(each.identity if each.file is not None else each.identity._replace(is_absent=True))
            for name, each in self._partitions.items()
            if each.identity is not None
        }

    def accept(self, look: Look) -> list[str]:
        """Take over a look. Return messages about files that disappeared while the master was not running."""
        for name in look.absent:
            if (before := self._partitions[name]).file is None:
                self._lost.append(
                    f"{name} in {self._root} was there before the master began, and is not any more: what it had behind byte {before.place}, "
                    "if anything, is in no pass"
                )
        for name, each in look.partitions.items():
            before = self._partitions.get(name, each)
            if each.file is not None and before.file is not None and each.file.name != before.file.name:
                log.info("%s in %s is %s now", name, self._root, each.file.name)
        self._partitions, self._believes_names, self._is_old_ledger = look.partitions, False, False
        return self._lost

    def look(self, files: Iterable[FollowedFile], say: Say) -> Look:
        """Match files with partitions. Raises FollowedFileChanged if a file is replaced before it is read, OSError."""
        listing = _Listing({each.key: each for each in files})
        heads, self._heads = self._heads, {}
        states = {each.state for each in listing.free.values()}
        self._heads = {state: head for state, head in heads.items() if state in states}
        self._damaged = {state: why for state, why in self._damaged.items() if state in states}
        if self._believes_names:
            self._bind_old(listing)
        self._bind_by_inode(listing)
        self._bind_by_content(listing)
        self._bind_new(listing, say)
        for why in self._damaged.values():
            say(why)
        found = {
            name: listing.bound.get(name) or _without_file(each) for name, each in self._partitions.items()
        } | listing.bound
        absent = [name for name, each in self._partitions.items() if _was_there(each) and name not in listing.bound]
        return Look(found, {name: each.kept for name, each in found.items() if each.file is not None}, absent)

    def _bind_old(self, listing: _Listing) -> None:
        """Match files by name for a ledger of a release without identities."""
        named = {each.name: each for each in listing.free.values()}
        for name, each in self._partitions.items():
            if each.identity is None and (file := named.get(name)) is not None:
                bound = _measured(each, file)
                if bound.end < each.place:
                    raise StoreError(
                        f"{name} in {self._root} ends at byte {bound.end}, and passes have read it up to {each.place}: it was created anew; "
                        "put it back, or begin another model"
                    )
                listing.bind(name, bound, file)

    def _bind_by_inode(self, listing: _Listing) -> None:
        files = defaultdict(list)
        for file in listing.free.values():
            files[file.inode].append(file)
        for name, each in self._partitions.items():
            if each.identity is None or name in listing.bound:
                continue
            for file in files[each.identity.inode]:
                if file.key not in listing.free:
                    continue
                if each.file is not None and each.file.is_settled and each.file.state == file.state:
                    listing.bind(name, _renamed(each, file), file)
                    break
                if not file.is_compressed and each.identity.begins(self._head(file)):
                    listing.bind(name, _measured(each, file), file)
                    break

    def _bind_by_content(self, listing: _Listing) -> None:
        """Match copies and compressed files with partitions whose file is gone or was truncated."""
        left = [
            (name, each, each.identity)
            for name, each in self._partitions.items()
            if each.identity is not None and name not in listing.bound
        ]
        if not left:
            return
        heads = {file.key: self._head(file) for file in listing.free.values()}
        begins = _by_digest(heads, {identity.length for _, _, identity in left})
        # The longest fingerprint first, because it is the most specific.
        for name, each, identity in sorted(left, key=lambda one: -one[2].length):
            same = begins[identity.length, identity.digest]
            copies = [listing.free[key] for key in same if key in listing.free] or [
                file
                for file in listing.free.values()
                if file.inode != identity.inode and identity.may_begin(heads[file.key])
            ]
            bound = [one for file in copies if (one := self._measured_copy(name, each, file)) is not None]
            if bound:
                # The longest copy has most of the lines.
                longest = max(bound, key=lambda one: (one.end, one.file is not None and not one.file.is_compressed))
                assert longest.file is not None
                listing.bind(name, longest, longest.file)

    def _measured_copy(self, name: str, each: _Partition, file: FollowedFile) -> _Partition | None:
        """Return the partition with this file, or None if the file is damaged."""
        if file.state in self._damaged:
            return None
        try:
            return _measured(each, file)
        except DamagedFile as damaged:
            self._damaged[file.state] = (
                f"{file.name} in {self._root} has what was {name}, which is not read on: {damaged}"
            )
            return None

    def _bind_new(self, listing: _Listing, say: Say) -> None:
        unknown: list[FollowedFile] = []
        known = {(each.identity.length, each.identity.digest) for each in self._partitions.values() if each.identity}
        lengths = {length for length, _ in known}
        for file in sorted(listing.free.values(), key=lambda each: each.name):
            if file.is_compressed:
                head = self._head(file)
                if head and not known & _by_digest({file.key: head}, lengths).keys():
                    unknown.append(file)
            elif (original := self._original(file, listing)) is not None:
                say(f"{file.name} in {self._root} is not read: it has what {original} has")
            else:
                self._bind_one(file, listing)
        # A file that is being written has another state at the next look, so it is not reported yet.
        if settled := [each.name for each in unknown if each.state in self._unknown]:
            say(
                f"{len(settled)} compressed files in {self._root} are of no file that was followed ({', '.join(settled[:_NAMED])}): they are "
                "not read; unpack those that are to be trained, and name the others with a dot before"
            )
        self._unknown = frozenset(each.state for each in unknown)

    def _bind_one(self, file: FollowedFile, listing: _Listing) -> None:
        bound = _measured(_Partition(None), file)
        if bound.identity is None:
            # The file has no whole line yet.
            return
        name = file.name
        if name in self._partitions or name in listing.bound:
            name = str(bound.identity)
        if self._is_old_ledger and "/" in file.name:
            # The earlier release did not read subfolders.
            log.info("%s in %s is read from its end on, for it was not read before", file.name, self._root)
            bound = _Partition(bound.identity, bound.end, bound.end, file, bound.end, bound.end)
        listing.bind(name, bound, file)

    def _original(self, file: FollowedFile, listing: _Listing) -> str | None:
        """Return the partition whose file begins as this one does: this file may be a copy, complete or being written."""
        head = self._head(file)
        for name, each in listing.bound.items():
            other = each.file
            if other is None or not head:
                continue
            theirs = self._head(other)
            least = min(len(head), len(theirs))
            if not least or head[:least] != theirs[:least]:
                continue
            if least < HEAD_BYTES:
                # One file is shorter than HEAD_BYTES; this one is a copy only if the other contains all of it.
                if len(head) <= len(theirs):
                    return name
            elif other.is_compressed or _tail(file, min(file.size, other.size)) == _tail(
                other, min(file.size, other.size)
            ):
                return name
        return None

    def _head(self, file: FollowedFile) -> bytes:
        """Return the first bytes of a file; none if it is damaged, or compressed and unreadable."""
        if (head := self._heads.get(file.state)) is not None:
            return head
        try:
            head = file.head()
        except DamagedFile:
            head = b""
        except PermissionError:
            if not file.is_compressed:
                raise
            head = b""
        if file.is_settled:
            self._heads[file.state] = head
        return head


def _by_digest(heads: Mapping[Key, bytes], lengths: Iterable[int]) -> defaultdict[tuple[int, str], list[Key]]:
    """Return the files by (length, digest of that many first bytes), for each of the lengths."""
    found = defaultdict(list)
    for length in lengths:
        for key, head in heads.items():
            if len(head) >= length:
                found[length, digest_of(head[:length])].append(key)
    return found


def _was_there(each: _Partition) -> bool:
    return each.file is not None or (each.identity is not None and not each.identity.is_absent)


def _moved(each: _Partition, place: int) -> _Partition:
    return _Partition(each.identity, place, each.first, each.file, each.end, max(each.seen, place))


def _renamed(each: _Partition, file: FollowedFile) -> _Partition:
    identity = each.identity and each.identity._replace(name=file.name, is_absent=False)
    return _Partition(identity, each.place, each.first, file, each.end, each.seen)


def _without_file(each: _Partition) -> _Partition:
    identity = each.identity and each.identity._replace(is_absent=True)
    return _Partition(identity, each.place, each.first, None, each.end, each.seen)


def _measured(each: _Partition, file: FollowedFile) -> _Partition:
    """Return the partition with this file and its identity. Raises FollowedFileChanged, DamagedFile, StoreError, OSError."""
    if file.is_compressed:
        head = file.head()
        with file.opened() as lines:
            end = each.place if _is_read(each, file) else end_when_unpacked(lines)
    else:
        is_same = each.file is not None and each.file.key == file.key
        if is_same and each.file is not None and file.size < each.file.size:
            raise StoreError(
                f"{file.name} has {file.size} bytes and had {each.file.size}, with the same beginning: a followed file may grow, or be cut to "
                "nothing; put it back, or move it out of the folder, and what was not read of it counts as dropped"
            )
        with file.opened() as lines:
            head = os.pread(lines.fileno(), HEAD_BYTES, 0)
            end = end_of_lines(lines, file.size, each.end if is_same else 0)
            if os.fstat(lines.fileno()).st_size < file.size or not _is_at(lines.fileno(), head):
                raise FollowedFileChanged(file.name)
    if each.identity is not None and not (each.identity.begins(head) or each.identity.may_begin(head)):
        raise FollowedFileChanged(file.name)
    identity = FileIdentity.of(file, head, end) if end else each.identity
    return _Partition(identity, each.place, each.first, file, end, max(each.seen, end))


def _is_at(descriptor: int, head: bytes) -> bool:
    """True if the file begins with `head` now."""
    return os.pread(descriptor, len(head), 0) == head


def _is_read(each: _Partition, file: FollowedFile) -> bool:
    """True if passes have all of a gzip file. Its last 4 bytes are the uncompressed length, so it need not be unpacked."""
    if not file.name.endswith(".gz") or file.size < _LENGTH_BYTES:
        return False
    with file.path.open("rb") as packed:
        length = int.from_bytes(os.pread(packed.fileno(), _LENGTH_BYTES, file.size - _LENGTH_BYTES), "little")
    return 0 < each.place < 1 << 32 and length == each.place


def _tail(file: FollowedFile, end: int) -> bytes:
    with file.opened() as lines:
        return os.pread(lines.fileno(), HEAD_BYTES, max(0, end - HEAD_BYTES))
