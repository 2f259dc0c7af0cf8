"""Times of rows in the forms that people have them."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from elastic_ctr.formats.imports.cell_texts import looks_like_time, parsed_time

MOMENT = datetime(2020, 4, 1, 3, 10, 0, 500_000, timezone.utc)
SECONDS = 1585710600


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (f"{SECONDS}.5", "epoch"),
        (f"{SECONDS}500", "epoch"),
        (f"{SECONDS}500", "iso"),
        (f"{SECONDS}500000", "epoch"),
        (f"{SECONDS}500000000", "epoch"),
        (f"{SECONDS}.5", "epoch-s"),
        (f"{SECONDS}500", "epoch-ms"),
        (f"{SECONDS}500000", "epoch-us"),
        (f"{SECONDS}500000999", "epoch-ns"),
        ("2020-04-01T05:10:00.5+02:00", "iso"),
        ("01.04.2020 03:10:00.5", "%d.%m.%Y %H:%M:%S.%f"),
    ],
)
def test_a_moment_is_the_same_in_every_unit(text: str, form: str) -> None:
    assert parsed_time(text, form) == MOMENT


def test_a_moment_before_1970_is_the_same_with_a_fraction_as_in_milliseconds() -> None:
    assert parsed_time("-1.5", "epoch-s") == parsed_time("-1500", "epoch-ms")
    assert parsed_time("-0.25", "epoch-s") == parsed_time("-250", "epoch-ms")


@pytest.mark.parametrize(("text", "form"), [("", "iso"), ("x", "epoch-ms"), ("12", "iso"), ("9" * 30, "epoch-s")])
def test_a_text_that_is_no_time_is_none(text: str, form: str) -> None:
    assert parsed_time(text, form) is None


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("2020-04-01 03:10", True),
        ("2020-04-01", False),
        (str(SECONDS), True),
        (f"{SECONDS}000", True),
        ("20200401", False),
        ("4158571060", False),
        ("12:30", False),
    ],
)
def test_a_time_is_known_by_its_look(text: str, due: bool) -> None:
    assert looks_like_time(text) is due
