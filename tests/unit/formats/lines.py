"""Lines for property tests: right ones, wrong ones, and right ones with a few bytes changed."""

from __future__ import annotations

from hypothesis import strategies as st

from elastic_ctr.formats.slots import SlotList

SLOTS = SlotList.parse([0, 1, 26, "user", "a-very-long-slot-name-that-is-more-than-eight-bytes", "use"])

BLANKS = st.sampled_from([b" ", b" ", b" ", b"\t", b"  ", b" \t "])
EDGES = [0, 1, 9, 10, 99, 100, 2**31 - 1, 2**31, 2**53 + 1, 2**63, 2**64 - 2, 2**64 - 1, 2**64, 10**19, 10**20, 10**25]
COUNTS = st.sampled_from([0, 1, 1, 2, 17, 2**31 - 1, 2**31]) | st.integers(0, 20)
FEASIGNS = st.sampled_from(EDGES) | st.integers(0, 2**64 - 1)
NUMBER_TEXTS = FEASIGNS.map(str) | st.sampled_from(
    ["", "-1", "+1", "1.0", "0x1", "007", "-", "00000000000000000000000001"]
)
SLOT_TEXTS = st.sampled_from(
    [*SLOTS, "2", "users", "a-very-long-slot-name-that-is-more-than-eight-byte", "", ":", "0:1", "~"]
)
SPARSE_DIMS = st.sampled_from([None, None, 1, 2, 10, 1_000_001, 2**63 + 1, 2**64 - 1])


@st.composite
def right_lines(draw: st.DrawFn) -> bytes:
    """A line that is right, without its LF."""
    show = draw(st.integers(1, 2**31 - 1))
    pieces = [str(show).encode(), draw(BLANKS), str(draw(st.integers(0, show))).encode()]
    features = st.tuples(BLANKS, st.integers(0, 2**64 - 2), st.sampled_from([*SLOTS, "2", "users"]))
    for blank, feasign, slot in draw(st.lists(features, max_size=12)):
        pieces += [blank, b"%d:%s" % (feasign, slot.encode())]
    return b"".join(pieces) + draw(st.sampled_from([b"", b"", b"\r", b" ", b"\t\r"]))


@st.composite
def nearly_right_lines(draw: st.DrawFn) -> bytes:
    """Tokens that are right or nearly so."""
    tokens = [draw(COUNTS.map(str) | NUMBER_TEXTS) for _ in range(draw(st.integers(0, 2)))]
    features = st.tuples(NUMBER_TEXTS, st.sampled_from([":", ":", ":", ":", ""]), SLOT_TEXTS)
    tokens += ["".join(feature) for feature in draw(st.lists(features, max_size=6))]
    return draw(BLANKS).join(token.encode() for token in tokens)


@st.composite
def mutated_lines(draw: st.DrawFn) -> bytes:
    """A right line with some bytes replaced, put in or taken out."""
    line = bytearray(draw(right_lines()))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(line)))
        line[at : at + draw(st.integers(0, 1))] = draw(
            st.binary(max_size=2) | st.sampled_from([b"-", b":", b" ", b"\r", b"\x00", b"9", b"\xff", b"\x7f", b"\x0b"])
        )
    return bytes(line)


LINES = st.one_of(right_lines(), nearly_right_lines(), mutated_lines(), st.binary(max_size=40)).filter(
    lambda line: b"\n" not in line
)
BLOCKS = st.tuples(st.lists(LINES, max_size=8), st.booleans()).map(
    lambda given: b"\n".join(given[0]) + (b"\n" if given[1] and given[0] else b"")
)
