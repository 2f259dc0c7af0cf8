"""Both ways of reading sockets, by the same tests: machine code, and Python as its oracle."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_ctr.features.slots import SlotList
from elastic_ctr.frames.wire import DRAINING, HEAD_BYTES, HELLO_BYTES, Head, WireError
from elastic_ctr.serving import wire
from elastic_ctr.serving.binary_door import BinaryDoor, PythonDoor, make_binary_door
from elastic_ctr.serving.compiled_binary_door import CompiledBinaryDoor
from elastic_ctr.serving.wire import Hello, Status
from serving.doors import KINDS, SLOTS, Standing, standing

CHECK = wire.slot_list_check(SLOTS)
OTHER = SlotList(("b", "a"))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Peer:
    """A client made of bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def hello(self) -> Hello:
        self.writer.write(Hello().pack())
        return Hello.unpack(await self.reader.readexactly(HELLO_BYTES))

    async def reply(self) -> tuple[Head, bytes]:
        head = await self.reader.readexactly(HEAD_BYTES)
        return wire.unpack_reply(head + await self.reader.readexactly(Head.peek(head).body_bytes))

    async def refusal(self) -> tuple[Status, str]:
        head, body = await self.reply()
        assert head.version == head.n == 0
        return Status(head.code), body.decode()

    async def probabilities(self) -> tuple[int, int, list[float]]:
        head, body = await self.reply()
        assert head.code == Status.OK, body
        return head.id, head.version, np.frombuffer(body, "<f4").tolist()

    async def is_hung_up_on(self) -> bool:
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True


@asynccontextmanager
async def peer(it: Standing[BinaryDoor], *, greet: bool = True) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
    found = Peer(reader, writer)
    if greet:
        await found.hello()
    try:
        yield found
    finally:
        writer.close()


def request(number: int, rows: list[list[list[int]]], check: int = CHECK) -> bytes:
    counts = np.array([[len(slot) for slot in row] for row in rows]).reshape(len(rows), -1)
    feasigns = np.array([each for row in rows for slot in row for each in slot], np.uint64)
    return wire.pack_request(number, feasigns, counts, check)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def test_a_request_is_answered_with_its_id_and_the_version(kind: str) -> None:
    async with standing(kind) as it, peer(it) as client:
        client.writer.write(request(2**63 + 1, [[[1, 2], [3]], [[], []], [[0], [5]]]))

        answer = await client.probabilities()

    assert answer == (2**63 + 1, 7, [6.0, 0.0, 5.0])
    assert it.counters.requests == {("binary", 200): 1}


async def test_the_greeting_says_what_is_allowed(kind: str) -> None:
    async with standing(kind, live=None, max_feasigns=99) as it, peer(it, greet=False) as client:
        before = await client.hello()
        it.release(7)
        async with peer(it, greet=False) as second:
            after = await second.hello()

    assert before == Hello(0, 64, 99)
    assert after == Hello(2, 64, 99)


@pytest.mark.parametrize("greeting", [b"GET / HTTP/1.1\r\n", Hello(protocol=9).pack()])
async def test_who_speaks_something_else_is_greeted_and_hung_up_on(kind: str, greeting: bytes) -> None:
    async with standing(kind) as it, peer(it, greet=False) as client:
        client.writer.write(greeting + request(1, [[[1], [1]]]))

        ours = await client.reader.read()

    assert Hello.unpack(ours) == Hello(2, 64, 1 << 20)
    assert not it.counters.requests


async def test_what_comes_while_a_round_runs_is_the_next_round(kind: str) -> None:
    async with standing(kind) as it, peer(it) as one, peer(it) as two:
        it.table.gate.clear()
        one.writer.write(request(1, [[[1], []]]))
        await until(lambda: it.table.lookups == 1)
        one.writer.write(request(2, [[[2], []]]) + request(3, [[[3], []]]))
        two.writer.write(request(1, [[[4], [4]]]))
        await asyncio.gather(one.writer.drain(), two.writer.drain())
        it.table.gate.set()

        answers = [await one.probabilities() for _ in range(3)] + [await two.probabilities()]

    assert answers == [(1, 7, [1.0]), (2, 7, [2.0]), (3, 7, [3.0]), (1, 7, [8.0])]
    assert it.table.lookups <= 3


async def test_a_request_in_pieces_is_one_request(kind: str) -> None:
    frame = Hello().pack() + request(1, [[[1, 2], [3]]]) + request(2, [[[4], []]])
    async with standing(kind) as it, peer(it, greet=False) as client:
        for place in range(len(frame)):
            client.writer.write(frame[place : place + 1])
            await client.writer.drain()
        await client.reader.readexactly(HELLO_BYTES)

        answers = [await client.probabilities() for _ in range(2)]

    assert answers == [(1, 7, [6.0]), (2, 7, [4.0])]


