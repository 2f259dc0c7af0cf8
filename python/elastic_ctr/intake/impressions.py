"""Impressions that may still be clicked, in the log's own file: they come and go in the transaction of their lines."""

import io
import logging
import sqlite3
from typing import NamedTuple

from elastic_ctr.intake.join import Kind, LateClicks

log = logging.getLogger(__name__)

# Of the late clicks of one request: each is as long as its impression, which may be hundreds of times as long as its click.
JOINED_BYTES = 16 << 20

_SCHEMA = """
create table if not exists impressions (
  key text primary key, at real not null, clicked integer not null, line blob not null) without rowid;
create index if not exists impressions_by_time on impressions (at);
"""


class TooMuchJoined(ValueError):
    """The late clicks of a request would be longer together than one transaction should be."""


class Joins(NamedTuple):
    """Clicks that carried only a key: those that became late clicks, those without an impression, and those that came again."""

    joined: int = 0
    unmatched: int = 0
    duplicate: int = 0

    def plus(self, other: "Joins") -> "Joins":
        return Joins(*(one + more for one, more in zip(self, other, strict=True)))


class Impressions:
    """In a log's file. Remembered for `seconds`. The first of several with one key counts until it is forgotten."""

    def __init__(self, db: sqlite3.Connection, rules: LateClicks, seconds: float) -> None:
        self._db = db
        self._rules = rules
        self._seconds = seconds
        db.executescript(_SCHEMA)
        self._forget_those_of_other_rules()

    def _forget_those_of_other_rules(self) -> None:
        """Their rows have other columns: no late click can be made of them."""
        digest = self._rules.digest
        self._db.execute("begin immediate")
        if self._db.execute("select value from facts where name = 'joined by'").fetchone() != (digest,):
            forgotten = self._db.execute("delete from impressions").rowcount
            self._db.execute("insert or replace into facts values ('joined by', ?)", (digest,))
            if forgotten:
                log.warning(
                    "data.format, its columns or data.stream.join have changed: %d impressions are forgotten, and clicks of them count as "
                    "unmatched",
                    forgotten,
                )
        self._db.execute("commit")

    def forget(self, now: float) -> None:
        """Those that are too old, before others are looked up."""
        self._db.execute("delete from impressions where at < ?", (now - self._seconds,))

    def join(self, text: bytes, now: float) -> tuple[bytes, Joins]:
        """The lines that are appended for those of a request. Within a transaction.

        Raises TooMuchJoined, and has changed something then.
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
            found = self._db.execute("select clicked, line from impressions where key = ?", (row.key,)).fetchone()
            if found is None:
                unmatched += 1
            elif found[0]:
                duplicate += 1
            else:
                self._db.execute("update impressions set clicked = 1 where key = ?", (row.key,))
                try:
                    late = self._rules.late_click_of(found[1]) + b"\n"
                except (RecursionError, ValueError):
                    # A column with thousands of brackets is no feature, and what is no row makes none.
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
        """The first row counts, and a click that came with any."""
        self._db.execute(
            "insert into impressions values (?, ?, ?, ?) on conflict (key) do update set clicked = max(clicked, excluded.clicked)",
            (key, now, int(clicked), line),
        )


def forget_all(db: sqlite3.Connection) -> None:
    """Where nothing is joined any more."""
    db.execute("drop table if exists impressions")
