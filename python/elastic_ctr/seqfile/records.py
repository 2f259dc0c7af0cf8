"""Records of one size as a numpy structure: what makes reading and writing them one copy."""

from __future__ import annotations

import numpy as np


def record_dtype(dim: int, *, inner_lengths: bool = True) -> np.dtype[np.void]:
    """An uncompressed record of a u64 key and `dim` float32, packed as it is in the file.

    Args:
        dim: floats of a value, at least 1.
        inner_lengths: with BytesWritable's own lengths; without them it is the layout of the old cube builder.
    """
    if dim < 1:
        raise ValueError(f"a value has at least one float, not {dim}.")
    outer = [("record_bytes", ">i4"), ("key_bytes", ">i4")]
    if inner_lengths:
        return np.dtype(
            [*outer, ("key_length", ">i4"), ("key", "<u8"), ("value_length", ">i4"), ("value", "<f4", (dim,))]
        )
    return np.dtype([*outer, ("key", "<u8"), ("value", "<f4", (dim,))])
