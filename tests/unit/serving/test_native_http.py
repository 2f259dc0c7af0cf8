"""The HTTP door in machine code, held beside the one in Python: what is said of both is tested on both."""

import asyncio
import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_ctr.formats.slots import SlotList
from elastic_ctr.serving.batching.canary import CanaryRule
from elastic_ctr.serving.batching.instances import instances_of
from elastic_ctr.serving.frontends.fallback_http import Limits
from elastic_ctr.serving.frontends.native_http import NativeLimits
from elastic_ctr.serving.routes import SOURCE_PATH
from serving.frontends import HTTP_KINDS, SLOTS, http_standing
from serving.http_peer import (
    EVERYDAY,
    Frontends,
    body,
    head,
    mine,
    moved,
    next_reply,
    peer,
    probabilities,
    request,
    said,
    same_at_both,
    tensors,
    until,
)


@pytest.fixture(params=HTTP_KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_a_prediction_is_answered_and_counted(kind: str) -> None:
    async with http_standing(kind) as it, peer(it) as (reader, writer):
        for first in range(1, 4):
            writer.write(request({"a": [first, 2], "b": [40]}, {"b": [5]}))
            answer = await reader.readuntil(b'"err_code":0}')

            assert answer.startswith(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ndate: ")
            assert probabilities(answer) == [first + 42, 5]
        assert it.counters.requests["elastic_ctr", 200] == 3


async def test_usual_requests_never_reach_the_frontend_in_python() -> None:
    async with http_standing("numba") as it, peer(it) as (reader, writer):
        for length in (1, 10, 1000, 100_000):
            writer.write(request({"a": list(range(length))}))
            await reader.readuntil(b'"err_code":0}')

        assert (mine(it), moved(it)) == (1, 0)


async def test_requests_of_one_connection_are_answered_in_their_order_over_many_rounds(kind: str) -> None:
    async with http_standing(kind) as it, peer(it) as (reader, writer):
        writer.write(b"".join(request(*[{"a": [number]}] * 3) for number in range(500)))
        answers = [await reader.readuntil(b'"err_code":0}') for _ in range(500)]

        assert probabilities(b"".join(answers)) == [number for number in range(500) for _ in range(3)]


async def test_many_connections_each_get_their_own_answer(kind: str) -> None:
    async def ask(it: Frontends, number: int) -> list[float]:
        async with peer(it) as (reader, writer):
            found = []
            for again in range(20):
                writer.write(request({"a": [number], "b": [again]}))
                found += probabilities(await reader.readuntil(b'"err_code":0}'))
            return found

    async with http_standing(kind) as it:
        answers = await asyncio.gather(*(ask(it, 100 * number) for number in range(150)))

        assert answers == [[100.0 * number + again for again in range(20)] for number in range(150)]


@pytest.mark.parametrize("other_slots", [False, True])
async def test_a_share_of_the_requests_is_answered_by_the_candidate_whole_and_in_order(
    kind: str, other_slots: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one connection, so that the native frontend reads many at once; the second instance of each belongs to another user."""
    # However busy this machine is.
    monkeypatch.setattr("elastic_ctr.serving.batching.batcher._CANARY_SECONDS", 60.0)
    rule = CanaryRule(0.3, "a")
    asked = instances_of([[[user], [1]] for user in range(400)], 2)
    expected = rule.chosen(asked, ("a", "b"), np.arange(400)).tolist()
    async with http_standing(kind) as it, peer(it) as (reader, writer):
        it.batcher.canary.rule = rule
        it.table.added = {8: 1000}
        # With other slots the requests are read again for the candidate.
        it.add(8, SlotList(("b", "a")) if other_slots else SLOTS)
        it.batcher.canary.version = 8
        writer.write(b"".join(request({"a": [user], "b": [1]}, {"a": [user + 1]}) for user in range(400)))
        found = [probabilities(await reader.readuntil(b'"err_code":0}')) for _ in range(400)]

        assert it.counters.totals["canary_rows"] == 2 * sum(expected)

    # A key of the candidate is worth a thousand more: two of the first instance, one of the second.
    assert found == [
        [user + 1 + 2000 * candidate, user + 1 + 1000 * candidate] for user, candidate in enumerate(expected)
    ]
    assert 0 < sum(expected) < 400


async def test_a_candidate_that_stands_still_does_not_hold_up_other_connections_for_long(kind: str) -> None:
    async with http_standing(kind) as it, peer(it) as first, peer(it) as second:
        it.batcher.canary.rule = CanaryRule(1.0)
        it.table.stands_still = {8}
        it.table.added = {8: 1000}
        it.add(8)
        it.batcher.canary.version = 8
        first[1].write(request({"a": [1]}))
        await until(lambda: it.table.lookups > 0)
        it.batcher.canary.rule = CanaryRule(0.0)
        answers = []
        for number, (reader, writer) in enumerate((second, second, first)):
            if reader is second[0]:
                writer.write(request({"a": [7 + number]}))
            answers += probabilities(await asyncio.wait_for(reader.readuntil(b'"err_code":0}'), 3))

        assert it.batcher.canary.asked is None

    assert answers == [7, 8, 1]


PIECES = (
    EVERYDAY,
    EVERYDAY,
    request({"b": [2**60]}, {}, {"a": []}),
    request({"a": [4]}, more=("x-more: 1",)),
    request({"a": [4]}, more=("connection: close",)),
    request({"a": [4]}, more=("expect: 100-continue",)),
    request({"b": [4], "a": [1]}),
    request({"c": [4]}),
    request(*[{"a": [1]}] * 65),
    head(2) + b"[]",
    head(0),
    head("05") + b"[1,2]",
    head("+5") + b"[1,2]",
    head("5 ") + b"[1,2]",
    head(5, "content-length: 5") + b"[1,2]",
    head(5, "content-length: 6") + b"[1,2]",
    head(5, "transfer-encoding: chunked") + b"0\r\n\r\n",
    head(len(body({"a": [1]})), version="1.0") + body({"a": [1]}),
    head(len(body({"a": [1]})), path=SOURCE_PATH + "?x=1") + body({"a": [1]}),
    head(len(body({"a": [1]})), path=SOURCE_PATH + "/") + body({"a": [1]}),
    head(len(body({"a": [1]})), method="PUT") + body({"a": [1]}),
    EVERYDAY.replace(b"\r\n", b"\n"),
    b"GET /v2/health/ready HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /v2/models/ctr HTTP/1.1\r\nhost: a\r\n\r\n",
    b"\r\n",
    b"junk\r\n\r\n",
    tensors([[1, 2], [3]]),
    tensors([[1, 2], [3]]),
    tensors([[], []], [[2**60], []]),
    tensors([[1] * 70_000, [2]]),
    tensors(*[[[1], []]] * 65),
    tensors([[1, 2], [3]]).replace(b'"shape":[1,2]', b'"shape":[2,2]'),
    tensors([[1, 2], [3]])[:-8],
    tensors([[1, 2], [3]]).replace(b"/infer ", b"/versions/7/infer "),
    tensors([[1, 2], [3]]).replace(b'"name":"probability"', b'"name":"nothing"'),
    tensors([[1, 2], [3]])[:-1] + b"\xff",
)
ALONE = [PIECES[2], *PIECES]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.sampled_from((*PIECES, *[EVERYDAY] * 10)), min_size=1, max_size=7),
    st.lists(st.integers(0, 1500), max_size=4),
    st.one_of(st.none(), st.tuples(st.integers(0, 600), st.binary(max_size=2))),
)
def test_both_frontends_answer_the_same_to_the_same_bytes(
    pieces: list[bytes], cuts: list[int], change: tuple[int, bytes] | None
) -> None:
    same_at_both(http_standing, pieces, cuts, change)


@pytest.mark.parametrize("number", range(len(PIECES)))
async def test_the_next_usual_request_is_answered_after_any_other(number: int) -> None:
    async with http_standing("numba") as it, http_standing("python") as other:
        ours, theirs = [await said(each, [EVERYDAY, PIECES[number], EVERYDAY]) for each in (it, other)]
        async with peer(it) as (reader, writer):
            writer.write(EVERYDAY)
            last = await reader.readuntil(b'"err_code":0}')

        assert ours == theirs
        assert probabilities(last) == [6]
        assert it.counters.requests == {
            **other.counters.requests, ("elastic_ctr", 200): other.counters.requests["elastic_ctr", 200] + 1
        }  # fmt: skip


async def test_a_request_in_pieces_is_one_request(kind: str) -> None:
    async with http_standing(kind) as it:
        for cut in (1, 20, 60, len(EVERYDAY) - 10, len(EVERYDAY) - 1):
            async with peer(it) as (reader, writer):
                writer.write(EVERYDAY[:cut])
                await asyncio.sleep(0.01)
                writer.write(EVERYDAY[cut:])

                assert probabilities(await reader.readuntil(b'"err_code":0}')) == [6]


async def test_a_slow_request_is_moved_to_the_frontend_in_python() -> None:
    for cut in (30, len(EVERYDAY) - 10):
        async with http_standing("numba") as it, peer(it) as (reader, writer):
            writer.write(EVERYDAY)
            await reader.readuntil(b'"err_code":0}')
            writer.write(EVERYDAY[:cut])
            await until(functools.partial(moved, it))
            writer.write(EVERYDAY[cut:])

            assert probabilities(await reader.readuntil(b'"err_code":0}')) == [6]
            assert mine(it) == 0


async def test_a_large_body_between_usual_requests_is_answered(kind: str) -> None:
    async with http_standing(kind) as it, peer(it) as (reader, writer):
        writer.write(EVERYDAY + request({"a": [1] * 600_000}) + EVERYDAY)
        answers = [await reader.readuntil(b'"err_code":0}') for _ in range(3)]

        assert probabilities(b"".join(answers)) == [6, 600_000, 6]


async def test_headers_of_proxies_do_not_move_a_connection_to_the_frontend_in_python() -> None:
    async with http_standing("numba") as it, peer(it) as (reader, writer):
        for number in range(10):
            traced = (
                f"traceparent: 00-{number:032x}-{number:016x}-01",
                f"x-forwarded-for: 10.0.0.{number * 25}, 10.1.1.1",
            )
            writer.write(request({"a": [number]}, more=traced))

            assert probabilities(await reader.readuntil(b'"err_code":0}')) == [number]
        assert (mine(it), moved(it)) == (1, 0)


async def test_a_connection_with_a_new_header_each_time_is_moved_to_the_frontend_in_python() -> None:
    async with http_standing("numba") as it, peer(it) as (reader, writer):
        for number in range(10):
            writer.write(request({"a": [number]}, more=(f"x-request-{number}: a",)))

            assert probabilities(await reader.readuntil(b'"err_code":0}')) == [number]
        assert (mine(it), moved(it)) == (0, 1)


async def test_more_heads_than_are_kept_are_all_understood() -> None:
    async with http_standing("numba") as it:
        for number in range(150):
            async with peer(it) as (reader, writer):
                writer.write(request({"a": [number]}, more=(f"x-client-{number}: a",)))

                assert probabilities(await reader.readuntil(b'"err_code":0}')) == [number]


async def test_connections_beyond_the_rows_are_answered_too() -> None:
    async with http_standing("numba", own=NativeLimits(max_rows=64, max_connections=0)) as it:
        peers = [await asyncio.open_connection("127.0.0.1", it.port) for _ in range(80)]
        for _, writer in peers:
            writer.write(EVERYDAY)
        answers = [await reader.readuntil(b'"err_code":0}') for reader, _ in peers]
        for _, writer in peers:
            writer.close()

        assert probabilities(b"".join(answers)) == [6] * 80


async def test_before_the_first_version_a_refusal_has_the_stage(kind: str) -> None:
    async with http_standing(kind, live=None) as it, peer(it) as (reader, writer):
        it.batcher.stage = "version 3 is being checked"
        writer.write(EVERYDAY)
        refused = await reader.readuntil(b'checked"}')
        it.release(3)
        writer.write(EVERYDAY)
        answer = await reader.readuntil(b'"err_code":0}')

        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"no version is live yet: version 3 is being checked" in refused
        assert probabilities(answer) == [6]


async def test_a_version_with_another_slot_list_reads_what_waits_for_it_again(kind: str) -> None:
    async with http_standing(kind) as it, peer(it) as (reader, writer), peer(it) as (second, other):
        it.table.gate.clear()
        writer.write(EVERYDAY)
        await until(lambda: it.table.lookups == 1)
        other.write(EVERYDAY + request({"b": [9]}) + request({"c": [8]}))
        # It is asked while the first is under way, and waits.
        await until(lambda: it.batcher.waiting_rows or kind == "numba")
        it.batcher.wake()
        await asyncio.sleep(0.02)
        it.release(8, SlotList(("c", "b", "a")))
        it.table.gate.set()
        first = await reader.readuntil(b'"err_code":0}')
        rest = [await second.readuntil(b'"err_code":0}') for _ in range(2)]

        assert probabilities(first) == [6]
        assert probabilities(b"".join(rest)) == [6, 9]


async def test_a_round_that_raises_is_answered_with_500_and_the_next_request_is_answered(kind: str) -> None:
    async with http_standing(kind) as it, peer(it) as (reader, writer):
        it.table.wrong = RuntimeError("the test wants it")
        writer.write(EVERYDAY * 2)
        refused = [await reader.readuntil(b"}") for _ in range(2)]
        it.table.wrong = None
        writer.write(EVERYDAY)

        assert all(each.startswith(b"HTTP/1.1 500 ") for each in refused)
        assert probabilities(await reader.readuntil(b'"err_code":0}')) == [6]


async def test_a_client_that_leaves_with_a_request_under_way_does_not_disturb_the_next(kind: str) -> None:
    async with http_standing(kind) as it:
        it.table.gate.clear()
        async with peer(it) as (_, writer):
            writer.write(EVERYDAY)
            await until(lambda: it.table.lookups == 1)
        async with peer(it) as (reader, writer):
            writer.write(EVERYDAY)
            it.table.gate.set()

            assert probabilities(await reader.readuntil(b'"err_code":0}')) == [6]


async def test_a_client_that_does_not_read_is_not_read_and_others_are_answered(kind: str) -> None:
    async with http_standing(kind) as it, peer(it) as (_, deaf), peer(it) as (reader, writer):
        many = request(*[{"a": [1]}] * 64) * 50
        for _ in range(200):
            deaf.write(many)
        for number in range(20):
            writer.write(request({"a": [number]}))

            assert probabilities(await next_reply(reader)) == [number]
        assert deaf.transport.get_write_buffer_size() > 0


async def test_an_idle_client_is_let_go(kind: str) -> None:
    limits = Limits(idle_seconds=0.05, head_seconds=0.1)
    async with http_standing(kind, limits=limits) as it, peer(it) as (reader, writer):
        writer.write(EVERYDAY)
        await reader.readuntil(b'"err_code":0}')

        assert await asyncio.wait_for(reader.read(), 20) == b""


async def test_a_stopping_frontend_answers_requests_under_way_and_announces_the_close(kind: str) -> None:
    limits = Limits(drain_idle_seconds=0.2, head_seconds=0.1)
    async with http_standing(kind, limits=limits) as it, peer(it) as (reader, writer), peer(it) as (idle, _):
        writer.write(EVERYDAY)
        await reader.readuntil(b'"err_code":0}')
        it.table.gate.clear()
        writer.write(EVERYDAY)
        await until(lambda: it.table.lookups == 2)
        stopping = asyncio.create_task(it.door.stop(20))
        await asyncio.sleep(0)
        it.table.gate.set()
        under_way = await reader.readuntil(b'"err_code":0}')
        writer.write(EVERYDAY)
        last = await reader.read()
        await stopping

        assert probabilities(under_way) == [6]
        # The door in Python says it to who was asking already, the other to who asks once more.
        assert b"connection: close" in under_way + last
        assert await idle.read() == b""
