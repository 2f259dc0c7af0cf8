"""The meaning of a cell's text: a row's time, or a value that a program would write differently in JSON.

A time is ISO 8601, time since 1970 in a unit that its size determines, or a format of strptime.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import date, datetime, timedelta, timezone
from functools import lru_cache

ISO = "iso"
EPOCH = "epoch"
_UNITS = {"epoch-s": 1, "epoch-ms": 10**3, "epoch-us": 10**6, "epoch-ns": 10**9}
FORMATS = (ISO, EPOCH, *_UNITS)

_ISO_TIME = re.compile(
    r"(\d{4})-?(\d\d)-?(\d\d)(?:[Tt ](\d\d):?(\d\d)(?::?(\d\d)(?:[.,](\d{1,9}))?)?\s*(?:[Zz]|([+-])(\d\d):?(\d\d)?)?)?"
)
_EPOCH_TIME = re.compile(r"[0-9]{9,19}(\.[0-9]+)?")
# The unit of a number is the coarsest in which it lies before the year 5138.
_LIMIT = 10**11
_START = datetime(1970, 1, 1, tzinfo=timezone.utc)
# Plausible times of a log, in seconds: 2001 to 2100.
_LIKELY = range(10**9, 4_102_444_800)


@lru_cache(maxsize=1 << 16)
def parsed_time(text: str, time_format: str) -> datetime | None:
    """Return the time in UTC, or None if the text does not have the format."""
    try:
        if time_format == EPOCH or (time_format == ISO and _EPOCH_TIME.fullmatch(text)):
            return _since_epoch(text, None)
        if time_format in _UNITS:
            return _since_epoch(text, _UNITS[time_format])
        if time_format == ISO:
            return _iso_time(text)
        time = datetime.strptime(text, time_format)  # noqa: DTZ007 - the zone is given below
    except (ValueError, OverflowError, OSError):
        return None
    return utc(time)


def utc(time: date) -> datetime:
    """Return a time or a date as a time in UTC; without a zone it is taken as UTC."""
    if not isinstance(time, datetime):
        return datetime(time.year, time.month, time.day, tzinfo=timezone.utc)
    return time.replace(tzinfo=timezone.utc) if time.tzinfo is None else time.astimezone(timezone.utc)


def looks_like_time(text: str) -> bool:
    """True if a cell is a date with a time, or a whole number that is a plausible time since 1970."""
    if text.isascii() and text.isdigit():
        return len(text) in {10, 13, 16, 19} and int(text[:10]) in _LIKELY
    return ":" in text and (match := _ISO_TIME.fullmatch(text)) is not None and match[4] is not None


def _since_epoch(text: str, per_second: int | None) -> datetime:
    whole, _, fraction = text.partition(".")
    number = int(whole) if whole.lstrip("+-").isdigit() else math.floor(float(text))
    if per_second is None:
        per_second = next((unit for unit in _UNITS.values() if abs(number) < _LIMIT * unit), 10**9)
    micros = number * 10**6 // per_second
    if per_second == 1 and fraction.isdigit():
        micros += int(fraction.ljust(6, "0")[:6]) * (-1 if whole.startswith("-") else 1)
    return _START + timedelta(microseconds=micros)


def _iso_time(text: str) -> datetime | None:
    """As `datetime.fromisoformat` of Python 3.11, which 3.10 lacks; a time without an offset is UTC."""
    if (match := _ISO_TIME.fullmatch(text)) is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, hours, minutes = match.groups(default="0")
    offset = timedelta(hours=int(hours), minutes=int(minutes)) * (-1 if sign == "-" else 1)
    return datetime(
        int(year), int(month), int(day), int(hour), int(minute), int(second), int(fraction.ljust(6, "0")[:6]), timezone.utc
    ) - offset  # fmt: skip


NUMBER = r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?"
"""A number in CSV and TSV, as `readers.loops.read_numbers` has it."""

_NUMBER = re.compile(NUMBER)
_WHOLE = re.compile(r"[+-]?[0-9]+")
_TRUTHS = ("true", "false")


def note_of_texts(column: str, texts: Iterable[str]) -> str | None:
    """Return a sentence if all texts are numbers and some have a point, or all are truth values unlike JSON's; else None."""
    values = list(texts)
    if all(_NUMBER.fullmatch(each) for each in values):
        strange = next((each for each in values if not _WHOLE.fullmatch(each)), None)
        way_out = "; if it holds numbers, make it numeric or give it `round`"
    elif all(each.lower() in _TRUTHS for each in values):
        strange, way_out = next((each for each in values if each not in _TRUTHS), None), ""
    else:
        return None
    if strange is None:
        return None
    told = f"the column {column!r} is read as text, and a request must send its texts as they are"
    return f"{told}: {strange!r} in quotes, not {_in_json(strange)}{way_out}."


def _in_json(text: str) -> str:
    """Return the value that a program would send instead."""
    return text.lower() if text.lower() in _TRUTHS else f"{float(text):.15g}"
