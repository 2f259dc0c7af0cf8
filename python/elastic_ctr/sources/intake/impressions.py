"""Impressions that may still be clicked, in the log's file: each changes in the same transaction as the lines of its request."""

import io
import logging
from math import inf
from typing import NamedTuple

from elastic_ctr.runtime.sqlite_file import SqliteFile
from elastic_ctr.sources.intake.disk_bytes import bytes_of_entry, bytes_of_row
from elastic_ctr.sources.intake.join import Kind, LateClicks

log = logging.getLogger(__name__)

# The most bytes of the late clicks of one request. Each is as long as its impression, possibly hundreds of times its click.
JOINED_BYTES = 16 << 20
# Impressions that one transaction forgets, beside two for each new line. More could make the write-ahead log as large as the table.
_FORGOTTEN_AT_ONCE = 200
_TIME = 8

_SCHEMA = """
create table if not exists shown (
  number integer primary key, key text not null unique, at real not null, clicked integer not null, bytes integer not null,
  line blob not null);
create index if not exists shown_by_time on shown (at);
"""


class TooMuchJoined(ValueError):
    """The late clicks of a request are together too long for one transaction."""


class Joins(NamedTuple):
    """Counts of clicks that carried only a key (joined to an impression, without an impression, repeated), and of impressions that were
    forgotten before their time because there were too many.
    """

    joined: int = 0
    unmatched: int = 0
    duplicate: int = 0
    crowded_out: int = 0

    def plus(self, other: "Joins") -> "Joins":
        return Joins(*(one + more for one, more in zip(self, other, strict=True)))


class Impressions:
    """The impressions in a log's file. Each is remembered for `seconds`; while all take more than `most_bytes`, the oldest are forgotten
    earlier. The first of several with one key counts until it is forgotten.

    `bytes` is the disk space of remembered impressions. A caller that rolls a transaction back must restore it.
    """

    def __init__(self, file: SqliteFile, rules: LateClicks, seconds: float, most_bytes: int) -> None:
        self._db = file.db
        self._rules = rules
        self._seconds = seconds
        self._most_bytes = most_bytes
        self._db.executescript(_SCHEMA)
        with file:
            self._forget_those_of_other_rules()
        [self.bytes] = file.one("select coalesce(sum(bytes), 0) from shown")

    def _forget_those_of_other_rules(self) -> None:
        """Forget impressions of an earlier format: their rows have other columns, so no late click can be made of them."""
        digest = self._rules.digest
        if self._db.execute("select value from facts where name = 'joined by'").fetchone() != (digest,):
            forgotten = self._db.execute("delete from shown").rowcount
            self._db.execute("insert or replace into facts values ('joined by', ?)", (digest,))
            if forgotten:
                log.warning(
                    "data.format, its columns or data.stream.join have changed: %d impressions are forgotten, and clicks of them count as "
                    "unmatched",
                    forgotten,
                )

    def forget(self, now: float | None, lines: int) -> int:
        """Forget impressions that are too old (if `now` is known) or too many, before the join of `lines` others. Return how many were too
        many. One call forgets a bounded number; the next calls forget the rest. Call this within a transaction.
        """
        oldest = -inf if now is None else now - self._seconds
        size, crowded = self.bytes, 0
        numbers: list[tuple[int]] = []
        for number, at, taken in self._db.execute(
            "select number, at, bytes from shown order by at limit ?", (_FORGOTTEN_AT_ONCE + 2 * lines,)
        ):
            if at >= oldest:
                if size <= self._most_bytes:
                    break
                crowded += 1
            numbers.append((number,))
            size -= taken
        self._db.executemany("delete from shown where number = ?", numbers)
        self.bytes = size
        return crowded

    def join(self, text: bytes, now: float) -> tuple[bytes, Joins]:
        """Return the lines to append for those of a request, and the counts. Call this within a transaction.

        If it raises TooMuchJoined, the caller must roll back.
        """
        lines = bytearray()
        joined = unmatched = duplicate = size = 0
        for whole in io.BytesIO(text):
            line = whole[:-1]
            row = self._rules.row_of(line)
            if row.kind is not Kind.CLICK:
                if row.kind is Kind.IMPRESSION:
                    self._remember(row.key, now, line, clicked=row.clicked)
                lines += whole
                continue
            found = self._db.execute("select clicked, line from shown where key = ?", (row.key,)).fetchone()
            if found is None:
                unmatched += 1
            elif found[0]:
                duplicate += 1
            else:
                self._db.execute("update shown set clicked = 1 where key = ?", (row.key,))
                try:
                    late = self._rules.late_click_of(found[1]) + b"\n"
                except (RecursionError, ValueError):
                    # The impression is nested too deeply or is no valid row, so no late click can be made of it.
                    unmatched += 1
                    continue
                size += len(late)
                if size > JOINED_BYTES and joined:
                    raise TooMuchJoined(
                        f"the request's clicks have impressions of more than {JOINED_BYTES} bytes together; send fewer clicks in one request"
                    )
                lines += late
                joined += 1
        return bytes(lines), Joins(joined, unmatched, duplicate)

    def _remember(self, key: str, now: float, line: bytes, *, clicked: bool) -> None:
        """Remember an impression. The first row of a key is kept; a click in any of them counts."""
        letters = len(key.encode())
        taken = bytes_of_row(letters + len(line)) + bytes_of_entry(letters) + bytes_of_entry(_TIME)
        new = self._db.execute(
            "insert or ignore into shown (key, at, clicked, bytes, line) values (?, ?, ?, ?, ?)",
            (key, now, int(clicked), taken, line),
        )
        if new.rowcount:
            self.bytes += taken
        elif clicked:
            self._db.execute("update shown set clicked = 1 where key = ?", (key,))


def forget_all(file: SqliteFile) -> None:
    """Drop the impressions of a log that no longer joins clicks."""
    file.do("drop table if exists shown")
