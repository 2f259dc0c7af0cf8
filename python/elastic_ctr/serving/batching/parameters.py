"""The parameters of an exported network, as `save_inference_model` writes them.

`network.pdiparams` is what the operator `save_combine` wrote: for each persistable variable of the program, sorted by name, a header of 16
bytes (a version, a count of LoD levels and a version again, all 0), the length of a `TensorDesc`, that message, and the values
(`SerializeToStream` in Paddle 2.6.2's `paddle/fluid/framework/lod_tensor.cc` and `tensor_util.cc`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Shapes = Sequence[tuple[str, tuple[int, ...]]]

_HEADER = struct.Struct("<IQII")


class OtherParameters(ValueError):
    """The parameters are not those of the program, or some are not float32."""


def shapes_of(program: Any) -> Shapes:
    """Return names and shapes of a `ProgramDesc`'s parameters in the order of their file. Raises OtherParameters."""
    kinds = framework_proto().VarType
    found = []
    for each in program.blocks[0].vars:
        if not each.persistable or each.type.type in (kinds.FEED_MINIBATCH, kinds.FETCH_LIST):
            continue
        tensor = each.type.lod_tensor.tensor
        if each.type.type != kinds.LOD_TENSOR or tensor.data_type != kinds.FP32:
            raise OtherParameters(f"{each.name} is no tensor of float32")
        found.append((each.name, tuple(tensor.dims)))
    return sorted(found)


def read_parameters(data: bytes, shapes: Shapes) -> dict[str, Floats]:
    """Return the values by name, as views of `data`. Raises OtherParameters."""
    found: dict[str, Floats] = {}
    place = 0
    for name, shape in shapes:
        begin, size = _described(data, place, name, shape)
        place = begin + size
        if place > len(data):
            raise OtherParameters(f"the file ends within {name}")
        found[name] = np.frombuffer(data, "<f4", size // 4, begin).reshape(shape)
    if place != len(data):
        raise OtherParameters(f"{len(data) - place} bytes follow the last parameter")
    return found


def write_parameters(values: Mapping[str, Floats]) -> bytes:
    """Return the bytes of a file of these parameters, in the order of their names."""
    kinds = framework_proto().VarType
    parts = []
    for name in sorted(values):
        described = kinds.TensorDesc(data_type=kinds.FP32, dims=values[name].shape).SerializeToString()
        parts += [_HEADER.pack(0, 0, 0, len(described)), described, values[name].astype("<f4").tobytes()]
    return b"".join(parts)


def _described(data: bytes, place: int, name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the offset and the size in bytes of a parameter's values."""
    from google.protobuf.message import DecodeError

    if place + _HEADER.size > len(data):
        raise OtherParameters(f"the file ends before {name}")
    *versions, length = _HEADER.unpack_from(data, place)
    begin = place + _HEADER.size + length
    described = framework_proto().VarType.TensorDesc()
    try:
        described.ParseFromString(data[place + _HEADER.size : begin])
    except DecodeError as wrong:
        raise OtherParameters(f"the description of {name} cannot be read") from wrong
    if any(versions) or described.data_type != framework_proto().VarType.FP32 or tuple(described.dims) != shape:
        raise OtherParameters(f"{name} is another tensor than the program's, of float32 {shape}")
    return begin, 4 * math.prod(shape)


def framework_proto() -> Any:
    """Return Paddle's protobuf module. Importing Paddle takes seconds, so that happens when the first network is loaded."""
    from paddle.base.proto import framework_pb2

    return framework_pb2
