"""The gRPC door as any client of the protocol sees it: a real channel, the published names and numbers."""

import asyncio
import struct
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2

from elastic_ctr.formats.slots import SlotList
from elastic_ctr.runtime.inline_executor import InlineExecutor
from elastic_ctr.serving import health_pb2 as health
from elastic_ctr.serving import open_inference_pb2 as messages
from elastic_ctr.serving.batching.batcher import Batcher
from elastic_ctr.serving.batching.model_version import ModelVersion
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.frontends import grpc as module
from elastic_ctr.serving.frontends.grpc import HEALTH, SERVICE, GrpcFrontend
from elastic_ctr.serving.routes import PARSED_INLINE, Routes
from elastic_ctr.serving.worker_counters import Counters
from fuzz.model import Sum
from serving.frontends import SLOTS, Table
from serving.growing import SMALL_THAT_GROW


class Standing:
    def __init__(
        self, door: GrpcFrontend, port: int, batcher: Batcher, table: Table, counters: Counters, channel: Any
    ) -> None:
        self.door = door
        self.batcher = batcher
        self.table = table
        self.counters = counters
        self.port = port
        self.channel = channel

    def release(self, version: int, slots: SlotList = SLOTS) -> None:
        self.batcher.add(ModelVersion(version, Schema(slots), None, 1, Sum(), self.table))
        self.batcher.pin(version)

    async def raw(self, method: str, request: bytes) -> bytes:
        call = self.channel.unary_unary(method)
        answer: bytes = await call(request, wait_for_ready=True, timeout=30)
        return answer

    async def ask(self, name: str, /, **fields: Any) -> Any:
        request = getattr(messages, f"{name}Request")(**fields)
        answer = await self.raw(f"/{SERVICE}/{name}", request.SerializeToString())
        return getattr(messages, f"{name}Response").FromString(answer)

    async def infer(self, inputs: list[dict[str, Any]], **fields: Any) -> Any:
        return await self.ask("ModelInfer", **{"model_name": "ctr", "inputs": inputs, **fields})

    async def refusal(self, inputs: list[dict[str, Any]], **fields: Any) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await self.infer(inputs, **fields)
        return refused.value.code(), refused.value.details() or ""


