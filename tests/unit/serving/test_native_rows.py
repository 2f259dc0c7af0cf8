"""Rows of columns over the HTTP door in machine code, held beside the one in Python."""

import asyncio
import gc
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_ctr.config.feature_program import transformer_of
from elastic_ctr.config.features import Features
from elastic_ctr.serving.batching.instances import Instances
from elastic_ctr.serving.batching.model_version import ModelVersion
from elastic_ctr.serving.batching.pooling import Floats
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.frontends.native_http import NativeLimits
from fuzz.model import Sum
from serving.frontends import HTTP_KINDS, http_standing
from serving.http_peer import EVERYDAY, Frontends, head, mine, moved, peer, said, same_at_both, until

PATH = "/v1/models/ctr:predict"


def schema_of(*, ignores_unknown: bool = False, **more: Any) -> Schema:
    features = Features.model_validate(
        {
            "user": {"type": "categorical"},
            "tags": {"type": "categorical", "separator": "|"},
            "price": {"type": "numeric", "transform": ["log1p"], "missing": 0.5},
            **more,
        }
    )
    transformer = transformer_of(features, None)
    return Schema(transformer.slots, transformer, str(sorted(more)), ignores_unknown=ignores_unknown)


SCHEMA = schema_of()
CROSSED = schema_of(pair={"type": "crossed", "of": ["user", "tags"]}, more={"type": "crossed", "of": ["tags", "others"]}, others={"type": "categorical", "separator": ","})  # fmt: skip


class SumOfAll(Sum):
    """The probability of a row is the sum of its keys and its numbers."""

    def predict(self, pooled: Floats, numbers: Floats | None = None, /) -> Floats:
        assert numbers is not None
        found: Floats = super().predict(pooled) + numbers.sum(axis=1)
        return found


def release(it: Frontends, version: int, schema: Schema) -> None:
    it.batcher.add(ModelVersion(version, schema, None, 1, SumOfAll(), it.table))
    it.batcher.pin(version)


@asynccontextmanager
async def standing(kind: str, schema: Schema = SCHEMA) -> AsyncIterator[Frontends]:
    async with http_standing(kind, live=None, own=NativeLimits(max_rows=64)) as it:
        release(it, 7, schema)
        yield it


def request(*rows: dict[str, Any], more: tuple[str, ...] = ()) -> bytes:
    data = json.dumps({"instances": rows}, ensure_ascii=False).encode()
    return head(len(data), *more, path=PATH) + data


ROW = {"user": "u1", "price": 3.2, "tags": ["a", "b"]}
PIECES = (
    request(ROW),
    request(
        ROW, {"tags": "a|b", "price": 3.2, "user": "u1"}, {}, {"user": 7}, {"user": "7", "price": None, "tags": []}
    ),
    request({"user": "größe", "tags": [1, None, ""], "price": 1e22}, more=("x-more: 1",)),
    request({"user": 'a "quote"'}),
    request({"price": 0.1 + 0.2}, {"price": 12345678901234567890}),
    request({"price": 1e300, "user": 2**53}),
    request({"price": "3"}),
    request({"user": "u", "unknown": 1}),
    request(*[ROW] * 64),
    request(*[ROW] * 65),
    request(),
    request({"user": {"a": 1}}),
    request(ROW).replace(b"}]}", b'}],"signature_name":"x"}').replace(b"th: ", b"th: 9"),
    head(18, path=PATH) + b'{"instances":[{]} ',
    head(2, path=PATH) + b"[]",
    request(ROW)[:-1] + b"\xff",
    request(ROW).replace(b"u1", b"\xff\xff"),
    request(ROW, more=("connection: close",)),
    request(ROW).replace(b"POST", b"PUT"),
    request(ROW).replace(b"ctr:predict", b"ctr%3Apredict"),
    EVERYDAY,
    b"GET /v1/models/ctr HTTP/1.1\r\nhost: a\r\n\r\n",
)


@settings(max_examples=100)
@given(
    st.lists(st.sampled_from((*PIECES, *PIECES[:3] * 5)), min_size=1, max_size=7),
    st.lists(st.integers(0, 1500), max_size=4),
    st.one_of(st.none(), st.tuples(st.integers(0, 600), st.binary(max_size=2))),
)
def test_both_frontends_answer_the_same_to_the_same_bytes(
    pieces: list[bytes], cuts: list[int], change: tuple[int, bytes] | None
) -> None:
    same_at_both(standing, pieces, cuts, change)


@pytest.mark.parametrize("number", range(len(PIECES)))
async def test_each_request_is_answered_and_counted_as_by_the_frontend_in_python(number: int) -> None:
    async with standing("numba") as it, standing("python") as other:
        ours, theirs = [await said(each, [PIECES[0], PIECES[number]]) for each in (it, other)]

        assert ours == theirs
        assert it.counters.requests == other.counters.requests


async def test_usual_rows_never_reach_the_frontend_in_python() -> None:
    async with standing("numba") as it, peer(it) as (reader, writer):
        for number in range(5):
            writer.write(request(*[ROW] * (number + 1)))
            await reader.readuntil(b'"model_version":"7"}')

        assert (mine(it), moved(it)) == (1, 0)
        assert it.counters.requests["rows", 200] == 5


