import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_ctr.formats.slots import SlotList
from elastic_ctr.serving.batching.instances import Instances
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.protocols.open_inference import infer_answer, model_metadata, parse_infer, server_metadata
from elastic_ctr.serving.request_error import RequestError

SLOTS = SlotList(("0", "1", "age"))


def rows_of(instances: Instances) -> list[list[list[int]]]:
    ends = np.cumsum(instances.lengths)
    cells = [
        instances.feasigns[end - length : end].tolist() for end, length in zip(ends, instances.lengths, strict=True)
    ]
    return [cells[row * len(SLOTS) : (row + 1) * len(SLOTS)] for row in range(instances.rows)]


def tensor(name: str, data: list[Any], datatype: str = "UINT64", shape: list[int] | None = None) -> dict[str, Any]:
    return {"name": name, "shape": [len(data)] if shape is None else shape, "datatype": datatype, "data": data}


def parsed(*inputs: Any, max_instances: int = 100) -> list[list[list[int]]]:
    body = json.dumps({"inputs": list(inputs)}).encode()
    return rows_of(parse_infer(body).instances(Schema(SLOTS), max_instances))


def request_error_of(*inputs: Any, max_instances: int = 100) -> RequestError:
    with pytest.raises(RequestError) as refused:
        parsed(*inputs, max_instances=max_instances)
    return refused.value


def test_lines_are_read_as_in_training_and_unknown_slots_ignored() -> None:
    lines = tensor("line", ["5:0 6:age 7:0", "8:17 9:1"], "BYTES")

    assert parsed(lines) == [[[5, 7], [], [6]], [[], [9], []]]


def test_slot_tensors_with_lengths_give_many_values_an_instance() -> None:
    rows = parsed(
        tensor("age", [1, 2, 3]),
        tensor("age/lengths", [2, 0, 1], "INT32"),
        tensor("0", [7, 8, 9]),
    )

    assert rows == [[[7], [], [1, 2]], [[8], [], []], [[9], [], [3]]]


def test_a_slot_tensor_of_two_dimensions_has_so_many_values_an_instance() -> None:
    flat = tensor("1", [1, 2, 3, 4], shape=[2, 2])
    nested = {"name": "1", "shape": [2, 2], "datatype": "UINT64", "data": [[1, 2], [3, 4]]}

    assert parsed(flat) == parsed(nested) == [[[], [1, 2], []], [[], [3, 4], []]]


def test_values_may_be_text_or_signed() -> None:
    assert parsed(tensor("0", ["18446744073709551615", -1], "INT64")) == [[[2**64 - 1], [], []]] * 2


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ([], "inputs is empty"),
        ([5], "inputs[0] is 5"),
        ([{"name": "0"}], "inputs[0].shape is missing"),
        ([tensor("0", [1], shape=[-1])], "inputs[0].shape[0] is -1"),
        ([tensor("0", [1], shape=[])], "inputs[0].shape has 0 dimensions"),
        ([tensor("0", [1], shape=[1, 1, 1])], "inputs[0].shape has 3 dimensions"),
        ([tensor("0", [1], shape=[2])], "inputs[0].data has 1 values; its shape [2] says 2"),
        ([tensor("0", [[1], [2, 3]], shape=[2, 1])], "inputs[0].data[1] has 2 values"),
        ([tensor("0", [1]), tensor("0", [1])], "inputs[1].name '0' is there twice"),
        ([tensor("17", [1])], "inputs[0].name '17' is not a slot"),
        ([tensor("0", [1], "FP32")], "inputs[0].datatype of '0' is 'FP32'"),
        ([tensor("0", [1.5])], "inputs[0].data[0] of '0' is 1.5"),
        ([tensor("0", [1, "x"])], "inputs[0].data[1] of '0' is 'x'"),
        (
            [tensor("0", [1, 2, 3]), tensor("1", [1, 2])],
            "inputs[1] has 2 instances and inputs[0] 3; they must be as many",
        ),
        ([tensor("0", [1]), tensor("0/lengths", [2], "INT32")], "inputs[1]: '0/lengths' adds up to 2; '0' has 1"),
        ([tensor("0", [1]), tensor("0/lengths", [-1], "INT32")], "inputs[1].data[0] is -1"),
        ([tensor("0", [1]), tensor("0/lengths", [1], "FP32")], "inputs[1].datatype of '0/lengths'"),
        ([tensor("0", [1]), tensor("0/lengths", [10**30, 1], "INT32")], "inputs[1].data[0] is 1e+30"),
        ([tensor("0/lengths", [1], "INT32")], "inputs[0].name '0/lengths' gives lengths of '0'"),
        ([tensor("line", ["1:0"], "BYTES"), tensor("0", [1])], "inputs has 'line' and '0'"),
        ([tensor("line", ["1:0"], "UINT64")], "inputs[0].datatype of 'line'"),
        ([tensor("line", [5], "BYTES")], "inputs[0].data[0] is 5"),
        ([tensor("line", ["1:0", "nonsense"], "BYTES")], "inputs[0].data[1] is refused, no_colon"),
        ([tensor("line", ["\ud800"], "BYTES")], "the body is not JSON"),
        ([tensor("line", ["é:0"], "BYTES")], "inputs[0].data[0] is refused, binary"),
        ([tensor("line", [], "BYTES")], "inputs[0].data is empty"),
    ],
)
def test_a_wrong_request_is_refused_by_the_name_of_the_field(inputs: list[Any], named: str) -> None:
    refusal = request_error_of(*inputs)

    assert refusal.status == 400
    assert refusal.sentence.startswith(named), refusal.sentence