@asynccontextmanager
async def standing(
    *, live: int | None = 7, max_bytes: int = 1 << 20, max_instances: int = 100
) -> AsyncIterator[Standing]:
    async def newest() -> int | None:
        return None

    counters, table = Counters(), Table()
    batcher = Batcher(InlineExecutor("paddle"), newest, counters, max_rows=64)
    service = Routes(
        batcher, counters, ThreadPoolExecutor(1), model_name="ctr", version="1.2", max_instances=max_instances
    )
    door = GrpcFrontend(service, max_bytes)
    port = await door.listen("127.0.0.1", 0)
    running = asyncio.create_task(batcher.run())
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
            it = Standing(door, port, batcher, table, counters, channel)
            if live is not None:
                it.release(live)
            yield it
    finally:
        await door.stop(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def lines(*found: bytes, shape: list[int] | None = None) -> dict[str, Any]:
    contents = messages.InferTensorContents(bytes_contents=found)
    return {"name": "line", "datatype": "BYTES", "shape": shape or [len(found)], "contents": contents}


def slot(name: str, values: list[int], shape: list[int] | None = None) -> dict[str, Any]:
    contents = messages.InferTensorContents(uint64_contents=values)
    return {"name": name, "datatype": "UINT64", "shape": shape or [len(values)], "contents": contents}


def lengths(name: str, values: list[int]) -> dict[str, Any]:
    contents = messages.InferTensorContents(int_contents=values)
    return {"name": f"{name}/lengths", "datatype": "INT32", "shape": [len(values)], "contents": contents}


async def test_lines_are_answered_with_probabilities_and_their_version() -> None:
    async with standing() as it:
        answer = await it.infer([lines(b"1:a 2:a 3:b", b"5:b 9:unknown")], id="x")

    assert (answer.model_name, answer.model_version, answer.id) == ("ctr", "7", "x")
    assert [(each.name, each.datatype, list(each.shape)) for each in answer.outputs] == [
        ("probability", "FP32", [2]),
        ("version", "UINT64", [2]),
    ]
    assert list(answer.outputs[0].contents.fp32_contents) == [6.0, 5.0]
    assert list(answer.outputs[1].contents.uint64_contents) == [7, 7]
    assert it.counters.requests["grpc", 200] == 1


async def test_slots_are_answered_with_and_without_lengths() -> None:
    async with standing() as it:
        ragged = await it.infer([slot("b", [1, 2, 3]), lengths("b", [3, 0]), slot("a", [10, 20])])
        square = await it.infer([slot("a", [1, 2, 3, 4], shape=[2, 2])])

    assert list(ragged.outputs[0].contents.fp32_contents) == [16.0, 20.0]
    assert list(square.outputs[0].contents.fp32_contents) == [3.0, 7.0]


async def test_raw_contents_are_answered_raw() -> None:
    async with standing() as it:
        answer = await it.infer(
            [
                {"name": "a", "datatype": "UINT64", "shape": [2]},
                {"name": "b", "datatype": "INT64", "shape": [3]},
                {"name": "b/lengths", "datatype": "UINT32", "shape": [2]},
            ],
            raw_input_contents=[struct.pack("<2Q", 1, 2), struct.pack("<3q", 3, 4, 5), struct.pack("<2I", 1, 2)],
            outputs=[{"name": "probability"}],
        )
        text = await it.infer(
            [{"name": "line", "datatype": "BYTES", "shape": [1, 1]}], raw_input_contents=[struct.pack("<I", 3) + b"4:a"]
        )

    assert [each.name for each in answer.outputs] == ["probability"]
    assert list(answer.raw_output_contents) == [struct.pack("<2f", 4, 11)]
    assert not answer.outputs[0].HasField("contents")
    assert list(text.raw_output_contents) == [struct.pack("<f", 4), struct.pack("<Q", 7)]


@pytest.mark.parametrize("raw", [False, True])
async def test_known_keys_are_answered_where_they_are_asked_for_and_ignored_features_are_counted(raw: bool) -> None:
    """The padding key is none that is known."""
    outputs = [{"name": "known_keys"}, {"name": "version"}]
    given = [b"1:a 0:a 2:b 9:nope", b""]
    async with standing() as it:
        if raw:
            packed = b"".join(struct.pack("<I", len(line)) + line for line in given)
            asked = [{"name": "line", "datatype": "BYTES", "shape": [2]}]
            answer = await it.infer(asked, outputs=outputs, raw_input_contents=[packed])
        else:
            answer = await it.infer([lines(*given)], outputs=outputs)

    assert [(each.name, each.datatype) for each in answer.outputs] == [("known_keys", "UINT32"), ("version", "UINT64")]
    if raw:
        assert answer.raw_output_contents[0] == struct.pack("<2I", 2, 0)
    else:
        assert list(answer.outputs[0].contents.uint_contents) == [2, 0]
    assert it.counters.totals["ignored_features"] == 1


INVALID = grpc.StatusCode.INVALID_ARGUMENT
REFUSED: dict[str, tuple[list[dict[str, Any]], dict[str, Any], grpc.StatusCode, str]] = {
    "nothing": ([], {}, INVALID, "inputs is empty"),
    "another model": ([lines(b"1:a")], {"model_name": "ads"}, grpc.StatusCode.NOT_FOUND, "the model 'ads' is not here"),
    "another version": ([lines(b"1:a")], {"model_version": "6"}, grpc.StatusCode.NOT_FOUND, "which is 7"),
    "a bad line": ([lines(b"1:a", b"x:a")], {}, INVALID, "inputs[0].contents[1] is refused"),
    "a shape that lies": ([lines(b"1:a", shape=[2])], {}, INVALID, "inputs[0].contents has 1 values; its shape [2] says 2"),
    "a negative shape": ([slot("a", [1], shape=[-1])], {}, INVALID, "inputs[0].shape[0]"),
    "three dimensions": ([slot("a", [1], shape=[1, 1, 1])], {}, INVALID, "3 dimensions"),
    "an unknown slot": ([slot("c", [1])], {}, INVALID, "'c' is not a slot of the model; it has a, b"),
    "a slot twice": ([slot("a", [1]), slot("a", [1])], {}, INVALID, "inputs[1].name 'a' is there twice"),
    "lengths that lie": ([slot("a", [1, 2]), lengths("a", [1, 2])], {}, INVALID, "adds up to 3"),
    "lengths below 0": ([slot("a", [1, 2]), lengths("a", [3, -1])], {}, INVALID, "inputs[1].contents[1] is -1"),
    "a kind of number": ([{"name": "a", "datatype": "FP16", "shape": [1]}], {}, INVALID, "inputs[0].datatype is 'FP16'"),
    "numbers for feasigns": (
        [{"name": "a", "datatype": "FP32", "shape": [1], "contents": {"fp32_contents": [1.0]}}], {}, INVALID,
        "inputs[0].datatype of 'a' is 'FP32'",
    ),
    "contents elsewhere": (
        [{**slot("a", [1]), "datatype": "INT64"}], {}, INVALID, "inputs[0].contents has uint64_contents; INT64 stands in",
    ),
    "an output": ([lines(b"1:a")], {"outputs": [{"name": "score"}]}, INVALID, "outputs[0].name 'score'"),
    "raw and not": ([lines(b"1:a")], {"raw_input_contents": [b""]}, INVALID, "stands beside raw_input_contents"),
    "too few raw": (
        [{"name": "a", "datatype": "UINT64", "shape": [1]}], {"raw_input_contents": [b"", b""]}, INVALID, "2 entries for 1",
    ),
    "raw cut": (
        [{"name": "a", "datatype": "UINT64", "shape": [1]}], {"raw_input_contents": [bytes(7)]}, INVALID, "has 7 bytes",
    ),
    "raw text cut": (
        [{"name": "line", "datatype": "BYTES", "shape": [1]}], {"raw_input_contents": [b"\xff\xff\xff\xffa"]}, INVALID,
        "ends inside its element 0",
    ),
    "too many": ([slot("a", [1] * 101)], {}, grpc.StatusCode.RESOURCE_EXHAUSTED, "101 instances; 100 are allowed"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
async def test_a_bad_request_gets_a_status_and_a_sentence(case: str) -> None:
    inputs, fields, code, sentence = REFUSED[case]
    async with standing() as it:
        status, details = await it.refusal(inputs, **fields)
        answer = await it.infer([lines(b"1:a")])

    assert (status, sentence in details) == (code, True), details
    assert list(answer.outputs[0].contents.fp32_contents) == [1.0]


async def test_bytes_that_are_no_message_are_refused() -> None:
    async with standing() as it:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await it.raw(f"/{SERVICE}/ModelInfer", b"\xff\xff\xff")

    assert (refused.value.code(), refused.value.details()) == (INVALID, "the message is no inference.ModelInferRequest")


@pytest.mark.parametrize("name", [each for each in SMALL_THAT_GROW if each != "raw elements"])
async def test_a_message_that_would_grow_in_memory_is_refused_before_it_is_parsed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("_MAX_FIELDS", "MAX_ELEMENTS", "MAX_FEASIGNS"):
        monkeypatch.setattr(module, limit, 100)
    parsed: list[int] = []
    monkeypatch.setattr(module, "_parse", lambda _, request: parsed.append(len(request)))

    async with standing() as it:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await it.raw(f"/{SERVICE}/ModelInfer", SMALL_THAT_GROW[name](PARSED_INLINE + 2))

    code = grpc.StatusCode.INVALID_ARGUMENT if name == "behind a group" else grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.value.code() == code
    assert parsed == []


async def test_before_the_first_version_it_lives_and_is_not_ready() -> None:
    async with standing(live=None) as it:
        it.batcher.stage = "training hour 1 of 4"
        before = [
            (await it.ask("ServerLive")).live,
            (await it.ask("ServerReady")).ready,
            (await it.ask("ModelReady", name="ctr")).ready,
            await it.raw(f"/{HEALTH}/Check", b""),
        ]
        refused = await it.refusal([lines(b"1:a")])
        it.release(7)
        after = [
            (await it.ask("ServerReady")).ready,
            (await it.ask("ModelReady", name="ctr", version="7")).ready,
            (await it.ask("ModelReady", name="ctr", version="6")).ready,
            await it.raw(f"/{HEALTH}/Check", b"\n" + bytes([len(SERVICE)]) + SERVICE.encode()),
        ]

    assert before == [True, False, False, b"\x08\x02"]
    assert refused == (grpc.StatusCode.UNAVAILABLE, "no version is live yet: training hour 1 of 4")
    assert after == [True, True, False, b"\x08\x01"]


async def test_metadata_says_what_may_be_sent() -> None:
    async with standing() as it:
        server, model = await it.ask("ServerMetadata"), await it.ask("ModelMetadata", name="ctr")

    assert (server.name, server.version) == ("elastic-ctr", "1.2")
    assert (model.name, list(model.versions), model.platform) == ("ctr", ["7"], "elastic-ctr")
    assert dict(model.properties) == {"max_instances": "100"}
    assert model.DESCRIPTOR.fields_by_name["properties"].number == 6
    assert [(each.name, each.datatype, list(each.shape)) for each in model.inputs] == [
        ("line", "BYTES", [-1]), ("a", "UINT64", [-1]), ("a/lengths", "INT32", [-1]), ("b", "UINT64", [-1]),
        ("b/lengths", "INT32", [-1]),
    ]  # fmt: skip


async def test_tools_learn_the_methods_by_reflection() -> None:
    def questions() -> Iterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        yield reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE)
        yield reflection_pb2.ServerReflectionRequest(file_containing_symbol=HEALTH)

    methods = {}
    async with standing() as it:
        call = it.channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )
        answers = [answer async for answer in call(questions(), timeout=30)]
    for answer in answers[1:]:
        file = FileDescriptorProto.FromString(answer.file_descriptor_response.file_descriptor_proto[0])
        for service in file.service:
            methods[f"{file.package}.{service.name}"] = [method.name for method in service.method]

    assert {each.name for each in answers[0].list_services_response.service} == {
        SERVICE, HEALTH, "grpc.reflection.v1alpha.ServerReflection",
    }  # fmt: skip
    assert methods[HEALTH] == ["Check", "List", "Watch"]
    assert "ModelInfer" in methods[SERVICE]


async def test_health_is_watched_and_listed_as_it_changes() -> None:
    async with standing(live=None) as it:
        watching = it.channel.unary_stream(f"/{HEALTH}/Watch")(b"", timeout=30)
        unknown = it.channel.unary_stream(f"/{HEALTH}/Watch")(b"\n\x01x", timeout=30)
        seen = [await watching.read(), await unknown.read()]
        before = health.HealthListResponse.FromString(await it.raw(f"/{HEALTH}/List", b""))
        it.release(7)
        seen.append(await watching.read())
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await it.raw(f"/{HEALTH}/Check", b"\n\x01x")

    assert seen == [b"\x08\x02", b"\x08\x03", b"\x08\x01"]
    assert {name: status.status for name, status in before.statuses.items()} == {"": 2, SERVICE: 2}
    assert refused.value.code() == grpc.StatusCode.NOT_FOUND


async def test_a_client_that_pings_without_calls_is_not_sent_away() -> None:
    """Frames by hand: a gRPC client pings every 10 s at most."""
    pong, goaway = 6, 7

    async with standing() as it:
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04\x00" + bytes(4))
        kinds = []
        for _ in range(4):
            writer.write(b"\x00\x00\x08\x06\x00" + bytes(4) + b"pingpong")
            while True:
                head = await reader.readexactly(9)
                payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
                assert head[3] != goaway, payload
                if head[3] == pong and head[4] & 1:
                    kinds.append(payload)
                    break
            await asyncio.sleep(1.1)
        writer.close()
        await writer.wait_closed()

    assert kinds == [b"pingpong"] * 4


async def test_calls_that_come_while_a_round_runs_are_one_round() -> None:
    async with standing() as it:
        it.table.gate.clear()
        first = asyncio.create_task(it.infer([lines(b"1:a")]))
        while not it.table.lookups:
            await asyncio.sleep(0.001)
        rest = [asyncio.create_task(it.infer([lines(b"2:a")])) for _ in range(20)]
        while it.batcher.waiting_rows < 20:
            await asyncio.sleep(0.001)
        it.table.gate.set()

        answers = await asyncio.gather(first, *rest)

    assert [answer.outputs[0].contents.fp32_contents[0] for answer in answers] == [1.0] + [2.0] * 20
    assert it.table.lookups == 2


async def test_told_to_stop_it_finishes_what_was_asked() -> None:
    async with standing() as it:
        it.table.gate.clear()
        asked = asyncio.create_task(it.infer([lines(b"1:a")]))
        while not it.table.lookups:
            await asyncio.sleep(0.001)
        stopping = asyncio.create_task(it.door.stop(60))
        await asyncio.sleep(0)
        it.table.gate.set()

        answer = await asked
        await stopping

    assert list(answer.outputs[0].contents.fp32_contents) == [1.0]


def test_the_messages_are_numbered_as_published() -> None:
    """By hand: a client that was generated from the published file must be understood."""
    tensor = b"\x0a\x01a" + b"\x12\x06UINT64" + b"\x1a\x01\x01" + b"\x2a\x03" + b"\x2a\x01\x05"
    request = messages.ModelInferRequest.FromString(
        b"\x0a\x03ctr" + b"\x12\x017" + b"\x1a\x01x" + b"\x2a" + bytes([len(tensor)]) + tensor + b"\x3a\x02ab"
    )

    assert (request.model_name, request.model_version, request.id) == ("ctr", "7", "x")
    assert (request.inputs[0].name, request.inputs[0].datatype, list(request.inputs[0].shape)) == ("a", "UINT64", [1])
    assert list(request.inputs[0].contents.uint64_contents) == [5]
    assert list(request.raw_input_contents) == [b"ab"]
    assert messages.ServerReadyResponse(ready=True).SerializeToString() == b"\x08\x01"
    assert {field.name: field.number for field in messages.InferTensorContents.DESCRIPTOR.fields} == {
        "bool_contents": 1, "int_contents": 2, "int64_contents": 3, "uint_contents": 4, "uint64_contents": 5,
        "fp32_contents": 6, "fp64_contents": 7, "bytes_contents": 8,
    }  # fmt: skip