async def test_more_than_a_connection_may_be_owed_is_answered_all_the_same(kind: str) -> None:
    async with standing(kind, max_in_flight=3) as it, peer(it) as client:
        client.writer.write(b"".join(request(number, [[[number], []]]) for number in range(500)))
        client.writer.write_eof()

        answers = [await client.probabilities() for _ in range(500)]
        ended = await client.is_hung_up_on()

    assert answers == [(number, 7, [float(number)]) for number in range(500)]
    assert ended


async def test_rows_beyond_one_round_are_answered_in_the_next(kind: str) -> None:
    async with standing(kind) as it, peer(it) as client:
        client.writer.write(b"".join(request(number, [[[number], []]] * 60) for number in range(20)))

        answers = [await client.probabilities() for _ in range(20)]

    assert answers == [(number, 7, [float(number)] * 60) for number in range(20)]


async def test_wide_counts_are_read(kind: str) -> None:
    async with standing(kind) as it, peer(it) as client:
        client.writer.write(request(1, [[[1] * 70_000, [5]]]))

        answer = await client.probabilities()

    assert answer == (1, 7, [70_005.0])


def head(**changes: int) -> bytes:
    """A request's 32 bytes, with any of its numbers changed."""
    told = {"length": 28, "kind": 1, "flags": 0, "rows": 1, "n": 0, "id": 9, "slots": 2, "list": CHECK, **changes}
    return struct.pack("<IHHIIQII", *told.values())


STAYS = {
    "no rows": (head(rows=0), Status.BAD_REQUEST, "rows is 0"),
    "another kind": (head(kind=3, rows=0), Status.BAD_REQUEST, "kind is 3"),
    "rows for a slot list": (head(kind=2, length=32) + bytes(4), Status.BAD_REQUEST, "has no rows"),
    "another list": (request(9, [[[1], [2]]], check=CHECK ^ 1), Status.OTHER_SLOTS, "slot list is not that"),
    "more slots": (request(9, [[[1], [2], [3]]]), Status.OTHER_SLOTS, "which has 2 slots"),
    "too many rows": (request(9, [[[1], [2]]] * 65), Status.TOO_LARGE, "65 rows; 64 are allowed"),
    "too many feasigns": (request(9, [[[1] * 101, []]]), Status.TOO_LARGE, "101 feasigns; 100 are allowed"),
    "a frame too large": (request(9, [[[1], []]] * 63), Status.TOO_LARGE, "788 bytes; 600 are allowed"),
    "wrong counts": (head(length=28 + 4 + 8, n=1) + bytes(12), Status.BAD_REQUEST, "counts"),
    "counts too high": (head(length=28 + 4 + 8, n=1) + b"\xff" * 4 + bytes(8), Status.BAD_REQUEST, "counts"),
}
ENDS = {
    "too short": head(length=3),
    "too long": head(length=2**32 - 1),
    "slots that overflow": head(slots=2**32 - 1, rows=2**32 - 1),
    "rows that overflow": head(rows=2**31, slots=2**16, length=28),
    "feasigns that overflow": head(n=2**32 - 1),
}


@pytest.mark.parametrize("case", STAYS)
async def test_a_bad_request_costs_its_own_refusal_and_nothing_else(kind: str, case: str) -> None:
    frame, status, sentence = STAYS[case]
    async with standing(kind, max_feasigns=100, max_frame_bytes=600) as it, peer(it) as client:
        client.writer.write(request(1, [[[1], [2]]]) + frame + request(2, [[[3], [4]]]))

        said = {reply[0].id: reply for reply in [await client.reply() for _ in range(3)]}

    refused, body = said[9]
    assert (refused.code, refused.n, refused.version) == (status, 0, 0)
    assert sentence in body.decode()
    assert said[1][1] == struct.pack("<f", 3)
    assert said[2][1] == struct.pack("<f", 7)


@pytest.mark.parametrize("case", ENDS)
async def test_a_frame_whose_end_is_not_certain_ends_the_connection(kind: str, case: str) -> None:
    async with standing(kind) as it, peer(it) as client, peer(it) as other:
        client.writer.write(ENDS[case] + request(2, [[[3], [4]]]))
        refused = await client.refusal()
        ended = await client.is_hung_up_on()
        other.writer.write(request(2, [[[3], [4]]]))

        answer = await other.probabilities()

    assert refused[0] == Status.BAD_REQUEST
    assert "the connection is closed" in refused[1]
    assert ended
    assert answer == (2, 7, [7.0])


