"""Stored rows for parts: the same bytes as `features.quantiser.encode`, in machine code where there is much to compute."""

import math
from typing import Any

import numpy as np

from elastic_ctr.features import quantiser
from elastic_ctr.features.quantiser import FIRST_AT, LARGEST_BYTE, SCALE_BITS, VECTOR_AT, Stored, Values, value_bytes
from elastic_ctr.formats.value_kind import ValueKind
from elastic_ctr.machine_code.compiled import compiled

_BLOCK = 1 << 14  # rows whose copies stay in the cache
_INFINITY = np.float32(math.inf)
_LARGEST_FLOAT = float(np.finfo(np.float32).max)
# Adding and subtracting this rounds to the nearest whole number, ties to even. Not every processor has a rounding instruction.
_ROUNDER = 1.5 * 2.0**52


def stored_rows(values: Values, kind: ValueKind) -> Stored:
    """Return rows u8[n, value_bytes] of values f32[n, dim]."""
    if kind == "float32":
        return quantiser.encode(values, kind)
    n, dim = values.shape
    rows = np.empty((n, value_bytes(dim, kind)), np.uint8)
    for start in range(0, n, _BLOCK):
        block, out = np.ascontiguousarray(values[start : start + _BLOCK]), rows[start : start + _BLOCK]
        if kind != "int8":
            out[:] = quantiser.encode(block, kind)
            continue
        out[:, FIRST_AT:VECTOR_AT] = quantiser.encode(block[:, :1], "float16")
        scales = np.empty(len(block), np.float32)
        _put_steps(block, scales, out.view(np.int8)[:, VECTOR_AT:])
        out[:, :FIRST_AT] = scales.view(np.uint8).reshape(-1, 4)
    return rows


@compiled
def _put_steps(values: Any, scales: Any, steps: Any) -> None:
    """Write scales f32[n] and steps i8[n, dim - 1] of values f32[n, dim]."""
    for row in range(values.shape[0]):
        largest = np.float32(0)
        sound = True
        for column in range(1, values.shape[1]):
            size = abs(values[row, column])
            # The comparison is written so that it is false for NaN.
            sound &= size < _INFINITY
            largest = max(largest, size)
        scale = math.nan
        if sound:
            least = np.float64(largest) / LARGEST_BYTE
            exponent = math.frexp(least)[1]
            unit = math.ldexp(1.0, max(exponent - SCALE_BITS, -149))
            units = math.ceil(least / unit)
            if LARGEST_BYTE * units * unit > _LARGEST_FLOAT:
                units -= 1
            scale = units * unit
        scales[row] = scale
        if scale > 0:
            for column in range(1, values.shape[1]):
                steps[row, column - 1] = np.int8((np.float64(values[row, column]) / scale + _ROUNDER) - _ROUNDER)
        else:
            for column in range(1, values.shape[1]):
                steps[row, column - 1] = 0
