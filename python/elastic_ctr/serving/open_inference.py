"""The Open Inference Protocol, version 2, REST (KServe): `/v2`, `/v2/health/*`, `/v2/models/<name>[/ready|/infer]`.

Inputs of an inference, either

* one BYTES tensor `line` of shape [n] or [n, 1]: feature lines as in training, without show and click. As in training,
  slots that are not in the slot list are ignored.
* a UINT64 tensor for each slot, named as the slot, with its `<slot>/lengths` (INT32, INT64, UINT32 or UINT64, shape
  [n]): how many of its values belong to each instance. Without lengths its shape says it: [n] or [n, 1] is one value an
  instance, [n, k] is k. Slots may be absent; a tensor that is no slot of the model is refused. INT64 is taken as the
  same 64 bits as UINT64, and a value may be a number or decimal text.

Outputs: `probability` FP32 [n] and `version` UINT64 [n], the model version that answered.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from elastic_ctr.features.line import LineRefused, parse_features
from elastic_ctr.features.slots import SlotList
from elastic_ctr.serving.documents import count, enough_instances, fields, items, json_object, text
from elastic_ctr.serving.instances import (
    MAX_FEASIGNS,
    Instances,
    Lengths,
    feasign_array,
    instances_of,
    too_many_feasigns,
)
from elastic_ctr.serving.pooling import Floats
from elastic_ctr.serving.refusal import Refusal, shown
from elastic_ctr.serving.source_protocol import named

LINE = "line"
LENGTHS = "/lengths"
OUTPUTS = ("probability", "version")
NO_INPUTS = f"inputs is empty; give a BYTES tensor {LINE!r}, or a UINT64 tensor for each slot"

_COUNT_TYPES = ("INT32", "INT64", "UINT32", "UINT64")
_FEASIGN_TYPES = ("UINT64", "INT64")


class Tensor(NamedTuple):
    """A checked input: `data` is flat and as long as `shape` says. Of JSON it is a list, of gRPC a list of bytes or an
    array of the datatype. `input` and `where` name it and its data in the request.
    """

    name: str
    shape: list[int]
    datatype: str
    data: list[Any] | npt.NDArray[Any]
    input: str
    where: str


class Inference(NamedTuple):
    """A checked request; its inputs become instances once the slots are known."""

    id: str | None
    outputs: tuple[str, ...]
    tensors: dict[str, Tensor]

    def instances(self, slots: SlotList, max_instances: int) -> Instances:
        """Raises Refusal."""
        line = self.tensors.get(LINE)
        if line is not None and (line.datatype == "BYTES" or LINE not in slots):
            return _of_lines(self.tensors, slots, max_instances)
        return _of_slots(self.tensors, slots, max_instances)


def parse_infer(body: bytes) -> Inference:
    """Raises Refusal."""
    document = fields(json_object(body), "", ("inputs",), ("id", "parameters", "outputs"))
    given = items(document["inputs"], "inputs")
    if not given:
        raise Refusal(400, NO_INPUTS)
    tensors: dict[str, Tensor] = {}
    for place, each in enumerate(given):
        _add_json(tensors, each, f"inputs[{place}]")
    identity = document.get("id")
    return Inference(
        None if identity is None else text(identity, "id"),
        _outputs(items(document.get("outputs") or [], "outputs")),
        tensors,
    )


def infer_answer(request: Inference, model: str, probabilities: Floats, version: int) -> bytes:
    rows = len(probabilities)
    known = {
        "probability": ("FP32", probabilities),
        "version": ("UINT64", np.full(rows, version, dtype=np.uint64)),
    }
    answer: dict[str, Any] = {"model_name": model, "model_version": str(version)}
    if request.id is not None:
        answer["id"] = request.id
    answer["outputs"] = [
        {"name": name, "datatype": known[name][0], "shape": [rows], "data": known[name][1]} for name in request.outputs
    ]
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def server_metadata(version: str) -> bytes:
    return orjson.dumps({"name": "elastic-ctr", "version": version, "extensions": []})


def model_metadata(model: str, version: int | None, slots: SlotList | None) -> dict[str, Any]:
    """As JSON; gRPC's message has the same fields."""
    inputs = [{"name": LINE, "datatype": "BYTES", "shape": [-1]}]
    for slot in slots or ():
        inputs.append({"name": slot, "datatype": "UINT64", "shape": [-1]})
        inputs.append({"name": slot + LENGTHS, "datatype": "INT32", "shape": [-1]})
    return {
        "name": model,
        "versions": [] if version is None else [str(version)],
        "platform": "elastic-ctr",
        "inputs": inputs,
        "outputs": [
            {"name": "probability", "datatype": "FP32", "shape": [-1]},
            {"name": "version", "datatype": "UINT64", "shape": [-1]},
        ],
    }