async def test_before_the_first_version_the_stage_is_told(kind: str) -> None:
    async with standing(kind, live=None) as it, peer(it) as client:
        it.rounds.stage = "training hour 1 of 4"
        client.writer.write(request(1, [[[1], [2]]]) + wire.pack_slots_request(2))
        refusals = [await client.refusal() for _ in range(2)]
        it.release(7)
        client.writer.write(request(1, [[[1], [2]]]))

        answer = await client.probabilities()

    assert refusals == [(Status.UNAVAILABLE, "no version is live yet: training hour 1 of 4")] * 2
    assert answer == (1, 7, [3.0])


async def test_the_slot_list_can_be_asked_for(kind: str) -> None:
    async with standing(kind) as it, peer(it) as client:
        client.writer.write(wire.pack_slots_request(5))

        told, body = await client.reply()

    assert (told.code, told.n, told.id, told.version, body) == (Status.OK, 2, 5, 7, b"a\nb\n")


async def test_replies_that_are_longer_than_a_request_says_are_not_kept_beyond_their_room(kind: str) -> None:
    slots = SlotList(tuple(f"slot-{number:050d}" for number in range(500)))
    async with standing(kind) as it, peer(it) as deaf, peer(it) as other:
        it.release(9, slots)
        for _ in range(100):
            deaf.writer.write(wire.pack_slots_request(3) * 200)
        for number in range(20):
            other.writer.write(request(number, [[[1]] + [[]] * 499], wire.slot_list_check(slots)))

            assert await other.probabilities() == (number, 9, [1.0])


async def test_a_version_with_another_slot_list_reads_no_request_for_the_old_one(kind: str) -> None:
    async with standing(kind) as it, peer(it) as client:
        it.table.gate.clear()
        client.writer.write(request(1, [[[1], [2]]]))
        await until(lambda: it.table.lookups == 1)
        it.release(8, OTHER)
        client.writer.write(request(2, [[[1], [2]]]))
        it.table.gate.set()
        said = {reply[0].id: reply for reply in [await client.reply() for _ in range(2)]}
        client.writer.write(request(3, [[[1], [2]]], wire.slot_list_check(OTHER)))

        third = await client.probabilities()

    assert (said[1][0].version, said[1][1]) == (7, struct.pack("<f", 3))
    assert said[2][0].code == Status.OTHER_SLOTS
    assert third == (3, 8, [3.0])


async def test_whatever_a_round_raises_is_a_refusal_and_the_next_is_answered(kind: str) -> None:
    async with standing(kind) as it, peer(it) as client:
        it.table.wrong = ZeroDivisionError("a secret")
        client.writer.write(request(1, [[[1], []]]))
        refused = await client.refusal()
        it.table.wrong = None
        client.writer.write(request(2, [[[1], []]]))

        answer = await client.probabilities()

    assert refused == (Status.FAILED, "the prediction failed (ZeroDivisionError); the log says why")
    assert answer == (2, 7, [1.0])


async def test_who_does_not_read_is_not_read_and_others_are_answered(kind: str) -> None:
    frame = request(1, [[[1], []]] * 64)
    async with standing(kind) as it, peer(it) as deaf, peer(it) as client:
        deaf.reader._transport.pause_reading()  # type: ignore[attr-defined]
        # As much as the sockets and the server's buffers take; the rest never leaves.
        deaf.writer.write(frame * 40_000)
        for number in range(50):
            client.writer.write(request(number, [[[2], []]]))
            assert await client.probabilities() == (number, 7, [2.0])
        held = deaf.writer.transport.get_write_buffer_size()
        deaf.writer.transport.abort()

    assert held > 0


async def test_who_leaves_with_a_request_under_way_costs_nothing(kind: str) -> None:
    async with standing(kind) as it:
        it.table.gate.clear()
        async with peer(it) as client:
            client.writer.write(request(1, [[[1], []]]))
            await until(lambda: it.table.lookups == 1)
            client.writer.transport.abort()
        async with peer(it, greet=False) as other:
            other.writer.write(Hello().pack() + request(1, [[[5], []]]))
            it.table.gate.set()
            await other.reader.readexactly(HELLO_BYTES)

            answer = await other.probabilities()

    assert answer == (1, 7, [5.0])


@pytest.mark.parametrize("said", [b"", Hello().pack()[:7], Hello().pack() + request(1, [[[1], [2]]])[:40]])
async def test_what_stays_half_said_is_cut_when_its_time_is_over(kind: str, said: bytes) -> None:
    async with standing(kind, hello_seconds=0.2, frame_seconds=0.2) as it, peer(it, greet=False) as client:
        client.writer.write(said)
        await client.writer.drain()

        await asyncio.wait_for(client.is_hung_up_on(), 60)


