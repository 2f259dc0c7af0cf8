import asyncio
import socket
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from elastic_ctr.features.slots import SlotList
from elastic_ctr.serving import wire
from elastic_ctr.serving.binary_door import BinaryDoor
from elastic_ctr.serving.client import PredictionRefused, ServingClient, ServingUnavailable
from elastic_ctr.serving.wire import Hello, Status
from serving.doors import Standing, standing


async def asked(it: Standing[BinaryDoor], do: Callable[[ServingClient], None]) -> None:
    def run() -> None:
        with ServingClient(it.address) as client:
            do(client)

    await asyncio.to_thread(run)


async def test_a_prediction_is_asked_for_and_waited_for() -> None:
    def do(client: ServingClient) -> None:
        prediction = client.predict(*client.encode([{"a": [1, 2], "b": [3]}, {"b": [5]}, {}]))

        assert client.slots() == SlotList(("a", "b"))
        assert prediction.version == 7
        assert prediction.probabilities.dtype == np.float32
        assert prediction.probabilities.tolist() == [6.0, 5.0, 0.0]

    async with standing("numba") as it:
        await asked(it, do)


@pytest.mark.parametrize("kind", ["numba", "python"])
async def test_answers_come_in_the_order_of_the_requests(kind: str) -> None:
    def do(client: ServingClient) -> None:
        requests = [client.encode([{"a": [number]}] * (number % 50 + 1)) for number in range(1000)]

        answers = list(client.predict_each(requests, in_flight=400))

        assert [each.probabilities.tolist() for each in answers] == [
            [float(number)] * (number % 50 + 1) for number in range(1000)
        ]

    async with standing(kind) as it:
        await asked(it, do)


async def test_answers_may_be_received_in_any_order() -> None:
    def do(client: ServingClient) -> None:
        ids = [client.send(*client.encode([{"a": [number]}])) for number in range(10)]

        assert [client.receive(each).probabilities.tolist() for each in reversed(ids)] == [
            [float(number)] for number in reversed(range(10))
        ]
        with pytest.raises(ServingUnavailable, match="is not under way"):
            client.receive(ids[0])

    async with standing("numba") as it:
        await asked(it, do)


async def test_a_slot_list_that_has_changed_is_asked_for_again() -> None:
    def do(client: ServingClient) -> None:
        request = client.encode([{"a": [1], "b": [2]}])
        it.release(8, SlotList(("b",)))

        with pytest.raises(PredictionRefused, match="slot list is not that of the model") as refused:
            client.predict(*request)
        again = client.predict(*client.encode([{"b": [2]}]))

        assert refused.value.status == Status.OTHER_SLOTS
        assert (again.version, again.probabilities.tolist()) == (8, [2.0])

    async with standing("numba") as it:
        await asked(it, do)


async def test_what_cannot_be_sent_is_not() -> None:
    def do(client: ServingClient) -> None:
        with pytest.raises(ValueError, match="instance 1 has the slot 'c'"):
            client.encode([{}, {"c": [1]}])
        with pytest.raises(ValueError, match="not below 2\\^64"):
            client.encode([{"a": [2**64]}])
        with pytest.raises(ValueError, match="65 rows with 0 feasigns are too many"):
            client.predict(*client.encode([{}] * 65))
        assert client.predict(*client.encode([{"a": [5]}])).probabilities.tolist() == [5.0]

    async with standing("numba") as it:
        await asked(it, do)


async def test_before_the_first_version_the_refusal_says_why() -> None:
    def do(client: ServingClient) -> None:
        with pytest.raises(PredictionRefused, match="no version is live yet") as refused:
            client.slots()

        assert refused.value.status == Status.UNAVAILABLE

    async with standing("numba", live=None) as it:
        await asked(it, do)


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:1", "127.0.0.1:99999", ":", "[::1"])
def test_an_address_where_nobody_is_gets_a_sentence(address: str) -> None:
    with pytest.raises(ServingUnavailable, match=r"address|cannot be reached"):
        ServingClient(address)


class Liar:
    """A server that says what it is told to, a piece to each thing that it hears."""

    def __init__(self, said: list[bytes]) -> None:
        self._said = said
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen()
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connected, _ = self._socket.accept()
        with connected:
            for piece in self._said:
                connected.recv(1 << 16)
                connected.sendall(piece)
            # The client hangs up when it has understood.
            while connected.recv(1 << 16):
                pass

    def close(self) -> None:
        self._thread.join()
        self._socket.close()


HELLO = Hello(2, 64, 1000).pack()
SLOTS = wire.pack_slots(1, 7, SlotList(("a", "b")))
VALUES = np.ones(1, np.float32)
LIES = {
    "no hello": ([b"HTTP/1.1 400 Bad Request\r\n"], "is this serving's binary port"),
    "another protocol": ([Hello(protocol=2).pack()], "it speaks protocol 2"),
    "an answer nobody asked for": ([HELLO, SLOTS, wire.pack_reply(5, 7, VALUES)], "request 5, which nobody asked"),
    "too many values": ([HELLO, SLOTS, wire.pack_reply(2, 7, np.ones(2, np.float32))], "2 values in 8 bytes"),
    "a length without a head": ([HELLO, SLOTS, bytes(12) + b"\x02" + bytes(15)], "0 values in -24 bytes"),
    "a long refusal": ([HELLO, SLOTS, b"\xff\xff\xff\x7f\x03" + bytes(7) + b"\x02" + bytes(15)], "answer request 2"),
    "a slot list that is none": ([HELLO, wire.pack_reply(1, 7, VALUES)], "its slot list"),
}


@pytest.fixture
def liar(request: pytest.FixtureRequest) -> Iterator[Liar]:
    found = Liar(request.param)
    yield found
    found.close()


@pytest.mark.parametrize(("liar", "sentence"), LIES.values(), ids=LIES, indirect=["liar"])
def test_what_a_server_says_is_not_taken_on_trust(liar: Liar, sentence: str) -> None:
    with pytest.raises(ServingUnavailable, match=sentence), ServingClient(liar.address) as client:
        client.predict(np.ones(1, np.uint64), np.array([[1, 0]]))


async def test_a_lost_connection_is_made_again_at_the_next_request() -> None:
    def do(client: ServingClient) -> None:
        request = client.encode([{"a": [1]}])
        client.close()

        assert client.predict(*request).probabilities.tolist() == [1.0]

    async with standing("numba") as it:
        await asked(it, do)
