"""The arithmetic of measurements, and the load generator against a server of a few lines. Nothing here asserts a time."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from bench import own_network
from bench import table as tables
from bench.days import Day, grown
from bench.document import with_results
from bench.loadgen import FRAMES, HTTP, RESP, Expected, Load
from bench.method import Comparison, Plan, Results, Row, Sample, Side, compare

from cube_oracles import pack_refusal, pack_reply
from elastic_ctr.cube import wire


def sample(work: float, *, cpu: float = 0.1, failed: int = 0) -> Sample:
    return Sample(work, 1.0, cpu, 0.001, 0.01, failed)


def a_day(**changes: int | None) -> Day:
    figures = {"rows": 2000, "checkpoint": 150_000, "memory": 600_000_000, "store": 900_000, **changes}
    return Day(**{**dict.fromkeys(Day.__dataclass_fields__, 0), "differs": [], **figures})  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["rows", "checkpoint", "memory", "store"])
def test_a_table_that_grows_by_more_than_a_tenth_from_one_day_to_another_is_not_bounded(what: str) -> None:
    before = getattr(a_day(), what)

    assert [len(grown(a_day(), a_day(**{what: int(before * by)}))) for by in (0.9, 1.05, 1.11)] == [0, 0, 1]
    assert grown(a_day(), a_day(store=None)) == []


def test_a_row_is_the_median_of_the_ratios_of_neighbours() -> None:
    compared = Comparison(
        "x", [sample(20), sample(60), sample(30)], [sample(10), sample(10), sample(10)], [1] * 3, [2] * 3
    )

    row = compared.row(2.5)

    assert (row.ratio, row.min, row.max, row.holds) == (3.0, 2.0, 6.0, True)
    assert "per server CPU second 6.0" in row.note


def test_a_client_that_uses_its_core_up_is_said_so_and_work_per_cpu_may_stand_in() -> None:
    compared = Comparison("x", [sample(20, cpu=0.99)], [sample(10)], [0.5], [1.0])

    plain, per_cpu = compared.row(3), compared.row(3, per_cpu_when_client_bound=True)

    assert (plain.ratio, plain.holds) == (2.0, False)
    assert (per_cpu.ratio, per_cpu.holds) == (4.0, True)
    assert "client-bound" in plain.note
    assert "plain 2.0" in per_cpu.note


def test_a_goal_may_be_a_limit() -> None:
    assert Row("x", 0.09, 0, 1, 0.1, bound="at most").holds
    assert not Row("x", 0.11, 0, 1, 0.1, bound="at most").holds
    assert Row("x", 1, 0, 1, None).holds is None


def test_a_goal_that_is_missed_may_be_met_otherwise() -> None:
    assert Row("x", 0.5, 0, 1, 0.6, otherwise=True).holds
    assert Row("x", 0.5, 0, 1, None, otherwise=True).holds is None


def test_rows_of_a_quick_run_are_not_published(tmp_path: Path) -> None:
    results = Results(tmp_path / "r.json", quick=True)
    results.put(Row("one", 1, 1, 1, 1))

    with pytest.raises(ValueError, match="one is of a quick run"):
        with_results("<!-- results -->\n<!-- end of results -->\n", results.read())


def test_both_sides_run_in_turn_and_a_refused_request_ends_it() -> None:
    order: list[str] = []

    def side(name: str, failed: int = 0) -> Side:
        def run(_: float) -> Sample:
            order.append(name)
            return sample(1, failed=failed)

        return Side(name, run)

    compare("x", side("a"), side("b"), Plan(2, 0.1))

    assert order == ["a", "b", "a", "b", "b", "a"]
    with pytest.raises(RuntimeError, match="failed 3 requests"):
        compare("x", side("a", failed=3), side("b"), Plan(1, 0.1))


def test_a_measurement_has_a_loopback_of_its_own_where_it_may() -> None:
    program = """
import socket
from bench import own_network
with socket.create_server(("127.0.0.1", 0)) as listener:
    socket.create_connection(listener.getsockname(), 5).close()
print(own_network.entered())
"""
    may = subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode == 0

    said = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, preexec_fn=own_network.enter
    ).stdout

    assert said == f"{may or own_network.entered()}\n"


def test_results_are_merged_by_name_and_shown_in_the_page(tmp_path: Path) -> None:
    results = Results(tmp_path / "r.json")
    for name, ratio in (("one", 1.0), ("two", 2.0), ("one", 3.0)):
        results.put(Row(name, ratio, ratio, ratio, 2.5))

    document = results.read()
    former = "former words\n| what | … |\n|---|\n| two | 7 | 7 to 7 |\n| three | 8 | 8 to 8 |\n"
    page = with_results(f"a\n<!-- results -->\n{former}<!-- end of results -->\nb\n", document)

    assert [(row["name"], row["ratio"], row["holds"]) for row in document["rows"]] == [
        ("one", 3.0, True),
        ("two", 2.0, False),
    ]
    assert f"{document['rows'][0]['measured'][:10]}, {document['rows'][0]['commit']} |" in page
    assert "former words" not in page
    assert "| two | 2 | 2 to 2 | ≥ 2.5 | **missed** |" in page
    assert "| two | 7" not in page
    assert page.count("| three | 8 | 8 to 8 |\n") == 1
    with pytest.raises(ValueError, match="no place for the results"):
        with_results("a", document)


@contextmanager
def answering(request: bytes, reply: bytes) -> Iterator[int]:
    """A server that answers each such request with that reply."""

    def serve(peer: socket.socket) -> None:
        with peer:
            held = b""
            while data := peer.recv(1 << 16):
                held += data
                while held.startswith(request):
                    held = held[len(request) :]
                    peer.sendall(reply)

    def accept() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(peer,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


KEYS = np.array([1, 2], np.uint64)
REPLIES = {
    "frames": (
        wire.pack_request(wire.MessageKind.LOOKUP, 1, 7, KEYS),
        pack_reply(1, 7, np.ones((2, 3), np.float32), np.zeros(2, np.bool_)),
        pack_refusal(wire.Status.BUSY, 1, 7),
        Expected(FRAMES),
    ),
    "http": (
        b"GET / HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 503 no\r\ncontent-length: 0\r\n\r\n",
        Expected(HTTP),
    ),
}


@pytest.mark.parametrize("kind", REPLIES)
@pytest.mark.parametrize("pipeline", [1, 3])
def test_the_generator_counts_replies_and_refusals(kind: str, pipeline: int) -> None:
    request, good, bad, expected = REPLIES[kind]

    for reply, refused in ((good, False), (bad, True)):
        with answering(request, reply) as port:
            load = Load(port, [request] * 5, expected, connections=2, pipeline=pipeline, work=2)
            seen = load.run(0.1)
            load.close()

        assert seen.work >= 2
        assert seen.failed == (seen.work / 2 if refused else 0)


def test_the_generator_knows_how_redis_answers_and_refuses_what_is_no_answer() -> None:
    request = tables.resp_mget(KEYS)
    values = [b"$12\r\n" + bytes(12) + b"\r\n"] * 2
    expected = Expected(RESP, *tables.resp_reply(2, 3))

    with answering(request, b"*2\r\n" + b"".join(values)) as port:
        load = Load(port, [request], expected, connections=2)
        seen = load.run(0.1)
        load.close()
    with answering(request, b"-ERR no\r\n") as port, pytest.raises(RuntimeError, match="in form"):
        Load(port, [request], expected, connections=1).run(0.1)

    assert seen.work >= 1
    assert seen.failed == 0
