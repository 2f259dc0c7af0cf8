"""Rows of columns over the doors of serving: the same cells whatever door they came through, and a sentence for each refusal."""

import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_ctr.config.feature_program import transformer_of
from elastic_ctr.config.features import Features
from elastic_ctr.formats.cells import cells_of
from elastic_ctr.formats.json_rows import json_of_row, row_of
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.serving import open_inference_pb2 as messages
from elastic_ctr.serving.batching.instances import Instances
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.frontends.grpc import check_counts, inference_of
from elastic_ctr.serving.protocols.elasticctr_json import parse_inference
from elastic_ctr.serving.protocols.open_inference import model_metadata, parse_infer
from elastic_ctr.serving.protocols.rows_json import parse_rows, rows_answer
from elastic_ctr.serving.request_error import RequestError

FEATURES = Features.model_validate(
    {
        "age": {"type": "bucketized", "boundaries": [18, 30]},
        "price": {"type": "numeric", "transform": ["log1p"], "missing": 0},
        "rounded": {"type": "categorical", "column": "price", "round": 1},
        "tags": {"type": "categorical", "separator": "|"},
        "title": {"type": "text"},
        "user": {"type": "categorical"},
        "pair": {"type": "crossed", "of": ["user", "tags"]},
    }
)
TRANSFORMER = transformer_of(FEATURES, None)
SCHEMA = Schema(TRANSFORMER.slots, TRANSFORMER, "d" * 64)

values = st.none() | st.text(max_size=10).filter(lambda each: "|" not in each) | st.integers(-(2**53) + 1, 2**53 - 1)
numbers = st.none() | st.floats(-1e6, 1e6) | st.integers(-(10**6), 10**6)
row = st.fixed_dictionaries(
    {},
    optional={
        "age": numbers,
        "price": numbers,
        "tags": values | st.lists(values, max_size=4),
        "title": values | st.booleans(),
        "user": values | st.booleans(),
    },
)
rows = st.lists(row, min_size=1, max_size=5)


def test_a_column_is_described_with_a_datatype_that_every_reading_of_it_takes() -> None:
    features = {
        "price": {"type": "numeric", "transform": [], "missing": 0},
        "price_as_category": {"type": "categorical", "column": "price"},
        "age": {"type": "bucketized", "boundaries": [18]},
        "user": {"type": "categorical"},
    }
    transformer = transformer_of(Features.model_validate(features), None)
    schema = Schema(transformer.slots, transformer, "d" * 64)

    described = {each["name"]: each["datatype"] for each in model_metadata("ctr", 7, schema)["inputs"]}

    assert described == {"age": "FP64", "price": "INT64", "user": "BYTES"}
    data: dict[str, list[Any]] = {"FP64": [20.5], "INT64": [7], "BYTES": ["u1"]}
    inputs = [{"name": each, "shape": [1], "datatype": kind, "data": data[kind]} for each, kind in described.items()]
    assert len(parse_infer(json.dumps({"inputs": inputs}).encode()).instances(schema, 10).lengths) == 3


def same(one: Instances, other: Instances) -> None:
    assert one.numbers is not None
    assert other.numbers is not None
    assert one.feasigns.tolist() == other.feasigns.tolist()
    assert one.lengths.tolist() == other.lengths.tolist()
    assert one.numbers.view(np.uint32).tolist() == other.numbers.view(np.uint32).tolist()


def text_of(value: Any) -> bytes:
    """A value as a CSV file has it."""
    if isinstance(value, list):
        return b"|".join(filter(None, map(text_of, value)))
    return b"" if value is None else str(value).lower().encode() if isinstance(value, bool) else str(value).encode()


def asked(given_: list[dict[str, Any]]) -> Instances:
    return parse_rows(json.dumps({"instances": given_}).encode(), SCHEMA, 100)


@given(rows)
@settings(max_examples=300)
def test_a_row_as_json_has_the_keys_and_numbers_of_its_texts(given_: list[dict[str, Any]]) -> None:
    inputs = TRANSFORMER.inputs
    cells = cells_of(
        [
            (
                [text_of(each.get(of.column)) for of in inputs.texts],
                [math.nan if each.get(column) is None else float(each[column]) for column in inputs.numbers],
            )
            for each in given_
        ],
        inputs,
    )
    trained = TRANSFORMER.transform(cells)

    same(asked(given_), Instances(trained.keys, trained.lengths, len(cells), numbers=trained.numbers))


@given(rows)
@settings(max_examples=200)
def test_a_sample_of_training_is_read_as_the_row_that_it_was(given_: list[dict[str, Any]]) -> None:
    cells = cells_of([row_of(each, TRANSFORMER.inputs) for each in given_], TRANSFORMER.inputs)
    samples = [json_of_row(cells, place, TRANSFORMER.inputs) for place in range(len(cells))]

    same(asked([json.loads(each) for each in samples]), asked(given_))


