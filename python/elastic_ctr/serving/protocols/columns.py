"""Tensors of the Open Inference Protocol as rows: one tensor per column.

A column that is read as text takes BYTES (UTF-8; empty is missing), BOOL and whole numbers; one that is read as a number takes FP32,
FP64 and whole numbers. The shape is [n] or [n, 1]; [n, k] for a feature with a separator, whose values are the k of a row. A column with
one row, where others have more, is shared by all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.features.transforms.transformer import Transformer
from elastic_ctr.formats.cells import Cells, SharedCells
from elastic_ctr.formats.inputs import InputColumns, TextInput
from elastic_ctr.formats.json_rows import CellRefused, number_cell, text_cell
from elastic_ctr.serving.batching.instances import Instances
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.protocols.json_fields import enough_instances
from elastic_ctr.serving.protocols.rows_json import given_cells, instances_of_cells, refuse_unknown
from elastic_ctr.serving.protocols.tensors import Tensor
from elastic_ctr.serving.request_error import BadRequest, short_repr

_WHOLE = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
OF_TEXT = ("BYTES", *_WHOLE, "BOOL")
OF_NUMBERS = ("FP64", "FP32", *_WHOLE)
_LARGEST = float(np.finfo(np.float32).max)


def columns_described(transformer: Transformer) -> list[tuple[str, str]]:
    """Return each column with the datatype that fits it best; a column read as text and as a number takes only whole numbers."""
    texts, numbers = {each.column for each in transformer.inputs.texts}, set(transformer.inputs.numbers)
    kinds = {(True, False): "BYTES", (False, True): "FP64", (True, True): "INT64"}
    return [(column, kinds[column in texts, column in numbers]) for column in transformer.inputs.columns]


def instances_of_columns(tensors: Mapping[str, Tensor], schema: Schema, max_instances: int) -> Instances:
    """Raises RequestError."""
    transformer = schema.of_rows()
    inputs = transformer.inputs
    refuse_unknown(dict.fromkeys(tensors), "inputs", schema)
    given = {column: tensors[column] for column in inputs.columns if column in tensors}
    if not given:
        raise BadRequest(f"inputs has none of the model's columns; give {inputs.columns[0]!r} or another")
    most = max(given.values(), key=lambda tensor: tensor.shape[0])
    rows = most.shape[0]
    enough_instances(rows, max_instances, most.input)
    for other in given.values():
        if other.shape[0] not in (1, rows):
            raise BadRequest(
                f"{other.input} has {other.shape[0]} rows and {most.input} {rows}; they must be as many, or one that all rows share"
            )
    shared = {column: tensor for column, tensor in given.items() if tensor.shape[0] != rows}
    own = {column: tensor for column, tensor in given.items() if column not in shared}
    common = None
    if shared:
        common = SharedCells(_cells(shared, inputs, 1), given_cells(shared, inputs), np.zeros(rows, np.int64))
    return instances_of_cells(_cells(own, inputs, rows), transformer, "row", common)


def _cells(tensors: Mapping[str, Tensor], inputs: InputColumns, rows: int) -> Cells:
    texts = [_texts(tensors.get(each.column), each, rows) for each in inputs.texts]
    numbers = [_numbers(tensors.get(column), column, rows, inputs.missing.numbers) for column in inputs.numbers]
    flat = [text for row in zip(*texts, strict=True) for text in row]
    sizes = np.array([len(text) for text in flat], np.int64).reshape(rows, len(texts))
    ends = np.cumsum(sizes.reshape(-1)).reshape(sizes.shape)
    found = np.ascontiguousarray(np.stack(numbers, axis=1)) if numbers else np.zeros((rows, 0))
    return Cells(np.frombuffer(bytearray(b"".join(flat)), np.uint8), ends - sizes, ends, found)


def _texts(tensor: Tensor | None, of: TextInput, rows: int) -> list[bytes]:
    if tensor is None:
        return [b""] * rows
    _typed(tensor, OF_TEXT, "read as text")
    width = _width(tensor, several=bool(of.separator))
    data = tensor.data
    values: list[Any]
    if isinstance(data, np.ndarray):
        values = [b"%d" % value for value in data.tolist()] if tensor.datatype != "BOOL" else _truths(data)
    else:
        # gRPC requests have bytes here, JSON requests have JSON values.
        values = [
            _utf8(value, tensor, place) if isinstance(value, bytes) else _of_datatype(value, tensor, place)
            for place, value in enumerate(data)
        ]
    if width != 1:
        texts = [each.decode() if isinstance(each, bytes) else each for each in values]
        values = [texts[row * width : (row + 1) * width] for row in range(rows)]
    found = []
    for place, value in enumerate(values):
        try:
            found.append(value if isinstance(value, bytes) else text_cell(value, of))
        except CellRefused as refused:  # noqa: PERF203 (the first one ends it)
            raise BadRequest(f"{tensor.where}: row {place} of {refused}") from None
    return found


def _numbers(tensor: Tensor | None, column: str, rows: int, missing: tuple[str, ...]) -> npt.NDArray[np.float64]:
    if tensor is None:
        return np.full(rows, np.nan)
    _typed(tensor, OF_NUMBERS, "read as a number")
    _width(tensor, several=False)
    if isinstance(tensor.data, np.ndarray):
        found = tensor.data.astype(np.float64)
        if len(wrong := np.flatnonzero(~np.isfinite(found))):
            raise BadRequest(
                f"{tensor.where}: row {wrong[0]} of {column} is {found[wrong[0]]}; a number is finite, and a column that is missing "
                "is left out"
            )
        return found
    try:
        given = [_of_datatype(value, tensor, place) for place, value in enumerate(tensor.data)]
        return np.array([number_cell(value, column, missing) for value in given], np.float64)
    except CellRefused as refused:
        raise BadRequest(f"{tensor.where}: {refused}") from None


def _of_datatype(value: Any, tensor: Tensor, place: int) -> Any:
    """Return a JSON value as the tensor's datatype represents it, so that binary requests give the same; null is missing."""
    kind = tensor.datatype
    if value is None or kind == "FP64":
        return value
    if kind == "BYTES":
        fits, due = type(value) in (str, int, bool), "text"
    elif kind == "BOOL":
        fits, due = type(value) is bool, "true or false"
    elif kind == "FP32":
        if type(value) not in (int, float) or abs(value) > _LARGEST:
            # `number_cell` refuses a value of another kind, or one that is too large, with its own sentence.
            return value
        return float(np.float32(value))
    else:
        limits = np.iinfo(kind.lower())
        fits = type(value) is int and limits.min <= value <= limits.max
        due = f"a whole number from {limits.min} to {limits.max}"
    if not fits:
        raise BadRequest(
            f"{tensor.where}[{place}] of {short_repr(tensor.name)} is {short_repr(value)}; {kind} takes {due}"
        )
    return value


def _typed(tensor: Tensor, allowed: tuple[str, ...], how: str) -> None:
    if tensor.datatype not in allowed:
        raise BadRequest(
            f"{tensor.input}.datatype is {short_repr(tensor.datatype)}; {short_repr(tensor.name)} is {how}, as {', '.join(allowed)}"
        )


def _width(tensor: Tensor, *, several: bool) -> int:
    width = tensor.shape[1] if len(tensor.shape) == 2 else 1
    if width != 1 and not several:
        raise BadRequest(
            f"{tensor.input}.shape of {short_repr(tensor.name)} is {tensor.shape}; its feature takes one value a row: [n] or [n, 1]"
        )
    return width


def _truths(data: npt.NDArray[Any]) -> list[bytes]:
    return [b"true" if each else b"false" for each in data.tolist()]


def _utf8(value: bytes, tensor: Tensor, place: int) -> bytes:
    try:
        value.decode()
    except UnicodeDecodeError:
        raise BadRequest(f"{tensor.where}[{place}] of {short_repr(tensor.name)} is not UTF-8") from None
    return value
