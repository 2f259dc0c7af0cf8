"""Cells whose text is one of some words, in machine code: see `missing_words`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from elastic_ctr.machine_code.compiled import compiled, compiled_inline


class WordTable(NamedTuple):
    """Words as arrays: word i is `data[ends[i]:ends[i + 1]]`, with at most `longest` bytes."""

    data: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int64]
    longest: int


@lru_cache(maxsize=16)
def word_table(words: tuple[str, ...]) -> WordTable:
    encoded = [word.encode() for word in words]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return WordTable(np.frombuffer(bytearray(b"".join(encoded)), np.uint8), ends, max(map(len, encoded), default=0))


@compiled_inline
def _is_word(data: Any, begin: Any, end: Any, words: Any) -> Any:
    for word in range(words.ends.size - 1):
        first = words.ends[word]
        if words.ends[word + 1] - first == end - begin:
            same = True
            for place in range(end - begin):
                if data[begin + place] != words.data[first + place]:
                    same = False
                    break
            if same:
                return True
    return False


@compiled
def empty_texts(data: Any, begins: Any, ends: Any, words: Any) -> None:
    """Make each text empty that is a word of a WordTable."""
    for row in range(begins.shape[0]):
        for place in range(begins.shape[1]):
            size = ends[row, place] - begins[row, place]
            if 0 < size <= words.longest and _is_word(data, begins[row, place], ends[row, place], words):
                ends[row, place] = begins[row, place]


@compiled
def accept_numbers(data: Any, spans: Any, cells: Any, words: Any, bad: Any, fine: Any) -> None:
    """Give the code `fine` to each cell with the code `bad` whose text is a word; its number is NaN already.

    Args:
        data: u8
        spans: i64[rows, numbers, 2], begin and end of each text in data.
        cells: u8[rows, numbers], their codes.
        words: a WordTable.
        bad: the code of a text that is no number.
        fine: the code of a number, and of a missing one.
    """
    for row in range(cells.shape[0]):
        for place in range(cells.shape[1]):
            if cells[row, place] == bad and _is_word(data, spans[row, place, 0], spans[row, place, 1], words):
                cells[row, place] = fine
