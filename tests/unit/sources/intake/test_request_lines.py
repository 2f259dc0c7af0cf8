import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.sources.intake import request_lines
from elastic_ctr.sources.intake.request_lines import Clicks, ClicksRefused, clicks_of, key_of

LINES = st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line and b"\0" not in line), max_size=20)


@given(LINES, st.booleans())
def test_a_body_is_its_lines_without_those_that_are_empty(lines: list[bytes], ends: bool) -> None:
    body = b"\n".join(lines) + b"\n" * ends
    wanted = [line for line in lines if line.strip()]

    if wanted:
        assert clicks_of(body, 100) == Clicks(b"".join(line + b"\n" for line in wanted), len(wanted))
    else:
        with pytest.raises(ClicksRefused, match="the body has no lines; send one or more"):
            clicks_of(body, 100)


def test_the_last_line_needs_no_newline() -> None:
    assert clicks_of(b"a\nb", 9) == clicks_of(b"a\nb\n", 9) == Clicks(b"a\nb\n", 2)


def test_a_line_that_is_too_long_or_binary_is_named() -> None:
    assert clicks_of(b"a\n" + b"b" * 9, 9).count == 2
    with pytest.raises(ClicksRefused, match=r"line 3 has 10 bytes, and 9 are the most; .*data\.maxLineBytes"):
        clicks_of(b"a\n\n" + b"b" * 10, 9)
    with pytest.raises(ClicksRefused, match="line 2 has a NUL byte, which no text has"):
        clicks_of(b"a\nb\0b\nc", 9)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=12), st.integers(1, 6))
def test_the_longest_line_and_the_empty_ones_are_found_in_parts_as_in_one(lengths: list[int], part: int) -> None:
    text = b"".join(b"x" * length + b"\n" for length in lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_lines, "_PART_BYTES", part)

        number, size = request_lines._longest_line(text)
        assert request_lines.lines_in(text) == b"".join(b"x" * length + b"\n" for length in lengths if length)

    assert (number, size) == (lengths.index(max(lengths)) + 1 if max(lengths) else 1, max(lengths))


def test_a_body_of_newlines_takes_little_memory_beside_itself() -> None:
    body = 4 << 20
    tracemalloc.start()
    with pytest.raises(ClicksRefused, match="the body has no lines"):
        clicks_of(b"\n" * body, 9)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert most < 10 * body


def test_a_key_is_a_short_line_of_printable_characters() -> None:
    assert key_of([]) is None
    assert key_of(["a" * 255]) == "a" * 255
    for wrong in ("", "a" * 256, "a\tb", "ä"):
        with pytest.raises(ClicksRefused, match="Idempotency-Key has 1 to 255 printable ASCII characters"):
            key_of([wrong])
    with pytest.raises(ClicksRefused, match="Idempotency-Key is there more than once"):
        key_of(["a", "b"])
