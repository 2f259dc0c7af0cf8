"""The check of UTF-8, in machine code."""

from __future__ import annotations

from typing import Any

from elastic_ctr.machine_code.compiled import compiled


@compiled
def _continues(data: Any, at: Any, end: Any, low: Any, high: Any) -> Any:
    return at < end and low <= data[at] <= high


@compiled
def is_utf8(data: Any, at: Any, end: Any) -> Any:
    """True for UTF-8 by table 3-7 of the Unicode Standard: nothing overlong, no surrogate, nothing above U+10FFFF."""
    while at < end:
        byte = data[at]
        at += 1
        if byte < 0x80:
            continue
        if byte < 0xC2 or byte > 0xF4:
            return False
        if byte >= 0xE0:
            low = 0xA0 if byte == 0xE0 else 0x90 if byte == 0xF0 else 0x80
            high = 0x9F if byte == 0xED else 0x8F if byte == 0xF4 else 0xBF
            if not _continues(data, at, end, low, high):
                return False
            at += 1
            if byte >= 0xF0:
                if not _continues(data, at, end, 0x80, 0xBF):
                    return False
                at += 1
        if not _continues(data, at, end, 0x80, 0xBF):
            return False
        at += 1
    return True
