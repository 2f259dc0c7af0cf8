"""The log: a SQLite file of lines. An offset is assigned once and never reused."""

import logging
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from elastic_ctr.runtime.sqlite_file import SqliteFile, tables
from elastic_ctr.sources.intake.disk_bytes import bytes_of_row
from elastic_ctr.sources.intake.impressions import Impressions, Joins, TooMuchJoined, forget_all
from elastic_ctr.sources.intake.join import LateClicks
from elastic_ctr.sources.intake.request_lines import Clicks
from elastic_ctr.sources.streams.interface import Kept

log = logging.getLogger(__name__)

REMEMBERED_KEYS = 100_000
# Bytes of a batch, the unit of reading. A single longer line, such as a joined click, is a batch of its own.
BATCH_BYTES = 4 << 20
# A transaction ends with the request that brings it to so many bytes; joined clicks are longer than the lines that were sent.
TRANSACTION_BYTES = 16 << 20
# The most lines of one request and of one transaction if lines are joined: each takes up to 15 microseconds, and other senders wait.
JOINED_LINES = 50_000
# The most batches that one transaction drops; the next transactions drop the rest.
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
# The first schema has `if not exists` and `or ignore`, because releases that wrote no schema number have its tables, or some of them.
_MIGRATIONS = (tables(_SCHEMA),)
SCHEMA = len(_MIGRATIONS)


class LogUnwritable(OSError):
    """No line of the request was written. The message has the reason and the way out."""


class BatchDamaged(LogUnwritable):
    """The checksum of lines is wrong. The message has their offsets and the way out."""


class KeyReused(ValueError):
    """An earlier request had the same Idempotency-Key and other lines."""


class Appended(NamedTuple):
    """The offsets of a request's lines, from `first` up to `end`, exclusive. `repeated`: an earlier request appended them."""

    first: int
    end: int
    repeated: bool = False


class Piece(NamedTuple):
    """The lines of the offsets from `first` up to `next`, exclusive. Requested offsets before `first` are no longer in the log."""

    first: int
    next: int
    text: bytes


@dataclass(frozen=True)
class Retention:
    """Retention deletes lines older than `seconds`, then the oldest lines until the log fits in `bytes` of the disk."""

    seconds: float
    bytes: int


