"""The keys of the records that a task has trained: what a stream's delta publishes, so that no save walks the table."""

from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.machine_code.compiled import compiled

Keys = npt.NDArray[np.uint64]

_SPACE, _ZERO, _NINE = 32, 48, 57
# Show and click, each behind its number of values.
_LABEL_TOKENS = 4


def touched_keys(text: npt.NDArray[np.uint8], slots: int, *, numbers: bool) -> Keys:
    """Sorted unique keys of a converted text, without the padding key. features/record_text.py has the format.

    Args:
        text: u8[n], lines of the engine's input.
        slots: groups of keys a line.
        numbers: whether a group of numbers stands before them.
    """
    room = np.empty(int(np.count_nonzero(text == _SPACE)) + 1, np.uint64)
    found = _keys_in(text, np.int64(slots), np.int64(numbers), room)
    keys: Keys = np.unique(room[:found])
    return keys[1:] if len(keys) and keys[0] == 0 else keys


@compiled
def _skip(text: Any, at: Any) -> Any:
    """Behind the token that begins at `at`, and the blank or line end after it."""
    while at < text.size and text[at] > _SPACE:
        at += 1
    return at + 1


@compiled
def _keys_in(text: Any, slots: Any, numbers: Any, keys: Any) -> Any:
    at = found = np.int64(0)
    while at < text.size:
        for _ in range(_LABEL_TOKENS):
            at = _skip(text, at)
        for group in range(-numbers, slots):
            count = np.int64(0)
            while at < text.size and _ZERO <= text[at] <= _NINE:
                count = count * 10 + (text[at] - _ZERO)
                at += 1
            at += 1
            for _ in range(count):
                if group < 0:
                    at = _skip(text, at)
                    continue
                key = np.uint64(0)
                while at < text.size and _ZERO <= text[at] <= _NINE:
                    key = key * np.uint64(10) + np.uint64(text[at] - _ZERO)
                    at += 1
                at += 1
                if found < keys.size:
                    keys[found] = key
                    found += 1
    return found
