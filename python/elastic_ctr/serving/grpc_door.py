"""The Open Inference Protocol, version 2, over gRPC: the same rules, refusals and rounds as its REST door.

It lives in each worker, on the worker's own event loop, and the workers share the port by SO_REUSEPORT: so its requests
join the rounds of the other doors, which are its batching window, and a core more is a door more. In a process of its
own every request would be parsed twice and travel once more. Refusals are gRPC statuses: 400 INVALID_ARGUMENT,
404 NOT_FOUND, 413 RESOURCE_EXHAUSTED, 503 UNAVAILABLE, 500 INTERNAL, each with the sentence that REST would give.
`grpc.health.v1.Health/Check` answers probes. The messages are in `open_inference.proto`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

# gRPC's core writes to stderr whenever a peer goes away. Read when grpc is first imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from elastic_ctr.serving import open_inference
from elastic_ctr.serving import open_inference_pb2 as messages
from elastic_ctr.serving.instances import Instances
from elastic_ctr.serving.open_inference import Inference, Tensor
from elastic_ctr.serving.pooling import Floats
from elastic_ctr.serving.refusal import Refusal, refusal_of, shown
from elastic_ctr.serving.service import Service

DOOR = "grpc"
SERVICE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
# Of one process; more are refused by gRPC itself with RESOURCE_EXHAUSTED.
_MAX_CALLS = 2048
_IDLE_MS = 300_000
# grpc.health.v1.HealthCheckResponse: field 1, SERVING or NOT_SERVING.
_HEALTHY, _UNHEALTHY = b"\x08\x01", b"\x08\x02"

_CONTENTS = {
    "BYTES": "bytes_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
}
_RAW = {"INT32": "<i4", "INT64": "<i8", "UINT32": "<u4", "UINT64": "<u8"}
_LENGTH_BYTES = 4

Context = Any


class GrpcDoor:
    """Answers calls on one port. `max_bytes` bounds a message."""

    def __init__(self, service: Service, max_bytes: int) -> None:
        self._service = service
        self._max_bytes = max_bytes
        self._server: Any = None

    async def listen(self, host: str, port: int) -> int:
        """Accept, sharing the port with the other workers; returns the port. Raises OSError."""
        self._server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 1),
                ("grpc.max_receive_message_length", self._max_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_connection_idle_ms", _IDLE_MS),
            ],
            maximum_concurrent_rpcs=_MAX_CALLS,
        )
        calls = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._model_infer,
        }
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, {name: self._handler(do) for name, do in calls.items()}),
                grpc.method_handlers_generic_handler(HEALTH, {"Check": self._handler(self._check)}),
            )
        )
        bound = self._server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        if not bound:
            raise OSError(f"{host}:{port} cannot be used for gRPC")
        await self._server.start()
        return int(bound)

    async def stop(self, grace_seconds: float) -> None:
        """Accept no more calls, finish those under way; what is not done after the grace is cut."""
        if self._server is not None:
            await self._server.stop(grace_seconds)

    def _handler(self, do: Callable[[bytes], Awaitable[Message | bytes]]) -> Any:
        async def call(request: bytes, context: Context) -> bytes:
            try:
                answer = await do(request)
            except Exception as error:
                refusal = refusal_of(error)
                self._service.count(DOOR, refusal.status)
                await context.abort(_CODES.get(refusal.status, grpc.StatusCode.INTERNAL), refusal.sentence)
                raise
            self._service.count(DOOR, 200)
            return answer if isinstance(answer, bytes) else answer.SerializeToString()

        return grpc.unary_unary_rpc_method_handler(call)

    # -- small answers

    async def _server_live(self, request: bytes) -> Message:
        _read(messages.ServerLiveRequest, request)
        return messages.ServerLiveResponse(live=True)

    async def _server_ready(self, request: bytes) -> Message:
        _read(messages.ServerReadyRequest, request)
        return messages.ServerReadyResponse(ready=self._service.version() is not None)

    async def _model_ready(self, request: bytes) -> Message:
        asked = _read(messages.ModelReadyRequest, request)
        self._named(asked.name)
        live = self._service.version()
        return messages.ModelReadyResponse(ready=live is not None and asked.version in {"", str(live)})

    async def _server_metadata(self, request: bytes) -> Message:
        _read(messages.ServerMetadataRequest, request)
        return messages.ServerMetadataResponse(name="elastic-ctr", version=self._service.package_version)

    async def _model_metadata(self, request: bytes) -> Message:
        asked = _read(messages.ModelMetadataRequest, request)
        self._named(asked.name)
        self._versioned(asked.version)
        told = self._service.model_metadata()
        tensors = {
            kind: [messages.ModelMetadataResponse.TensorMetadata(**each) for each in told[kind]]
            for kind in ("inputs", "outputs")
        }
        return messages.ModelMetadataResponse(
            name=told["name"], versions=told["versions"], platform=told["platform"], **tensors
        )

    async def _check(self, request: bytes) -> bytes:
        # HealthCheckRequest: field 1, the service's name; short enough for a length of one byte.
        name = request[2:].decode("utf-8", "replace")
        if name not in {"", SERVICE}:
            raise Refusal(404, f"{shown(name)} is not a service of this server; {SERVICE} is")
        return _UNHEALTHY if self._service.version() is None else _HEALTHY

    def _named(self, name: str) -> None:
        if name != self._service.model_name:
            raise Refusal(404, f"the model {shown(name)} is not here; this is {shown(self._service.model_name)}")

    def _versioned(self, version: str) -> None:
        live = self._service.version()
        if version and version != str(live):
            raise Refusal(
                404, f"the version {shown(version)} is not the live one, which is {live}; leave model_version empty"
            )

    # -- predictions

    async def _model_infer(self, request: bytes) -> Message:
        asked = _read(messages.ModelInferRequest, request)
        self._named(asked.model_name)
        self._versioned(asked.model_version)
        inference = inference_of(asked)
        answered: asyncio.Future[tuple[Floats, int]] = asyncio.get_running_loop().create_future()

        def done(outcome: Floats | Exception, version: int) -> None:
            # The call may have been cancelled meanwhile.
            if answered.done():
                return
            if isinstance(outcome, Exception):
                answered.set_exception(outcome)
            else:
                answered.set_result((outcome, version))

        def parse(slots: Any) -> Instances:
            return inference.instances(slots, self._service.max_instances)

        self._service.predict(len(request), parse, done)
        probabilities, version = await answered
        if asked.model_version and asked.model_version != str(version):
            raise Refusal(404, f"the live version changed to {version} meanwhile; leave model_version empty")
        return answer_of(asked, inference, probabilities, version)


def inference_of(asked: Any) -> Inference:
    """A ModelInferRequest as the REST door would have read it. Raises Refusal."""
    if not asked.inputs:
        raise Refusal(400, open_inference.NO_INPUTS)
    raw = asked.raw_input_contents
    if raw and len(raw) != len(asked.inputs):
        raise Refusal(
            400, f"raw_input_contents has {len(raw)} entries for {len(asked.inputs)} inputs; give one for each"
        )
    tensors: dict[str, Tensor] = {}
    for place, given in enumerate(asked.inputs):
        where = f"inputs[{place}]"
        if given.datatype not in _CONTENTS:
            allowed = ", ".join(sorted(_CONTENTS))
            raise Refusal(400, f"{where}.datatype is {shown(given.datatype)}; it must be one of {allowed}")
        if raw:
            if given.HasField("contents"):
                raise Refusal(400, f"{where}.contents stands beside raw_input_contents; give one of them")
            where_data = f"raw_input_contents[{place}]"
            data = _raw(raw[place], given.datatype, where_data)
        else:
            where_data = f"{where}.contents"
            data = _contents(given.contents, given.datatype, where_data)
        open_inference.add_tensor(tensors, given.name, list(given.shape), given.datatype, data, where, where_data)
    return Inference(
        asked.id or None, open_inference.outputs_named([(each.name, f"outputs[{place}].name") for place, each in enumerate(asked.outputs)]), tensors
    )  # fmt: skip


def answer_of(asked: Any, inference: Inference, probabilities: Floats, version: int) -> Message:
    """The ModelInferResponse: raw to a raw request."""
    rows = len(probabilities)
    response = messages.ModelInferResponse(
        model_name=asked.model_name, model_version=str(version), id=asked.id
    )  # fmt: skip
    versions = np.full(rows, version, dtype=np.uint64)
    for name in inference.outputs:
        values, kind, field = (
            (probabilities, "FP32", "fp32_contents") if name == "probability" else (versions, "UINT64", "uint64_contents")
        )  # fmt: skip
        output = response.outputs.add(name=name, datatype=kind, shape=[rows])
        if asked.raw_input_contents:
            response.raw_output_contents.append(values.astype("<f4" if kind == "FP32" else "<u8").tobytes())
        else:
            getattr(output.contents, field).extend(values.tolist())
    return response


def _read(kind: Any, request: bytes) -> Any:
    try:
        return kind.FromString(request)
    except DecodeError:
        raise Refusal(400, f"the message is no {SERVICE.partition('.')[0]}.{kind.DESCRIPTOR.name}") from None


def _contents(contents: Any, datatype: str, where: str) -> Any:
    field = _CONTENTS[datatype]
    for other in contents.DESCRIPTOR.fields:
        if other.name != field and len(getattr(contents, other.name)):
            raise Refusal(400, f"{where} has {other.name}; {datatype} stands in {field}")
    values = getattr(contents, field)
    return list(values) if datatype == "BYTES" else np.array(values, dtype=_RAW[datatype])


def _raw(data: bytes, datatype: str, where: str) -> Any:
    if datatype != "BYTES":
        dtype = np.dtype(_RAW[datatype])
        if len(data) % dtype.itemsize:
            raise Refusal(400, f"{where} has {len(data)} bytes; values of {datatype} have {dtype.itemsize} each")
        return np.frombuffer(data, dtype=dtype)
    elements: list[bytes] = []
    at = 0
    while at < len(data):
        start = at + _LENGTH_BYTES
        at = start + int.from_bytes(data[at:start], "little")
        if start > len(data) or at > len(data):
            raise Refusal(400, f"{where} ends inside its element {len(elements)}")
        elements.append(data[start:at])
    return elements
