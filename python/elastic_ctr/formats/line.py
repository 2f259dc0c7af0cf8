"""The line `show click feasign:slot …`: its rules, and the reasons of refusals.

`elastic-ctr predict` reads lines with this module. The compiled converter follows the same rules and gets reasons from here.

A line is printable ASCII; blanks and tabs, one or more, separate its tokens; one CR at its end is dropped. `show` and
`click` are decimal and below 2^31, a feasign is decimal and below 2^64-1, all without sign; leading zeros are allowed.
Slots that are not in the list are ignored, the padding key is dropped, and both are counted. A refusal names the
first error from the left; the length and forbidden bytes are checked before.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from elastic_ctr.formats.keys import PADDING_KEY, key_of
from elastic_ctr.formats.slots import SlotList

MAX_LINE_BYTES = 1 << 20
"""A longer line is refused; a CR counts, the LF does not."""

COUNT_LIMIT = 1 << 31
FEASIGN_LIMIT = (1 << 64) - 1
"""The largest number is not a key: a trainer that pulls it alone crashes inside Paddle."""

_ALLOWED = bytes((0x09, *range(0x20, 0x7F)))
# Python refuses to parse more than 4,300 digits; no limit has more digits than this.
_MOST_DIGITS = len(str(FEASIGN_LIMIT))


class Reason(str, enum.Enum):
    """The reason to refuse a line, or a row of `formats.readers`; the value is the label in metrics and reports."""

    EMPTY = "empty"
    NO_CLICK = "no_click"
    NOT_A_NUMBER = "not_a_number"
    NEGATIVE = "negative"
    COUNT_TOO_LARGE = "count_too_large"
    SHOW_ZERO = "show_zero"
    CLICK_ABOVE_SHOW = "click_above_show"
    NO_COLON = "no_colon"
    BAD_SLOT = "bad_slot"
    FEASIGN_TOO_LARGE = "feasign_too_large"
    TOO_LONG = "too_long"
    BINARY = "binary"
    WRONG_COLUMNS = "wrong_columns"
    BAD_QUOTE = "bad_quote"
    NOT_UTF8 = "not_utf8"
    NOT_FINITE = "not_finite"
    BAD_LABEL = "bad_label"
    BAD_SEPARATOR = "bad_separator"
    NOT_JSON = "not_json"
    NOT_A_VALUE = "not_a_value"
    TOO_MANY_KEYS = "too_many_keys"
    UNPREDICTABLE = "unpredictable"
    SKIPPED = "skipped"
    NO_PROBABILITY = "no_probability"
    NUMBER_TOO_LARGE = "number_too_large"


class LineRefused(ValueError):
    """A line breaks the rules of this module; `reason` is for counting, `detail` names the token."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class LineFeatures:
    """The keys of a line, one list per slot in the order of the slot list; an empty list is a slot without features."""

    keys: list[list[int]]
    ignored: int
    padding: int


@dataclass(frozen=True, slots=True)
class Instance(LineFeatures):
    """`show` impressions of which `click` were clicked, and their features."""

    show: int
    click: int


def parse_line(
    line: bytes,
    slots: SlotList,
    sparse_dim: int | None,
    max_line_bytes: int = MAX_LINE_BYTES,
    late_clicks: bool = False,
) -> Instance:
    """Read one training line, without its LF. Raises LineRefused by the rules in the module's docstring.

    With `late_clicks`, show may be 0 if click is not: clicks of impressions that came before.
    """
    tokens = _tokens(line, max_line_bytes)
    show = _number(tokens[0], "show", COUNT_LIMIT, Reason.COUNT_TOO_LARGE)
    if show == 0 and not late_clicks:
        raise LineRefused(Reason.SHOW_ZERO, "show is 0; a line is at least one impression.")
    if len(tokens) == 1:
        raise LineRefused(Reason.NO_CLICK, f"the line ends after show {show}.")
    click = _number(tokens[1], "click", COUNT_LIMIT, Reason.COUNT_TOO_LARGE)
    if show == click == 0:
        raise LineRefused(
            Reason.SHOW_ZERO, "show and click are 0; a line is at least one impression or one late click."
        )
    if click > show > 0:
        raise LineRefused(Reason.CLICK_ABOVE_SHOW, f"click {click} is above show {show}.")
    return Instance(*_keys(tokens[2:], slots, sparse_dim), show, click)


def parse_features(line: bytes, slots: SlotList, sparse_dim: int | None) -> LineFeatures:
    """Read a line to predict, which has no show and click; an empty line has no features. Raises LineRefused."""
    features = _tokens(line, MAX_LINE_BYTES) if line.strip() else []
    return LineFeatures(*_keys(features, slots, sparse_dim))


def _tokens(line: bytes, max_line_bytes: int) -> list[bytes]:
    if len(line) > max_line_bytes:
        raise LineRefused(Reason.TOO_LONG, f"the line has more than {max_line_bytes} bytes.")
    line = line.removesuffix(b"\r")
    if strange := line.translate(None, _ALLOWED):
        raise LineRefused(Reason.BINARY, f"byte 0x{strange[0]:02x} is not printable ASCII, blank or tab.")
    tokens = line.split()
    if not tokens:
        raise LineRefused(Reason.EMPTY, "the line holds nothing.")
    return tokens


def _keys(tokens: list[bytes], slots: SlotList, sparse_dim: int | None) -> tuple[list[list[int]], int, int]:
    keys: list[list[int]] = [[] for _ in slots]
    ignored = padding = 0
    for token in tokens:
        feasign, colon, slot = token.partition(b":")
        if not colon:
            raise LineRefused(Reason.NO_COLON, f"{_shown(token)} is not feasign:slot.")
        value = _number(feasign, "feasign", FEASIGN_LIMIT, Reason.FEASIGN_TOO_LARGE)
        if not slot or b":" in slot:
            raise LineRefused(Reason.BAD_SLOT, f"the slot of {_shown(token)} is empty or holds a colon.")
        name = slot.decode("ascii")
        if name not in slots:
            ignored += 1
            continue
        key = key_of(value, sparse_dim)
        if key == PADDING_KEY:
            padding += 1
            continue
        keys[slots.index(name)].append(key)
    return keys, ignored, padding


def _number(token: bytes, name: str, limit: int, above: Reason) -> int:
    if not token.isdigit():
        if token.startswith(b"-") and token[1:].isdigit():
            raise LineRefused(Reason.NEGATIVE, f"{name} {_shown(token)} has a minus sign.")
        raise LineRefused(Reason.NOT_A_NUMBER, f"{name} {_shown(token)} is not a decimal number.")
    digits = token.lstrip(b"0") or b"0"
    if len(digits) > _MOST_DIGITS or int(digits) >= limit:
        raise LineRefused(above, f"{name} {_shown(token)} is not below {limit}.")
    return int(digits)


def _shown(token: bytes) -> str:
    text = token[:40].decode("ascii")
    return repr(text if len(token) <= 40 else text + "…")
