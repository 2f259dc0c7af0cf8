"""The content of a request: its lines, and the Idempotency-Key by which the intake recognises a repeat."""

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

import numpy as np

LONGEST_KEY = 255
_NEWLINE = 10
_PART_BYTES = 1 << 18
_EMPTY_LINES = re.compile(rb"^[ \t\r\f\v]*\n", re.MULTILINE)


class ClicksRefused(ValueError):
    """The request is wrong. The message has the line or header, the reason and the way out."""


class Position(NamedTuple):
    """A partition of the appended topic, and its next offset that the log does not have."""

    partition: str
    following: int


class TopicTime(NamedTuple):
    """Unix seconds: `at` is when a topic's messages were made; all its partitions are read up to `whole` (None: not known yet)."""

    at: float
    whole: float | None


@dataclass(frozen=True)
class Clicks:
    """Lines that are appended together: `text` has `count` of them, each with its newline. `key` is the Idempotency-Key. For a topic,
    `positions` are its next offsets after these lines, and `time` is when they were made.
    """

    text: bytes
    count: int
    key: str | None = None
    positions: tuple[Position, ...] = ()
    time: TopicTime | None = None

    @property
    def digest(self) -> bytes:
        """Return a digest that distinguishes a repeat from other lines with the same key."""
        return sha256(self.text).digest()[:16]


def clicks_of(body: bytes, longest: int, key: str | None = None) -> Clicks:
    """Return the lines of a body without empty ones. They need not be valid rows: a trainer checks them later.

    Raises ClicksRefused.
    """
    text = body if body.endswith(b"\n") else body + b"\n"
    number, size = _longest_line(text)
    if size > longest:
        raise ClicksRefused(
            f"line {number} has {size} bytes, and {longest} are the most; shorten it, or raise data.maxLineBytes"
        )
    if (place := text.find(b"\0")) >= 0:
        number = text.count(b"\n", 0, place) + 1
        raise ClicksRefused(f"line {number} has a NUL byte, which no text has; send lines of data.format")
    text = lines_in(text)
    if not text:
        raise ClicksRefused("the body has no lines; send one or more lines of data.format")
    return Clicks(text, text.count(b"\n"), key)


def _longest_line(text: bytes) -> tuple[int, int]:
    """Return the longest line's number, from 1, and its bytes without newline. It works in parts: each line end takes 8 bytes."""
    before, number, longest, begins = 0, 1, 0, 0
    for start in range(0, len(text), _PART_BYTES):
        part = np.frombuffer(text, np.uint8, min(_PART_BYTES, len(text) - start), start)
        ends = np.flatnonzero(part == _NEWLINE) + start
        if len(ends):
            lengths = np.diff(ends, prepend=begins - 1) - 1
            place = int(lengths.argmax())
            if lengths[place] > longest:
                number, longest = before + place + 1, int(lengths[place])
            before, begins = before + len(ends), int(ends[-1]) + 1
    return number, longest


def lines_in(text: bytes) -> bytes:
    """Return the lines that are not empty. It works in parts to bound memory."""
    if _EMPTY_LINES.search(text) is None:
        return text
    kept, at = list[bytes](), 0
    while at < len(text):
        stop = text.find(b"\n", at + _PART_BYTES - 1) + 1 or len(text)
        kept.append(_EMPTY_LINES.sub(b"", text[at:stop]))
        at = stop
    return b"".join(kept)


def key_of(given: list[str]) -> str | None:
    """Return the key in the headers `Idempotency-Key`, or None. Raises ClicksRefused."""
    if not given:
        return None
    [key, *others] = given
    if others:
        raise ClicksRefused("Idempotency-Key is there more than once; a request has one key, or none")
    if not 0 < len(key) <= LONGEST_KEY or not (key.isascii() and key.isprintable()):
        raise ClicksRefused(f"Idempotency-Key has 1 to {LONGEST_KEY} printable ASCII characters; send a UUID")
    return key
