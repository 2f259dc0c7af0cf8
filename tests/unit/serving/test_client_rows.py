"""The clients against models of columns, and against servers that fail: both clients do the same."""

import asyncio
import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.serving.client import (
    AsyncServingClient,
    Prediction,
    PredictionRefused,
    ServingClient,
    ServingUnavailable,
)
from elastic_ctr.serving.client_attempts import Addresses, Question
from elastic_ctr.serving.client_connections import AnswerBroken, Response, ResponseReader
from elastic_ctr.serving.client_messages import rows_request
from serving.frontends import HTTP_KINDS, http_standing
from serving.test_native_rows import standing
from waiting import Clock

ROWS: list[dict[str, Any]] = [
    {"user": "u7", "price": 12.5, "tags": ["sport", "news"]},
    {"user": 7, "price": np.float32(0.5)},
    {"user": "größe", "price": None},
    {},
]
Ask = Callable[..., Any]


async def _blocking(addresses: str | Sequence[str], rows: Any, **settings: Any) -> Prediction:
    def ask() -> Prediction:
        with ServingClient(addresses, **settings) as client:
            return client.predict_rows(rows)

    return await asyncio.to_thread(ask)


async def _with_asyncio(addresses: str | Sequence[str], rows: Any, **settings: Any) -> Prediction:
    async with AsyncServingClient(addresses, **settings) as client:
        return await client.predict_rows(rows)


@pytest.fixture(params=[_blocking, _with_asyncio], ids=["blocking", "asyncio"])
def predict_rows(request: pytest.FixtureRequest) -> Ask:
    found: Ask = request.param
    return found


@pytest.mark.parametrize("kind", HTTP_KINDS)
async def test_rows_are_predicted_and_the_version_named(kind: str, predict_rows: Ask) -> None:
    async with standing(kind) as it:
        found = await predict_rows(it.address, ROWS)
        alone = [(await predict_rows(it.address, [row])).probabilities[0] for row in ROWS]

    assert found.version == 7
    assert found.probabilities.dtype == np.float32
    assert found.probabilities.tolist() == alone
    assert len(set(alone)) == len(ROWS)


@pytest.mark.parametrize("kind", HTTP_KINDS)
async def test_integers_of_64_bits_are_exact_and_equal_their_text(kind: str, predict_rows: Ask) -> None:
    numbers = [2**53 - 1, 2**53 + 1, 2**63 + 1, 2**64 - 1, -(2**63)]
    async with standing(kind) as it:
        as_numbers = await predict_rows(it.address, [{"user": each} for each in numbers])
        as_numpy = await predict_rows(it.address, [{"user": each} for each in np.array(numbers[:-1], np.uint64)])
        in_lists = [await predict_rows(it.address, [{"tags": tags}]) for tags in (numbers, [*map(str, numbers)])]
        price = await predict_rows(it.address, [{"price": 2**60}, {"price": float(2**60)}])
        as_text = await predict_rows(it.address, [{"user": str(each)} for each in numbers])

    assert as_numbers.probabilities.tolist() == as_text.probabilities.tolist()
    assert as_numpy.probabilities.tolist() == as_text.probabilities.tolist()[:-1]
    assert len(set(as_text.probabilities.tolist())) == len(numbers)
    assert in_lists[0].probabilities == in_lists[1].probabilities
    assert price.probabilities[0] == price.probabilities[1]


async def test_a_missing_value_is_none_or_absent(predict_rows: Ask) -> None:
    async with standing("numba") as it:
        found = await predict_rows(it.address, [{"user": None, "price": None, "tags": []}, {}])

    assert found.probabilities[0] == found.probabilities[1]


async def test_a_refusal_has_the_servers_sentence(predict_rows: Ask) -> None:
    async with standing("numba") as it:
        with pytest.raises(
            PredictionRefused, match=r"instances\[1\] has the column 'usr', which no feature reads"
        ) as no:
            await predict_rows(it.address, [{"user": "u"}, {"usr": "u"}])
        with pytest.raises(PredictionRefused, match=r"65 .* 64") as many:
            await predict_rows(it.address, [{}] * 65)

    assert (no.value.status, many.value.status) == (400, 413)


async def test_a_model_of_the_other_kind_is_named_with_the_way_to_ask_it(predict_rows: Ask) -> None:
    async with http_standing("numba") as it:
        with pytest.raises(
            PredictionRefused, match="takes feasigns of its slots, not rows of columns; ask it with encode"
        ):
            await predict_rows(it.address, [{"user": "u"}])
    async with standing("numba") as it:
        client = ServingClient(it.address)
        with pytest.raises(
            PredictionRefused, match=r"takes rows of columns \(.*user.*\), not feasigns; .* predict_rows"
        ):
            await asyncio.to_thread(client.encode, [{"user": [1]}])
        columns = await asyncio.to_thread(client.columns)
        client.close()
        async with AsyncServingClient(it.address) as other:
            assert await other.columns() == columns
            with pytest.raises(PredictionRefused, match="predict_rows"):
                await other.slots()

    assert columns == {"user": "BYTES", "tags": "BYTES", "price": "FP64"}