def test_too_many_instances_are_refused_with_413_before_anything_is_made_of_them() -> None:
    assert request_error_of(tensor("line", ["1:0"] * 4, "BYTES"), max_instances=3).status == 413
    assert request_error_of(tensor("0", [], shape=[10**15, 0])).status == 413


@settings(deadline=None, max_examples=300)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.sampled_from(["0", "line", "BYTES", "UINT64"]),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.fixed_dictionaries(
                {},
                optional={
                    "inputs": inner, "name": st.sampled_from(["0", "0/lengths", "line"]), "shape": st.lists(st.integers(0, 3)),
                    "datatype": st.sampled_from(["UINT64", "BYTES", "INT32"]), "data": inner, "id": inner, "outputs": inner,
                },
            )
        ),
        max_leaves=25,
    ),
    st.booleans(),
)  # fmt: skip
def test_any_json_is_read_or_refused(document: Any, wrapped: bool) -> None:
    body = json.dumps({"inputs": document} if wrapped else document).encode()

    status = 400
    try:
        parse_infer(body).instances(Schema(SLOTS), 3)
    except RequestError as refusal:
        status = refusal.status

    assert 400 <= status < 500


@given(
    st.lists(st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=3), min_size=3, max_size=3), min_size=1, max_size=4)
)
def test_every_value_lands_in_its_row_and_slot(rows: list[list[list[int]]]) -> None:
    inputs = []
    for place, slot in enumerate(SLOTS):
        inputs.append(tensor(slot, [value for row in rows for value in row[place]]))
        inputs.append(tensor(f"{slot}/lengths", [len(row[place]) for row in rows], "INT32"))

    assert parsed(*inputs) == rows


def test_an_answer_names_model_version_and_request() -> None:
    body = json.dumps({"id": "a-1", "inputs": [tensor("0", [1, 2])]}).encode()

    answer = json.loads(infer_answer(parse_infer(body), "ctr", np.array([0.25, 0.1], np.float32), 2**63 + 1)[0])

    assert answer == {
        "model_name": "ctr",
        "model_version": str(2**63 + 1),
        "id": "a-1",
        "outputs": [
            {"name": "probability", "datatype": "FP32", "shape": [2], "data": [0.25, 0.1]},
            {"name": "version", "datatype": "UINT64", "shape": [2], "data": [2**63 + 1] * 2},
        ],
    }


def test_only_the_outputs_asked_for_are_given() -> None:
    body = json.dumps({"inputs": [tensor("0", [1])], "outputs": [{"name": "version"}]}).encode()

    answer = json.loads(infer_answer(parse_infer(body), "ctr", np.array([0.5], np.float32), 7)[0])

    assert [output["name"] for output in answer["outputs"]] == ["version"]


def test_an_output_that_is_not_there_is_refused_by_name() -> None:
    body = json.dumps({"inputs": [tensor("0", [1])], "outputs": [{"name": "score"}]}).encode()

    with pytest.raises(RequestError, match=r"outputs\[0\].name 'score' is not an output"):
        parse_infer(body)


def test_metadata_says_what_may_be_sent() -> None:
    metadata = model_metadata("ctr", 17, Schema(SLOTS))

    assert metadata["versions"] == ["17"]
    assert [each["name"] for each in metadata["inputs"]][:3] == ["line", "0", "0/lengths"]
    assert json.loads(server_metadata("1.0"))["name"] == "elastic-ctr"


# -- binary tensors, as tritonclient and kserve write them


def binary(*inputs: tuple[str, np.ndarray[Any, Any], str], **more: Any) -> tuple[bytes, int]:
    """A body, and the length of its JSON."""
    document = [
        {"name": name, "shape": list(values.shape), "datatype": kind, "parameters": {"binary_data_size": values.nbytes}}
        for name, values, kind in inputs
    ]
    head = json.dumps({"inputs": document, **more}).encode()
    return head + b"".join(values.tobytes() for _, values, _ in inputs), len(head)


def u64(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, "<u8")


def test_binary_tensors_are_read_as_those_in_json() -> None:
    body, size = binary(("age", u64(1, 2**64 - 1, 3), "UINT64"), ("age/lengths", np.array([2, 0, 1], "<i4"), "INT32"))

    assert rows_of(parse_infer(body, size).instances(Schema(SLOTS), 100)) == [
        [[], [], [1, 2**64 - 1]],
        [[]] * 3,
        [[], [], [3]],
    ]


