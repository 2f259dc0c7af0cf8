import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_ctr.formats.slots import SlotList
from elastic_ctr.serving.batching.instances import Instances
from elastic_ctr.serving.protocols.elasticctr_json import inference_answer, inference_refusal, parse_inference
from elastic_ctr.serving.request_error import RequestError

SLOTS = SlotList(("0", "1", "age"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["instances", "slots", "slot_name", "feasigns", "x"]), inner, max_size=4)
    ),
    max_leaves=20,
)


def parsed(document: Any, max_instances: int = 100) -> list[list[list[int]]]:
    """Feasigns by row and slot."""
    return rows_of(parse_inference(json.dumps(document).encode(), SLOTS, max_instances))


def rows_of(instances: Instances) -> list[list[list[int]]]:
    ends = np.cumsum(instances.lengths)
    cells = [
        instances.feasigns[end - length : end].tolist() for end, length in zip(ends, instances.lengths, strict=True)
    ]
    assert len(cells) == instances.rows * len(SLOTS)
    return [cells[row * len(SLOTS) : (row + 1) * len(SLOTS)] for row in range(instances.rows)]


def one(slots: Any) -> dict[str, Any]:
    return {"instances": [{"slots": slots}]}


def request_error_of(document: Any, max_instances: int = 100) -> RequestError:
    with pytest.raises(RequestError) as refused:
        parsed(document, max_instances)
    return refused.value


def test_slots_may_come_in_any_order_be_absent_or_stand_twice() -> None:
    slots = [
        {"slot_name": "age", "feasigns": [7]},
        {"slot_name": "0", "feasigns": [1, 2]},
        {"slot_name": "age", "feasigns": [8]},
    ]

    assert parsed(one(slots)) == [[[1, 2], [], [7, 8]]]


def test_instances_may_differ_in_their_slots() -> None:
    document = {
        "instances": [
            {"slots": [{"slot_name": "1", "feasigns": [1]}]},
            {"slots": []},
            {"slots": [{"slot_name": "0", "feasigns": []}, {"slot_name": "age"}]},
        ]
    }

    assert parsed(document) == [[[], [1], []], [[], [], []], [[], [], []]]


@pytest.mark.parametrize(
    ("given_as", "feasign"),
    [
        (0, 0),
        (2**64 - 1, 2**64 - 1),
        ("18446744073709551615", 2**64 - 1),
        ("007", 7),
        (-1, 2**64 - 1),
        ("-1", 2**64 - 1),
        (-(2**63), 2**63),
        (17241709254077376921 - 2**64, 17241709254077376921),
    ],
)
def test_a_feasign_is_a_number_or_text_and_a_negative_one_is_the_same_bits(given_as: Any, feasign: int) -> None:
    assert parsed(one([{"slot_name": "0", "feasigns": [given_as]}])) == [[[feasign], [], []]]


@pytest.mark.parametrize(
    "wrong",
    [1.5, "abc", "", "1.0", "\u0661", "1_000", " 1", "+1", "--1", "9" * 5000, 2**64, -(2**63) - 1, None, True, [1], {}],
)
def test_a_value_that_is_no_feasign_is_refused_by_its_place(wrong: Any) -> None:
    document = {
        "instances": [
            {"slots": [{"slot_name": "0", "feasigns": [1, 2]}]},
            {"slots": [{"slot_name": "age", "feasigns": [4]}, {"slot_name": "0", "feasigns": [3, wrong]}]},
        ]
    }

    refusal = request_error_of(document)

    assert refusal.status == 400
    assert refusal.sentence.startswith("instances[1].slots[1].feasigns[1] is ")


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ([], "the body is a list"),
        ({}, "instances is missing"),
        ({"instances": {}}, "instances is an object"),
        ({"instances": []}, "instances is empty"),
        ({"instances": [1]}, "instances[0] is 1"),
        ({"instances": [{"slots": []}], "model": 1}, "model is not known"),
        ({"instances": [{}]}, "instances[0].slots is missing"),
        ({"instances": [{"slots": {}}]}, "instances[0].slots is an object"),
        (one([7]), "instances[0].slots[0] is 7"),
        (one([{"feasigns": []}]), "instances[0].slots[0].slot_name is missing"),
        (one([{"slot_name": 0, "feasigns": []}]), "instances[0].slots[0].slot_name is 0"),
        (one([{"slot_name": "0", "feasigns": 5}]), "instances[0].slots[0].feasigns is 5"),
        (one([{"slot_name": "0", "feasigns": [], "weight": 1}]), "instances[0].slots[0].weight is not known"),
        (one([{"slot_name": "17", "feasigns": []}]), "instances[0].slots[0].slot_name '17' is not a slot"),
    ],
)
def test_a_wrong_document_is_refused_by_the_name_of_the_field(document: Any, named: str) -> None:
    refusal = request_error_of(document)

    assert refusal.status == 400
    assert refusal.sentence.startswith(named)


def test_one_instance_too_many_is_refused_with_413() -> None:
    assert request_error_of({"instances": [{"slots": []}] * 4}, max_instances=3).status == 413
    assert len(parsed({"instances": [{"slots": []}] * 3}, max_instances=3)) == 3


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff\xfe", b'{"instances": NaN}', b"[" * 100_000, b'{"instances": [Infinity]}']
)
def test_a_body_that_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError, match="the body is"):
        parse_inference(body, SLOTS, 10)


@settings(deadline=None, max_examples=300)
@given(JSON)
def test_any_json_is_read_or_refused(document: Any) -> None:
    status, sentence = 400, ""
    try:
        parse_inference(json.dumps(document).encode(), SLOTS, 3)
    except RequestError as refusal:
        status, sentence = refusal.status, refusal.sentence

    assert 400 <= status < 500
    assert "\n" not in sentence


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    with pytest.raises(RequestError):
        parse_inference(body, SLOTS, 3)


@given(st.lists(st.lists(st.tuples(st.sampled_from(SLOTS.names), st.integers(0, 2**64 - 1))), min_size=1, max_size=5))
def test_every_feasign_lands_in_its_row_and_slot(rows: list[list[tuple[str, int]]]) -> None:
    document = {
        "instances": [{"slots": [{"slot_name": slot, "feasigns": [feasign]} for slot, feasign in row]} for row in rows]
    }

    assert parsed(document) == [[[f for s, f in row if s == slot] for slot in SLOTS] for row in rows]


def test_an_answer_has_both_probabilities_and_no_error() -> None:
    answer = json.loads(inference_answer(np.array([0.25, 1.0], np.float32)))

    assert answer == {"predictions": [{"prob0": 0.75, "prob1": 0.25}, {"prob0": 0.0, "prob1": 1.0}], "err_code": 0}


def test_a_refusal_has_the_sources_error_code_and_the_sentence() -> None:
    answer = json.loads(inference_refusal(RequestError(400, "instances is empty")))

    assert (answer["err_code"], answer["err_msg"], answer["predictions"]) == (-1, "instances is empty", [])
