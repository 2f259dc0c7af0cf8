"""The engine's text of a block of lines back to arrays, so that scoring reads exactly the records that trainers get."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.keys import Keys
from elastic_ctr.machine_code.compiled import compiled, compiled_inline

Integers = npt.NDArray[np.int64]

_ZERO = ord("0")
_BLANK = ord(" ")


class RecordArrays(NamedTuple):
    """n records: u64 keys by record, then by slot; i64 [n * slots] the number of keys of each; i64 [n] shows and clicks.

    A slot without keys has the padding key.
    """

    keys: Keys
    lengths: Integers
    shows: Integers
    clicks: Integers


def record_arrays(text: bytes, records: int, slots: int, *, numbers: bool = False) -> RecordArrays:
    """Return the arrays of `records` lines `1 show 1 click n key … n key …`, as `Converter` writes them. `numbers`: skip a group of
    numbers before the keys, as record_text.py writes it.
    """
    keys = np.empty(len(text) // 2 + 1, np.uint64)
    lengths, counts = np.empty(records * slots, np.int64), np.empty((2, records), np.int64)
    found = _read(np.frombuffer(text, np.uint8), slots, numbers, keys, lengths, counts)
    return RecordArrays(keys[:found], lengths, counts[0], counts[1])


@compiled_inline
def _number(text: Any, at: Any) -> Any:
    """Return a number, and the offset after the sign that ends it."""
    found = np.uint64(0)
    while at < text.size:
        digit = text[at]
        at += 1
        if digit < _ZERO:
            break
        found = found * np.uint64(10) + np.uint64(digit - _ZERO)
    return found, at


@compiled
def _read(text: Any, slots: Any, numbers: Any, keys: Any, lengths: Any, counts: Any) -> Any:
    """Fill the arrays. Return the number of keys."""
    at = np.int64(0)
    key = np.int64(0)
    for record in range(counts.shape[1]):
        for place in range(2):
            _, at = _number(text, at)
            count, at = _number(text, at)
            counts[place, record] = np.int64(count)
        if numbers:
            length, at = _number(text, at)
            for _ in range(np.int64(length)):
                while text[at] > _BLANK:
                    at += 1
                at += 1
        for slot in range(slots):
            length, at = _number(text, at)
            lengths[record * slots + slot] = np.int64(length)
            for _ in range(np.int64(length)):
                keys[key], at = _number(text, at)
                key += 1
    return key
