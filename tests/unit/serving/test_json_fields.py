import pytest

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
