"""Checks of UTF-8, and decimal numbers as float64, correctly rounded, in machine code.

Two exact float64 give a correctly rounded product or quotient; other numbers take the algorithm of Eisel and Lemire (D. Lemire,
"Number parsing at a gigabyte per second", 2021): the decimal mantissa times a power of five of 128 bits. These decide all but a few
numbers, which the caller must read in another way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from elastic_ctr.machine_code.compiled import compiled
from elastic_ctr.machine_code.intrinsics import float_of_bits, high64, leading_zeros


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


MOST_DIGITS = 19
"""Significant digits that fit into a u64, whatever they are."""

_EXACT = np.uint64(1 << 53)
_POWERS = np.array([10.0**power for power in range(23)])  # exact as float64
_MOST_EXACT = 22
# With a mantissa of 19 digits no number between these powers is too small or too large for a normal float64.
_LEAST, _MOST = -300, 288


def _power_of_five(power: int) -> int:
    """Return the 128 highest bits of 5^power, truncated; rounded up for a fraction whose divisor fits into 64 bits, as in the paper."""
    if power >= 0:
        exact: int = 5**power
        bits = exact.bit_length()
        return exact << (128 - bits) if bits <= 128 else exact >> (bits - 128)
    divisor: int = 5**-power
    if power >= -27:
        return (1 << (divisor.bit_length() + 127)) // divisor + 1
    found = (1 << (2 * divisor.bit_length() + 128)) // divisor + 1
    return found >> (found.bit_length() - 128)


_FIVES = [_power_of_five(power) for power in range(_LEAST, _MOST + 1)]
_HIGH = np.array([five >> 64 for five in _FIVES], np.uint64)
_LOW = np.array([five & (2**64 - 1) for five in _FIVES], np.uint64)
_0, _1, _3, _6, _9, _52, _63 = (np.uint64(number) for number in (0, 1, 3, 6, 9, 52, 63))
_ONES = np.uint64(2**64 - 1)
_BELOW_PRECISION = np.uint64((1 << 9) - 1)
_HIDDEN = np.uint64(1 << 52)


@compiled
def nearest_float(mantissa: Any, power: Any) -> Any:
    """Return (the float64 nearest to mantissa u64 times 10^power, True), or (0.0, False) if this algorithm cannot decide it.

    The mantissa must have at most 19 digits; infinite and very small numbers are not decided.
    """
    if power == 0 or mantissa == _0:
        return np.float64(mantissa), True
    if mantissa <= _EXACT and -_MOST_EXACT <= power <= _MOST_EXACT:
        value = np.float64(mantissa)
        return (value * _POWERS[power] if power > 0 else value / _POWERS[-power]), True
    if power < _LEAST or power > _MOST:
        return 0.0, False
    zeros = leading_zeros(mantissa)
    shifted = mantissa << zeros
    high, low = high64(shifted, _HIGH[power - _LEAST]), shifted * _HIGH[power - _LEAST]
    if high & _BELOW_PRECISION == _BELOW_PRECISION:
        more = high64(shifted, _LOW[power - _LEAST])
        low += more
        if low < more:
            high += _1
    if low == _ONES and (power < -27 or power > 55):
        return 0.0, False
    upper = high >> _63
    found = high >> (upper + _9)
    binary = ((217706 * power) >> 16) + 63 + np.int64(upper) - np.int64(zeros) + 1023
    # Exactly in the middle between two floats, the even one is the result.
    if low <= _1 and -4 <= power <= 23 and found & _3 == _1 and found << (upper + _9) == high:
        found &= ~_1
    found = (found + (found & _1)) >> _1
    if found >> _52 > _1:
        found >>= _1
        binary += 1
    return float_of_bits((found & ~_HIDDEN) | (np.uint64(binary) << _52)), True
