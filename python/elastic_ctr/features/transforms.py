"""The transforms of features: pure functions over arrays, the same for a trainer's batches and a serving's rounds.

Numbers are float64; keys are u64. `config.features` names each transform as the values file does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.features.keys import PADDING_KEY, Keys
from elastic_ctr.features.xxh3 import Bytes, Offsets, hashes_of
from elastic_ctr.machine_code.compiled import compiled

Numbers = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_AFTER_PADDING = np.uint64(PADDING_KEY + 1)
_EXACT = 2.0**53
_MOST_DIGITS = 20  # of an i64, with its sign
_SPACE, _MINUS, _ZERO, _UPPER_A, _UPPER_Z, _LOWER_A, _LOWER_Z, _NINE, _ASCII = 32, 45, 48, 65, 90, 97, 122, 57, 128
_TO_LOWER = 32


@dataclass(frozen=True, slots=True)
class Texts:
    """n texts: text i is the UTF-8 `data[offsets[i]:offsets[i + 1]]`; data is u8, offsets is i64[n + 1]."""

    data: Bytes
    offsets: Offsets

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> Texts:
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(text) for text in texts], out=offsets[1:])
        return cls(np.frombuffer(b"".join(texts), np.uint8), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True, slots=True)
class KeysOfRows:
    """The keys of n rows: those of row i are `keys[offsets[i]:offsets[i + 1]]`; keys is u64, offsets is i64[n + 1]."""

    keys: Keys
    offsets: Offsets


def log1p(x: Numbers) -> Numbers:
    """sign(x) ln(1 + |x|): ln(1 + x) for x >= 0, and defined for negative numbers, too."""
    return np.copysign(np.log1p(np.abs(x)), x)


def standardize(x: Numbers, mean: float, deviation: float) -> Numbers:
    """(x - mean) / deviation, as Keras' Normalization; zeros where the deviation is 0."""
    return (x - mean) / deviation if deviation > 0 else np.zeros_like(x)


def min_max(x: Numbers, least: float, most: float) -> Numbers:
    """(x - least) / (most - least), as scikit-learn's MinMaxScaler; zeros where both are the same."""
    return (x - least) / (most - least) if most > least else np.zeros_like(x)


def clip(x: Numbers, low: float, high: float) -> Numbers:
    """min(max(x, low), high)"""
    return np.clip(x, low, high)


def rounded(x: Numbers, digits: int) -> Numbers:
    """To so many decimal digits, halves to the even one, as numpy's `round`; -0.0 becomes 0.0."""
    # numpy multiplies by a power of ten, which makes a large number infinite; above 2^53 there are no digits to round.
    whole = np.abs(x) >= _EXACT
    return np.where(whole, x, np.round(np.where(whole, 0.0, x), digits)) + 0.0


def keys_of_texts(name: str, texts: Texts) -> Keys:
    """The key of each value of a feature: XXH3's 64 bits of the feature's name, a byte 0 and the text; 0 becomes 1.

    The same text has another key in another feature. The padding key, 0, stands for no value.
    """
    return np.maximum(hashes_of(name.encode() + b"\0", texts.data, texts.offsets), _AFTER_PADDING)


def keys_of_numbers(name: str, numbers: Integers) -> Keys:
    """The keys of whole numbers: those of their decimal texts, so 7 and "7" are one value."""
    return keys_of_texts(name, decimals(numbers))


def key_of_others(name: str) -> np.uint64:
    """The one key of all values outside a vocabulary: that of the empty text, which is no value itself."""
    return np.uint64(keys_of_texts(name, Texts.of([b""]))[0])


def in_vocabulary(keys: Keys, vocabulary: Keys, others: np.uint64) -> Keys:
    """Each key that `vocabulary` (u64, sorted) has; `others` in place of each other key."""
    if not len(vocabulary):
        return np.full_like(keys, others)
    places = np.minimum(np.searchsorted(vocabulary, keys), len(vocabulary) - 1)
    return np.where(vocabulary[places] == keys, keys, others)


def hashed(name: str, keys: Keys, buckets: int) -> Keys:
    """At most `buckets` keys for all values: bucket = key mod buckets, and the key of that number, as Keras' Hashing."""
    return keys_of_numbers(name, (keys % np.uint64(buckets)).astype(np.int64))


def buckets_of(x: Numbers, boundaries: Numbers) -> Integers:
    """How many of the rising boundaries are <= x: bucket i is [boundaries[i - 1], boundaries[i]), as Keras' Discretization."""
    return np.searchsorted(boundaries, x, side="right").astype(np.int64)


