"""The log: a SQLite file of lines, whose offsets are given once and never again."""

import logging
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from elastic_ctr.sources.intake.disk_bytes import bytes_of_row
from elastic_ctr.sources.intake.impressions import Impressions, Joins, TooMuchJoined, forget_all
from elastic_ctr.sources.intake.join import LateClicks
from elastic_ctr.sources.intake.request_lines import Clicks
from elastic_ctr.sources.streams.interface import Kept

log = logging.getLogger(__name__)

REMEMBERED_KEYS = 100_000
# A batch is read as a whole. A joined click is longer than what was sent.
BATCH_BYTES = 4 << 20
# A transaction ends with the request with which it has so many: joined clicks are longer than what was sent.
TRANSACTION_BYTES = 16 << 20
# Of one request, and of one transaction, where lines are joined: a row takes up to 15 microseconds, and other senders wait meanwhile.
JOINED_LINES = 50_000
# Of one transaction: what is dropped beyond them goes with the next one.
_DROPPED_AT_ONCE = 1000
_NEWLINE = 10
_SCHEMA = """
create table if not exists places (
  id integer primary key check (id = 1), end integer not null, bytes integer not null);
create table if not exists batches (
  first integer primary key, count integer not null, bytes integer not null, at real not null, text blob not null);
create table if not exists checksums (first integer primary key, checksum integer not null);
create table if not exists remembered (
  number integer primary key, key text not null unique, first integer not null, end integer not null, digest blob not null);
create table if not exists positions (partition text primary key, following integer not null) without rowid;
create table if not exists facts (name text primary key, value blob not null) without rowid;
insert or ignore into places values (1, 0, 0);
insert or ignore into facts values ('clock moved', 0.0);
insert or ignore into facts values ('log', lower(hex(randomblob(4))));
insert or ignore into facts values ('needed from', 0);
"""


class LogUnwritable(OSError):
    """Nothing of the request was written: the reason, and what to do."""


class BatchDamaged(LogUnwritable):
    """Lines are not as they were written: which offsets, and the way out."""


class KeyReused(ValueError):
    """An Idempotency-Key came with other lines than before."""


class Appended(NamedTuple):
    """The offsets of a request's lines: from `first` up to, without it, `end`."""

    first: int
    end: int
    repeated: bool = False


class Piece(NamedTuple):
    """Lines of the offsets from `first` up to, without it, `next`. Offsets asked for before `first` are kept no more."""

    first: int
    next: int
    text: bytes


@dataclass(frozen=True)
class Retention:
    """What goes: lines older than `seconds`, and the oldest while they take more than `bytes` of the disk."""

    seconds: float
    bytes: int