async def test_the_slots_of_a_model_are_all_of_its_slots() -> None:
    async with http_standing("numba") as it:
        with ServingClient(it.address) as client:
            assert (await asyncio.to_thread(client.slots)).names == ("a", "b")
            assert await asyncio.to_thread(client.columns) == {}
        async with AsyncServingClient(it.address) as client_:
            feasigns, lengths = await client_.encode([{"a": [2**40], "b": [3]}])
            found = await asyncio.gather(*(client_.predict(feasigns, lengths) for _ in range(8)))

    assert {each.version for each in found} == {7}
    assert [each.probabilities.tolist() for each in found] == [[float(np.float32(2**40 + 3))]] * 8


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([{"user": "u"}, {"price": float("nan")}], r"rows\[1\]\.price is nan, which is no decimal number; give None"),
        ([{"price": np.float32("inf")}], r"rows\[0\]\.price is inf"),
        ([{"tags": ["a", float("nan")]}], r"rows\[0\]\.tags\[1\] is nan"),
        ([{"user": b"u7"}], r"rows\[0\]\.user is bytes b'u7'; give text"),
        ([{"user": np.datetime64("2020-04-01")}], r"rows\[0\]\.user is date .*; give text"),
        ([{"user": "\ud800"}], r"rows\[0\]\.user is str '\\ud800', which is not Unicode text"),
        ([["u7", 12.5]], r"rows\[0\] is list .*; it must have a value for each column"),
        ({"user": "u7"}, r"rows are a list of rows; give \[row\] for one"),
    ],
)
def test_a_value_that_no_request_can_hold_is_refused_by_row_and_column(rows: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        rows_request(rows)


def test_numpy_values_and_mappings_are_written_as_json_has_them() -> None:
    class Record(Mapping[str, Any]):
        def __getitem__(self, name: str) -> Any:
            return {"a": np.int64(-5), "b": np.array(["x", "y"]), "c": np.bool_(True)}[name]

        def __iter__(self) -> Iterator[str]:
            return iter("abc")

        def __len__(self) -> int:
            return 3

    assert rows_request([Record()]) == b'{"instances":[{"a":-5,"b":["x","y"],"c":true}]}'


# -- servers that fail


@contextlib.contextmanager
def server(*answers: bytes | None) -> Iterator[tuple[str, list[bytes]]]:
    """Answers the n-th request with the n-th answer, then with the last one; None: it closes the connection instead."""
    asked: list[bytes] = []
    opened: list[socket.socket] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                opened.append(connection)
                with connection, contextlib.suppress(OSError):
                    _answer(connection, answers, asked)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}", asked
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in opened:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def _answer(connection: socket.socket, answers: tuple[bytes | None, ...], asked: list[bytes]) -> None:
    connection.settimeout(10)
    while True:
        data = b""
        while b"\r\n\r\n" not in data or (data.startswith(b"POST") and not data.endswith(b"}")):
            more = connection.recv(1 << 16)
            if not more:
                return
            data += more
        asked.append(data)
        answer = answers[min(len(asked), len(answers)) - 1]
        if answer is None:
            return
        connection.sendall(answer)
        if answer == CUT:
            return


def http(status: int, body: bytes, *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status} x", *(headers or (f"Content-Length: {len(body)}",)), "", ""]
    return "\r\n".join(head).encode() + body


GOOD = http(200, b'{"predictions":[0.25],"model_version":"7"}')
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nxy"
BUSY = http(503, b'{"error":"too many requests wait"}')


def dead() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


async def test_another_address_stands_in_for_one_that_is_dead_busy_or_hangs_up(predict_rows: Ask) -> None:
    for bad in (None, BUSY, http(502, b"<html>"), CUT):
        with server(GOOD) as (good, _), server(bad) as (other, _):
            for _ in range(4):
                assert (await predict_rows([other, good, dead()], [{}])).version == 7


async def test_an_address_that_says_nothing_leaves_time_to_ask_another_one(predict_rows: Ask) -> None:
    with server(GOOD) as (good, _), socket.create_server(("127.0.0.1", 0)) as silent:
        addresses = [f"127.0.0.1:{silent.getsockname()[1]}", good]
        for _ in range(3):
            assert (await predict_rows(addresses, [{}], timeout_seconds=1)).version == 7


async def test_a_call_ends_after_its_time_whatever_comes(predict_rows: Ask) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ServingUnavailable, match=f"{address}: timed out"):
            await predict_rows([address], [{}], timeout_seconds=0.2)


async def test_only_what_passes_by_is_asked_again(predict_rows: Ask) -> None:
    for status, times in ((400, 1), (404, 1), (413, 1), (500, 1), (503, 3)):
        said = http(status, b'{"error":"so it is"}')
        with server(said) as (address, asked), pytest.raises(PredictionRefused, match="so it is") as refused:
            await predict_rows(address, [{}])
        posts = [each for each in asked if each.startswith(b"POST")]
        assert (refused.value.status, len(posts)) == (status, times)


