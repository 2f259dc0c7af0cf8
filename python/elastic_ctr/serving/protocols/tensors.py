"""An input of the Open Inference Protocol, and the values in its bytes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from elastic_ctr.serving.protocols.json_fields import count
from elastic_ctr.serving.request_error import BadRequest, RequestError, short_repr

RAW = {"INT32": "<i4", "INT64": "<i8", "UINT32": "<u4", "UINT64": "<u8", "UINT16": "<u2"}
"""Of feasigns and their lengths, as numpy's dtypes."""
RAW_COLUMNS = {**RAW, "INT8": "<i1", "INT16": "<i2", "UINT8": "<u1", "BOOL": "<?", "FP32": "<f4", "FP64": "<f8"}
_ELEMENT_LENGTH_BYTES = 4
MAX_ELEMENTS = 1 << 20
"""Of a BYTES tensor, whose elements become objects; a model of rows may have several in a row."""


class Tensor(NamedTuple):
    """A checked input: `data` is flat and has the length of `shape`, as a list from JSON, or a list of bytes or an array of
    the datatype from gRPC. `input` and `where` are the paths of the input and of its data in the request.
    """

    name: str
    shape: list[int]
    datatype: str
    data: list[Any] | npt.NDArray[Any]
    input: str
    where: str


def add_tensor(tensors: dict[str, Tensor], given: Tensor) -> None:
    """Check an input by itself and add it. Raises RequestError."""
    shape = given.shape
    if len(shape) not in (1, 2):
        raise BadRequest(f"{given.input}.shape has {len(shape)} dimensions; it must have one or two")
    for place, size in enumerate(shape):
        count(size, f"{given.input}.shape[{place}]")
    size = shape[0] * (shape[1] if len(shape) == 2 else 1)
    if len(given.data) != size:
        raise BadRequest(f"{given.where} has {len(given.data)} values; its shape {shape} says {size}")
    if given.name in tensors:
        raise BadRequest(f"{given.input}.name {short_repr(given.name)} is there twice")
    tensors[given.name] = given


def raw_values(data: bytes, datatype: str, where: str, max_elements: int) -> list[Any] | npt.NDArray[Any]:
    """Return the values of a tensor's bytes, at most `max_elements` of BYTES; a refusal names `where`. Raises RequestError."""
    if datatype in RAW_COLUMNS:
        dtype = np.dtype(RAW_COLUMNS[datatype])
        if len(data) % dtype.itemsize:
            raise BadRequest(f"{where} has {len(data)} bytes; values of {datatype} have {dtype.itemsize} each")
        return np.frombuffer(data, dtype=dtype)
    if datatype != "BYTES":
        allowed = ", ".join(("BYTES", *RAW_COLUMNS))
        raise BadRequest(f"{where}.datatype is {short_repr(datatype)}; it must be one of {allowed}")
    elements: list[bytes] = []
    at = 0
    while at < len(data):
        start = at + _ELEMENT_LENGTH_BYTES
        at = start + int.from_bytes(data[at:start], "little")
        if start > len(data) or at > len(data):
            raise BadRequest(f"{where} ends inside its element {len(elements)}")
        elements.append(data[start:at])
        if len(elements) > max_elements:
            raise RequestError(413, f"{where} has more than {max_elements} elements; send several requests")
    return elements
