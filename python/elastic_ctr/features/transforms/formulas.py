"""The transforms of features: pure functions of a cell, compiled into the one loop over rows in `transformer`.

`config.features` names each transform as in the values file. Numbers are float64, keys u64, whole numbers i64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.features.transforms.xxh3 import Offsets, hashes_of
from elastic_ctr.formats.keys import PADDING_KEY, Keys
from elastic_ctr.formats.line import FEASIGN_LIMIT
from elastic_ctr.machine_code.compiled import bounds_checked, compiled
from elastic_ctr.machine_code.intrinsics import store_u64, trailing_zeros

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Texts:
    """n texts: text i is the UTF-8 `data[offsets[i]:offsets[i + 1]]`; data is u8, offsets is i64[n + 1]."""

    data: Bytes
    offsets: Offsets

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> Texts:
        offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        return cls(np.frombuffer(b"".join(texts), np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1


MOST_DIGITS = 20
"""Of the decimals of an i64, with its sign."""

_LEAST_KEY, _NO_KEY = np.uint64(PADDING_KEY + 1), np.uint64(FEASIGN_LIMIT)
_EXACT = 2.0**53
_LARGEST = float(np.finfo(np.float32).max)
_FINITE = float(np.finfo(np.float64).max)
_WHOLE_LIMIT = 2.0**63 - 1024
_SPACE, _MINUS, _ZERO, _UPPER_A, _UPPER_Z, _LOWER_A, _LOWER_Z, _NINE, _ASCII = 32, 45, 48, 65, 90, 97, 122, 57, 128
_TO_LOWER = 32
_TEN, _TEN_THOUSAND, _HUNDRED_MILLION, _8, _32 = (np.uint64(number) for number in (10, 10**4, 10**8, 8, 32))
_LONGEST = np.uint64(10**19)  # and above: of MOST_DIGITS
_ZEROS = np.uint64(0x3030303030303030)
_CHECKED = bounds_checked()
# Most counts are small whole numbers, for which a table is several times as fast as computing.
_LOGARITHMS = np.array([math.log1p(count) for count in range(1024)])


# -- numbers


@compiled
def log1p(x: Any) -> Any:
    """Return sign(x) ln(1 + |x|): ln(1 + x) for x >= 0, and defined for negative numbers, too."""
    size = abs(x)
    if size < _LOGARITHMS.size and size == np.int64(size):
        return math.copysign(_LOGARITHMS[np.int64(size)], x)
    return math.copysign(math.log1p(size), x)


@compiled
def _quotient(x: Any, origin: Any, unit: Any, factor: Any) -> Any:
    """Return (x - origin) / unit times a factor up to 1, for finite numbers; the largest number instead of an infinity."""
    difference = x - origin
    if abs(difference) <= _FINITE:
        return clip(difference / unit * factor, -_FINITE, _FINITE)
    # Subtract halves, because the difference of two floats may be infinite.
    return clip((x / 2 - origin / 2) / unit * (2 * factor), -_FINITE, _FINITE)


@compiled
def standardize(x: Any, mean: Any, deviation: Any) -> Any:
    """Return (x - mean) / deviation, as Keras' Normalization; 0 if the deviation is 0, and always finite."""
    return _quotient(x, mean, deviation, 1.0) if deviation > 0 else 0.0


@compiled
def min_max(x: Any, least: Any, most: Any) -> Any:
    """Return (x - least) / (most - least), as scikit-learn's MinMaxScaler; 0 if both are the same, and always finite."""
    if most <= least:
        return 0.0
    span = most - least
    return _quotient(x, least, span, 1.0) if span <= _FINITE else _quotient(x, least, most / 2 - least / 2, 0.5)


@compiled
def clip(x: Any, low: Any, high: Any) -> Any:
    """Return min(max(x, low), high)."""
    return min(max(x, low), high)


@compiled
def rounded(x: Any, digits: Any) -> Any:
    """Round to `digits` decimal digits, halves to even, as numpy's `round`; -0.0 becomes 0.0."""
    # Above 2^53 there are no digits to round, and the power of ten could make it infinite.
    if abs(x) >= _EXACT:
        return x
    power = 10.0**digits
    return np.rint(x * power) / power + 0.0


@compiled
def whole(x: Any, digits: Any) -> Any:
    """Return x in units of 10^-digits, rounded to the nearest i64, halves to even; larger values become the largest i64."""
    return np.int64(clip(np.rint(x * 10.0**digits), -_WHOLE_LIMIT, _WHOLE_LIMIT))


@compiled
def to_float32(x: Any) -> Any:
    """Round to the nearest float32; larger numbers become the largest float32."""
    return np.float32(clip(x, -_LARGEST, _LARGEST))


@compiled
def bucket_of(x: Any, boundaries: Any, first: Any, last: Any) -> Any:
    """Count the rising boundaries[first:last] that are <= x: bucket i is [boundary i - 1, boundary i), as Keras' Discretization."""
    low, high = first, last
    while low < high:
        middle = (low + high) // 2
        if boundaries[middle] <= x:
            low = middle + 1
        else:
            high = middle
    return low - first