def crossed(name: str, parts: Sequence[KeysOfRows]) -> KeysOfRows:
    """Every combination of a row's keys, one of each part in turn; none in a row where a part has none.

    A combination's text is the keys of its parts, eight bytes each, little-endian.
    """
    first, *rest = parts
    offsets = first.offsets
    columns = [first.keys]
    for part in rest:
        left, right = np.diff(offsets), np.diff(part.offsets)
        counts = left * right
        ends = np.append(0, np.cumsum(counts))
        row = np.repeat(np.arange(len(counts)), counts)
        within, of_part = np.divmod(np.arange(ends[-1]) - ends[row], right[row])
        columns = [column[offsets[row] + within] for column in columns]
        columns.append(part.keys[part.offsets[row] + of_part])
        offsets = ends
    texts = np.ascontiguousarray(np.stack(columns, axis=1), dtype="<u8").view(np.uint8).reshape(-1)
    places = np.arange(len(columns[0]) + 1, dtype=np.int64) * (8 * len(parts))
    return KeysOfRows(keys_of_texts(name, Texts(texts, places)), offsets.astype(np.int64))


@compiled
def _write_decimals(numbers: Any, data: Any, offsets: Any) -> None:
    at = 0
    for place in range(numbers.size):
        number = numbers[place]
        # The magnitude of the lowest i64 is none itself.
        rest = np.uint64(number)
        if number < 0:
            data[at] = _MINUS
            at += 1
            rest = np.uint64(0) - rest
        digits = 1
        more = rest // np.uint64(10)
        while more > 0:
            digits += 1
            more //= np.uint64(10)
        at += digits
        for back in range(digits):
            data[at - 1 - back] = np.uint8(_ZERO + np.int64(rest % np.uint64(10)))
            rest //= np.uint64(10)
        offsets[place + 1] = at


def decimals(numbers: Integers) -> Texts:
    """The decimal text of each number."""
    data = np.empty(_MOST_DIGITS * len(numbers), np.uint8)
    offsets = np.zeros(len(numbers) + 1, np.int64)
    _write_decimals(np.ascontiguousarray(numbers), data, offsets)
    return Texts(data[: offsets[-1]], offsets)


@compiled
def _is_of_word(byte: Any) -> Any:
    digit, small = _ZERO <= byte <= _NINE, _LOWER_A <= byte <= _LOWER_Z
    return digit or small or _UPPER_A <= byte <= _UPPER_Z or byte >= _ASCII


@compiled
def _write_words(data: Any, offsets: Any, out: Any, ends: Any, words_of: Any) -> Any:
    """Returns how many words there are; the bytes of word i end at ends[i + 1]; row i has the words below words_of[i + 1]."""
    words = at = 0
    for row in range(offsets.size - 1):
        inside = False
        for place in range(offsets[row], offsets[row + 1]):
            byte = data[place]
            if _is_of_word(byte):
                out[at] = byte + _TO_LOWER if _UPPER_A <= byte <= _UPPER_Z else byte
                at += 1
                inside = True
            elif inside:
                words += 1
                ends[words] = at
                inside = False
        if inside:
            words += 1
            ends[words] = at
        words_of[row + 1] = words
    return words


def words(texts: Texts) -> tuple[Texts, Offsets]:
    """The words of each text, and i64[n + 1] where those of text i begin and end.

    A word is a run of letters and digits of ASCII, in small letters, and of bytes above it, as they are: no language is assumed.
    """
    out = np.empty(texts.data.size, np.uint8)
    ends = np.zeros(texts.data.size // 2 + len(texts) + 2, np.int64)
    words_of = np.zeros(len(texts) + 1, np.int64)
    count = _write_words(np.ascontiguousarray(texts.data), np.ascontiguousarray(texts.offsets), out, ends, words_of)
    return Texts(out[: ends[count]], ends[: count + 1].copy()), words_of


@compiled
def _write_ngrams(
    data: Any, ends: Any, words_of: Any, least: Any, most: Any, out: Any, out_ends: Any, grams_of: Any
) -> Any:
    """Returns how many n-grams there are, and their bytes. With an empty `out` they are counted and not written."""
    grams = at = 0
    for row in range(words_of.size - 1):
        for first in range(words_of[row], words_of[row + 1]):
            for n in range(least, most + 1):
                if first + n > words_of[row + 1]:
                    break
                for word in range(first, first + n):
                    if word > first:
                        if out.size:
                            out[at] = _SPACE
                        at += 1
                    for place in range(ends[word], ends[word + 1]):
                        if out.size:
                            out[at] = data[place]
                        at += 1
                grams += 1
                if out.size:
                    out_ends[grams] = at
        grams_of[row + 1] = grams
    return grams, at


def ngrams(tokens: Texts, words_of: Offsets, least: int, most: int) -> tuple[Texts, Offsets]:
    """The runs of `least` to `most` words of each row, joined by a blank, and i64[n + 1] where those of row i begin and end."""
    rows = np.zeros(len(words_of), np.int64)
    nothing, no_ends = np.empty(0, np.uint8), np.zeros(1, np.int64)
    data, ends = np.ascontiguousarray(tokens.data), np.ascontiguousarray(tokens.offsets)
    grams, size = _write_ngrams(data, ends, words_of, least, most, nothing, no_ends, rows)
    out, out_ends = np.empty(size, np.uint8), np.zeros(grams + 1, np.int64)
    if size:
        _write_ngrams(data, ends, words_of, least, most, out, out_ends, rows)
    return Texts(out, out_ends), rows