async def test_retries_are_of_a_number_that_can_be_set(predict_rows: Ask) -> None:
    with server(BUSY) as (address, asked), pytest.raises(PredictionRefused):
        await predict_rows(address, [{}], retries=0)
    assert len(asked) == 1


async def test_a_connection_that_the_server_closed_meanwhile_is_made_again_without_a_retry() -> None:
    with server(GOOD, None, GOOD) as (address, asked), ServingClient(address, retries=0) as client:
        answers = [await asyncio.to_thread(client.predict_rows, [{}]) for _ in range(2)]
    assert [each.version for each in answers] == [7, 7]
    assert len(asked) == 3


async def test_a_connection_is_used_again() -> None:
    async with standing("numba") as it:
        async with AsyncServingClient(it.address) as client:
            for _ in range(5):
                await client.predict_rows(ROWS)
            assert [len(idle) for idle in client._idle.values()] == [1]
        with ServingClient(it.address) as blocking:
            for _ in range(5):
                await asyncio.to_thread(blocking.predict_rows, ROWS)
            assert [len(idle) for idle in blocking._idle.values()] == [1]


async def test_an_answer_of_another_program_is_said(predict_rows: Ask) -> None:
    for body in (
        b"<html>",
        b"[]",
        b'{"predictions":[],"model_version":"7"}',
        b'{"predictions":["x"],"model_version":"7"}',
    ):
        with (
            server(http(200, body)) as (address, _),
            pytest.raises(ServingUnavailable, match="its answer cannot be read"),
        ):
            await predict_rows(address, [{}])
    with server(b"SSH-2.0-OpenSSH\r\n\r\n") as (address, _), pytest.raises(ServingUnavailable, match=r"not HTTP/1\.1"):
        await predict_rows(address, [{}], retries=0)


def test_an_address_is_host_and_port() -> None:
    for wrong in ("localhost", "http://a:1", "a:0", "a:99999", ""):
        with pytest.raises(ServingUnavailable, match="is no address: write host:port"):
            ServingClient(wrong)
    with pytest.raises(ServingUnavailable, match="there is no address"):
        AsyncServingClient([])
    assert ServingClient("[::1]:8400")._addresses.all[0].host == "::1"


# -- what is asked next


def test_while_all_servers_are_in_trouble_at_most_a_tenth_is_asked_again() -> None:
    clock, addresses, asked = Clock(), Addresses(["a:1", "b:1"]), 0
    for _ in range(1000):
        question = Question(addresses, 10, 5, clock)
        with contextlib.suppress(ServingUnavailable):
            while True:
                attempt = question.attempt()
                clock.now += attempt.pause
                asked += 1
                question.failed(attempt, OSError("gone"), reused=False)

    assert 1000 < asked <= 1000 + 10 + 100


def test_addresses_take_turns_and_one_that_failed_rests() -> None:
    clock, addresses = Clock(), Addresses(["a:1", "b:1", "c:1"])

    def answered() -> str:
        question = Question(addresses, 10, 2, clock)
        while True:
            attempt = question.attempt()
            if attempt.address.host != "b":
                assert question.settled(attempt, Response(200, {}, b"", True), "it")
                return attempt.address.host
            question.failed(attempt, OSError("gone"), reused=False)

    hosts = [answered() for _ in range(30)]
    assert {"a", "c"} == set(hosts)
    assert addresses._failures[next(each for each in addresses.all if each.host == "b")] == 1
    clock.now += 60
    answered(), answered(), answered()
    assert addresses._failures[next(each for each in addresses.all if each.host == "b")] == 2


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n02\r\nde\r\n0\r\nTrailer: x\r\n\r\n"
UNTIL_THE_END = b"HTTP/1.0 200 OK\r\n\r\nabcde"
AFTER_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabcde"


@given(st.sampled_from([CHUNKED, UNTIL_THE_END, AFTER_CONTINUE]), st.lists(st.integers(0, 120), max_size=6))
def test_a_response_is_read_in_whatever_pieces_it_comes(data: bytes, cuts: list[int]) -> None:
    reader, found = ResponseReader(), None
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[begin:end] for begin, end in itertools.pairwise(edges) if begin < end]
    for piece in pieces:
        assert found is None
        found = reader.feed(piece)
    if data == UNTIL_THE_END:
        assert found is None
        found = reader.feed(b"")

    assert found is not None
    assert (found.status, found.body, found.keep) == (200, b"abcde", data != UNTIL_THE_END)


@pytest.mark.parametrize("data", [CHUNKED, AFTER_CONTINUE])
def test_a_response_that_is_cut_is_never_taken_for_a_whole_one(data: bytes) -> None:
    for end in range(len(data)):
        reader = ResponseReader()
        if end:
            assert reader.feed(data[:end]) is None
        with pytest.raises(AnswerBroken, match="ended"):
            reader.feed(b"")


def test_nonsense_is_no_response() -> None:
    for data in (b"\x00" * 70_000, b"HTTP/2 200\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n",
                 b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"):  # fmt: skip
        with pytest.raises(AnswerBroken):
            ResponseReader().feed(data)