def test_binary_lines_have_their_lengths_in_front() -> None:
    lines = b"".join(len(line).to_bytes(4, "little") + line for line in (b"5:0 6:age", b"9:1"))
    head = json.dumps(
        {
            "inputs": [
                {"name": "line", "shape": [2], "datatype": "BYTES", "parameters": {"binary_data_size": len(lines)}}
            ]
        }
    ).encode()

    assert rows_of(parse_infer(head + lines, len(head)).instances(Schema(SLOTS), 9)) == [[[5], [], [6]], [[], [9], []]]


@given(
    st.lists(st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=3), min_size=3, max_size=3), min_size=1, max_size=4),
    st.sampled_from([("<u2", "UINT16"), ("<i4", "INT32"), ("<u8", "UINT64")]),
)
def test_two_tensors_of_all_slots_are_read_as_a_tensor_for_each(
    rows: list[list[list[int]]], kind: tuple[str, str]
) -> None:
    feasigns = u64(*(value for row in rows for slot in row for value in slot))
    lengths = np.array([[len(slot) for slot in row] for row in rows], kind[0])
    body, size = binary(
        ("feasigns", feasigns, "UINT64"), ("lengths", lengths, kind[1]), parameters={"slot_list_check": SLOTS.check()}
    )
    flat = [int(value) for value in lengths.reshape(-1)]

    assert rows_of(parse_infer(body, size).instances(Schema(SLOTS), 100)) == rows
    assert rows == parsed(tensor("feasigns", feasigns.tolist()), tensor("lengths", flat, "INT32", [len(rows), 3]))


@pytest.mark.parametrize(
    ("body", "length", "status"),
    [
        (binary(("feasigns", u64(1), "UINT64"), ("lengths", u64(1, 0, 0), "UINT64"))[0], 10_000, 400),
        (*binary(("feasigns", u64(1), "UINT64"), ("lengths", u64(1, 0, 0), "UINT64")), 400),
        (*binary(("feasigns", u64(1), "UINT64"), ("lengths", u64(1, 0).reshape(1, 2), "UINT64")), 400),
        (*binary(("feasigns", u64(1), "UINT64"), ("lengths", u64(1, 0, 2**64 - 1).reshape(1, 3), "UINT64")), 400),
        (*binary(("feasigns", u64(1), "UINT64"), ("lengths", np.array([[2, 0, -1]], "<i4"), "INT32")), 400),
        (*binary(("0", u64(1), "UINT64"), parameters={"slot_list_check": SLOTS.check() ^ 1}), 409),
        (*binary(("0", u64(1), "FP64")), 400),
        (binary(("0", u64(1), "UINT64"))[0] + b"x", binary(("0", u64(1), "UINT64"))[1], 400),
        (binary(("0", u64(1), "UINT64"))[0][:-1], binary(("0", u64(1), "UINT64"))[1], 400),
        (b"", 0, 400),
    ],
)  # fmt: skip
def test_binary_tensors_that_do_not_fit_are_refused(body: bytes, length: int, status: int) -> None:
    with pytest.raises(RequestError) as refused:
        parse_infer(body, length).instances(Schema(SLOTS), 100)

    assert refused.value.status == status


@pytest.mark.parametrize(
    ("asked", "written"),
    [
        ({}, []),
        ({"parameters": {"binary_data_output": True}}, ["probability", "version"]),
        ({"outputs": [{"name": "probability", "parameters": {"binary_data": True}}]}, ["probability"]),
        ({"outputs": [{"name": "version", "parameters": {"binary_data": True}}, {"name": "probability"}]}, ["version"]),
    ],
)
def test_outputs_are_binary_where_that_was_asked(asked: dict[str, Any], written: list[str]) -> None:
    body = json.dumps({"inputs": [tensor("0", [1, 2])], **asked}).encode()

    answer, length = infer_answer(parse_infer(body), "ctr", np.array([0.25, 0.5], np.float32), 7)

    raw = {"probability": np.array([0.25, 0.5], "<f4").tobytes(), "version": u64(7, 7).tobytes()}
    assert answer[length or len(answer) :] == b"".join(raw[name] for name in written)
    outputs = json.loads(answer[:length])["outputs"]
    assert [each["name"] for each in outputs if "parameters" in each] == written
    assert all(
        each["parameters"] == {"binary_data_size": len(raw[each["name"]])} for each in outputs if "data" not in each
    )


def test_fields_that_sdks_add_are_passed_over() -> None:
    document = {"model_name": "ctr", "model_version": "7", "id": "1", "inputs": [tensor("0", [1])]}

    assert rows_of(parse_infer(json.dumps(document).encode()).instances(Schema(SLOTS), 9)) == [[[1], [], []]]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"shared": {}}, "shared is not known"),
        ({"inputs": [{**tensor("0", [1]), "lengths": [1]}]}, r"inputs\[0\].lengths is not known"),
        ({"outputs": [{"name": "version", "binary": True}]}, r"outputs\[0\].binary is not known"),
    ],
)
def test_fields_that_would_be_passed_over_are_refused(more: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestError, match=named):
        parse_infer(json.dumps({"inputs": [tensor("0", [1])], **more}).encode())
