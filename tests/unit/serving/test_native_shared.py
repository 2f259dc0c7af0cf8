"""Requests with a shared part over the HTTP frontend in machine code, held beside the one in Python and beside full rows."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_ctr.serving.batching.canary import CanaryRule
from elastic_ctr.serving.batching.model_version import ModelVersion
from elastic_ctr.serving.client import JSON_LENGTH, ServingClient, tensor_request
from elastic_ctr.serving.frontends.native_http import NativeLimits
from serving.frontends import HTTP_KINDS, SLOTS, http_standing
from serving.http_peer import EVERYDAY, Frontends, head, mine, moved, peer, said, same_at_both
from serving.test_native_rows import CROSSED, PATH, ROW, SCHEMA, NoNumberAbove20, SumOfAll, release, request

INFER = "/v2/models/ctr/infer"


@asynccontextmanager
async def standing(kind: str) -> AsyncIterator[Frontends]:
    async with http_standing(kind, live=None, own=NativeLimits(max_rows=64)) as it:
        release(it, 7, CROSSED)
        yield it


def shared(common: dict[str, Any], *rows: dict[str, Any], **more: Any) -> bytes:
    data = json.dumps({"shared": common, "candidates": rows, **more}, ensure_ascii=False).encode()
    return head(len(data), path=PATH) + data


def slots_of(**row: list[Any]) -> dict[str, Any]:
    return {"slots": [{"slot_name": name, "feasigns": keys} for name, keys in row.items()]}


def of_feasigns(common: dict[str, Any], *rows: dict[str, Any], **more: Any) -> bytes:
    data = json.dumps({"shared": common, "candidates": rows, **more}).encode()
    return head(len(data)) + data


def tensors(*rows: list[list[int]], top: int = 0) -> bytes:
    """The feasigns of slots a and b of each row, of which the first one is shared."""
    feasigns = np.array([feasign for row in rows for slot in row for feasign in slot], np.uint64)
    lengths = np.array([[len(slot) for slot in row] for row in rows])
    data, json_length = tensor_request(feasigns, lengths, SLOTS, first_is_shared=True)
    if top:
        text = data[:json_length].replace(b'"first_is_shared":', b'"top":%d,"first_is_shared":' % top)
        data, json_length = text + data[json_length:], len(text)
    return head(len(data), f"{JSON_LENGTH}: {json_length}", path=INFER) + data


USER: dict[str, Any] = {"user": "u1", "others": "x,y"}
ITEMS: list[dict[str, Any]] = [{"tags": ["a", "b"], "price": 3.2}, {}, {"price": 7, "tags": "b"}]
PIECES = (
    shared(USER, *ITEMS),
    shared(USER, *ITEMS, top=2),
    shared({"tags": ["a", "größe"], "price": 1}, {"user": "a"}, {"others": ["x", "y"]}, top=9),
    shared({}, *ITEMS, {"user": 3}),
    shared({"user": None}, {"price": 5}),
    shared(USER, {"user": "u2"}),
    shared(USER),
    shared({"user": 'a "quote"'}, *ITEMS, top=1),
    shared({"price": 1e300}, {"user": 1}),
    shared({"price": 2}, {"tags": 1}, {"price": None}),
    shared({"zero": 1}, *ITEMS),
    shared(USER, *ITEMS, top=0),
    shared(USER, *ITEMS, top=-1),
    shared(USER, *ITEMS, top=1.0),
    shared(USER, *ITEMS, top="1"),
    shared(USER, *ITEMS, top=2**63),
    shared(USER, *ITEMS, signature_name="x", top=1),
    shared(USER, *[{"tags": "x"}] * 64, top=3),
    shared(USER, *[{"tags": "x"}] * 65),
    shared(USER, *ITEMS).replace(b'"candidates"', b'"instances" '),
    shared({"tags": [str(each) for each in range(300)]}, {"others": [str(each) for each in range(300)]}),
    request(ROW),
    request(ROW, {"tags": "a|b"}),
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from((*PIECES, *PIECES[:4] * 4)), min_size=1, max_size=7),
    st.lists(st.integers(0, 1500), max_size=4),
    st.one_of(st.none(), st.tuples(st.integers(0, 600), st.binary(max_size=2))),
)
def test_both_frontends_answer_the_same_to_candidates(
    pieces: list[bytes], cuts: list[int], change: tuple[int, bytes] | None
) -> None:
    same_at_both(standing, pieces, cuts, change)


OF_FEASIGNS = (
    of_feasigns(slots_of(a=[1, 2]), slots_of(b=[3]), slots_of(), slots_of(b=[9, 9])),
    of_feasigns(slots_of(a=[1, 2]), slots_of(b=[3]), slots_of(), slots_of(b=[9, 9]), top=2),
    of_feasigns(slots_of(b=[5]), slots_of(a=[1], b=[2])),
    of_feasigns(slots_of(), slots_of(a=[1], b=[2]), slots_of(a=[7]), top=5),
    of_feasigns(slots_of(a=[1]), top=1),
    of_feasigns(slots_of(a=[1]), slots_of(b=[1]), top=0),
    of_feasigns(slots_of(a=["12"]), slots_of(b=[1]), top=2**62),
    of_feasigns(slots_of(a=[1]), slots_of(b=[1]), top="1"),
    of_feasigns(slots_of(a=[1]), *[slots_of(b=[1])] * 65),
    tensors([[1, 2], []], [[], [3]], [[], []], [[], [9, 9]]),
    tensors([[], [4]], [[1], []], [[2], []], top=1),
    tensors([[1], []], [[2], []]),
    tensors([[1], []]),
    tensors([[], []], [[1], [5]]),
    EVERYDAY,
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from((*OF_FEASIGNS, *OF_FEASIGNS[:2] * 4, OF_FEASIGNS[9])), min_size=1, max_size=7),
    st.lists(st.integers(0, 1500), max_size=4),
    st.one_of(st.none(), st.tuples(st.integers(0, 600), st.binary(max_size=2))),
)
def test_both_frontends_answer_the_same_to_candidates_of_feasigns(
    pieces: list[bytes], cuts: list[int], change: tuple[int, bytes] | None
) -> None:
    same_at_both(http_standing, pieces, cuts, change)


def bodies(answers: bytes) -> list[Any]:
    return [json.loads(each) for each in re.findall(rb'\{"(?:predictions|error).*\}', answers)]


@pytest.mark.parametrize("kind", HTTP_KINDS)
async def test_candidates_are_answered_as_full_rows_in_their_order_or_the_best_with_their_places(kind: str) -> None:
    async with standing(kind) as it:
        answers = await said(
            it, [PIECES[0] + request(*({**USER, **row} for row in ITEMS)) + PIECES[1] + shared(USER, *ITEMS, top=9)]
        )
        found, full, best, ordered = bodies(answers)

    order = np.argsort(-np.array(full["predictions"]), kind="stable").tolist()
    assert found == full
    assert best == {"predictions": [full["predictions"][each] for each in order[:2]], "places": order[:2], "model_version": "7"}  # fmt: skip
    assert ordered["places"] == order
    assert len(set(full["predictions"])) == len(ITEMS)


async def test_usual_candidates_never_reach_the_frontend_in_python() -> None:
    async with standing("numba") as it, peer(it) as (reader, writer):
        for piece in PIECES[:5]:
            writer.write(piece)
            await reader.readuntil(b'"model_version":"7"}')
        assert (mine(it), moved(it)) == (1, 0)
        assert it.counters.requests["rows", 200] == 5
    async with http_standing("numba") as it, peer(it) as (reader, writer):
        for piece in OF_FEASIGNS[:2]:
            writer.write(piece)
            await reader.readuntil(b'"err_code":0}')
        writer.write(OF_FEASIGNS[9])
        await reader.readuntil(b'"binary_data_size":12}}]}')
        await reader.readexactly(12)
        assert (mine(it), moved(it)) == (1, 0)
        assert it.counters.requests["open_inference", 200] == 1


@pytest.mark.parametrize("kind", HTTP_KINDS)
async def test_keys_of_a_shared_part_are_looked_up_once(kind: str) -> None:
    async with standing(kind) as it:
        await said(it, [shared({"tags": [str(each) for each in range(50)]}, *[{"user": "u"}] * 60)])

        # 50 tags, one user, and 50 crosses of both.
        assert it.counters.totals["keys"] == 101


@pytest.mark.parametrize("kind", HTTP_KINDS)
async def test_candidates_that_are_refused_leave_the_others_of_their_batch_alone(kind: str) -> None:
    async with standing(kind) as it:
        it.batcher.add(ModelVersion(8, SCHEMA, None, 1, NoNumberAbove20(), it.table))
        it.batcher.pin(8)
        wrong = shared({"user": "u"}, {"price": 1}, {"price": 1e15}), shared({"price": 1e30}, {"user": "u"})
        answers = await said(it, [request(ROW) + wrong[0] + shared({"user": "u"}, ROW | {"user": "v"}) + wrong[1] + request(ROW)])  # fmt: skip

    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"500", b"400", b"400", b"200"]
    assert b"candidates[1]: the probability by version 8 is no number" in answers
    assert b"candidates[0] has the column 'user', which the shared part has, too" in answers
    assert b"shared: the column 'price' is 1e+30" in answers


@pytest.mark.parametrize("kind", HTTP_KINDS)
async def test_the_canary_answers_a_user_in_both_forms_of_a_request(kind: str) -> None:
    async with standing(kind) as it:
        it.batcher.add(ModelVersion(8, CROSSED, None, 1, SumOfAll(), it.table))
        it.batcher.canary.rule, it.batcher.canary.version = CanaryRule(0.5, "user"), 8
        requests = [
            each for user in range(12) for each in (shared({"user": user}, *ITEMS, top=1), request({"user": user, **ITEMS[0]}))
        ]  # fmt: skip
        versions = [each["model_version"] for each in bodies(await said(it, [b"".join(requests)]))]

    assert versions[::2] == versions[1::2]
    assert set(versions) == {"7", "8"}


async def test_the_client_asks_for_candidates_of_both_kinds_of_models() -> None:
    import asyncio

    async with standing("numba") as it:

        def ask() -> Any:
            with ServingClient(it.address) as client:
                full = client.predict_rows([{**USER, **row} for row in ITEMS])
                return full, client.predict_candidates(USER, ITEMS), client.predict_candidates(USER, ITEMS, top=2)

        full, every, best = await asyncio.to_thread(ask)
    assert every.places is None
    assert every.probabilities.tolist() == full.probabilities.tolist()
    assert best.probabilities.tolist() == full.probabilities[best.places].tolist() == sorted(full.probabilities)[:0:-1]

    async with http_standing("numba") as it:

        def ask_of_feasigns() -> Any:
            with ServingClient(it.address) as client:
                shared = client.encode([{"a": [1, 2]}, {"b": [3]}, {}])
                return client.predict(*shared, first_is_shared=True), client.predict(*client.encode([{"a": [1, 2], "b": [3]}, {"a": [1, 2]}]))  # fmt: skip

        found, full = await asyncio.to_thread(ask_of_feasigns)
    assert found.probabilities.tolist() == full.probabilities.tolist() == [6, 3]


@pytest.mark.parametrize(
    ("shared_", "candidates", "top", "sentence"),
    [
        ([], [{}], None, r"shared is list \[\]; it must have a value for each shared column, as a dict"),
        ({}, [{}], 0, "top is int 0; it must be a whole number, 1 or more"),
        ({"price": float("nan")}, [{}], None, "shared.price is nan, which is no decimal number"),
        ({}, [{}, {"price": float("nan")}], None, r"candidates\[1\].price is nan"),
    ],
)
def test_the_client_refuses_candidates_that_it_cannot_send(
    shared_: Any, candidates: Any, top: Any, sentence: str
) -> None:
    with ServingClient("127.0.0.1:1") as client, pytest.raises(ValueError, match=sentence):
        client.predict_candidates(shared_, candidates, top=top)