class ClickLog:
    """The lines of one partition. Its name is generated with the file, so a new log has another name.

    One thread appends at a time; any thread may read. An append is atomic and on the disk when it returns.
    `bytes` is the disk space of the lines. Readers never see lines that a power cut could lose: SQLite shows a transaction only after
    its write-ahead log is synced.
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
        """`most_impressions` bounds the bytes of remembered impressions. With `of_topic` they age by the topic's time, and retention by age
        spares lines that training may still read. With `skip_damaged` readers skip a damaged batch, as if retention had dropped it.

        Raises LogUnwritable, NewerSchema.
        """
        self._path = folder / "clicks.sqlite"
        self._retention = retention
        self._remembered = remembered
        self._of_topic = of_topic
        with self._told():
            self._file = SqliteFile(self._path, _MIGRATIONS)
            self._db = self._file.db
            self._reader = SqliteFile(self._path, _MIGRATIONS)
            [log] = self._file.one("select value from facts where name = 'log'")
            [place] = self._file.one("select value from facts where name = 'needed from'")
            self._needed_from = self._read_up_to = int(place)
            self.partition = f"clicks-{log}"
            [moved] = self._file.one("select value from facts where name = 'clock moved'")
            self._clock_moved = float(moved)
            self.kept, self.bytes = self._places()
            self._impressions = None if join is None else Impressions(self._file, *join, most_impressions)
            if join is None:
                forget_all(self._file)
        self.joins = Joins()
        # Damaged batches that were read: their first offset, and the offset after their last.
        self.damaged: dict[int, int] = {}
        self._skip_damaged = skip_damaged
        self._reading = threading.Lock()

    def close(self) -> None:
        self._reader.close()
        self._file.close()

    @property
    def joins_lines(self) -> bool:
        """True if clicks are joined to their impressions."""
        return self._impressions is not None

    def clock_moved(self) -> float:
        """Return the sum of the jumps of the machine's clock, in seconds, while the log was written."""
        return self._clock_moved

    def move_clock(self, seconds: float) -> None:
        """Set the sum of the clock's jumps. Raises LogUnwritable."""
        with self._transaction():
            self._db.execute("update facts set value = ? where name = 'clock moved'", (seconds,))
        self._clock_moved = seconds

    def positions(self) -> dict[str, int]:
        """Return, for each partition of the appended topic, the next offset to append. Raises LogUnwritable."""
        with self._told(), self._reading:
            return dict(self._reader.all("select partition, following from positions"))

    @property
    def needed(self) -> int:
        """Return the first offset that a recovery of training may read again."""
        return self._needed_from

    def needed_from(self, offset: int, read_up_to: int | None = None) -> None:
        """Set the first offset that a recovery of training may read again, which the next append writes to the disk, and the first offset
        that no pass has yet, if it is known.
        """
        self._needed_from = offset
        self._read_up_to = offset if read_up_to is None else read_up_to

    def unread_bytes(self) -> int:
        """Return about how many bytes no pass has yet. Lines that only a recovery may need do not count: without new lines no checkpoint
        is made, so a reader of a topic that waited for one would wait for ever.
        """
        first, end, _ = self.kept
        return self.bytes * max(0, end - max(first, self._read_up_to)) // max(1, end - first)

    def append(self, requests: Sequence[Clicks], now: float) -> list[Appended | KeyReused | TooMuchJoined]:
        """Append the first requests, at least one, and drop lines by retention, in one transaction. Return the result of each request.

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
            [first] = self._file.one("select end from places")
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
        """Return the lines of an offset range, up to and with the batch that brings them to `most` bytes. The log may end before `stop`.

        Raises LogUnwritable, BatchDamaged.
        """
        with self._told(), self._reading:
            rows = self._reader.db.execute(
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
                        # The query also finds the last batch that ends before `start`.
                        continue
                    if self._is_damaged(batch, count, text, checksum):
                        if texts:
                            # The next piece begins after it.
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
        """True if a batch is damaged and to be skipped. Batches of an earlier release have no checksum. Raises BatchDamaged."""
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
        """Return the time from which the age of a request's impressions counts: the wall clock's for posted ones, if a topic is read."""
        if clicks.time is not None:
            return clicks.time.at
        return now + self._clock_moved if self._of_topic else now

    def _joins_since(self, requests: Sequence[Clicks], now: float) -> float | None:
        """Return the time against which the age of impressions counts: the topic's own, so that none expires while it is not read."""
        if not self._of_topic:
            return now
        times = [each.time.whole for each in requests if each.time is not None]
        return max((whole for whole in times if whole is not None), default=None)

    def _joined(self, text: bytes, now: float) -> tuple[bytes, Joins]:
        """Return the lines to append and the counts of the join. If it raises TooMuchJoined, the database is unchanged."""
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
        end, size = self._file.one("select end, bytes from places")
        [first] = self._file.one("select coalesce(min(first), ?) from batches", end)
        return Kept(first, end), size

    def _known(self, clicks: Clicks) -> Appended | KeyReused | None:
        if clicks.key is None:
            return None
        row = self._file.one("select first, end, digest from remembered where key = ?", clicks.key)
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
        """Insert a batch. Return the offset of the next line."""
        count, size = text.count(b"\n"), bytes_of_row(len(text))
        self._db.execute("insert into batches values (?, ?, ?, ?, ?)", (first, count, size, now, text))
        # In a separate table, which an earlier release ignores. Its batches never get the checksum of an older batch, because offsets are
        # not reused.
        self._db.execute("insert into checksums values (?, ?)", (first, _checksum_of(first, count, text)))
        self._db.execute("update places set end = ?, bytes = bytes + ?", (first + count, size))
        return first + count

    def _drop(self, now: float) -> None:
        [size] = self._file.one("select bytes from places")
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
        try:
            with self._told(), self._file:
                yield
        except BaseException:
            if self._impressions is not None:
                self._impressions.bytes = impressions
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


def _checksum_of(first: int, count: int, text: bytes) -> int:
    return zlib.crc32(text, zlib.crc32(f"{first} {count}".encode()))


def _pieces(text: bytes) -> Iterator[bytes]:
    """Yield pieces of whole lines of at most BATCH_BYTES, or of one longer line."""
    at = 0
    while at < len(text):
        stop = text.rfind(b"\n", at, at + BATCH_BYTES) + 1 or text.index(b"\n", at) + 1
        yield text[at:stop]
        at = stop


def _lines(text: bytes, start: int, stop: int) -> bytes:
    """Return the lines from number `start` up to `stop`, exclusive; numbers count from 0."""
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE) + 1
    return text[int(ends[start - 1]) if start else 0 : int(ends[stop - 1])]
