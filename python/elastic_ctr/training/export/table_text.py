"""Reads the text that Paddle's sparse table saves, one row for each key, as keys and vectors.

    key slot unseen_days delta_score show click embed_w [state of embed_w …] [embedx … [state of embedx …]]

Columns are separated by blanks, numbers have 6 significant digits, and each row ends with LF. A row may lack the embedx block. The
number of state columns depends on the SGD rules of the table (measured with paddlepaddle 2.6.2).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numba import njit

from elastic_ctr.formats.blocks import DamagedFile, lines_in_range, open_lines
from elastic_ctr.formats.seqfile.file_writer import SequenceFileWriter
from elastic_ctr.training.export.sorted_rows import MEMORY_ROWS, DuplicateKey, SortedRows

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Vectors = npt.NDArray[np.float32]

_EMBED_W = 6
# Number of state columns for a vector of so many floats (1 for embed_w).
_STATE: dict[str, Callable[[int], int]] = {
    "naive": lambda _: 0,
    "adagrad": lambda _: 1,
    "adagrad_v2": lambda _: 1,
    "std_adagrad": lambda dim: dim,
    "adam": lambda dim: 2 * dim + 2,
    "shared_adam": lambda _: 4,
}
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_LONGEST_NUMBER = 64
DIVERGED = "the model has diverged; go back to a checkpoint before it, with smaller weight bounds or learning rate."


class RowsDamaged(ValueError):
    """A row is not one of Paddle's, or must not be published. `row` counts from 1; 0 is the whole text."""

    def __init__(self, row: int, reason: str, name: str = "") -> None:
        where = ", ".join([*([name] if name else []), *([f"row {row}"] if row else [])])
        super().__init__(f"{where}: {reason}" if where else reason)
        self.row = row
        self.reason = reason


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The positions of columns, counted from 0.

    Attributes:
        embed_w: the column of the first-order weight.
        embedx: the first column of the vector.
        dim: the size D of the vector; a published value has 1 + D floats.
        short: the number of columns without the embedx block.
        full: the number of columns with it.
    """

    embed_w: int
    embedx: int
    dim: int
    short: int
    full: int

    @classmethod
    def of(cls, embed_rule: str, embedx_rule: str, embedx_dim: int) -> RowLayout:
        """Return the layout under two rules: naive, adagrad, adagrad_v2, std_adagrad, adam or shared_adam.

        Raises:
            ValueError: a rule has another name, or the dimension is below 0.
        """
        for rule in (embed_rule, embedx_rule):
            if rule not in _STATE:
                raise ValueError(f"there is no rule {rule!r}; the rules are {', '.join(_STATE)}.")
        if embedx_dim < 0:
            raise ValueError(f"embedx has {embedx_dim} floats; it has 0 or more.")
        short = _EMBED_W + 1 + _STATE[embed_rule](1)
        return cls(_EMBED_W, short, embedx_dim, short, short + embedx_dim + _STATE[embedx_rule](embedx_dim))


@dataclass(frozen=True, slots=True)
class Rows:
    """Keys uint64 [n], and values float32 [n, 1 + D] as [embed_w, embedx]; embedx is zeros in a row without it."""

    keys: Keys
    values: Vectors


def parse_rows(text: bytes, layout: RowLayout) -> Rows:
    """Return the rows of a text. Keys are exact; a float is the float32 nearest to its text.

    Raises:
        RowsDamaged: naming row and column, if a value is not a finite number, if the number of columns does not match
            the layout, or if the last row lacks its LF and may have been cut off.
    """
    given = np.frombuffer(text, dtype=np.uint8)
    ends = np.flatnonzero(given == ord("\n")).astype(np.int64, copy=False)
    if len(given) and given[-1] != ord("\n"):
        raise RowsDamaged(len(ends) + 1, "it has no line end, so it may be cut off; save the table again.")
    keys = np.empty(len(ends), dtype=np.uint64)
    values = np.zeros((len(ends), 1 + layout.dim), dtype=np.float32)
    columns = np.array([layout.embed_w, layout.embedx, layout.dim, layout.short, layout.full], dtype=np.int64)
    hard = np.empty((max(1 << 14, 1 + layout.dim), 4), dtype=np.int64)
    counts = np.zeros(2, dtype=np.int64)
    while counts[_ROWS] < len(ends):
        if not read_rows(given, ends, columns, keys, values, hard, counts):
            row = int(counts[_ROWS])
            start = int(ends[row - 1]) + 1 if row else 0
            raise RowsDamaged(row + 1, _why(bytes(text[start : int(ends[row])]), layout))
        for row, place, start, end in hard[: counts[_HARD]].tolist():
            values[row, place] = nearest_float32(bytes(text[start:end]).decode("ascii"))
            if not np.isfinite(values[row, place]):
                column = layout.embedx + place if place else layout.embed_w + 1
                raise RowsDamaged(row + 1, f"column {column} is too large for a float32; {DIVERGED}")
    return Rows(keys, values)


def row_keys(text: bytes) -> tuple[Keys, Longs]:
    """Return the keys uint64 [n] of rows, and the positions int64 [n] of their line ends. Raises RowsDamaged."""
    given = np.frombuffer(text, dtype=np.uint8)
    ends = np.flatnonzero(given == ord("\n")).astype(np.int64, copy=False)
    if len(given) and given[-1] != ord("\n"):
        raise RowsDamaged(len(ends) + 1, "it has no line end, so it may be cut off; save the table again.")
    keys = np.empty(len(ends), dtype=np.uint64)
    wrong = _keys_of_rows(given, ends, keys)
    if wrong >= 0:
        raise RowsDamaged(
            int(wrong) + 1, "its key is not a decimal number below 2^64; the file is not what Paddle saved."
        )
    return keys, ends


def nearest_float32(token: str) -> np.float32:
    """Return the float32 nearest to a decimal number, ties to even; infinity if it is too large.

    The way through a double could round twice if the number is near the middle of two float32; this function does not.
    """
    wide = float(token)
    with np.errstate(over="ignore"):
        near = np.float32(wide)
        if wide == 0.0 or not np.isfinite(near):
            return near
        around = [near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))]
    exact = Fraction(token)
    finite = [value for value in around if np.isfinite(value)]
    return min(finite, key=lambda value: (abs(Fraction(float(value)) - exact), int(value.view(np.uint32)) & 1))


def _why(row: bytes, layout: RowLayout) -> str:
    tokens = row.split(b" ")
    while tokens and not tokens[-1]:
        tokens.pop()
    # A table without vectors writes garbage in the state columns of embedx.
    checked = layout.full if layout.dim else layout.short
    for column, token in enumerate(tokens[:checked]):
        shown = repr(token[:_LONGEST_NUMBER].decode("ascii", "backslashreplace"))
        if column == 0:
            if not re.fullmatch(rb"\d{1,20}", token) or int(token) >= 1 << 64:
                return f"the key {shown} is not a decimal number below 2^64; the file is not what Paddle saved."
        elif token.lstrip(b"+-").lower() in {b"nan", b"inf", b"infinity"}:
            return f"column {column + 1} is {shown}: {DIVERGED}"
        elif len(token) > _LONGEST_NUMBER or not _NUMBER.fullmatch(token):
            return f"column {column + 1} is {shown}, which is not a number; the file is not what Paddle saved."
    return (
        f"it has {len(tokens)} columns; the rules of the model give {layout.short} without embedx "
        f"and {layout.full} with it: are its rules and dimension those of the table?"
    )


def partition_to_sequence_file(
    source: str | Path, out: str | Path, layout: RowLayout, seed: bytes | str, *, memory_rows: int = MEMORY_ROWS
) -> int:
    """Convert the saved text of a partition to a SequenceFile, sorted by key, which appears whole or not at all.

    Return the number of records. The text is read in blocks; beyond `memory_rows` rows, sorted runs are written beside `out`.

    Args:
        source: the text, compressed if its name ends in .gz or .zst.
        out: the target, replaced if it exists.
        layout: the columns of the text.
        seed: seed of the sync marker; the same rows and seed give the same bytes.
        memory_rows: the most rows in memory.

    Raises:
        RowsDamaged: naming the file, for errors of `parse_rows`, for a duplicate key, and for a damaged compressed
            file.
    """
    out = Path(out)
    runs, part = out.with_name(out.name + ".runs"), out.with_name(out.name + ".part")
    records = 0
    try:
        rows = SortedRows(runs, memory_rows)
        with open_lines(source) as stream:
            for _, block in lines_in_range(stream):
                parsed = parse_rows(block, layout)
                records += len(parsed.keys)
                rows.add(parsed.keys, parsed.values)
        with part.open("wb") as file:
            writer = SequenceFileWriter(file, seed=seed)
            for keys, values in rows.blocks():
                writer.write(keys, values)
        part.replace(out)
    except RowsDamaged as damaged:
        raise RowsDamaged(records + damaged.row, damaged.reason, str(source)) from None
    except (DuplicateKey, DamagedFile) as error:
        raise RowsDamaged(0, str(error), str(source)) from error
    finally:
        part.unlink(missing_ok=True)
        shutil.rmtree(runs, ignore_errors=True)
    return records


_ROWS, _HARD = 0, 1
_ZERO, _NINE, _SPACE, _PLUS, _MINUS, _POINT = 48, 57, 32, 43, 45, 46
_SMALL_E, _LARGE_E = 101, 69
_TEN = np.uint64(10)
_LAST_WHOLE = np.uint64((2**64 - 1) // 10)
_LAST_DIGIT = np.uint64((2**64 - 1) % 10)
_EXACT_MANTISSA = np.uint64(1 << 53)
_EXACT_POWER = 22
_POWERS = 10.0 ** np.arange(_EXACT_POWER + 1)
_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)
_LARGEST = float(np.finfo(np.float32).max)
_BELOW_FLOAT32 = np.uint64((1 << 29) - 1)
_MIDDLE = np.uint64(1 << 28)


@njit(nogil=True, cache=True, inline="always")
def _is_digit(byte: int) -> bool:
    return _ZERO <= byte <= _NINE


@njit(nogil=True, cache=True, inline="always")
def _read_key(text: Bytes, at: int, stop: int) -> tuple[np.uint64, int]:
    """Return the key at text[at:stop] and its end; the end is `at` if there is no number below 2^64."""
    key = np.uint64(0)
    i = at
    while i < stop and _is_digit(text[i]):
        digit = np.uint64(text[i] - _ZERO)
        if i - at == 20 or (key >= _LAST_WHOLE and (key > _LAST_WHOLE or digit > _LAST_DIGIT)):
            return key, at
        key = key * _TEN + digit
        i += 1
    return key, i


@njit(nogil=True, cache=True)
def _keys_of_rows(text: Bytes, ends: Longs, keys: Keys) -> int:
    """Fill `keys`. Return the first row without a key, or -1."""
    start = 0
    for row in range(ends.size):
        keys[row], end = _read_key(text, start, ends[row])
        if end == start:
            return row
        start = ends[row] + 1
    return -1


@njit(nogil=True, cache=True)
def _read_float(text: Bytes, at: int, stop: int) -> tuple[np.uint64, int, bool, bool, int]:
    """Return (mantissa, power of ten, is negative, mantissa has all digits, end) of a number.

    The end is `at` if there is no number.
    """
    i = at
    negative = False
    if i < stop and (text[i] == _MINUS or text[i] == _PLUS):
        negative = text[i] == _MINUS
        i += 1
    mantissa = np.uint64(0)
    power = 0
    digits = 0
    whole = True
    point = False
    while i < stop:
        byte = text[i]
        if _is_digit(byte):
            digits += 1
            if mantissa < _LAST_WHOLE:
                mantissa = mantissa * _TEN + np.uint64(byte - _ZERO)
                if point:
                    power -= 1
            else:
                whole = False
        elif byte == _POINT and not point:
            point = True
        else:
            break
        i += 1
    if digits == 0:
        return mantissa, 0, negative, False, at
    if i < stop and (text[i] == _SMALL_E or text[i] == _LARGE_E):
        i += 1
        below = False
        if i < stop and (text[i] == _MINUS or text[i] == _PLUS):
            below = text[i] == _MINUS
            i += 1
        first = i
        exponent = 0
        while i < stop and _is_digit(text[i]):
            exponent = min(exponent * 10 + (text[i] - _ZERO), 100_000)
            i += 1
        if i == first:
            return mantissa, 0, negative, False, at
        power += -exponent if below else exponent
    return mantissa, power, negative, whole, i


@njit(nogil=True, cache=True)
def read_rows(
    text: Bytes, ends: Longs, columns: Longs, keys: Keys, values: Vectors, hard: Longs, counts: Longs
) -> bool:
    """Read rows from `counts[0]` on until all are done, or `hard` has no room for another. Return False if a row is damaged.

    Args:
        text: the rows.
        ends: the position of each row's LF.
        columns: embed_w, embedx, dim, short, full of the layout.
        keys: output, the key of each row.
        values: zeros; output, embed_w and embedx.
        hard: int64 [m, 4] with m at least 1 + dim; output, (row, index in its value, start, end) of numbers that the
            caller must round exactly.
        counts: the next row, and the number of rows in `hard`.
    """
    embed_w, embedx, dim, short, full = columns[0], columns[1], columns[2], columns[3], columns[4]
    checked = full if dim > 0 else short
    wide = np.empty(1, np.float64)
    bits = wide.view(np.uint64)
    row = counts[_ROWS]
    used = 0
    while row < ends.size and hard.shape[0] - used > dim:
        counts[_ROWS] = row
        at = ends[row - 1] + 1 if row > 0 else 0
        stop = ends[row]
        while stop > at and text[stop - 1] == _SPACE:
            stop -= 1
        key, end = _read_key(text, at, stop)
        if end == at:
            return False
        keys[row] = key
        column = 1
        at = end
        while at < stop:
            if text[at] != _SPACE or column >= full:
                return False
            at += 1
            if column >= checked:
                while at < stop and text[at] != _SPACE:
                    at += 1
                column += 1
                continue
            mantissa, power, negative, whole, end = _read_float(text, at, stop)
            if end == at or end - at > _LONGEST_NUMBER:
                return False
            place = 0 if column == embed_w else column - embedx + 1 if embedx <= column < embedx + dim else -1
            if place >= 0:
                easy = whole and mantissa <= _EXACT_MANTISSA and -_EXACT_POWER <= power <= _EXACT_POWER
                if mantissa == 0 and whole:
                    wide[0] = 0.0
                    easy = True
                elif easy:
                    # Both operands are exact, so the single operation rounds to the nearest double.
                    wide[0] = float(mantissa) / _POWERS[-power] if power < 0 else float(mantissa) * _POWERS[power]
                    easy = _SMALLEST_NORMAL <= wide[0] <= _LARGEST and (bits[0] & _BELOW_FLOAT32) != _MIDDLE
                if easy:
                    values[row, place] = -wide[0] if negative else wide[0]
                else:
                    hard[used, 0] = row
                    hard[used, 1] = place
                    hard[used, 2] = at
                    hard[used, 3] = end
                    used += 1
            column += 1
            at = end
        if column not in (short, full):
            return False
        row += 1
    counts[_ROWS] = row
    counts[_HARD] = used
    return True