class ClickLog:
    """The lines of one partition, whose name is the file's own: a log that is begun anew has another one.

    Appends belong to one thread, reads may be in others. An append is in the file, and on the disk, or it is not there at all.

    `bytes` is what the lines take of the disk. Readers see nothing that a loss of power could take back: SQLite shows a transaction once its write-ahead log is synced.
    """

    def __init__(
        self,
        folder: Path,
        retention: Retention,
        remembered: int = REMEMBERED_KEYS,
        join: tuple[LateClicks, float] | None = None,
        *,
        most_impressions: int = 1 << 40,
        of_topic: bool = False,
        skip_damaged: bool = False,
    ) -> None:
        """`most_impressions` is the bytes of those that are remembered. `of_topic`: they are remembered by the topic's time, and retention
        leaves what training has not read. `skip_damaged`: readers get no lines of a damaged batch, as if retention had dropped it.

        Raises LogUnwritable.
        """
        self._path = folder / "clicks.sqlite"
        self._retention = retention
        self._remembered = remembered
        self._of_topic = of_topic
        with self._told():
            folder.mkdir(parents=True, exist_ok=True)
            self._db = _opened(self._path)
            self._db.executescript(_SCHEMA)
            self._reader = _opened(self._path)
            [log] = self._db.execute("select value from facts where name = 'log'").fetchone()
            [place] = self._db.execute("select value from facts where name = 'needed from'").fetchone()
            self._needed_from = self._read_up_to = int(place)
            self.partition = f"clicks-{log}"
            [moved] = self._db.execute("select value from facts where name = 'clock moved'").fetchone()
            self._clock_moved = float(moved)
            self.kept, self.bytes = self._places()
            self._impressions = None if join is None else Impressions(self._db, *join, most_impressions)
            if join is None:
                forget_all(self._db)
        self.joins = Joins()
        # Of the batches that were read: the first offset, and the one behind the last.
        self.damaged: dict[int, int] = {}
        self._skip_damaged = skip_damaged
        self._reading = threading.Lock()

    def close(self) -> None:
        self._reader.close()
        self._db.close()

    @property
    def joins_lines(self) -> bool:
        """Whether clicks are joined to their impressions."""
        return self._impressions is not None

    def clock_moved(self) -> float:
        """Seconds by which the machine's clock was set while the log was written."""
        return self._clock_moved

    def move_clock(self, seconds: float) -> None:
        """Raises LogUnwritable."""
        with self._transaction():
            self._db.execute("update facts set value = ? where name = 'clock moved'", (seconds,))
        self._clock_moved = seconds

    def positions(self) -> dict[str, int]:
        """Of each partition of a topic that was appended, the offset behind what is here. Raises LogUnwritable."""
        with self._told(), self._reading:
            return dict(self._reader.execute("select partition, following from positions").fetchall())

    @property
    def needed(self) -> int:
        """The first offset that a recovery of training may read again."""
        return self._needed_from

    def needed_from(self, offset: int, read_up_to: int | None = None) -> None:
        """The first offset that a recovery of training may read again, which is on the disk with the next append; and, where it is known, the
        first one that no pass has yet.
        """
        self._needed_from = offset
        self._read_up_to = offset if read_up_to is None else read_up_to

    def unread_bytes(self) -> int:
        """About how many bytes no pass has yet. What a recovery alone may need is not among them: no checkpoint comes without new lines, so
        who waited for one would wait for ever.
        """
        first, end, _ = self.kept
        return self.bytes * max(0, end - max(first, self._read_up_to)) // max(1, end - first)

    def append(self, requests: Sequence[Clicks], now: float) -> list[Appended | KeyReused | TooMuchJoined]:
        """The first requests, at least one, in one transaction, of each its offsets; what is too old goes in the same one.

        Raises LogUnwritable.
        """
        with self._transaction():
            found: list[Appended | KeyReused | TooMuchJoined] = []
            size = lines_taken = 0
            text: list[bytes] = []
            joins = self.joins
            if self._impressions is not None:
                forgotten = self._impressions.forget(
                    self._joins_since(requests, now), sum(each.count for each in requests)
                )
                joins = joins.plus(Joins(crowded_out=forgotten))
            [first] = self._db.execute("select end from places").fetchone()
            end = first
            for each in requests:
                if size >= TRANSACTION_BYTES or (
                    found and self.joins_lines and lines_taken + each.count > JOINED_LINES
                ):
                    break
                lines_taken += each.count
                known = self._known(each)
                if known is not None:
                    found.append(known)
                    continue
                try:
                    lines, joined = self._joined(each.text, self._made_at(each, now))
                except TooMuchJoined as refused:
                    found.append(refused)
                    continue
                here = Appended(end, end + lines.count(b"\n"))
                joins, end, size = joins.plus(joined), here.end, size + len(lines)
                text.append(lines)
                self._remember(each, here)
                self._db.executemany("insert or replace into positions values (?, ?)", each.positions)
                found.append(here)
            for piece in _pieces(b"".join(text)):
                first = self._insert(first, piece, now)
            self._forget()
            self._drop(now)
            self._db.execute("update facts set value = ? where name = 'needed from'", (self._needed_from,))
            places = self._places()
        self.kept, self.bytes, self.joins = *places, joins
        return found

    def read(self, start: int, stop: int, most: int) -> Piece:
        """Lines of an offset range, up to the batch with which they are `most` bytes. Offsets behind the end are not there.

        Raises LogUnwritable, BatchDamaged.
        """
        with self._told(), self._reading:
            rows = self._reader.execute(
                "select first, count, text, checksum from batches left join checksums using (first) where first < ? and first >= "
                "(select coalesce(max(first), 0) from batches where first <= ?) order by first",
                (stop, start),
            )
            first = following = stop
            size = 0
            texts: list[bytes] = []
            try:
                for batch, count, text, checksum in rows:
                    if batch + count <= start:
                        # The end of what is kept.
                        continue
                    if self._is_damaged(batch, count, text, checksum):
                        if texts:
                            # The next piece begins behind it.
                            break
                        first = following = min(batch + count, stop)
                        continue
                    begin, end = max(batch, start), min(batch + count, stop)
                    if not texts:
                        first = begin
                    texts.append(
                        _lines(text, begin - batch, end - batch) if (begin, end) != (batch, batch + count) else text
                    )
                    following = end
                    size += len(texts[-1])
                    if size >= most:
                        break
            finally:
                rows.close()
            return Piece(first, following, b"".join(texts))

    def _is_damaged(self, first: int, count: int, text: bytes, checksum: int | None) -> bool:
        """Whether a batch is to be skipped. A log of an earlier release has batches without a checksum. Raises BatchDamaged."""
        if checksum is None or checksum == _checksum_of(first, count, text):
            return False
        end = first + count
        if first not in self.damaged:
            self.damaged[first] = end
            log.error("the lines of the offsets %d to %d are damaged in %s", first, end - 1, self._path)
        if not self._skip_damaged:
            raise BatchDamaged(
                f"the lines of the offsets {first} to {end - 1} are damaged in {self._path}: put a copy of the log back, or set "
                "intake.config.skipDamaged to true, and training goes on without them"
            )
        return True

    def _made_at(self, clicks: Clicks, now: float) -> float:
        """From when the age of its impressions counts. Beside a topic, by whose time they are forgotten, those that are posted have the wall's."""
        if clicks.time is not None:
            return clicks.time.at
        return now + self._clock_moved if self._of_topic else now

    def _joins_since(self, requests: Sequence[Clicks], now: float) -> float | None:
        """What the age of impressions counts from. A topic that is not read, or is behind, has its own time."""
        if not self._of_topic:
            return now
        times = [each.time.whole for each in requests if each.time is not None]
        return max((whole for whole in times if whole is not None), default=None)

    def _joined(self, text: bytes, now: float) -> tuple[bytes, Joins]:
        """Raises TooMuchJoined, as if the request had not come."""
        if self._impressions is None:
            return text, Joins()
        self._db.execute("savepoint request")
        before = self._impressions.bytes
        try:
            found = self._impressions.join(text, now)
        except TooMuchJoined:
            self._db.execute("rollback to request")
            self._db.execute("release request")
            self._impressions.bytes = before
            raise
        self._db.execute("release request")
        return found

    def _places(self) -> tuple[Kept, int]:
        end, size = self._db.execute("select end, bytes from places").fetchone()
        [first] = self._db.execute("select coalesce(min(first), ?) from batches", (end,)).fetchone()
        return Kept(first, end), size

    def _known(self, clicks: Clicks) -> Appended | KeyReused | None:
        if clicks.key is None:
            return None
        row = self._db.execute("select first, end, digest from remembered where key = ?", (clicks.key,)).fetchone()
        if row is None:
            return None
        first, end, digest = row
        if digest != clicks.digest:
            return KeyReused(
                f"Idempotency-Key {clicks.key!r} came before with other lines; give each request its own key"
            )
        return Appended(first, end, repeated=True)

    def _remember(self, clicks: Clicks, at: Appended) -> None:
        if clicks.key is not None:
            self._db.execute(
                "insert into remembered (key, first, end, digest) values (?, ?, ?, ?)",
                (clicks.key, at.first, at.end, clicks.digest),
            )

    def _forget(self) -> None:
        self._db.execute(
            "delete from remembered where number <= (select max(number) from remembered) - ?", (self._remembered,)
        )

    def _insert(self, first: int, text: bytes, now: float) -> int:
        """The offset of the next line."""
        count, size = text.count(b"\n"), bytes_of_row(len(text))
        self._db.execute("insert into batches values (?, ?, ?, ?, ?)", (first, count, size, now, text))
        # In a table of its own, for an earlier release may come back. One of its batches has the checksum of no former batch: offsets are
        # given once.
        self._db.execute("insert into checksums values (?, ?)", (first, _checksum_of(first, count, text)))
        self._db.execute("update places set end = ?, bytes = bytes + ?", (first + count, size))
        return first + count

    def _drop(self, now: float) -> None:
        [size] = self._db.execute("select bytes from places").fetchone()
        left, up_to = size, None
        for first, count, each, at in self._db.execute(
            "select first, count, bytes, at from batches order by first limit ?", (_DROPPED_AT_ONCE,)
        ):
            old = at < now - self._retention.seconds and not (self._of_topic and first + count > self._needed_from)
            if left <= self._retention.bytes and not old:
                break
            left, up_to = left - each, first + count
        if up_to is not None:
            self._db.execute("delete from batches where first < ?", (up_to,))
            self._db.execute("delete from checksums where first < ?", (up_to,))
            self._db.execute("update places set bytes = ?", (left,))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        impressions = self._impressions.bytes if self._impressions is not None else 0
        with self._told():
            try:
                self._db.execute("begin immediate")
                yield
                self._db.execute("commit")
            except BaseException:
                if self._impressions is not None:
                    self._impressions.bytes = impressions
                # On a full disk SQLite may have rolled back by itself.
                with suppress(sqlite3.Error):
                    if self._db.in_transaction:
                        self._db.execute("rollback")
                raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as failed:
            raise LogUnwritable(
                f"the log {self._path} cannot be read or written ({failed}): make room where it is, or enlarge intake.persistence.size"
            ) from failed
        except sqlite3.DatabaseError as damaged:
            raise LogUnwritable(
                f"the log {self._path} is damaged ({damaged}): restore it, or begin another one"
            ) from damaged


def _opened(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    db.execute("pragma journal_mode = wal")
    db.execute("pragma synchronous = full")
    # What is dropped need not be overwritten: its pages are used again.
    db.execute("pragma secure_delete = off")
    return db


def _checksum_of(first: int, count: int, text: bytes) -> int:
    return zlib.crc32(text, zlib.crc32(f"{first} {count}".encode()))


def _pieces(text: bytes) -> Iterator[bytes]:
    """Lines of BATCH_BYTES together, or one that is longer."""
    at = 0
    while at < len(text):
        stop = text.rfind(b"\n", at, at + BATCH_BYTES) + 1 or text.index(b"\n", at) + 1
        yield text[at:stop]
        at = stop


def _lines(text: bytes, start: int, stop: int) -> bytes:
    """Of a text of lines those numbered from `start` up to, without it, `stop`."""
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE) + 1
    return text[int(ends[start - 1]) if start else 0 : int(ends[stop - 1])]
