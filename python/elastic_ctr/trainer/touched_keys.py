"""The keys of the records that a task has trained: what a stream's delta publishes, so that no save walks the table; and their
shows and clicks, as Paddle adds them to the rows.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.machine_code.compiled import compiled

Keys = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.float32]

_NEWLINE, _SPACE, _ZERO, _NINE = 10, 32, 48, 57
_NO_LENGTHS = np.zeros(0, np.int64)


def touched_keys(text: npt.NDArray[np.uint8], slots: int, *, numbers: bool) -> tuple[Keys, Counts]:
    """Sorted unique keys u64[n] of a converted text, without the padding key, and f32[n, 2]: the shows and clicks of the records that
    have them, once for each time that a record has a key. features/record_text.py has the format.

    Args:
        text: u8[n], lines of the engine's input.
        slots: groups of keys a line.
        numbers: whether a group of numbers stands before them.
    """
    room = int(np.count_nonzero(text == _SPACE)) + 1
    keys, shows, clicks = np.empty(room, np.uint64), np.empty(room, np.int64), np.empty(room, np.int64)
    found = _keys_in(text, np.int64(slots), np.int64(numbers), keys, shows, clicks, _NO_LENGTHS)
    unique, places = np.unique(keys[:found], return_inverse=True)
    counts = np.stack([np.bincount(places, each[:found], len(unique)) for each in (shows, clicks)], axis=1)
    first = int(len(unique) > 0 and unique[0] == 0)
    return unique[first:], counts[first:].astype(np.float32)


def keys_by_slot(text: npt.NDArray[np.uint8], slots: int) -> tuple[Keys, npt.NDArray[np.int64]]:
    """All keys of a converted text in their order, with the padding key, and i64[lines * slots]: how many each slot has."""
    room = int(np.count_nonzero(text == _SPACE)) + 1
    keys, shows, clicks = np.empty(room, np.uint64), np.empty(room, np.int64), np.empty(room, np.int64)
    lengths = np.zeros(int(np.count_nonzero(text == _NEWLINE)) * slots, np.int64)
    found = _keys_in(text, np.int64(slots), np.int64(0), keys, shows, clicks, lengths)
    return keys[:found], lengths


@compiled
def _skip(text: Any, at: Any) -> Any:
    """Behind the token that begins at `at`, and the blank or line end after it."""
    while at < text.size and text[at] > _SPACE:
        at += 1
    return at + 1


@compiled
def _keys_in(text: Any, slots: Any, numbers: Any, keys: Any, shows: Any, clicks: Any, lengths: Any) -> Any:
    at = found = place = np.int64(0)
    while at < text.size:
        show = click = np.int64(0)
        # Each behind its number of values.
        for _ in range(2):
            at = _skip(text, at)
            show, click = click, np.int64(0)
            while at < text.size and _ZERO <= text[at] <= _NINE:
                click = click * 10 + np.int64(text[at] - _ZERO)
                at += 1
            at = _skip(text, at)
        for group in range(-numbers, slots):
            count = np.int64(0)
            while at < text.size and _ZERO <= text[at] <= _NINE:
                count = count * 10 + np.int64(text[at] - _ZERO)
                at += 1
            at += 1
            if group >= 0 and place < lengths.size:
                lengths[place] = count
                place += 1
            for _ in range(count):
                if at >= text.size:
                    break
                if group < 0:
                    at = _skip(text, at)
                    continue
                key = np.uint64(0)
                while at < text.size and _ZERO <= text[at] <= _NINE:
                    key = key * np.uint64(10) + np.uint64(text[at] - _ZERO)
                    at += 1
                at += 1
                if found < keys.size:
                    keys[found], shows[found], clicks[found] = key, show, click
                    found += 1
    return found