def add_tensor(
    tensors: dict[str, Tensor],
    name: str,
    shape: list[int],
    datatype: str,
    data: list[Any] | npt.NDArray[Any],
    given: str,
    where: str,
) -> None:
    """Check an input by itself and take it in. `given` and `where` name it and its data. Raises Refusal."""
    if len(shape) not in (1, 2):
        raise Refusal(400, f"{given}.shape has {len(shape)} dimensions; it must have one or two")
    for place, size in enumerate(shape):
        count(size, f"{given}.shape[{place}]")
    size = shape[0] * (shape[1] if len(shape) == 2 else 1)
    if len(data) != size:
        raise Refusal(400, f"{where} has {len(data)} values; its shape {shape} says {size}")
    if name in tensors:
        raise Refusal(400, f"{given}.name {shown(name)} is there twice")
    tensors[name] = Tensor(name, shape, datatype, data, given, where)


def outputs_named(asked: list[tuple[str, str]]) -> tuple[str, ...]:
    """The outputs wanted, each with its place in the request; all when none is named. Raises Refusal."""
    for name, where in asked:
        if name not in OUTPUTS:
            raise Refusal(400, f"{where} {shown(name)} is not an output; there are {', '.join(OUTPUTS)}")
    return tuple(dict.fromkeys(name for name, _ in asked)) or OUTPUTS


def _outputs(asked: list[Any]) -> tuple[str, ...]:
    names = []
    for place, each in enumerate(asked):
        output = fields(each, f"outputs[{place}]", ("name",), ("parameters",))
        names.append((text(output["name"], f"outputs[{place}].name"), f"outputs[{place}].name"))
    return outputs_named(names)


def _add_json(tensors: dict[str, Tensor], given: Any, where: str) -> None:
    tensor = fields(given, where, ("name", "shape", "datatype", "data"), ("parameters",))
    name = text(tensor["name"], f"{where}.name")
    shape = [
        count(size, f"{where}.shape[{place}]") for place, size in enumerate(items(tensor["shape"], f"{where}.shape"))
    ]
    data = items(tensor["data"], f"{where}.data")
    if len(shape) == 2 and data and type(data[0]) is list:
        data = _flattened(data, shape, where)
    add_tensor(tensors, name, shape, text(tensor["datatype"], f"{where}.datatype"), data, where, f"{where}.data")


def _flattened(data: list[Any], shape: list[int], where: str) -> list[Any]:
    flat: list[Any] = []
    for place, row in enumerate(data):
        if len(items(row, f"{where}.data[{place}]")) != shape[1]:
            raise Refusal(400, f"{where}.data[{place}] has {len(row)} values; its shape {shape} says {shape[1]}")
        flat += row
    return flat


def _typed(tensor: Tensor, allowed: tuple[str, ...]) -> None:
    if tensor.datatype not in allowed:
        raise Refusal(
            400, f"{tensor.input}.datatype of {shown(tensor.name)} is {shown(tensor.datatype)}; it must be {allowed[0]}"
        )


def _of_lines(tensors: dict[str, Tensor], slots: SlotList, max_instances: int) -> Instances:
    tensor = tensors[LINE]
    _typed(tensor, ("BYTES",))
    if len(tensors) > 1:
        other = next(name for name in tensors if name != LINE)
        raise Refusal(400, f"inputs has {LINE!r} and {shown(other)}; give lines or slots, not both")
    if len(tensor.shape) == 2 and tensor.shape[1] != 1:
        raise Refusal(400, f"{tensor.where}: the shape of {LINE!r} is {tensor.shape}; it must be [n] or [n, 1]")
    enough_instances(len(tensor.data), max_instances, tensor.where)
    rows = []
    for place, line in enumerate(tensor.data):
        encoded = line if type(line) is bytes else _encoded(line, f"{tensor.where}[{place}]")
        try:
            rows.append(parse_features(encoded, slots, None).keys)
        except LineRefused as refused:
            raise Refusal(400, f"{tensor.where}[{place}] is refused, {refused}") from None
    return instances_of(rows, len(slots))