@pytest.mark.parametrize("kind", HTTP_KINDS)
async def test_many_connections_each_get_their_own_answer(kind: str) -> None:
    def row(number: int, again: int) -> dict[str, Any]:
        return {"user": str(number), "tags": [str(again)] * (again % 3), "price": number / 7}

    async def ask(it: Frontends, number: int) -> list[bytes]:
        async with peer(it) as (reader, writer):
            found = []
            for again in range(8):
                writer.write(request(*[row(number, again)] * (1 + again % 2)))
                answer = await reader.readuntil(b'"model_version":"7"}')
                found.append(answer.partition(b"\r\n\r\n")[2])
            return found

    async with standing(kind) as it, standing("python") as alone:
        answers = await asyncio.gather(*(ask(it, number) for number in range(60)))

        assert answers == [await ask(alone, number) for number in range(60)]


@pytest.mark.parametrize("kind", HTTP_KINDS)
async def test_no_rows_wait_for_the_garbage_collector_once_they_are_answered(kind: str) -> None:
    """It comes seldom to a worker, whose memory would grow by all rows of all requests until then."""
    async with standing(kind) as it, peer(it) as (reader, writer):
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                writer.write(request(*[ROW] * 64))
                await reader.readuntil(b'"model_version":"7"}')
            held = sum(type(each) is Instances for each in gc.get_objects())
        finally:
            gc.enable()

    assert held <= 2


@pytest.mark.parametrize("kind", HTTP_KINDS)
async def test_a_row_with_too_many_keys_is_refused_and_others_of_its_batch_are_answered(kind: str) -> None:
    many = {"tags": [f"{number}" for number in range(300)], "others": [f"{number}" for number in range(300)]}
    async with standing(kind, CROSSED) as it:
        answers = await said(it, [request(ROW) + request(ROW, many) + request(ROW)])

        assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"400", b"200"]
        assert b"instances[1]: the row has more than 65536 keys; shorten its lists, or cross fewer of them" in answers


class NoNumberAbove20(SumOfAll):
    def predict(self, pooled: Floats, numbers: Floats | None = None, /) -> Floats:
        assert numbers is not None
        return np.where(numbers[:, 0] > 20, np.float32(np.nan), super().predict(pooled, numbers))


@pytest.mark.parametrize("kind", HTTP_KINDS)
async def test_a_row_whose_probability_is_no_number_is_refused_and_others_of_its_batch_are_answered(kind: str) -> None:
    async with standing(kind) as it:
        it.batcher.add(ModelVersion(8, SCHEMA, None, 1, NoNumberAbove20(), it.table))
        it.batcher.pin(8)
        answers = await said(it, [request(ROW) + request(ROW, {"price": 1e15}) + request(ROW)])

        assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"500", b"200"]
        assert b"instances[1]: the probability by version 8 is no number" in answers
        assert it.counters.totals["requests_without_probability"] == 1


@pytest.mark.parametrize("kind", HTTP_KINDS)
async def test_a_version_with_other_features_reads_what_waits_for_it_again(kind: str) -> None:
    async with standing(kind) as it, standing("python", CROSSED) as new:
        async with peer(it) as (reader, writer), peer(it) as (second, other):
            it.table.gate.clear()
            writer.write(request(ROW))
            await until(lambda: it.table.lookups == 1)
            other.write(request(ROW) + request({"unknown": 1}))
            await until(lambda: it.batcher.waiting_rows or kind == "numba")
            it.batcher.wake()
            await asyncio.sleep(0.02)
            release(it, 8, CROSSED)
            it.table.gate.set()
            await reader.readuntil(b'"model_version":"7"}')
            answer = await second.readuntil(b'"model_version":"8"}')
            refused = await second.readuntil(b'others)"}')
        due = await said(new, [request(ROW)])

        assert answer.partition(b"\r\n\r\n")[2] == due.partition(b"\r\n\r\n")[2].replace(b'"7"', b'"8"')
        assert b"HTTP/1.1 400" in refused


@pytest.mark.parametrize("kind", HTTP_KINDS)
async def test_before_the_first_version_a_refusal_has_the_stage(kind: str) -> None:
    async with http_standing(kind, live=None) as it:
        it.batcher.stage = "version 3 is being checked"

        answer = await said(it, [request(ROW)])

        assert answer.startswith(b"HTTP/1.1 503 ")
        assert answer.endswith(b'{"error":"no version is live yet: version 3 is being checked"}')
        assert it.counters.requests["rows", 503] == 1


async def test_columns_that_no_feature_reads_are_left_out_where_that_is_allowed() -> None:
    async with standing("numba", schema_of(ignores_unknown=True)) as it, peer(it) as (reader, writer):
        writer.write(request({**ROW, "unknown": [1, 2.5, "x"]}))
        await reader.readuntil(b'"model_version":"7"}')

        assert (mine(it), moved(it)) == (1, 0)
