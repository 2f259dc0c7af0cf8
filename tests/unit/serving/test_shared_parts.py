"""Requests with a shared part and candidates: whatever the frontend and the protocol, they are the full rows."""

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_ctr.config.feature_program import transformer_of
from elastic_ctr.config.features import Features
from elastic_ctr.formats.json_scan import RowScanner
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.serving import open_inference_pb2 as messages
from elastic_ctr.serving.batching import pooling
from elastic_ctr.serving.batching.canary import CanaryRule
from elastic_ctr.serving.batching.instances import Instances, instances_of, joined, with_shared
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.frontends.grpc import inference_of
from elastic_ctr.serving.protocols.elasticctr_json import Scanner, parse_inference
from elastic_ctr.serving.protocols.explain import Explanation
from elastic_ctr.serving.protocols.open_inference import parse_infer
from elastic_ctr.serving.protocols.rows_json import instances_of_candidates, parse_rows
from elastic_ctr.serving.request_error import RequestError

FEATURES = Features.model_validate(
    {
        "age": {"type": "bucketized", "boundaries": [18, 30]},
        "by_age": {"type": "crossed", "of": ["user", "age"]},
        "grid": {"type": "crossed", "of": ["tags", "user", "rounded"], "hash": 11},
        "price": {"type": "numeric", "transform": ["log1p"], "missing": 0.5},
        "rounded": {"type": "categorical", "column": "price", "round": 1},
        "tags": {"type": "categorical", "separator": "|"},
        "title": {"type": "text"},
        "user": {"type": "categorical"},
    }
)
TRANSFORMER = transformer_of(FEATURES, None)
SCHEMA = Schema(TRANSFORMER.slots, TRANSFORMER, "d" * 64)
LAX = Schema(TRANSFORMER.slots, TRANSFORMER, "d" * 64, ignores_unknown=True)
SCANNER = RowScanner(TRANSFORMER.inputs, 100, skips=False)
LAX_SCANNER = RowScanner(TRANSFORMER.inputs, 100, skips=True)
COLUMNS = ("age", "price", "tags", "title", "user")

text = st.text(max_size=6).filter(lambda each: "|" not in each) | st.sampled_from(["a", "b", "Big red-Dog 7"])
values = st.none() | text | st.integers(-9, 2**53 - 1)
number = st.none() | st.floats(-1e5, 1e5) | st.integers(-9, 99)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "age": number,
    "price": number,
    "tags": values | st.lists(values, max_size=3),
    "title": values,
    "user": values,
}