async def test_who_says_nothing_for_long_is_cut(kind: str) -> None:
    async with standing(kind, hello_seconds=0.2, idle_seconds=0.2) as it, peer(it) as client:
        assert await asyncio.wait_for(client.is_hung_up_on(), 60)


async def test_large_frames_that_never_end_are_refused_beyond_what_is_allowed(kind: str) -> None:
    half = request(9, [[[1] * 60_000, []]])[:300_000]
    async with standing(kind, max_pending_bytes=500_000) as it, peer(it) as one, peer(it) as two, peer(it) as small:
        one.writer.write(half)
        two.writer.write(half)
        done, _ = await asyncio.wait(
            [asyncio.create_task(each.refusal()) for each in (one, two)], return_when=asyncio.FIRST_COMPLETED
        )
        small.writer.write(request(1, [[[1], []]]))

        answer = await small.probabilities()
        one.writer.transport.abort()
        two.writer.transport.abort()
        await asyncio.sleep(0)

    [first] = {task.result() for task in done}
    assert first == (
        Status.UNAVAILABLE,
        "too many large requests are under way; ask again later, the connection is closed",
    )
    assert answer == (1, 7, [1.0])


async def test_told_to_stop_it_answers_what_was_asked_and_says_that_it_goes(kind: str) -> None:
    async with standing(kind) as it, peer(it) as busy, peer(it) as idle:
        it.table.gate.clear()
        busy.writer.write(request(1, [[[1], []]]))
        await until(lambda: it.table.lookups == 1)
        stopping = asyncio.create_task(it.door.stop(60))
        left = await idle.is_hung_up_on()
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", it.port)
        it.table.gate.set()

        told, body = await busy.reply()
        ended = await busy.is_hung_up_on()
        await stopping

    assert (told.code, told.flags, body) == (Status.OK, DRAINING, struct.pack("<f", 1))
    assert left
    assert ended


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=60) | st.sampled_from([frame for frame, *_ in STAYS.values()]), max_size=6))
def test_no_bytes_stop_the_door(pieces: list[bytes]) -> None:
    async def tried(kind: str) -> None:
        async with standing(kind) as it:
            async with peer(it, greet=False) as hostile:
                hostile.writer.write(Hello().pack() + b"".join(pieces))
                hostile.writer.write_eof()
                await hostile.is_hung_up_on()
            async with peer(it) as client:
                client.writer.write(request(1, [[[1], [2]]]))
                assert await client.probabilities() == (1, 7, [3.0])

    for kind in KINDS:
        asyncio.run(tried(kind))


def replies_of(data: bytes) -> list[tuple[Head, bytes]]:
    found = []
    while data:
        whole = Head.peek(data).frame_bytes
        found.append(wire.unpack_reply(data[:whole]))
        data = data[whole:]
    return found


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(max_size=40) | st.sampled_from([frame for frame, *_ in STAYS.values()]), max_size=5))
def test_both_doors_say_the_same_to_the_same_bytes(pieces: list[bytes]) -> None:
    async def said(kind: str) -> list[tuple[Head, bytes]]:
        async with standing(kind) as it, peer(it) as client:
            client.writer.write(b"".join(pieces))
            client.writer.write_eof()
            return replies_of(await client.reader.read())

    # In whatever order: one that is refused at once may overtake one that is looked up.
    answers = [sorted(asyncio.run(said(kind))) for kind in KINDS]

    assert answers[0] == answers[1]


async def test_a_request_that_is_refused_at_once_is_refused_once_where_no_more_may_be_in_flight(kind: str) -> None:
    wrong, *_ = STAYS["wrong counts"]
    full = request(1, [[[1], []]] * 63)
    async with standing(kind) as it, peer(it) as client:
        it.table.gate.clear()
        client.writer.write(full + wrong)
        await until(lambda: it.table.lookups == 1)
        it.table.gate.set()
        replies = {(await client.reply())[0].code for _ in range(2)}
        client.writer.write(request(2, [[[3], []]]))
        after = await client.probabilities()

    assert replies == {Status.OK, Status.BAD_REQUEST}
    assert after == (2, 7, [3.0])


def test_without_machine_code_the_door_is_the_one_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    async def made() -> type:
        async with standing("python") as it:
            return type(make_binary_door(it.rounds, it.counters, it.door.desk.limits))  # type: ignore[attr-defined]

    first = asyncio.run(made())
    monkeypatch.setenv("ELASTIC_CTR_LOOKUP", "numpy")

    assert (first, asyncio.run(made())) == (CompiledBinaryDoor, PythonDoor)


def test_a_reply_that_is_none_is_seen() -> None:
    with pytest.raises(WireError):
        replies_of(bytes(24 * 4))
