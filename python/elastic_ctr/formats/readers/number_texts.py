"""Texts to numbers: decimal floating point, correctly rounded."""

from __future__ import annotations

import numpy as np

from elastic_ctr.formats.cells import Bytes, Numbers, Places
from elastic_ctr.formats.readers import refusals
from elastic_ctr.formats.readers.loops import HARD, copy_spans, read_numbers
from elastic_ctr.formats.readers.refusals import Codes
from elastic_ctr.formats.word_cells import accept_numbers, word_table


def numbers_of_texts(
    data: Bytes, spans: Places, codes: Codes, missing: tuple[str, ...] = ()
) -> tuple[Numbers, Codes | None]:
    """Return f64[n, numbers] of the texts at `spans`, i64[n, numbers, 2]; empty texts and the words `missing` are NaN.

    Also return the code of each number, or None if all are fine: NOT_A_NUMBER, or NOT_FINITE for names of infinity and
    NaN and for numbers that round to infinity. Rows that are not fine are not read.
    """
    numbers = np.empty(spans.shape[:2], np.float64)
    cells = np.empty(spans.shape[:2], np.uint8)
    if not read_numbers(data, spans, codes, numbers, cells):
        return numbers, None
    if missing:
        accept_numbers(data, spans, cells, word_table(missing), refusals.NOT_A_NUMBER, refusals.FINE)
    hard = cells == HARD
    if hard.any():
        numbers[hard] = _exact(data, spans[hard])
        cells[hard] = np.where(np.isfinite(numbers[hard]), refusals.FINE, refusals.NOT_FINITE)
    sizes = spans[:, :, 1] - spans[:, :, 0]
    perhaps_named = (cells == refusals.NOT_A_NUMBER) & (sizes >= len("nan")) & (sizes <= len("-infinity"))
    for row, place in np.argwhere(perhaps_named).tolist():
        begin, end = spans[row, place]
        if _is_named(data[begin:end].tobytes()):
            cells[row, place] = refusals.NOT_FINITE
    return numbers, cells if cells.any() else None


def _is_named(text: bytes) -> bool:
    return text.lower().lstrip(b"+-") in (b"nan", b"inf", b"infinity")


def _exact(data: Bytes, spans: Places) -> Numbers:
    import pyarrow as pa

    sizes = spans[:, 1] - spans[:, 0]
    offsets = np.zeros(len(spans) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    texts = np.empty(offsets[-1], np.uint8)
    copy_spans(data, np.ascontiguousarray(spans), texts)
    array = pa.Array.from_buffers(pa.large_string(), len(spans), [None, pa.py_buffer(offsets), pa.py_buffer(texts)])
    return array.cast(pa.float64()).to_numpy()  # type: ignore[no-any-return]
