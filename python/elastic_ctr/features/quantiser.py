"""The stored formats of a key's values: `float32` unchanged, `float16` as IEEE halves, `int8` as bytes with a scale.

    float32   dim x f32
    float16   dim x f16: round to nearest, ties to even; beyond ±65504 it is ±65504
    int8      scale f32 | column 0 f16 | (dim - 1) x i8: round-half-even(value / scale), -127 to 127

A lookup returns float32 again, exactly the stored number: a half, or byte x scale. Builder, lookup and the trainer that
scores a version must agree on it bit by bit, so it is defined here. The error bounds for finite values:

    float16, and column 0 of int8   |error| <= max(|value| / 2^11, 2^-25); beyond ±65504 |value| - 65504
    the other columns of int8       |error| <= scale / 2

Column 0 is the first-order weight. It has its own learning rule, so its magnitude is independent of the vector's: on Avazu it is 70
times as large for every tenth key. With one scale for both, most of such a vector would be 0, and scores changed ten times as much
(docs/decisions/0012-quantised-values.md). A half keeps 11 bits of it in 2 bytes. As float32 it would cost 2 bytes more: a record of 17
values would be 32 bytes, 0.404 of a float32 record (index included) instead of 0.379.

`scale` is the smallest float32 of 17 significant bits that is not below max|value| / 127. With these, byte x scale has at most 24
bits and is exact in float32: with or without fused instructions, every machine computes the same. (127 x scale must be a float32, too:
within 2^-16 of the largest float32, scale is the largest that allows it.) A row of zeros has scale 0. If a row's vector has a NaN or an
infinity, its scale and so all its values are NaN: damage must not look like an answer. Zero stays zero; int8 returns -0.0 as 0.0.
"""

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.formats.value_kind import ValueKind

Values = NDArray[np.float32]
Stored = NDArray[np.uint8]

LARGEST_HALF = 65504.0
LARGEST_BYTE = 127
SCALE_BITS = 17
# Offsets of column 0 and of the vector's bytes in an int8 row, which begins with the scale.
FIRST_AT, VECTOR_AT = 4, 6


def value_bytes(dim: int, kind: ValueKind) -> int:
    """Return the bytes of the stored values of one key."""
    return {"float32": 4 * dim, "float16": 2 * dim, "int8": VECTOR_AT + dim - 1}[kind]


def encode(values: Values, kind: ValueKind) -> Stored:
    """Return stored rows u8[n, value_bytes] of values f32[n, dim]; for float32 a view of contiguous values."""
    n, dim = values.shape
    if kind == "float32":
        return np.ascontiguousarray(values).view(np.uint8).reshape(n, 4 * dim)
    if kind == "float16":
        return _halves(values).view(np.uint8).reshape(n, 2 * dim)
    vector = values[:, 1:].astype(np.float64)
    scales = _scales(np.abs(vector).max(axis=1, initial=0.0))
    # In a row whose scale is 0 or NaN the bytes are 0.
    sound = scales > 0
    vector[~sound] = 0
    steps = vector / np.where(sound, scales, 1.0)[:, None]
    rows = np.empty((n, value_bytes(dim, kind)), np.uint8)
    rows[:, :FIRST_AT] = scales.astype(np.float32).view(np.uint8).reshape(n, 4)
    rows[:, FIRST_AT:VECTOR_AT] = _halves(values[:, :1]).view(np.uint8)
    rows[:, VECTOR_AT:] = np.rint(steps).astype(np.int8).view(np.uint8)
    return rows


def decode(stored: Stored, dim: int, kind: ValueKind) -> Values:
    """Return values f32[n, dim] of stored rows u8[n, value_bytes]; for float32 a view if possible."""
    if kind == "float32":
        return stored.view(np.float32)
    if kind == "float16":
        return stored.view(np.float16).astype(np.float32)
    values = np.empty((len(stored), dim), np.float32)
    scales = np.ascontiguousarray(stored[:, :FIRST_AT]).view(np.float32)
    values[:, :1] = np.ascontiguousarray(stored[:, FIRST_AT:VECTOR_AT]).view(np.float16)
    values[:, 1:] = stored[:, VECTOR_AT:].view(np.int8) * scales
    return values


def quantised(values: Values, kind: ValueKind) -> Values:
    """Return the values f32[n, dim] that a dictionary of that kind returns for these."""
    return decode(encode(values, kind), values.shape[1], kind)


def _halves(values: Values) -> NDArray[np.float16]:
    return np.clip(values, -LARGEST_HALF, LARGEST_HALF).astype(np.float16)


def _scales(largest: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the scale of each row by its largest |value|, NaN if that is not finite."""
    least = largest / LARGEST_BYTE
    _, exponents = np.frexp(least)
    # The unit in the last of the 17 bits, but at least the smallest subnormal float32.
    unit = np.ldexp(1.0, np.maximum(exponents - SCALE_BITS, -149))
    steps = np.ceil(least / unit)
    steps -= LARGEST_BYTE * steps * unit > np.finfo(np.float32).max
    return np.where(np.isfinite(largest), steps * unit, np.nan)