def _encoded(line: Any, where: str) -> bytes:
    # A surrogate cannot be encoded; it is no printable ASCII either, and refused as such.
    return text(line, where).encode("utf-8", "replace")


def _of_slots(tensors: dict[str, Tensor], slots: SlotList, max_instances: int) -> Instances:
    for name, tensor in tensors.items():
        slot = name.removesuffix(LENGTHS)
        where = tensor.input
        if name not in slots and slot not in slots:
            raise Refusal(400, f"{where}.name {shown(name)} is not a slot of the model; it has {named(slots)}")
        if name not in slots and slot not in tensors:
            raise Refusal(
                400, f"{where}.name {shown(name)} gives lengths of {shown(slot)}, which is not among the inputs"
            )
    rows, first = _rows(tensors, slots)
    enough_instances(rows, max_instances, first)
    values = np.empty(0, dtype=np.uint64)
    columns = []
    lengths = np.zeros((rows, len(slots)), dtype=np.int64)
    for index, slot in enumerate(slots):
        if slot not in tensors:
            continue
        tensor = tensors[slot]
        _typed(tensor, _FEASIGN_TYPES)
        lengths[:, index] = _lengths(tensor, tensors.get(slot + LENGTHS), rows, first)
        columns.append((index, _feasigns(tensor)))
    if columns:
        # By slot in the request, by row in a batch: a stable sort by (row, slot) keeps the order inside a slot.
        values = np.concatenate([column for _, column in columns])
        owners = np.concatenate(
            [np.repeat(np.arange(rows) * len(slots) + index, lengths[:, index]) for index, _ in columns]
        )
        values = values[np.argsort(owners, kind="stable")]
    return Instances(values, lengths.reshape(-1), rows)


def _feasigns(tensor: Tensor) -> Any:
    if isinstance(tensor.data, np.ndarray):
        if len(tensor.data) > MAX_FEASIGNS:
            raise too_many_feasigns(len(tensor.data))
        # INT64 is the same 64 bits.
        return tensor.data.astype(np.uint64)
    return feasign_array(tensor.data, lambda place: f"{tensor.where}[{place}] of {shown(tensor.name)}")


def _rows(tensors: dict[str, Tensor], slots: SlotList) -> tuple[int, str]:
    """Instances that the first slot's tensors speak of, and what says so."""
    first = next(slot for slot in slots if slot in tensors)
    deciding = tensors.get(first + LENGTHS) or tensors[first]
    return deciding.shape[0], deciding.input


def _lengths(tensor: Tensor, lengths: Tensor | None, rows: int, first: str) -> Lengths:
    deciding = tensor if lengths is None else lengths
    where = deciding.input
    if deciding.shape[0] != rows:
        raise Refusal(
            400, f"{where} speaks of {deciding.shape[0]} instances and {first} of {rows}; they must be as many"
        )
    if lengths is None:
        return np.full(rows, tensor.shape[1] if len(tensor.shape) == 2 else 1, dtype=np.int64)
    _typed(lengths, _COUNT_TYPES)
    if len(lengths.shape) == 2 and lengths.shape[1] != 1:
        raise Refusal(400, f"{where}.shape of {shown(lengths.name)} is {lengths.shape}; it must be [n]")
    given = lengths.data.tolist() if isinstance(lengths.data, np.ndarray) else lengths.data
    counts = [count(value, f"{lengths.where}[{place}]") for place, value in enumerate(given)]
    if sum(counts) != len(tensor.data):
        raise Refusal(
            400,
            f"{where}: {shown(lengths.name)} adds up to {sum(counts)}; {shown(tensor.name)} has {len(tensor.data)} values",
        )
    return np.array(counts, dtype=np.int64)
