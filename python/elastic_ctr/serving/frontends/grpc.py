"""The Open Inference Protocol, version 2, over gRPC: the same rules, refusals and batches as over REST.

Each worker has this frontend on its own event loop, so that its requests join the batches of the other frontends; the workers share
the port by SO_REUSEPORT. Refusals are gRPC statuses: 400 INVALID_ARGUMENT, 404 NOT_FOUND, 413 RESOURCE_EXHAUSTED, 503 UNAVAILABLE,
500 INTERNAL, each with the sentence of REST. `grpc.health.v1.Health` answers probes, and server reflection lists the methods.

gRPC reads a message before the frontend sees it, and parsing multiplies its size: an empty input takes 2 bytes on the wire and a
hundred as an object. So the elements of a large message are counted on its bytes first.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

# Without this, gRPC's core writes to stderr whenever a peer disconnects. The variable is read when grpc is first imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from grpc_reflection.v1alpha import reflection

from elastic_ctr.serving import health_pb2 as health
from elastic_ctr.serving import open_inference_pb2 as messages
from elastic_ctr.serving.batching.instances import (
    MAX_FEASIGNS,
    Instances,
    Lengths,
    best_places,
    too_many_feasigns,
)
from elastic_ctr.serving.batching.pooling import Floats
from elastic_ctr.serving.protocols import open_inference
from elastic_ctr.serving.protocols.open_inference import Inference
from elastic_ctr.serving.protocols.tensors import MAX_ELEMENTS, RAW_COLUMNS, Tensor, add_tensor, raw_values
from elastic_ctr.serving.request_error import BadRequest, RequestError, request_error_of, short_repr
from elastic_ctr.serving.routes import PARSED_INLINE, Routes

ENDPOINT = "grpc"
SERVICE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"
NO_MESSAGE = "the message is no {}"

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
# Concurrent calls of one process; gRPC itself refuses more with RESOURCE_EXHAUSTED.
_MAX_CALLS = 2048
_IDLE_MS = 300_000
# The least interval of pings. With gRPC's default of 5 minutes, a client that pings every 10 s, as many do, was cut off after 40 s.
_PING_MS = 1000
# Most bytes of a request of any method but ModelInfer.
_SMALL_BYTES = 64 << 10
# Fields of a ModelInferRequest besides one for each instance: names, shapes, parameters of thousands of tensors.
_MAX_FIELDS = 1 << 16
# Bytes of all messages in memory, in multiples of the largest message.
_MAX_PENDING = 4
_WATCH_SECONDS = 0.5
_STATUS = health.HealthCheckResponse.ServingStatus

_CONTENTS = {
    "BYTES": "bytes_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "BOOL": "bool_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}
# Wire types of protobuf, and a field number in open_inference.proto, which `inputs` of a request and `contents` of an input share.
_VARINT, _LENGTH_DELIMITED, _FIXED = 0, 2, {1: 8, 5: 4}
_NESTED, _OUTPUTS, _SHAPE, _BYTES_CONTENTS = 5, 6, 3, 8


class GrpcFrontend:
    """Answers calls on one port. `max_bytes` bounds a message."""

    def __init__(self, service: Routes, max_bytes: int) -> None:
        self._service = service
        self._max_bytes = max_bytes
        self._pending_bytes = 0
        self._parser = ThreadPoolExecutor(1, thread_name_prefix="grpc-parser")
        self._server: Any = None

    async def listen(self, host: str, port: int) -> int:
        """Listen on a port that the workers share, and return the port. Raises OSError."""
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 1),
                ("grpc.max_receive_message_length", self._max_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_connection_idle_ms", _IDLE_MS),
                ("grpc.http2.min_ping_interval_without_data_ms", _PING_MS),
                ("grpc.keepalive_permit_without_calls", 1),
            ],
            maximum_concurrent_rpcs=_MAX_CALLS,
        )
        inference = {
            "ServerLive": self._small(messages.ServerLiveRequest, lambda _: messages.ServerLiveResponse(live=True)),
            "ServerReady": self._small(messages.ServerReadyRequest, self._server_ready),
            "ModelReady": self._small(messages.ModelReadyRequest, self._model_ready),
            "ServerMetadata": self._small(messages.ServerMetadataRequest, self._server_metadata),
            "ModelMetadata": self._small(messages.ModelMetadataRequest, self._model_metadata),
            "ModelInfer": self._handler(self._model_infer),
        }
        probes = {
            "Check": self._small(health.HealthCheckRequest, self._check),
            "List": self._small(health.HealthListRequest, self._list),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }
        services = {SERVICE: inference, HEALTH: probes}
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(name, methods) for name, methods in services.items()]
        )
        reflection.enable_server_reflection((SERVICE, HEALTH, reflection.SERVICE_NAME), self._server)
        bound = self._server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        if not bound:
            raise OSError(f"{host}:{port} cannot be used for gRPC")
        await self._server.start()
        return int(bound)

    async def stop(self, grace_seconds: float) -> None:
        """Accept no more calls, and finish those under way; calls that take longer than the grace are cut."""
        if self._server is not None:
            await self._server.stop(grace_seconds)
        self._parser.shutdown(wait=False)

    def _handler(self, do: Callable[[bytes], Awaitable[Message]]) -> Any:
        async def call(request: bytes, context: Any) -> bytes:
            try:
                answer = await do(request)
            except Exception as error:
                refusal = request_error_of(error)
                # The error's traceback refers to the request, and gRPC keeps its own error in a reference cycle, which lives long
                # until the garbage collector runs.
                error.__traceback__ = None
                del request
                self._service.count(ENDPOINT, refusal.status)
                await context.abort(_CODES.get(refusal.status, grpc.StatusCode.INTERNAL), refusal.sentence)
                raise
            self._service.count(ENDPOINT, 200)
            return answer.SerializeToString()

        return grpc.unary_unary_rpc_method_handler(call)

    # -- small answers

    def _small(self, kind: Any, do: Callable[[Any], Message]) -> Any:
        async def call(request: bytes) -> Message:
            return do(_read(kind, request))

        return self._handler(call)

    def _server_ready(self, _asked: Any) -> Message:
        return messages.ServerReadyResponse(ready=self._service.version() is not None)

    def _model_ready(self, asked: Any) -> Message:
        self._named(asked.name)
        live = self._service.version()
        return messages.ModelReadyResponse(ready=live is not None and asked.version in {"", str(live)})

    def _server_metadata(self, _asked: Any) -> Message:
        return messages.ServerMetadataResponse(name="elastic-ctr", version=self._service.package_version)

    def _model_metadata(self, asked: Any) -> Message:
        self._named(asked.name)
        self._versioned(asked.version)
        properties = {"max_instances": str(self._service.max_instances)}
        return messages.ModelMetadataResponse(**self._service.model_metadata(), properties=properties)

    def _check(self, asked: Any) -> Message:
        if asked.service not in {"", SERVICE}:
            raise RequestError(404, f"{short_repr(asked.service)} is not a service of this server; {SERVICE} is")
        return self._health()

    def _list(self, _asked: Any) -> Message:
        return health.HealthListResponse(statuses={name: self._health() for name in ("", SERVICE)})

    async def _watch(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """Yield the status now and after each change, until the client disconnects."""
        try:
            name = _read(health.HealthCheckRequest, request).service
        except RequestError as refusal:
            await context.abort(_CODES[refusal.status], refusal.sentence)
            raise
        told = None
        unknown = health.HealthCheckResponse(status=_STATUS.SERVICE_UNKNOWN)
        while True:
            now = self._health() if name in {"", SERVICE} else unknown
            if now != told:
                yield now.SerializeToString()
                told = now
            await asyncio.sleep(_WATCH_SECONDS)

    def _health(self) -> health.HealthCheckResponse:
        status = _STATUS.NOT_SERVING if self._service.version() is None else _STATUS.SERVING
        return health.HealthCheckResponse(status=status)

    def _named(self, name: str) -> None:
        here = self._service.model_name
        if name != here:
            raise RequestError(404, f"the model {short_repr(name)} is not here; this is {short_repr(here)}")

    def _versioned(self, version: str) -> None:
        live, asked = self._service.version(), short_repr(version)
        if version and version != str(live):
            raise RequestError(
                404, f"the version {asked} is not the live one, which is {live}; leave model_version empty"
            )

    # -- predictions

    async def _model_infer(self, request: bytes) -> Message:
        if self._pending_bytes and self._pending_bytes + len(request) > _MAX_PENDING * self._max_bytes:
            raise RequestError(503, f"requests of {self._pending_bytes} bytes are waiting already; ask again later")
        self._pending_bytes += len(request)
        try:
            return await self._inferred(request)
        finally:
            self._pending_bytes -= len(request)

    async def _inferred(self, request: bytes) -> Message:
        if len(request) <= PARSED_INLINE:
            asked, inference = self._parsed(request)
        else:
            asked, inference = await asyncio.get_running_loop().run_in_executor(self._parser, self._parsed, request)
        answered: asyncio.Future[tuple[Floats, int]] = asyncio.get_running_loop().create_future()
        top = inference.options.top

        def done(outcome: Floats | Exception, version: int) -> None:
            # The call may have been cancelled meanwhile.
            if answered.done():
                return
            if isinstance(outcome, Exception):
                answered.set_exception(outcome)
            else:
                answered.set_result((outcome, version))

        def parse(schema: Any) -> Instances:
            return inference.instances(schema, self._service.max_instances)

        self._service.predict(len(request), parse, done, only_live=bool(asked.model_version))
        probabilities, version = await answered
        if asked.model_version and asked.model_version != str(version):
            raise RequestError(404, f"the live version changed to {version} meanwhile; leave model_version empty")
        places = best_places(probabilities, top) if top else None
        return answer_of(asked, inference, probabilities if places is None else probabilities[places], version, places)

    def _parsed(self, request: bytes) -> tuple[Any, Inference]:
        """Raises RequestError."""
        if len(request) > PARSED_INLINE:
            check_counts(request, self._service.max_instances)
        asked = _parse(messages.ModelInferRequest, request)
        self._named(asked.model_name)
        self._versioned(asked.model_version)
        return asked, inference_of(asked, self._service.max_instances)


def check_counts(request: bytes, max_instances: int) -> None:
    """Refuse a serialized ModelInferRequest that would become far more objects than any sensible request has.

    Raises RequestError: 413, or 400 if the bytes are no message, or one with groups.
    """
    fields = values = 0
    most = _MAX_FIELDS + max(max_instances, MAX_ELEMENTS)
    # Spans to count: the request, its tensors and outputs, and the contents of the tensors; no repeated field lies deeper.
    spans = [(0, len(request), 0)]
    while spans:
        begin, end, depth = spans.pop()
        for number, start, stop in _wire_fields(request, begin, end):
            fields += 1
            if fields > most:
                raise RequestError(413, f"the message has more than {most} fields; send several requests")
            if start == stop:
                continue
            if (depth < 2 and number == _NESTED) or (depth == 0 and number == _OUTPUTS):
                spans.append((start, stop, depth + 1))
            elif (depth == 1 and number == _SHAPE) or (depth == 2 and number != _BYTES_CONTENTS):
                # In a packed field every varint ends with a byte below 128.
                packed = np.frombuffer(request, dtype=np.uint8, count=stop - start, offset=start)
                values += int(np.count_nonzero(packed < 0x80))
                if values > MAX_FEASIGNS:
                    raise too_many_feasigns(values)


def _wire_fields(message: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (number, start, stop) of each field; start equals stop for a value without a length."""
    while at < end:
        tag, at = _varint(message, at, end)
        kind, length = tag & 7, 0
        if kind == _LENGTH_DELIMITED:
            length, start = _varint(message, at, end)
        elif kind == _VARINT:
            _, start = _varint(message, at, end)
        else:
            # Groups are rejected.
            start = at + _FIXED.get(kind, end + 1)
        stop = start + length
        if stop > end:
            raise BadRequest(NO_MESSAGE.format(messages.ModelInferRequest.DESCRIPTOR.full_name))
        yield tag >> 3, start, stop
        at = stop