def rows_of(columns: Sequence[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={name: VALUES[name] for name in columns})


requests = st.sets(st.sampled_from(COLUMNS)).flatmap(
    lambda shared: st.tuples(
        rows_of(sorted(shared)), st.lists(rows_of(sorted({*COLUMNS} - shared)), min_size=1, max_size=5)
    )
)


def body(shared: Any, candidates: Any, **more: Any) -> bytes:
    return json.dumps({"shared": shared, "candidates": candidates, **more}, ensure_ascii=False).encode()


def full(shared: dict[str, Any], candidates: list[dict[str, Any]]) -> Instances:
    return parse_rows(json.dumps({"instances": [{**shared, **row} for row in candidates]}).encode(), SCHEMA, 100)


def same(one: Instances, other: Instances) -> None:
    assert one.rows == other.rows
    assert one.feasigns.tolist() == other.feasigns.tolist()
    assert one.lengths.tolist() == other.lengths.tolist()
    for found in (one, other):
        assert found.shared is None
    if one.numbers is not None or other.numbers is not None:
        assert one.numbers.view(np.uint32).tolist() == other.numbers.view(np.uint32).tolist()  # type: ignore[union-attr]


@given(requests)
@settings(max_examples=300, deadline=None)
def test_candidates_with_a_shared_part_are_the_full_rows(request_: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    shared, candidates = request_
    wanted = full(shared, candidates)
    data = body(shared, candidates)

    same(parse_rows(data, SCHEMA, 100).unshared(), wanted)
    same(
        parse_rows(body({**shared, "more": [1]}, [{**row, "more": 2} for row in candidates]), LAX, 100).unshared(),
        wanted,
    )
    scanned = SCANNER.read_candidates(data)
    if scanned is not None:
        same(instances_of_candidates(scanned, TRANSFORMER).unshared(), wanted)


@given(requests)
@settings(max_examples=100, deadline=None)
def test_everyday_candidates_are_read_in_machine_code(request_: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    """Texts with escapes and numbers that only a parser can decide are not everyday."""
    numbers = ("age", "price")
    common = {name: 2.5 if name in numbers else "ü" for name in request_[0] if name != "price"}
    everyday = [{name: 3 if name in numbers else "x" for name in row} for row in request_[1]]
    for top in ({}, {"top": 2}):
        for scanner, more in ((SCANNER, {}), (LAX_SCANNER, {"more": [1, "x"]})):
            scanned = scanner.read_candidates(body({**common, **more}, [{**row, **more} for row in everyday], **top))

            assert scanned is not None
            found = instances_of_candidates(scanned, TRANSFORMER)
            assert found.top == top.get("top", 0)
            same(found.unshared(), full(common, everyday))


def whole(shared: dict[str, Any], candidates: list[dict[str, Any]]) -> list[tuple[str, str, list[Any]]]:
    """Tensors of the columns that each row, or the shared part, has: name, datatype, values."""
    found: list[tuple[str, str, list[Any]]] = []
    for name in COLUMNS:
        for rows in ([shared], candidates):
            column = [row.get(name) for row in rows]
            if any(name in row for row in rows):
                if name in ("age", "price"):
                    numbers_ = [float(each) for each in column if each is not None]
                    if len(numbers_) == len(column):
                        found.append((name, "FP64", numbers_))
                else:
                    found.append((name, "BYTES", [_text(each) for each in column]))
    return found


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "|".join(filter(None, map(_text, value)))
    return "" if value is None else str(value)


def raw_of(datatype: str, data: list[Any]) -> bytes:
    if datatype == "FP64":
        return np.array(data, "<f8").tobytes()
    return b"".join(struct.pack("<I", len(each.encode())) + each.encode() for each in data)


@given(requests)
@settings(max_examples=200, deadline=None)
def test_tensors_of_one_row_are_shared_by_the_rows_of_the_others(
    request_: tuple[dict[str, Any], list[dict[str, Any]]],
) -> None:
    shared, candidates = request_
    tensors = whole(shared, candidates)
    rows = max((len(data) for _, _, data in tensors), default=0)
    if rows < len(candidates):
        return
    given_ = [{name: data[row % len(data)] for name, _, data in tensors} for row in range(rows)]
    wanted = full({}, given_)

    def inputs(of: str) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "datatype": kind,
                "shape": [len(data)],
                **({"data": data} if of == "json" else {"parameters": {"binary_data_size": len(raw_of(kind, data))}}),
            }
            for name, kind, data in tensors
        ]

    same(parse_infer(json.dumps({"inputs": inputs("json")}).encode()).instances(SCHEMA, 100).unshared(), wanted)
    head = json.dumps({"inputs": inputs("binary")}).encode()
    binary = head + b"".join(raw_of(kind, data) for _, kind, data in tensors)
    same(parse_infer(binary, len(head)).instances(SCHEMA, 100).unshared(), wanted)
    message = messages.ModelInferRequest()
    for name, kind, data in tensors:
        message.inputs.add(name=name, datatype=kind, shape=[len(data)])
        message.raw_input_contents.append(raw_of(kind, data))
    same(inference_of(message, 100).instances(SCHEMA, 100).unshared(), wanted)


SLOTS = SlotList(("0", "1", "11", "user"))
slots_given = st.sets(st.sampled_from(range(4)))
feasigns = st.lists(st.integers(0, 9) | st.just(2**64 - 2), max_size=3)
feasign_requests = st.tuples(
    slots_given, st.lists(feasigns, min_size=4, max_size=4), st.lists(st.lists(feasigns, min_size=4, max_size=4), min_size=1, max_size=5)
)  # fmt: skip


def halves(request_: tuple[set[int], list[list[int]], list[list[list[int]]]]) -> Iterator[list[list[list[int]]]]:
    """The shared row, and the candidates without its slots; each row has the feasigns of each slot."""
    slots, first, rows = request_
    yield [[values if slot in slots else [] for slot, values in enumerate(first)]]
    yield [[[] if slot in slots else values for slot, values in enumerate(row)] for row in rows]


def instance(row: list[list[int]]) -> dict[str, Any]:
    return {"slots": [{"slot_name": SLOTS.names[slot], "feasigns": each} for slot, each in enumerate(row) if each]}


def merged(shared: list[list[int]], rows: list[list[list[int]]]) -> Instances:
    return instances_of([[mine or common for mine, common in zip(row, shared, strict=True)] for row in rows], 4)


@given(feasign_requests)
@settings(max_examples=300, deadline=None)
def test_candidates_of_feasigns_are_the_full_instances_by_every_protocol(
    request_: tuple[set[int], list[list[int]], list[list[list[int]]]],
) -> None:
    [shared], rows = halves(request_)
    wanted = merged(shared, rows)
    data = body(instance(shared), list(map(instance, rows)))

    scanned = Scanner(SLOTS, 5).read_candidates(data)
    assert scanned is not None
    same(scanned.unshared(), wanted)
    same(parse_inference(data, SLOTS, 5).unshared(), wanted)

    arrays = instances_of([shared, *rows], 4)
    tensors = [
        {"name": "feasigns", "datatype": "UINT64", "shape": [len(arrays.feasigns)], "data": arrays.feasigns.tolist()},
        {"name": "lengths", "datatype": "INT32", "shape": [len(rows) + 1, 4], "data": arrays.lengths.tolist()},
    ]
    message = {"inputs": tensors, "parameters": {"first_is_shared": True}}
    same(parse_infer(json.dumps(message).encode()).instances(Schema(SLOTS), 5).unshared(), wanted)

    lines = [
        " ".join(f"{key}:{SLOTS.names[slot]}" for slot, each in enumerate(row) for key in each)
        for row in (shared, *rows)
    ]
    # Lines leave out the padding key.
    if all(lines) and 0 not in arrays.feasigns:
        line = {"name": "line", "datatype": "BYTES", "shape": [len(lines)], "data": lines}
        message = {"inputs": [line], "parameters": {"first_is_shared": True}}
        same(parse_infer(json.dumps(message).encode()).instances(Schema(SLOTS), 5).unshared(), wanted)

    by_slot = []
    for slot, name in enumerate(SLOTS.names):
        columns = [shared] if slot in request_[0] else rows
        values = [key for row in columns for key in row[slot]]
        by_slot.append({"name": name, "datatype": "UINT64", "shape": [len(values)], "data": values})
        counts = [len(row[slot]) for row in columns]
        by_slot.append({"name": f"{name}/lengths", "datatype": "INT32", "shape": [len(counts)], "data": counts})
    if len(request_[0]) < 4:
        same(parse_infer(json.dumps({"inputs": by_slot}).encode()).instances(Schema(SLOTS), 5).unshared(), wanted)


def pieces_of(requests_: list[Any]) -> list[Instances]:
    found = []
    for place, each in enumerate(requests_):
        [shared], rows = halves(each)
        own = instances_of(rows, 4)
        found.append(own if place % 3 == 2 else with_shared(own, instances_of([shared], 4), SLOTS.names))
    return found


@given(st.lists(feasign_requests, min_size=1, max_size=5), st.sampled_from([None, 7]), st.booleans())
@settings(deadline=None)
def test_pooled_values_of_a_batch_are_those_of_its_full_rows_to_the_bit(
    requests_: list[Any], sparse_dim: int | None, averages: bool
) -> None:
    batch = joined(pieces_of(requests_))
    averaged = np.array([True, False, True, False]) if averages else pooling.NOT_AVERAGED
    found = []
    for instances in (batch, batch.unshared()):
        unique = pooling.unique_keys(instances, sparse_dim)
        values = np.stack([np.sqrt(unique.keys.astype(np.float32)), 1 / (1 + unique.keys.astype(np.float32))], axis=1)
        found.append(pooling.pooled(unique, values, instances, 2, averaged).tobytes())
        missing = unique.keys % np.uint64(2) == 0
        found.append(pooling.known_feasigns(instances, unique, missing).tobytes())

    assert found[:2] == found[2:]


@given(st.lists(feasign_requests, min_size=1, max_size=5), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_parts_of_a_batch_have_the_shared_feasigns_of_their_rows(requests_: list[Any], random: Any) -> None:
    batch = joined(pieces_of(requests_))
    rows = batch.unshared()
    edges = sorted({0, batch.rows, *(random.randrange(batch.rows + 1) for _ in range(3))})
    kept = np.array([random.random() < 0.5 for _ in range(batch.rows)])

    for found, wanted in zip(batch.cut(edges), rows.cut(edges), strict=True):
        same(found.unshared(), wanted)
    same(joined([part.unshared() for part in batch.parts(2, 5)]), rows)
    same(batch.only(kept).unshared(), rows.only(kept))


@given(st.lists(feasign_requests, min_size=1, max_size=5))
@settings(deadline=None)
def test_a_user_is_in_the_canary_whether_a_request_shares_its_keys_or_repeats_them(requests_: list[Any]) -> None:
    parts = pieces_of(requests_)
    counts = np.array([part.rows for part in parts])
    firsts = np.cumsum(counts) - counts
    batch = joined(parts)
    for feature in ("", "user"):
        rule = CanaryRule(0.5, feature)

        assert rule.chosen(batch, SLOTS.names, firsts).tolist() == rule.chosen(batch.unshared(), SLOTS.names, firsts).tolist()  # fmt: skip


@given(requests)
@settings(max_examples=30, deadline=None)
def test_candidates_are_explained_as_the_full_rows(request_: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    shared, candidates = request_
    rows = json.dumps({"instances": [{**shared, **row} for row in candidates]}).encode()

    found = Explanation(body(shared, candidates)).instances(SCHEMA, 10_000)

    same(found, Explanation(rows).instances(SCHEMA, 10_000))


def refused(call: Any) -> tuple[int, str]:
    with pytest.raises(RequestError) as wrong:
        call()
    return wrong.value.status, wrong.value.sentence


ROW = {"price": 1}


@pytest.mark.parametrize(
    ("given_", "sentence"),
    [
        ({"shared": {"user": "u"}, "candidates": [ROW, {"user": None}]}, "candidates[1] has the column 'user', which the shared part has, too; a column is in one of both"),
        ({"shared": {"user": "u"}}, "candidates is missing"),
        ({"candidates": [ROW]}, "shared is missing"),
        ({"shared": {"user": "u"}, "instances": [ROW]}, "instances is not known; the fields here are shared, candidates, top, signature_name"),
        ({"instances": [ROW], "top": 3}, "top is not known; the fields here are instances, signature_name"),
        ({"shared": None, "candidates": [ROW]}, "shared is null; it must be an object with a value for each column"),
        ({"shared": {}, "candidates": []}, "candidates is empty; give at least one instance"),
        ({"shared": {}, "candidates": [ROW], "top": 0}, "top is 0; it is the number of best candidates that the answer has, 1 or more"),
        ({"shared": {}, "candidates": [ROW], "top": "3"}, "top is '3'; it must be a whole number, 0 or more"),
        ({"shared": {"zero": 1}, "candidates": [ROW]}, "shared has the column 'zero', which no feature reads"),
        ({"shared": {}, "candidates": [{"zero": 1}]}, "candidates[0] has the column 'zero', which no feature reads"),
        ({"shared": {"price": 1e30}, "candidates": [{}]}, "shared: the column 'price' is 1e+30; a number has a size of at most 1e+20"),
        ({"shared": {"user": "u"}, "candidates": [{}, {"price": 1e30}]}, "candidates[1]: the column 'price' is 1e+30"),
        ({"shared": {"price": "x"}, "candidates": [{}]}, "shared.price is 'x'; it must be a number or null"),
        ({"shared": {"user": "u", "price": 2}, "candidates": [{"tags": [str(each) for each in range(40_000)]}]}, "candidates[0]: the row has more than 65536 keys"),
    ],
)  # fmt: skip
def test_a_request_that_is_wrong_is_refused_with_its_field(given_: dict[str, Any], sentence: str) -> None:
    status, said = refused(lambda: parse_rows(json.dumps(given_).encode(), SCHEMA, 10))

    assert (status, said[: len(sentence)]) == (400, sentence)


def test_candidates_count_in_the_limit_of_instances() -> None:
    for row in (ROW, {}):
        assert refused(lambda row=row: parse_rows(body({"user": 1}, [row] * 11), SCHEMA, 10))[0] == 413
    assert parse_rows(body({"user": 1}, [ROW] * 10), SCHEMA, 10).rows == 10
    assert refused(lambda: parse_inference(body(instance([[1], [], [], []]), [instance([[]] * 4)] * 11), SLOTS, 10))[0] == 413  # fmt: skip


def test_a_candidate_with_a_shared_slot_is_refused_by_every_protocol() -> None:
    both = "has feasigns of the slot '11', which the shared part has, too; a slot is in one of both"
    data = body(instance([[1], [], [2], []]), [instance([[], [3], [], []]), instance([[], [], [4], []])])
    arrays = instances_of([[[1], [], [2], []], [[], [], [4], []]], 4)
    tensors = [
        {"name": "feasigns", "datatype": "UINT64", "shape": [3], "data": arrays.feasigns.tolist()},
        {"name": "lengths", "datatype": "INT32", "shape": [2, 4], "data": arrays.lengths.tolist()},
    ]
    message = json.dumps({"inputs": tensors, "parameters": {"first_is_shared": True}}).encode()

    assert Scanner(SLOTS, 5).read_candidates(data) is None
    assert refused(lambda: parse_inference(data, SLOTS, 5)) == (400, f"candidates[1] {both}")
    assert refused(lambda: parse_infer(message).instances(Schema(SLOTS), 5)) == (400, f"instance 1 {both}")
    assert SCANNER.read_candidates(body({"user": 1}, [{"user": 2}])) is None


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ({"parameters": {"first_is_shared": 1}}, "parameters.first_is_shared is 1; it must be true or false"),
        ({"parameters": {"top": 0}}, "parameters.top is 0; it is the number of best instances that the answer has, 1 or more"),
        ({"parameters": {"first_is_shared": True}}, "parameters.first_is_shared is for lines and for the tensors of all slots; a column is shared if its tensor has one row"),
    ],
)  # fmt: skip
def test_parameters_of_tensors_that_make_no_sense_are_refused(message: dict[str, Any], sentence: str) -> None:
    inputs = [{"name": "user", "datatype": "BYTES", "shape": [1], "data": ["u"]}]

    assert refused(lambda: parse_infer(json.dumps({"inputs": inputs, **message}).encode()).instances(SCHEMA, 5)) == (400, sentence)  # fmt: skip


def test_a_shared_part_does_not_lead_past_the_most_keys_of_a_row() -> None:
    tags = [str(each) for each in range(30_000)]
    words = " ".join(f"w{each}" for each in range(40_000))
    both = {"tags": tags, "title": words}
    sentence = "the row has more than 65536 keys; shorten its lists, or cross fewer of them"

    alone = refused(lambda: parse_rows(json.dumps({"instances": [both]}).encode(), SCHEMA, 10))
    shared = refused(lambda: parse_rows(body({"tags": tags}, [{}, {"title": words}]), SCHEMA, 10))

    assert alone == (400, f"instances[0]: {sentence}")
    assert shared == (400, f"candidates[1]: {sentence}")
