from typing import Any

import pytest

from answering import Said, pages, saying
from elastic_ctr.operate.cli.check import CheckFailed, verify_serving


def metadata(*versions: int, slots: tuple[str, ...] = ("0", "7")) -> dict[str, Any]:
    inputs = [{"name": "line", "datatype": "BYTES", "shape": [-1]}]
    for slot in slots:
        inputs += [
            {"name": slot, "datatype": "UINT64", "shape": [-1]},
            {"name": f"{slot}/lengths", "datatype": "INT32", "shape": [-1]},
        ]
    return {"name": "ctr", "versions": [str(each) for each in versions], "inputs": inputs}


def answer(probability: Any, version: int) -> dict[str, Any]:
    return {"outputs": [{"name": "probability", "data": [probability]}, {"name": "version", "data": [version]}]}


def server(model: Any = None, infer: Any = None, ready: Any = None) -> dict[str, Any]:
    return {
        "/v2/models/ctr/ready": {"ready": True} if ready is None else ready,
        "/v2/models/ctr": metadata(7) if model is None else model,
        "/v2/models/ctr/infer": answer(0.25, 7) if infer is None else infer,
    }


def test_a_line_with_every_slot_of_the_model_is_answered() -> None:
    asked: list[Any] = []

    def listening(method: str, path: str, body: Any) -> Said:
        asked.append(body)
        return pages(server())(method, path, body)

    with saying(listening) as address:
        seen = verify_serving(address, "ctr")

    assert seen.facts == {"address": address, "model": "ctr", "version": 7, "probability": 0.25, "slots": 2}
    assert asked[2] == {"inputs": [{"name": "line", "shape": [1], "datatype": "BYTES", "data": ["1:0 2:7"]}]}
    assert seen.sentence == f"serving at {address} answers a line of 2 slots with 0.25, by version 7"


def test_a_row_with_every_column_of_text_is_answered_and_numbers_are_left_to_the_statistics() -> None:
    asked: list[Any] = []
    columns = {"user": "BYTES", "price": "FP64", "age": "INT64"}
    model = {"versions": ["7"], "inputs": [{"name": name, "datatype": kind} for name, kind in columns.items()]}
    answer = {"predictions": [0.25], "model_version": "7"}

    def listening(method: str, path: str, body: Any) -> Said:
        asked.append(body)
        return pages({**server(model=model), "/v1/models/ctr:predict": answer})(method, path, body)

    with saying(listening) as address:
        seen = verify_serving(address, "ctr")

    assert seen.facts == {"address": address, "model": "ctr", "version": 7, "probability": 0.25, "columns": 3}
    assert asked[2] == {"instances": [{"user": "1"}]}
    assert seen.sentence == f"serving at {address} answers a row of 3 columns with 0.25, by version 7"


def test_a_version_that_goes_live_between_two_questions_is_right() -> None:
    versions = iter([7, 8])

    def moving(method: str, path: str, body: Any) -> Said:
        if path == "/v2/models/ctr":
            return 200, metadata(next(versions))
        return pages(server(infer=answer(0.25, 8)))(method, path, body)

    with saying(moving) as address:
        assert verify_serving(address, "ctr").facts["version"] == 8


@pytest.mark.parametrize(
    ("found", "reason", "may_pass"),
    [
        (server(ready=(503, {"error": "training hour 1 of 4"})), "answers 503: training hour 1 of 4", False),
        ({}, "answers 404: /v2/models/ctr/ready is not here", False),
        (server(infer=(500, {"error": "the log says why"})), "answers 500: the log says why", False),
        (server(infer=answer(0.25, 9)), "answers by version 9 and names 7", True),
        (server(model=metadata()), "answers by version 7 and names none", True),
        (server(infer=answer(1.0, 7)), "answers 1.0, which is not a probability between 0 and 1", False),
        (server(infer=answer(0, 7)), "answers 0.0, which is not a probability", False),
        (server(infer=answer("nan", 7)), "answers nan, which is not a probability", False),
        (server(infer={"outputs": []}), "does not answer as the Open Inference Protocol says (KeyError", False),
        (server(infer=answer(None, 7)), "does not answer as the Open Inference Protocol says (TypeError", False),
        (server(model=[1]), "does not answer as the Open Inference Protocol says", False),
        (server(model=metadata(7, slots=())), "the metadata name no slot and no column", False),
        (server(ready=(200, b"<html>")), "does not answer as it should", False),
    ],
)
def test_a_wrong_answer_of_serving_fails_the_check_with_a_reason(
    found: dict[str, Any], reason: str, may_pass: bool
) -> None:
    with saying(pages(found)) as address, pytest.raises(CheckFailed) as failed:
        verify_serving(address, "ctr")

    assert reason in str(failed.value)
    assert str(failed.value).startswith(f"serving at {address}")
    assert failed.value.may_pass is may_pass


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "a b:8400", ":8400", "host:port", "[::1"])
def test_an_address_without_serving_fails_the_check(address: str) -> None:
    with pytest.raises(CheckFailed, match=r"^serving at "):
        verify_serving(address, "ctr")


@pytest.mark.parametrize(
    ("found", "is_wrong"),
    [
        (server(ready=(503, {"error": "training hour 1 of 4"})), False),
        (server(infer=answer(0.25, 9)), False),
        (server(infer=(400, {"error": "instances[0].price is missing"})), True),
        (server(infer=(500, {"error": "the log says why"})), True),
        (server(infer=answer(1.0, 7)), True),
    ],
)
def test_a_failed_check_is_wrong_only_if_a_later_answer_will_not_mend_it(found: dict[str, Any], is_wrong: bool) -> None:
    with saying(pages(found)) as address, pytest.raises(CheckFailed) as failed:
        verify_serving(address, "ctr")

    assert failed.value.is_wrong is is_wrong