def _varint(message: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a varint and the offset after it, which is beyond `end` if the varint is cut off."""
    number = shift = 0
    while at < end and shift < 70:
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    return 0, end + 1


def inference_of(asked: Any, max_instances: int) -> Inference:
    """Return a ModelInferRequest as the REST frontend would read it. Raises RequestError."""
    if not asked.inputs:
        raise BadRequest(open_inference.NO_INPUTS)
    raw = asked.raw_input_contents
    if raw and len(raw) != len(asked.inputs):
        raise BadRequest(f"raw_input_contents has {len(raw)} entries for {len(asked.inputs)} inputs; give one for each")
    tensors: dict[str, Tensor] = {}
    for place, given in enumerate(asked.inputs):
        where = f"inputs[{place}]"
        if given.datatype not in _CONTENTS:
            allowed = ", ".join(sorted(_CONTENTS))
            raise BadRequest(f"{where}.datatype is {short_repr(given.datatype)}; it must be one of {allowed}")
        if raw:
            if given.HasField("contents"):
                raise BadRequest(f"{where}.contents stands beside raw_input_contents; give one of them")
            where_data = f"raw_input_contents[{place}]"
            data = raw_values(raw[place], given.datatype, where_data, max(max_instances, MAX_ELEMENTS))
        else:
            where_data = f"{where}.contents"
            data = _contents(given.contents, given.datatype, where_data)
        tensor = Tensor(given.name, list(given.shape), given.datatype, data, where, where_data)
        add_tensor(tensors, tensor)
    given = {
        name: _parameter(value)
        for name, value in asked.parameters.items()
        if name in open_inference.InferenceOptions._fields
    }
    options = open_inference.options_of(given)
    outputs = [(each.name, f"outputs[{place}].name") for place, each in enumerate(asked.outputs)]
    return Inference(asked.id or None, open_inference.outputs_named(outputs, options), tensors, options=options)


def _parameter(value: Any) -> Any:
    kind = value.WhichOneof("parameter_choice")
    return None if kind is None else getattr(value, kind)


def answer_of(
    asked: Any, inference: Inference, probabilities: Floats, version: int, places: Lengths | None = None
) -> Message:
    """Return the ModelInferResponse, with raw contents for a raw request."""
    response = messages.ModelInferResponse(model_name=asked.model_name, model_version=str(version), id=asked.id)
    for name, datatype, values in inference.answers(probabilities, version, places):
        output = response.outputs.add(name=name, datatype=datatype, shape=[len(probabilities)])
        if asked.raw_input_contents:
            response.raw_output_contents.append(values.tobytes())
        else:
            getattr(output.contents, _CONTENTS[datatype]).extend(values.tolist())
    return response


def _read(kind: Any, request: bytes) -> Any:
    """Parse a message of a small method. Raises RequestError."""
    if len(request) > _SMALL_BYTES:
        raise RequestError(413, f"the message has {len(request)} bytes; {_SMALL_BYTES} are the most of this method")
    return _parse(kind, request)


def _parse(kind: Any, request: bytes) -> Any:
    try:
        return kind.FromString(request)
    except DecodeError:
        raise BadRequest(NO_MESSAGE.format(kind.DESCRIPTOR.full_name)) from None


def _contents(contents: Any, datatype: str, where: str) -> Any:
    field = _CONTENTS[datatype]
    for other in contents.DESCRIPTOR.fields:
        if other.name != field and len(getattr(contents, other.name)):
            raise BadRequest(f"{where} has {other.name}; {datatype} stands in {field}")
    values = getattr(contents, field)
    # `fromiter`, because numpy.array would make a list of the repeated field first, which takes five times as much memory.
    dtype = RAW_COLUMNS.get(datatype)
    return list(values) if datatype == "BYTES" else np.fromiter(values, dtype=dtype, count=len(values))
