import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_ctr.training.control import baidu_std_pb2 as frames
from elastic_ctr.training.control.server_call import connect, ping, rows_at
from paddle_socket import PaddleSocket, frame


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PaddleSocket]:
    made = PaddleSocket(tmp_path)
    yield made
    made.end()


def counted(data: bytes, code: int = 0) -> bytes:
    return frame(frames.PsResponse(err_code=code, data=data).SerializeToString())


def test_a_server_that_refuses_an_unknown_method_is_well(server: PaddleSocket) -> None:
    ping(server.path)

    assert server.called == 1


def test_a_server_that_answers_otherwise_is_not_well(server: PaddleSocket) -> None:
    server.code = 2001

    with pytest.raises(OSError, match="the server answers with error 2001"):
        ping(server.path)


def test_a_server_counts_the_rows_of_one_table(server: PaddleSocket) -> None:
    server.answer = counted(struct.pack("<qq", 5_000_000_000, 7))

    assert rows_at(server.path, 3) == 5_000_000_000

    assert server.requests == [frames.PsRequest(cmd_id=20, table_id=3, client_id=0)]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (counted(b"", -1), "does not count its rows: error -1"),
        (frame(b"", 1003), "does not count its rows: error 1003"),
        (frame(b"\xff\xff"), "are no answer"),
        (counted(b"1234567"), "7 bytes instead of 16"),
        (counted(b""), "0 bytes instead of 16"),
    ],
)
def test_an_answer_without_a_count_is_refused(server: PaddleSocket, answer: bytes, why: str) -> None:
    server.answer = answer

    with pytest.raises(ValueError, match=why):
        rows_at(server.path, 0)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"PRPC",
        b"HTTP/1.1 200 OK\r\n\r\n",
        struct.pack(">4sII", b"PRPC", 1 << 30, 4),
        struct.pack(">4sII", b"PRPC", 4, 1 << 30),
        struct.pack(">4sII", b"PRPC", 2, 2) + b"\xff\xff",
    ],
    ids=["nothing", "a cut header", "HTTP", "a huge length", "a meta behind the end", "no meta"],
)
def test_an_answer_in_another_protocol_is_an_error_of_the_connection(server: PaddleSocket, answer: bytes) -> None:
    server.answer = answer

    with pytest.raises(OSError, match=r"baidu_std|before the answer"):
        rows_at(server.path, 0)


def test_a_server_that_is_gone_is_an_error_of_the_connection(server: PaddleSocket) -> None:
    server.end()

    with pytest.raises(FileNotFoundError):
        ping(server.path)
    with pytest.raises(FileNotFoundError):
        rows_at(server.path.parent / "none" / "8801", 0)


def test_a_path_longer_than_an_address_is_reached(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    short = PaddleSocket(tmp_path)
    (deep / "8801").symlink_to(short.path)

    ping(deep / "8801")

    short.end()


def test_a_server_that_hangs_is_given_up_in_its_time(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "8801"))
        silent.listen()

        with connect(tmp_path / "8801", 0.05) as connection, pytest.raises(TimeoutError):
            connection.recv(1)
