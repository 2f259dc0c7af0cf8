"""What a request says: its lines, and the key by which a repeat of it is known."""

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

import numpy as np

LONGEST_KEY = 255
_NEWLINE = 10
_EMPTY_LINES = re.compile(rb"^[ \t\r\f\v]*\n", re.MULTILINE)


class ClicksRefused(ValueError):
    """The caller's mistake: which line or header, why, and what is right."""


class Position(NamedTuple):
    """Of a topic that is appended: a partition, and the offset behind what the log has of it."""

    partition: str
    following: int


class TopicTime(NamedTuple):
    """Unix seconds: when the messages of a topic were made, and up to when those of all its partitions are read; None: not known yet."""

    at: float
    whole: float | None


@dataclass(frozen=True)
class Clicks:
    """Lines that are appended together: `text` has `count` of them, each with its newline. `key` names the request. `positions` say where
    a topic is read on once they are there, and `time` when they were made.
    """

    text: bytes
    count: int
    key: str | None = None
    positions: tuple[Position, ...] = ()
    time: TopicTime | None = None

    @property
    def digest(self) -> bytes:
        """Tells a repeat from other lines under the same key."""
        return sha256(self.text).digest()[:16]


def clicks_of(body: bytes, longest: int, key: str | None = None) -> Clicks:
    """The lines of a body, without those that are empty. They need not be rows: the master's check says which are.

    Raises ClicksRefused.
    """
    text = body if body.endswith(b"\n") else body + b"\n"
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE)
    lengths = np.diff(ends, prepend=-1) - 1
    number = int(lengths.argmax())
    if lengths[number] > longest:
        raise ClicksRefused(
            f"line {number + 1} has {lengths[number]} bytes, and {longest} are the most; shorten it, or raise data.maxLineBytes"
        )
    if (place := text.find(b"\0")) >= 0:
        number = int(np.searchsorted(ends, place))
        raise ClicksRefused(f"line {number + 1} has a NUL byte, which no text has; send lines of data.format")
    text = lines_in(text)
    if not text:
        raise ClicksRefused("the body has no lines; send one or more lines of data.format")
    return Clicks(text, text.count(b"\n"), key)


def lines_in(text: bytes) -> bytes:
    """Those that are not empty."""
    return _EMPTY_LINES.sub(b"", text)


def key_of(given: list[str]) -> str | None:
    """The key in the headers `Idempotency-Key`. Raises ClicksRefused."""
    if not given:
        return None
    [key, *others] = given
    if others:
        raise ClicksRefused("Idempotency-Key is there more than once; a request has one key, or none")
    if not 0 < len(key) <= LONGEST_KEY or not (key.isascii() and key.isprintable()):
        raise ClicksRefused(f"Idempotency-Key has 1 to {LONGEST_KEY} printable ASCII characters; send a UUID")
    return key