# -- keys


@compiled
def key_of_hash(found: Any) -> Any:
    """Return the key of a hash: 0, the padding key, becomes 1; the one number that is no feasign becomes the number before it."""
    return min(max(found, _LEAST_KEY), _NO_KEY - _LEAST_KEY)


@compiled
def in_vocabulary(key: Any, vocabulary: Any, first: Any, last: Any, others: Any) -> Any:
    """Return the key if the rising vocabulary[first:last] has it, else `others`."""
    low, high = first, last
    while low < high:
        middle = (low + high) // 2
        if vocabulary[middle] < key:
            low = middle + 1
        else:
            high = middle
    return key if low < last and vocabulary[low] == key else others


def keys_of_texts(name: str, texts: Texts) -> Keys:
    """Return the keys of values of a feature: the 64-bit XXH3 of the feature's name, a byte 0 and the text, made a key.

    The same text has different keys in different features.
    """
    found = hashes_of(name.encode() + b"\0", texts.data, texts.offsets)
    return np.clip(found, _LEAST_KEY, _NO_KEY - _LEAST_KEY)


# -- texts


@compiled
def write_decimals(number: Any, data: Any, at: Any) -> Any:
    """Write the decimal digits of an i64 to data[at:], as `write_digits` does. Return their end."""
    if number >= 0:
        return write_digits(np.uint64(number), data, at)
    data[at] = _MINUS
    # Negate as u64, because the magnitude of the lowest i64 is no i64.
    return write_digits(np.uint64(0) - np.uint64(number), data, at + 1)


@compiled
def _digits_of(number: Any) -> Any:
    """Return the eight decimal digits of a u64 below 10^8, one per byte, the first one lowest, computed together by halves."""
    number = (number // _TEN_THOUSAND) | ((number % _TEN_THOUSAND) << _32)
    high = ((number * np.uint64(10486)) >> np.uint64(20)) & np.uint64(0x0000007F0000007F)  # of 1/100
    number = high | ((number - high * np.uint64(100)) << np.uint64(16))
    high = ((number * np.uint64(103)) >> np.uint64(10)) & np.uint64(0x000F000F000F000F)  # of 1/10
    return high | ((number - high * _TEN) << _8)


@compiled
def _write_first(number: Any, address: Any) -> Any:
    """Write a u64 below 10^8 without leading zeros. Return the address after it."""
    digits = _digits_of(number)
    zeros = min(trailing_zeros(digits) >> np.uint64(3), np.uint64(7))
    store_u64(address, (digits | _ZEROS) >> (zeros * _8))
    return address + _8 - zeros


@compiled
def write_digits(rest: Any, data: Any, at: Any) -> Any:
    """Write the decimal digits of a u64 to data[at:] and return their end. data must have room for MOST_DIGITS from `at`
    on, or for one digit less if the number is below 10^19.
    """
    if _CHECKED and at + (MOST_DIGITS if rest >= _LONGEST else MOST_DIGITS - 1) > data.size:
        raise IndexError("there is no room for a number")
    if rest < _TEN:
        data[at] = _ZERO + np.int64(rest)
        return at + 1
    begin = np.uint64(data.ctypes.data) + np.uint64(at)
    if rest < _HUNDRED_MILLION:
        return at + np.int64(_write_first(rest, begin) - begin)
    high = rest // _HUNDRED_MILLION
    if high < _HUNDRED_MILLION:
        end = _write_first(high, begin)
    else:
        end = _write_first(high // _HUNDRED_MILLION, begin)
        store_u64(end, _digits_of(high % _HUNDRED_MILLION) | _ZEROS)
        end += _8
    store_u64(end, _digits_of(rest % _HUNDRED_MILLION) | _ZEROS)
    return at + np.int64(end + _8 - begin)


@compiled
def _is_of_word(byte: Any) -> Any:
    digit, small = _ZERO <= byte <= _NINE, _LOWER_A <= byte <= _LOWER_Z
    return digit or small or _UPPER_A <= byte <= _UPPER_Z or byte >= _ASCII


@compiled
def write_words(data: Any, begin: Any, end: Any, words: Any, ends: Any) -> Any:
    """Write the words of data[begin:end] to `words`, a blank after each, and their ends to `ends`. Return their number.

    A word is a run of ASCII letters, in lower case, and digits, and of bytes above ASCII, unchanged: no language is assumed. A run
    of words is one slice of `words`, from the first word's begin (one after the previous end) to the last word's end.
    """
    count = at = 0
    inside = False
    for place in range(begin, end):
        byte = data[place]
        if _is_of_word(byte):
            words[at] = byte + _TO_LOWER if _UPPER_A <= byte <= _UPPER_Z else byte
            at += 1
            inside = True
        elif inside:
            ends[count] = at
            words[at] = _SPACE
            at += 1
            count += 1
            inside = False
    if inside:
        ends[count] = at
        count += 1
    return count