def tensors(given_: list[dict[str, Any]]) -> list[tuple[str, str, list[int], list[Any]]]:
    """A tensor for each column: texts as BYTES, numbers as FP64 where every row has one."""
    found: list[tuple[str, str, list[int], list[Any]]] = [
        (name, "BYTES", [len(given_)], [text_of(each.get(name)).decode() for each in given_])
        for name in ("title", "user", "tags")
    ]
    whole = [name for name in ("age", "price") if all(each.get(name) is not None for each in given_)]
    return found + [(name, "FP64", [len(given_)], [float(each[name]) for each in given_]) for name in whole]


def with_whole_columns(given_: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A tensor has a number in each row or is not there at all."""
    lacking = [name for name in ("age", "price") if any(each.get(name) is None for each in given_)]
    return [{name: value for name, value in each.items() if name not in lacking} for each in given_]


@given(rows)
@settings(max_examples=200)
def test_tensors_have_the_keys_and_numbers_of_the_same_rows(given_: list[dict[str, Any]]) -> None:
    given_ = with_whole_columns(given_)
    wanted = asked(given_)
    inputs = [
        {"name": name, "datatype": datatype, "shape": shape, "data": data}
        for name, datatype, shape, data in tensors(given_)
    ]
    same(parse_infer(json.dumps({"inputs": inputs}).encode()).instances(SCHEMA, 100), wanted)

    behind, described = b"", []
    for name, datatype, shape, data in tensors(given_):
        raw = raw_of(datatype, data)
        described.append(
            {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(raw)}}
        )
        behind += raw
    head = json.dumps({"inputs": described}).encode()
    same(parse_infer(head + behind, len(head)).instances(SCHEMA, 100), wanted)

    for is_raw in (False, True):
        message = messages.ModelInferRequest()
        for name, datatype, shape, data in tensors(given_):
            tensor = message.inputs.add(name=name, datatype=datatype, shape=shape)
            if is_raw:
                message.raw_input_contents.append(raw_of(datatype, data))
            elif datatype == "BYTES":
                tensor.contents.bytes_contents.extend(each.encode() for each in data)
            else:
                tensor.contents.fp64_contents.extend(data)
        same(inference_of(message, 100).instances(SCHEMA, 100), wanted)


def raw_of(datatype: str, data: list[Any]) -> bytes:
    if datatype == "FP64":
        return np.array(data, "<f8").tobytes()
    return b"".join(struct.pack("<I", len(each.encode())) + each.encode() for each in data)


@pytest.mark.parametrize("datatype", ["INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"])
def test_whole_numbers_of_any_type_are_one_value(datatype: str) -> None:
    inputs = [
        {"name": "user", "datatype": datatype, "shape": [2, 1], "data": [7, 100]},
        {"name": "tags", "datatype": datatype, "shape": [2, 2], "data": [[1, 2], [3, 4]]},
        {"name": "price", "datatype": datatype, "shape": [2], "data": [3, 5]},
    ]
    body = json.dumps({"inputs": inputs}).encode()

    same(
        parse_infer(body).instances(SCHEMA, 9),
        asked([{"user": "7", "tags": "1|2", "price": 3}, {"user": 100, "tags": [3, "4"], "price": 5.0}]),
    )


@pytest.mark.parametrize("number", [2**53 + 1, 2**64 - 1, -(2**63)])
def test_a_whole_number_of_64_bits_is_its_decimals(number: int) -> None:
    same(asked([{"user": number}]), asked([{"user": str(number)}]))


NO_JSON = b'{"instances": [{"price": 1e400}]}'


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"instances": [{"price": "3.2"}]}, "instances[0].price is '3.2'; it must be a number or null"),
        ({"instances": [{}, {"price": True}]}, "instances[1].price is True; it must be a number or null"),
        ({"instances": [{"user": ["a"]}]}, "instances[0].user is a list; its feature takes one value"),
        ({"instances": [{"user": {"id": 1}}]}, "instances[0].user is an object; a value is text, a whole number"),
        ({"instances": [{"tags": [["a"]]}]}, "instances[0].tags is a list in a list"),
        ({"instances": [{"tags": ["a|b"]}]}, "instances[0].tags has the value 'a|b', which holds the separator '|'"),
        ({"instances": [{"user": 2**64}]}, "instances[0].user is 1.8446744073709552e+19, too large for a whole number"),
        ({"instances": [{"user": 7.5}]}, "instances[0].user is 7.5; a number with a point is no category"),
        (
            {"instances": [{"usr": "u1"}]},
            "instances[0] has the column 'usr', which no feature reads; they read tags, title, user",
        ),
        ({"instances": []}, "instances is empty"),
        ({"instances": ["u1"]}, "instances[0] is 'u1'; it must be an object with a value for each column"),
        ({"rows": []}, "rows is not known; the fields here are instances, signature_name"),
        (
            {"shared": {"user": "u1"}, "instances": [{}]},
            "instances is not known; the fields here are shared, candidates",
        ),
        ({}, "instances is missing"),
        (b'{"instances": [{"user": "a", "user": "b"}]}', "'user' is there twice in one object"),
        (b'{"instances": [{}], "instances": [{"user": "a"}]}', "'instances' is there twice in one object"),
        (NO_JSON, "the body is not JSON"),
    ],
)
def test_a_wrong_row_is_refused_by_its_place_and_column(body: Any, sentence: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_rows(body if isinstance(body, bytes) else json.dumps(body).encode(), SCHEMA, 100)

    assert refused.value.status == 400
    assert sentence in refused.value.sentence


@pytest.mark.parametrize(
    ("tensor", "sentence"),
    [
        (
            {"name": "price", "datatype": "BYTES", "shape": [1], "data": ["3"]},
            "'price' is read as a number, as FP64, FP32",
        ),
        ({"name": "user", "datatype": "FP32", "shape": [1], "data": [1.5]}, "'user' is read as text, as BYTES"),
        (
            {"name": "user", "datatype": "BYTES", "shape": [1, 2], "data": ["a", "b"]},
            "its feature takes one value a row",
        ),
        (
            {"name": "usr", "datatype": "BYTES", "shape": [1], "data": ["a"]},
            "inputs has the column 'usr', which no feature reads",
        ),
    ],
)
def test_a_wrong_tensor_is_refused_by_its_column(tensor: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse_infer(json.dumps({"inputs": [tensor]}).encode()).instances(SCHEMA, 100)

    assert refused.value.status == 400
    assert sentence in refused.value.sentence


@pytest.mark.parametrize(
    ("datatype", "value", "due"),
    [
        ("INT64", 1.5, "a whole number from -9223372036854775808 to 9223372036854775807"),
        ("INT8", 700, "a whole number from -128 to 127"),
        ("UINT16", -1, "a whole number from 0 to 65535"),
        ("UINT32", True, "a whole number from 0 to 4294967295"),
        ("BOOL", 7, "true or false"),
        ("BYTES", 1.5, "text"),
    ],
)
def test_a_value_of_json_that_its_datatype_does_not_hold_is_refused(datatype: str, value: Any, due: str) -> None:
    tensor = {"name": "user", "datatype": datatype, "shape": [2], "data": [None, value]}

    with pytest.raises(RequestError) as refused:
        parse_infer(json.dumps({"inputs": [tensor]}).encode()).instances(SCHEMA, 100)

    assert refused.value.sentence == f"inputs[0].data[1] of 'user' is {json.dumps(value)}; {datatype} takes {due}"


def test_a_float32_of_json_is_the_float32_of_binary_tensors() -> None:
    def number(tensor: dict[str, Any], raw: bytes = b"") -> Any:
        head = json.dumps({"inputs": [tensor]}).encode()
        return parse_infer(head + raw, len(head) if raw else None).instances(SCHEMA, 100)

    written = {"name": "price", "datatype": "FP32", "shape": [1]}
    raw = np.array([0.7], "<f4").tobytes()

    same(number({**written, "data": [0.7]}), number({**written, "parameters": {"binary_data_size": 4}}, raw))


def test_rows_may_all_have_an_empty_list() -> None:
    for datatype in ("BYTES", "INT64"):
        inputs = [
            {"name": "user", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]},
            {"name": "tags", "datatype": datatype, "shape": [2, 0], "data": []},
        ]
        found = parse_infer(json.dumps({"inputs": inputs}).encode()).instances(SCHEMA, 100)

        same(found, parse_infer(json.dumps({"inputs": inputs[:1]}).encode()).instances(SCHEMA, 100))


def test_a_row_may_have_more_values_than_requests_have_rows() -> None:
    message = messages.ModelInferRequest(raw_input_contents=[(struct.pack("<I", 1) + b"a") * 120])
    message.inputs.add(name="tags", datatype="BYTES", shape=[30, 4])

    check_counts(message.SerializeToString(), 30)
    assert inference_of(message, 30).instances(SCHEMA, 30).rows == 30


@pytest.mark.parametrize(
    ("column", "datatype", "raw"), [("price", "FP32", b"\0\0\xc0\x7f"), ("price", "FP64", b"\0" * 6 + b"\xf0\x7f")]
)
def test_a_number_that_is_not_finite_is_refused_by_its_column(column: str, datatype: str, raw: bytes) -> None:
    message = messages.ModelInferRequest(raw_input_contents=[raw])
    message.inputs.add(name=column, datatype=datatype, shape=[1])

    with pytest.raises(RequestError, match=r"row 0 of price is (nan|inf); a number is finite"):
        inference_of(message, 100).instances(SCHEMA, 100)


def test_text_that_is_not_utf8_is_refused_by_its_place() -> None:
    message = messages.ModelInferRequest(raw_input_contents=[b"\1\0\0\0\xff"])
    message.inputs.add(name="user", datatype="BYTES", shape=[1])

    with pytest.raises(RequestError, match=r"\[0\] of 'user' is not UTF-8"):
        inference_of(message, 100).instances(SCHEMA, 100)


def test_columns_of_other_lengths_are_refused() -> None:
    inputs = [
        {"name": name, "datatype": "BYTES", "shape": [n], "data": ["a"] * n} for name, n in (("user", 3), ("tags", 2))
    ]

    with pytest.raises(RequestError, match=r"has 2 rows and .* 3; they must be as many, or one that all rows share"):
        parse_infer(json.dumps({"inputs": inputs}).encode()).instances(SCHEMA, 100)


def test_unknown_columns_may_be_allowed() -> None:
    lenient = Schema(SCHEMA.slots, SCHEMA.transformer, SCHEMA.digest, ignores_unknown=True)

    found = parse_rows(b'{"instances": [{"usr": {"any": "thing"}, "user": "u1"}]}', lenient, 9)

    same(found, asked([{"user": "u1"}]))


def test_a_column_that_is_left_out_may_come_twice_and_one_that_is_read_may_not() -> None:
    schema = Schema(TRANSFORMER.slots, TRANSFORMER, "d" * 64, ignores_unknown=True)

    same(parse_rows(b'{"instances": [{"user": "a", "x": 1, "x": 2}]}', schema, 9), asked([{"user": "a"}]))
    with pytest.raises(RequestError, match="'user' is there twice"):
        parse_rows(b'{"instances": [{"user": "a", "x": 1, "user": "a"}]}', schema, 9)


def test_the_signature_that_clients_of_tensorflow_serving_name_is_passed_over() -> None:
    body = b'{"signature_name": "serving_default", "instances": [{"user": "a"}]}'

    same(parse_rows(body, SCHEMA, 9), asked([{"user": "a"}]))


def test_a_model_of_rows_takes_no_feasigns_and_the_other_way_round() -> None:
    with pytest.raises(RequestError, match="takes rows of columns, not feasigns"):
        parse_inference(b'{"instances": [{"slots": []}]}', SCHEMA.of_feasigns(), 9)
    with pytest.raises(RequestError, match="takes feasigns of its slots, not rows of columns"):
        parse_rows(b'{"instances": [{"user": "u1"}]}', Schema(SlotList(("a",))), 9)


def test_the_metadata_list_the_columns_and_their_types() -> None:
    inputs = model_metadata("ctr", 7, SCHEMA)["inputs"]

    assert {each["name"]: each["datatype"] for each in inputs} == {
        "age": "FP64", "price": "FP64", "tags": "BYTES", "title": "BYTES", "user": "BYTES",
    }  # fmt: skip


def test_an_answer_has_a_probability_a_row_and_the_version() -> None:
    assert json.loads(rows_answer(np.array([0.25, 0.5], np.float32), 7)) == {
        "predictions": [0.25, 0.5],
        "model_version": "7",
    }


def test_a_request_whose_lists_make_too_many_keys_is_refused() -> None:
    lists = {name: {"type": "categorical", "separator": "|"} for name in ("a", "b")}
    transformer = transformer_of(Features.model_validate({**lists, "ab": {"type": "crossed", "of": ["a", "b"]}}), None)
    row = {name: list(range(250)) for name in ("a", "b")}

    with pytest.raises(RequestError, match="keys together; send fewer at a time") as refused:
        parse_rows(json.dumps({"instances": [row] * 200}).encode(), Schema(transformer.slots, transformer), 1000)

    assert refused.value.status == 413


def test_a_value_of_a_tensor_that_holds_the_separator_is_refused_as_one_of_json_is() -> None:
    digits = transformer_of(Features.model_validate({"codes": {"type": "categorical", "separator": "1"}}), None)
    inputs = [{"name": "codes", "datatype": "INT64", "shape": [1, 2]}]
    message = messages.ModelInferRequest(raw_input_contents=[np.array([2, 11], "<i8").tobytes()])
    message.inputs.add(**inputs[0])

    with pytest.raises(RequestError, match="has the value '11', which holds the separator '1' of its feature"):
        inference_of(message, 100).instances(Schema(digits.slots, digits), 100)
