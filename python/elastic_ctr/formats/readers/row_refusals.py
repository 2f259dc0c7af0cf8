"""Reasons to refuse rows: codes for loops over arrays, and the sentence of each. The first reason found for a row counts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.cells import Numbers, Places
from elastic_ctr.formats.line import COUNT_LIMIT, Reason
from elastic_ctr.formats.readers.batches import Wanted

Codes = npt.NDArray[np.uint8]

FINE = 0
TOO_LONG, EMPTY, OPEN_QUOTE, AFTER_QUOTE, WRONG_COLUMNS = range(1, 6)
NOT_A_LABEL, NO_COUNT, NOT_WHOLE, NEGATIVE, TOO_LARGE, NO_SHOW, ABOVE_SHOWS = range(6, 13)
NOT_A_NUMBER, NOT_FINITE, NOT_UTF8, BAD_SEPARATOR, NOT_BOTH = range(13, 18)
NOT_READ = 18
"""A line whose reader says itself why."""

_SENTENCES: dict[int, tuple[Reason, str]] = {
    TOO_LONG: (Reason.TOO_LONG, "the row has more than {limit} bytes."),
    EMPTY: (Reason.EMPTY, "the line holds nothing."),
    OPEN_QUOTE: (
        Reason.BAD_QUOTE,
        "the quote that opens the column {column!r} is not closed on its line; a row is one line.",
    ),
    AFTER_QUOTE: (
        Reason.BAD_QUOTE,
        'the column {column!r} goes on behind its closing quote; a quote inside of quotes is written twice: "".',
    ),
    WRONG_COLUMNS: (Reason.WRONG_COLUMNS, "the row has {found} columns, and the file has {limit}."),
    NOT_A_LABEL: (Reason.BAD_LABEL, "the label {column!r} is {value}; 0 and 1 are allowed."),
    NO_COUNT: (Reason.BAD_LABEL, "{column!r} is empty; a whole number is needed."),
    NOT_WHOLE: (Reason.NOT_A_NUMBER, "{column!r} is {value}, which is not a whole number."),
    NEGATIVE: (Reason.NEGATIVE, "{column!r} is {value}; a count is not below 0."),
    TOO_LARGE: (Reason.COUNT_TOO_LARGE, f"{{column!r}} is {{value}}, which is not below {COUNT_LIMIT}."),
    NO_SHOW: (Reason.SHOW_ZERO, "{column!r} is 0; a row is at least one impression."),
    ABOVE_SHOWS: (Reason.CLICK_ABOVE_SHOW, "{column!r} is {value}, which is above {shows!r}, {limit}."),
    NOT_A_NUMBER: (
        Reason.NOT_A_NUMBER,
        "the column {column!r} is {value}, which is not a decimal number such as -1.5e3.",
    ),
    NOT_FINITE: (
        Reason.NOT_FINITE,
        "the column {column!r} is {value}, which is not finite; a number that is missing is left empty.",
    ),
    NOT_UTF8: (Reason.NOT_UTF8, "the column {column!r} is {value}, which is not UTF-8."),
    BAD_SEPARATOR: (Reason.BAD_SEPARATOR, "a value of the list {column!r} holds {value}, which separates its values."),
    NOT_BOTH: (
        Reason.NOT_A_VALUE,
        "the column {column!r} is {value}; read as a number and as text it must be whole and below 2^53: give the category `round`.",
    ),
}


def refusal(code: int, **facts: object) -> tuple[Reason, str]:
    """Return the reason of a code, and its sentence."""
    reason, sentence = _SENTENCES[code]
    return reason, sentence.format(**facts)


def shown(text: bytes) -> str:
    """Return a value for a sentence."""
    decoded = text[:40].decode("utf-8", "backslashreplace")
    return repr(decoded + "…" if len(text) > 40 else decoded)


def shown_bytes(text: bytes) -> str:
    """Return a value that is not UTF-8 for a sentence."""
    return repr(text[:40]) + ("…" if len(text) > 40 else "")


def judge_counts(wanted: Wanted, counts: Numbers, cells: Codes, codes: Codes, details: Places) -> tuple[Places, Places]:
    """Return shows and clicks of each row, valid for rows that are fine.

    Args:
        wanted: label and shows.
        counts: f64[n, len(wanted.counts)], their numbers; NaN is missing.
        cells: their codes: NOT_A_NUMBER, NOT_FINITE or FINE.
        codes: codes of the rows, changed for rows that were fine.
        details: filled for these rows with the index of the column among `wanted.counts`.
    """
    if wanted.label is None:
        return np.ones(len(codes), np.int64), np.zeros(len(codes), np.int64)
    late = np.zeros(len(codes), bool)
    if wanted.late_clicks and wanted.shows is not None:
        late = (counts[:, 0] > 0) & (counts[:, 1] == 0)
    for place in range(len(wanted.counts)):
        count, bad = counts[:, place], cells[:, place] != FINE
        if wanted.shows is None:
            faults = [(NOT_A_LABEL, bad | ~((count == 0) | (count == 1)))]
        else:
            faults = [
                (NOT_WHOLE, bad),
                (NO_COUNT, np.isnan(count)),
                (NOT_WHOLE, count != np.floor(count)),
                (NEGATIVE, count < 0),
                (TOO_LARGE, count >= COUNT_LIMIT),
                (NO_SHOW, (count == 0) & bool(place) & ~late),
            ]
        for code, where in faults:
            refuse(code, where, place, codes, details)
    if wanted.shows is not None:
        refuse(ABOVE_SHOWS, (counts[:, 0] > counts[:, 1]) & ~late, 0, codes, details)
    whole = np.where((codes == FINE)[:, None], counts, 0).astype(np.int64)
    return (whole[:, 1] if wanted.shows is not None else np.ones(len(codes), np.int64)), whole[:, 0]


def refuse(code: int, where: npt.NDArray[np.bool_], detail: int | Places, codes: Codes, details: Places) -> None:
    """Give a code to those of the rows `where` that are fine."""
    if where.any():
        where = where & (codes == FINE)
        codes[where] = code
        details[where] = detail if isinstance(detail, int) else detail[where]
