import pytest

from elastic_ctr.serving.protocols import json_fields
from elastic_ctr.serving.protocols.json_fields import count, enough_instances, fields, items, json_object, text
from elastic_ctr.serving.request_error import RequestError, short_repr


def test_an_unknown_field_is_named_and_the_known_ones_are_listed() -> None:
    with pytest.raises(RequestError, match=r"inputs\[0\]\.shpae is not known; the fields here are name, shape"):
        fields({"name": "a", "shpae": []}, "inputs[0]", ("name",), ("shape",))


def test_a_field_name_from_a_request_cannot_break_the_sentence() -> None:
    with pytest.raises(RequestError) as refused:
        fields({"a\nb" + "c" * 100: 1}, "", ())

    assert "\n" not in refused.value.sentence
    assert len(refused.value.sentence) < 120


@pytest.mark.parametrize("wrong", [-1, 1.0, True, None, "1", 1 << 62])
def test_a_count_is_a_whole_number_from_0(wrong: object) -> None:
    with pytest.raises(RequestError, match="it must be a whole number"):
        count(wrong, "lengths")


def test_the_right_kinds_are_given_back() -> None:
    assert (count(0, "a"), text("b", "b"), items([1], "c"), json_object(b'{"d": 1}')) == (0, "b", [1], {"d": 1})


def test_instances_are_at_least_one_and_at_most_what_is_allowed() -> None:
    enough_instances(1, 1, "instances")

    with pytest.raises(RequestError) as none:
        enough_instances(0, 1, "instances")
    with pytest.raises(RequestError) as many:
        enough_instances(100_001, 100_000, "instances")
    assert (none.value.status, many.value.status) == (400, 413)
    assert "100001 instances; 100000 are allowed" in many.value.sentence


@pytest.mark.parametrize(
    ("value", "words"),
    [("x" * 50, repr("x" * 40 + "…")), (None, "null"), (True, "true"), ({}, "an object"), ([], "a list"), (1.5, "1.5")],
)
def test_values_are_shown_short(value: object, words: str) -> None:
    assert short_repr(value) == words


@pytest.mark.parametrize("piece", [b"{},", b"[[]],", b"1,", b'"",', b'{"a":1},', b'{"a":[]},'])
def test_a_body_that_would_become_many_objects_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch, piece: bytes
) -> None:
    monkeypatch.setattr(json_fields, "MOST_VALUES", 1000)
    monkeypatch.setattr("orjson.loads", pytest.fail)

    with pytest.raises(RequestError, match="values, names and brackets; 1000 are the most") as refused:
        json_object(b'{"instances":[' + piece * 1000 + b"0]}")

    assert refused.value.status == 413


def test_marks_inside_of_texts_are_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_fields, "MOST_VALUES", 5)

    assert json_object(b'{"a,:[{\\"": ["\\\\", ",,,{{{"]}') == {'a,:[{"': ["\\", ",,,{{{"]}


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": 1, "b": 2, "a": 1}',
        b'{"b": [[{"c": {"a": 1, "\\u0061": 2}}]]}',
        b'{"b": {"a": {"x": 1}, "c": 2, "a": {"x": 1, "y": 2}}}',
    ],
)
def test_a_name_that_an_object_has_twice_is_refused_wherever_the_object_stands(body: bytes) -> None:
    with pytest.raises(RequestError, match="'a' is there twice in one object"):
        json_object(body)

    assert json_object(body, known={"b"})


def test_one_name_in_two_objects_is_nothing_special() -> None:
    assert json_object(b'{"a": {"a": [{"a": 1}, {"a": 1}]}}') == {"a": {"a": [{"a": 1}, {"a": 1}]}}
