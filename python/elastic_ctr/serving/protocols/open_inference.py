"""The Open Inference Protocol, version 2, REST (KServe): docs/serving-protocols.md describes requests and answers.

Inputs of an inference, one of

* one BYTES tensor `line` of shape [n] or [n, 1]: feature lines as in training. Features of other slots are ignored and counted.
* a UINT64 (or INT64) tensor for each slot, named as the slot, with its `<slot>/lengths` of shape [n]. Without lengths, its shape
  gives the values of an instance: one for [n] or [n, 1], k for [n, k]. Slots may be absent.
* for a model of rows: one tensor per column, see `columns`.
* all slots in two tensors, the form with the least work: `feasigns` (UINT64, shape [n]), by instance, then by slot in the
  order of the slot list, and `lengths` (shape [instances, slots]).

A slot or column of one instance, where others have more, is shared by all instances. Lines, and the two tensors of all slots, have no
tensor for each slot: with the parameter `first_is_shared` their first instance is shared by the others. With the parameter `top` the
answer has the instances with the highest probabilities, best first.

Values are in `data`, or little-endian after the JSON (the binary tensor data extension).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from elastic_ctr.formats.line import LineRefused, parse_features
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.serving.batching.instances import (
    MAX_FEASIGNS,
    Instances,
    Lengths,
    feasign_array,
    instances_of,
    too_many_feasigns,
    with_shared,
)
from elastic_ctr.serving.batching.pooling import Floats
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.protocols.columns import columns_described, instances_of_columns
from elastic_ctr.serving.protocols.elasticctr_json import named
from elastic_ctr.serving.protocols.json_fields import count, enough_instances, fields, items, json_object, text, top_of
from elastic_ctr.serving.protocols.tensors import MAX_ELEMENTS, RAW, Tensor, add_tensor, raw_values
from elastic_ctr.serving.request_error import BadRequest, RequestError, short_repr

LINE = "line"
LENGTHS = "/lengths"
ALL_FEASIGNS, ALL_LENGTHS = "feasigns", "lengths"
FIRST_IS_SHARED = "first_is_shared"
KNOWN_KEYS, PLACES = "known_keys", "places"
_OUTPUTS = {"probability": "FP32", "version": "UINT64", KNOWN_KEYS: "UINT32", PLACES: "UINT32"}
# The outputs of a request that names none; with `top` also the places.
_USUAL_OUTPUTS = ("probability", "version")
NO_INPUTS = f"inputs is empty; give a BYTES tensor {LINE!r}, or a UINT64 tensor for each slot"

# KServe's SDK sends the model and its version here, too; the path decides which model answers.
_BESIDE_INPUTS = ("id", "parameters", "outputs", "model_name", "model_version")
_FEASIGN_TYPES = ("UINT64", "INT64")


class InferenceOptions(NamedTuple):
    """Parameters of a request. `first_is_shared`: the other instances share the first one. `top`: 0 if all instances are wanted."""

    slot_list_check: int | None = None
    first_is_shared: bool = False
    top: int = 0


@dataclass(frozen=True)
class Inference:
    """A checked request; its inputs become instances once the slots are known."""

    id: str | None
    outputs: tuple[str, ...]
    tensors: dict[str, Tensor]
    binary_outputs: frozenset[str] = frozenset()
    options: InferenceOptions = field(default_factory=InferenceOptions)
    known: list[Lengths] = field(default_factory=list)

    def instances(self, schema: Schema, max_instances: int) -> Instances:
        """Raises RequestError."""
        found = replace(self._read(schema, max_instances), top=self.options.top)
        self.known.clear()
        return replace(found, known=self.known) if KNOWN_KEYS in self.outputs else found

    def _read(self, schema: Schema, max_instances: int) -> Instances:
        options = self.options
        if schema.transformer is not None:
            self._each_by_itself("column")
            return instances_of_columns(self.tensors, schema, max_instances)
        slots = schema.slots
        if options.slot_list_check not in (None, slots.check()):
            raise RequestError(
                409, f"the slot list is not that of the model, which has {len(slots)} slots; ask for it again"
            )
        line = self.tensors.get(LINE)
        given = max_instances + options.first_is_shared
        if self.tensors.keys() == {ALL_FEASIGNS, ALL_LENGTHS} and not (ALL_FEASIGNS in slots and ALL_LENGTHS in slots):
            return _without_first(_of_arrays(self.tensors, slots, given), options, slots)
        if line is not None and (line.datatype == "BYTES" or LINE not in slots):
            return _without_first(_of_lines(self.tensors, slots, given), options, slots)
        self._each_by_itself("slot")
        return _of_slots(self.tensors, slots, max_instances)

    def _each_by_itself(self, what: str) -> None:
        if self.options.first_is_shared:
            raise BadRequest(
                f"parameters.first_is_shared is for lines and for the tensors of all slots; a {what} is shared if its tensor has one row"
            )

    def answers(
        self, probabilities: Floats, version: int, places: Lengths | None
    ) -> Iterator[tuple[str, str, npt.NDArray[Any]]]:
        """Yield name, datatype and values [rows] of the requested outputs of the instances at `places`, or of all."""
        known = np.concatenate(self.known) if self.known else np.empty(0, np.int64)
        values = {
            "probability": np.ascontiguousarray(probabilities, "<f4"),
            "version": np.full(len(probabilities), version, "<u8"),
            KNOWN_KEYS: (known if places is None or not self.known else known[places]).astype("<u4"),
            PLACES: np.arange(len(probabilities), dtype="<u4") if places is None else places.astype("<u4"),
        }
        for name in self.outputs:
            yield name, _OUTPUTS[name], values[name]


def parse_infer(body: bytes, json_length: int | None = None, max_elements: int = MAX_ELEMENTS) -> Inference:
    """Read a body. `json_length` is that of the JSON in front of binary tensors; None without them. Raises RequestError."""
    if json_length is not None and json_length > len(body):
        raise BadRequest(f"Inference-Header-Content-Length is {json_length}; the body has {len(body)} bytes")
    unread = BytesIO(body)
    document = fields(json_object(unread.read(json_length)), "", ("inputs",), _BESIDE_INPUTS)
    given = items(document["inputs"], "inputs")
    if not given:
        raise BadRequest(NO_INPUTS)
    tensors: dict[str, Tensor] = {}
    for place, each in enumerate(given):
        _add_json(tensors, each, f"inputs[{place}]", unread, max_elements)
    if left := unread.read():
        raise BadRequest(f"{len(left)} bytes behind the JSON belong to no input")
    parameters = _parameters(document, "")
    identity, options = document.get("id"), options_of(parameters)
    outputs, binary = _wanted(
        items(document.get("outputs") or [], "outputs"), parameters.get("binary_data_output"), options
    )
    return Inference(None if identity is None else text(identity, "id"), outputs, tensors, binary, options)


def options_of(parameters: Mapping[str, Any]) -> InferenceOptions:
    """Return the parameters of a request that serving knows; others have no effect. Raises RequestError."""
    check, first = parameters.get("slot_list_check"), parameters.get(FIRST_IS_SHARED, False)
    if type(first) is not bool:
        raise BadRequest(f"parameters.{FIRST_IS_SHARED} is {short_repr(first)}; it must be true or false")
    checked = None if check is None else count(check, "parameters.slot_list_check")
    return InferenceOptions(checked, first, top_of(parameters, "parameters.", "instances"))


def infer_answer(
    request: Inference, model: str, probabilities: Floats, version: int, places: Lengths | None = None
) -> tuple[bytes, int | None]:
    """Return the body, and the length of its JSON if binary tensors follow it, else None."""
    answer: dict[str, Any] = {"model_name": model, "model_version": str(version)}
    if request.id is not None:
        answer["id"] = request.id
    outputs: list[dict[str, Any]] = []
    behind: list[bytes] = []
    for name, datatype, values in request.answers(probabilities, version, places):
        output: dict[str, Any] = {"name": name, "datatype": datatype, "shape": [len(probabilities)]}
        if name in request.binary_outputs:
            behind.append(values.tobytes())
            output["parameters"] = {"binary_data_size": len(behind[-1])}
        else:
            output["data"] = values
        outputs.append(output)
    answer["outputs"] = outputs
    head = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    return b"".join((head, *behind)), len(head) if request.binary_outputs else None


def server_metadata(version: str) -> bytes:
    return orjson.dumps({"name": "elastic-ctr", "version": version, "extensions": ["binary_tensor_data"]})


def model_metadata(model: str, version: int | None, schema: Schema | None) -> dict[str, Any]:
    """Return the metadata as JSON; gRPC's message has the same fields."""

    def described(tensors: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
        return [{"name": name, "datatype": datatype, "shape": [-1]} for name, datatype in tensors]

    if schema is not None and schema.transformer is not None:
        inputs = columns_described(schema.transformer)
    else:
        inputs = [(LINE, "BYTES")]
        for slot in schema.slots if schema is not None else ():
            inputs += [(slot, "UINT64"), (slot + LENGTHS, "INT32")]
    return {
        "name": model,
        "versions": [] if version is None else [str(version)],
        "platform": "elastic-ctr",
        "inputs": described(inputs),
        "outputs": described(_OUTPUTS.items()),
    }


def outputs_named(asked: list[tuple[str, str]], options: InferenceOptions) -> tuple[str, ...]:
    """Return the requested outputs, given as (name, place in the request); the usual ones if none is given. Raises RequestError."""
    for name, where in asked:
        if name not in _OUTPUTS:
            raise BadRequest(f"{where} {short_repr(name)} is not an output; there are {', '.join(_OUTPUTS)}")
    usual = (*_USUAL_OUTPUTS, PLACES) if options.top else _USUAL_OUTPUTS
    return tuple(dict.fromkeys(name for name, _ in asked)) or usual


def _parameters(of: dict[str, Any], where: str) -> dict[str, Any]:
    return fields(of.get("parameters") or {}, f"{where}.parameters" if where else "parameters", (), None)


def _wanted(asked: list[Any], all_binary: Any, options: InferenceOptions) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the requested outputs, and those of them that the answer has as binary tensors."""
    names: list[tuple[str, str]] = []
    told: dict[str, Any] = {}
    for place, each in enumerate(asked):
        where = f"outputs[{place}]"
        output = fields(each, where, ("name",), ("parameters",))
        names.append((text(output["name"], f"{where}.name"), f"{where}.name"))
        told[output["name"]] = _parameters(output, where).get("binary_data", all_binary)
    wanted = outputs_named(names, options)
    return wanted, frozenset(name for name in wanted if told.get(name, all_binary) is True)


def _add_json(tensors: dict[str, Tensor], given: Any, where: str, unread: BytesIO, max_elements: int) -> None:
    """Add an input of the JSON; its binary data, if any, is read from `unread`, the bytes after the JSON."""
    tensor = fields(given, where, ("name", "shape", "datatype"), ("data", "parameters"))
    name = text(tensor["name"], f"{where}.name")
    datatype = text(tensor["datatype"], f"{where}.datatype")
    sizes = items(tensor["shape"], f"{where}.shape")
    shape = [count(size, f"{where}.shape[{place}]") for place, size in enumerate(sizes)]
    size = _parameters(tensor, where).get("binary_data_size")
    if size is None:
        data = items(fields(tensor, where, ("data",), None)["data"], f"{where}.data")
        if len(shape) == 2 and data and type(data[0]) is list:
            for place, row in enumerate(data):
                if len(items(row, f"{where}.data[{place}]")) != shape[1]:
                    raise BadRequest(f"{where}.data[{place}] has {len(row)} values; its shape {shape} says {shape[1]}")
            data = list(chain.from_iterable(data))
        add_tensor(tensors, Tensor(name, shape, datatype, data, where, f"{where}.data"))
        return
    where_size = f"{where}.parameters.binary_data_size"
    if "data" in tensor:
        raise BadRequest(f"{where}.data stands beside {where_size}; give one of them")
    raw = unread.read(count(size, where_size))
    if len(raw) < size:
        raise BadRequest(f"{where_size} is {size}; {len(raw)} bytes are left behind the JSON")
    add_tensor(tensors, Tensor(name, shape, datatype, raw_values(raw, datatype, where, max_elements), where, where))


def _typed(tensor: Tensor, allowed: tuple[str, ...]) -> None:
    if tensor.datatype not in allowed:
        raise BadRequest(
            f"{tensor.input}.datatype of {short_repr(tensor.name)} is {short_repr(tensor.datatype)}; it must be {allowed[0]}"
        )


def _without_first(given: Instances, options: InferenceOptions, slots: SlotList) -> Instances:
    """Return the instances after the first one, which they share with `first_is_shared`. Raises RequestError."""
    if not options.first_is_shared:
        return given
    if given.rows < 2:
        raise BadRequest(f"parameters.{FIRST_IS_SHARED} is true; there must be an instance after the first one")
    shared = replace(given.part(0, 1), ignored=given.ignored)
    return with_shared(given.part(1, given.rows), shared, slots.names, lambda row: f"instance {row + 1}")


def _of_lines(tensors: dict[str, Tensor], slots: SlotList, max_instances: int) -> Instances:
    tensor = tensors[LINE]
    _typed(tensor, ("BYTES",))
    if len(tensors) > 1:
        other = next(name for name in tensors if name != LINE)
        raise BadRequest(f"inputs has {LINE!r} and {short_repr(other)}; give lines or slots, not both")
    if len(tensor.shape) == 2 and tensor.shape[1] != 1:
        raise BadRequest(f"{tensor.where}: the shape of {LINE!r} is {tensor.shape}; it must be [n] or [n, 1]")
    enough_instances(len(tensor.data), max_instances, tensor.where)
    return instances_of_lines(tensor.data, slots, tensor.where)


def instances_of_lines(lines: Iterable[Any], slots: SlotList, where_all: str) -> Instances:
    """Return the instances of feature lines, text or bytes. Raises RequestError."""
    rows = []
    ignored = 0
    for place, line in enumerate(lines):
        where = f"{where_all}[{place}]"
        # A surrogate, which cannot be encoded, is replaced here and then refused, as it is no printable ASCII.
        encoded = line if type(line) is bytes else text(line, where).encode("utf-8", "replace")
        try:
            read = parse_features(encoded, slots, None)
        except LineRefused as refused:
            raise BadRequest(f"{where} is refused, {refused}") from None
        rows.append(read.keys)
        ignored += read.ignored
    return replace(instances_of(rows, len(slots)), ignored=ignored)


def _of_slots(tensors: dict[str, Tensor], slots: SlotList, max_instances: int) -> Instances:
    for name, tensor in tensors.items():
        slot = name.removesuffix(LENGTHS)
        where = tensor.input
        if name not in slots and slot not in slots:
            raise BadRequest(f"{where}.name {short_repr(name)} is not a slot of the model; it has {named(slots)}")
        if name not in slots and slot not in tensors:
            raise BadRequest(
                f"{where}.name {short_repr(name)} gives lengths of {short_repr(slot)}, which is not among the inputs"
            )
    given = [(index, tensors[slot], tensors.get(slot + LENGTHS)) for index, slot in enumerate(slots) if slot in tensors]
    # Lengths, where there are some, have a value for each instance.
    deciding = max((lengths or tensor for _, tensor, lengths in given), key=lambda tensor: tensor.shape[0])
    rows, most = deciding.shape[0], deciding.input
    enough_instances(rows, max_instances, most)
    shared = [each for each in given if (each[2] or each[1]).shape[0] == 1 != rows]
    own = _by_row([each for each in given if each not in shared], rows, most, len(slots))
    return with_shared(own, _by_row(shared, 1, most, len(slots)), slots.names) if shared else own


def _by_row(given: list[tuple[int, Tensor, Tensor | None]], rows: int, most: str, slots: int) -> Instances:
    """Return the instances of slots, each given by its index, its tensor and its lengths."""
    columns, owners = [], []
    lengths = np.zeros((rows, slots), dtype=np.int64)
    for index, tensor, its_lengths in given:
        _typed(tensor, _FEASIGN_TYPES)
        lengths[:, index] = _lengths(tensor, its_lengths, rows, most)
        columns.append(_feasigns(tensor))
        owners.append(np.repeat(np.arange(rows) * slots + index, lengths[:, index]))
    # A request is ordered by slot, a batch by row: a stable sort by (row, slot) keeps the order inside a slot.
    order = np.argsort(np.concatenate(owners), kind="stable")
    return Instances(np.concatenate(columns)[order], lengths.reshape(-1), rows)


def _of_arrays(tensors: dict[str, Tensor], slots: SlotList, max_instances: int) -> Instances:
    feasigns, lengths = tensors[ALL_FEASIGNS], tensors[ALL_LENGTHS]
    _typed(feasigns, _FEASIGN_TYPES)
    _typed(lengths, tuple(RAW))
    if len(lengths.shape) != 2 or lengths.shape[1] != len(slots):
        raise BadRequest(
            f"{lengths.input}.shape is {lengths.shape}; the model has {len(slots)} slots: it must be [n, {len(slots)}]"
        )
    enough_instances(lengths.shape[0], max_instances, lengths.input)
    return Instances(_feasigns(feasigns), _counts(lengths, feasigns), lengths.shape[0])


def _feasigns(tensor: Tensor) -> Any:
    if isinstance(tensor.data, np.ndarray):
        if len(tensor.data) > MAX_FEASIGNS:
            raise too_many_feasigns(len(tensor.data))
        # INT64 has the same 64 bits.
        return tensor.data.astype(np.uint64)
    return feasign_array(tensor.data, lambda place: f"{tensor.where}[{place}] of {short_repr(tensor.name)}")


def _lengths(tensor: Tensor, lengths: Tensor | None, rows: int, most: str) -> Lengths:
    deciding = tensor if lengths is None else lengths
    where = deciding.input
    if deciding.shape[0] != rows:
        raise BadRequest(
            f"{where} has {deciding.shape[0]} instances and {most} {rows}; they must be as many, or one that all instances share"
        )
    if lengths is None:
        return np.full(rows, tensor.shape[1] if len(tensor.shape) == 2 else 1, dtype=np.int64)
    _typed(lengths, tuple(RAW))
    if len(lengths.shape) == 2 and lengths.shape[1] != 1:
        raise BadRequest(f"{where}.shape of {short_repr(lengths.name)} is {lengths.shape}; it must be [n]")
    return _counts(lengths, tensor)


def _counts(lengths: Tensor, tensor: Tensor) -> Lengths:
    """Return lengths, which must add up to the values of a tensor."""
    given = lengths.data
    if isinstance(given, np.ndarray):
        # Each length is below 2^32, so the sum cannot overflow.
        wrong = (
            np.flatnonzero((given < 0) | (given >= 1 << 32)) if given.dtype.itemsize == 8 else np.flatnonzero(given < 0)
        )
        if wrong.size:
            raise BadRequest(f"{lengths.where}[{wrong[0]}] is {given[wrong[0]]}; it must be a whole number, 0 or more")
        total = int(given.sum(dtype=np.int64))
    else:
        total = sum(count(value, f"{lengths.where}[{place}]") for place, value in enumerate(given))
    if total != len(tensor.data):
        raise BadRequest(
            f"{lengths.input}: {short_repr(lengths.name)} adds up to {total}; {short_repr(tensor.name)} has {len(tensor.data)} values"
        )
    return np.asarray(given, np.int64)
