"""The client of binary tensors against both HTTP frontends, and against servers that answer anything."""

import asyncio
import contextlib
import http.server
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from elastic_ctr.formats.slots import SlotList
from elastic_ctr.serving.client import PredictionRefused, ServingClient, ServingUnavailable, tensor_request
from elastic_ctr.serving.frontends.native_http import NativeHttpFrontend
from serving.frontends import HTTP_KINDS, http_standing
from serving.http_peer import mine, moved, until

INSTANCES = [{"a": [1, 2], "b": [3]}, {}, {"b": [2**40]}]


@pytest.mark.parametrize("kind", HTTP_KINDS)
async def test_instances_are_predicted_in_tensors(kind: str) -> None:
    async with http_standing(kind) as it:
        with ServingClient(it.address) as client:
            feasigns, lengths = await asyncio.to_thread(client.encode, INSTANCES)
            found = [await asyncio.to_thread(client.predict, feasigns, lengths) for _ in range(3)]
            if kind == "numba":
                # The metadata was asked for on another connection.
                await until(lambda: (mine(it), moved(it)) == (1, 0))

    answers = [(each.probabilities.tolist(), each.version) for each in found]
    assert answers == [([6.0, 0.0, float(2**40)], 7)] * 3
    assert it.counters.requests["open_inference", 200] == 3


async def test_tensors_are_read_by_the_native_frontend() -> None:
    async with http_standing("numba") as it:
        body, length = tensor_request(np.array([4, 5], np.uint64), np.array([[1, 1]]), SlotList(("a", "b")))
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
        head = f"POST /v2/models/ctr/infer HTTP/1.1\r\nHost: a\r\nInference-Header-Content-Length: {length}\r\n"
        for _ in range(3):
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.readuntil(np.array([9], "<f4").tobytes())
        frontends = mine(it), moved(it)
        writer.close()

    assert frontends == (1, 0)
    assert b'"model_version":"7"' in answer
    assert isinstance(it.door, NativeHttpFrontend)


async def test_json_that_differs_by_a_blank_at_its_end_is_read_as_well() -> None:
    slots = SlotList(("a", "b"))
    body, length = tensor_request(np.array([4, 5], np.uint64), np.array([[1, 1]]), slots)
    async with http_standing("numba") as it:
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
        for blanks in (0, 1, 0, 2, 1):
            data = body[:length] + b" " * blanks + body[length:]
            head = f"Inference-Header-Content-Length: {length + blanks}\r\nContent-Length: {len(data)}\r\n\r\n"
            writer.write(f"POST /v2/models/ctr/infer HTTP/1.1\r\nHost: a\r\n{head}".encode() + data)
            await asyncio.wait_for(reader.readuntil(np.array([9], "<f4").tobytes()), 20)
        frontends = mine(it), moved(it)
        writer.close()

    assert frontends == (1, 0)


async def test_a_model_with_other_slots_refuses_until_its_slots_are_read_again() -> None:
    async with http_standing("numba") as it:
        client = ServingClient(it.address)
        feasigns, lengths = await asyncio.to_thread(client.encode, INSTANCES)
        it.release(8, SlotList(("b", "a")))

        with pytest.raises(PredictionRefused, match="the slot list is not that of the model") as refused:
            await asyncio.to_thread(client.predict, feasigns, lengths)
        again = await asyncio.to_thread(client.encode, INSTANCES)
        answer = await asyncio.to_thread(client.predict, *again)
        client.close()

    assert refused.value.status == 409
    assert (answer.version, answer.probabilities[0]) == (8, 6)


async def test_before_the_first_version_a_client_is_refused_with_503() -> None:
    async with http_standing("numba", live=None) as it:
        with (
            ServingClient(it.address) as client,
            pytest.raises(PredictionRefused, match="no version is live") as refused,
        ):
            await asyncio.to_thread(client.slots)

    assert refused.value.status == 503


def test_arrays_that_do_not_fit_together_are_refused_before_they_are_sent() -> None:
    slots = SlotList(("a", "b"))
    for feasigns, lengths in (
        (np.zeros(2, np.uint64), np.array([[1, 0]])),
        (np.zeros(2, np.int64), np.array([[1, 1]])),
        (np.zeros(1, np.uint64), np.array([[1]])),
        (np.zeros(1, np.uint64), np.array([[2, -1]])),
    ):
        with pytest.raises(ValueError, match=r"feasigns"):
            tensor_request(feasigns, lengths, slots)  # type: ignore[arg-type]  # that is what is tested


@contextlib.contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_an_answer_of_another_program_is_an_error_of_its_own() -> None:
    with answering(200, b"<html>") as address, pytest.raises(ServingUnavailable, match="its metadata cannot be read"):
        ServingClient(address).slots()
    with answering(500, b"<html>") as address, pytest.raises(PredictionRefused, match="status 500"):
        ServingClient(address).slots()
    with pytest.raises(ServingUnavailable):
        ServingClient(address).slots()
    with pytest.raises(ServingUnavailable, match="is no address"):
        ServingClient("localhost")
