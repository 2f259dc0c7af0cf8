"""Conversion of blocks of a click log to the text that Paddle reads, at the speed of the disk.

Paddle's process aborts at a line that it cannot read, so only lines that `formats.line` accepts are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats import tokens
from elastic_ctr.formats.keys import PADDING_KEY
from elastic_ctr.formats.line import MAX_LINE_BYTES, LineRefused, Reason, parse_line
from elastic_ctr.formats.slots import SlotList

EXCERPT_BYTES = 200

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """A line that was left out: its number in the block (from 1), the offset of its first byte in the block."""

    line: int
    offset: int
    reason: Reason
    detail: str
    excerpt: bytes


class RefusedLines:
    """The refused lines of a block, in order. Reasons are found during iteration, because all lines of a block may be
    refused.
    """

    def __init__(
        self, block: bytes, ends: Offsets, lines: Offsets, rules: tuple[SlotList, int | None, int, bool]
    ) -> None:
        self._block = block
        self._ends = ends
        self._lines = lines
        self._rules = rules

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[RefusedLine]:
        for line in self._lines.tolist():
            start = int(self._ends[line - 1]) + 1 if line else 0
            text = bytes(self._block[start : self._ends[line]])
            try:
                parse_line(text, *self._rules)
            except LineRefused as why:
                yield RefusedLine(line + 1, start, why.reason, why.detail, text[:EXCERPT_BYTES])
            else:
                raise AssertionError(f"the converter refused a line that is right: {text!r}")


@dataclass(frozen=True, slots=True)
class Converted:
    """The result of one block.

    Attributes:
        text: Paddle's MultiSlot text, one line per record: show, click, then the slots in the order of the list.
        records: the number of lines in it; records + len(refused) is the number of lines of the block.
        shows, clicks: their sums over the records.
        refused: the lines left out.
        ignored: the number of features of slots that are not in the list, in the records.
        padding: the number of features that became the padding key and were dropped, in the records.
        offsets: i64[records], the offset of each record's line in the block.
    """

    text: bytes
    records: int
    shows: int
    clicks: int
    refused: RefusedLines
    ignored: int
    padding: int
    offsets: Offsets


class Converter:
    """Converts blocks of lines. It has no state between blocks, so threads may share one (the loop releases the GIL)."""

    def __init__(
        self,
        slots: SlotList,
        sparse_dim: int | None,
        max_line_bytes: int = MAX_LINE_BYTES,
        *,
        late_clicks: bool = False,
    ) -> None:
        if sparse_dim is not None and not 0 < sparse_dim < 1 << 64:
            raise ValueError(f"sparseDim {sparse_dim} is not in 1 to 2^64-1; leave it out to keep all 64 bits.")
        self._slots = slots
        self._sparse_dim = sparse_dim
        self.max_line_bytes = max_line_bytes
        self._late_clicks = late_clicks
        self._table = tokens.SlotTable(
            names=np.frombuffer("".join(slots).encode("ascii"), dtype=np.uint8),
            starts=np.cumsum([0, *map(len, slots)], dtype=np.int64),
            table=np.empty(1 << (4 * len(slots)).bit_length(), dtype=np.int32),
        )
        tokens.fill(self._table)

    def convert(self, block: bytes) -> Converted:
        """Convert a block of whole lines, as `lines_in_range` yields it; the last one needs no LF. Raises ValueError if the
        block has 4 GiB or more.
        """
        if len(block) >= 1 << 32:
            raise ValueError("a block has less than 4 GiB; convert it in pieces, as lines_in_range gives them.")
        given = np.frombuffer(block, dtype=np.uint8)
        ends = np.flatnonzero(given == ord("\n")).astype(np.int64, copy=False)
        if len(given) and given[-1] != ord("\n"):
            ends = np.append(ends, len(given))
        longest = min(self.max_line_bytes, int(np.diff(ends, prepend=-1).max(initial=0)))
        room = longest + tokens.LINE_ROOM + tokens.SLOT_ROOM * len(self._slots)
        output = tokens.Output(
            text=np.empty(2 * len(given) + room, dtype=np.uint8),
            offsets=np.empty(len(ends), dtype=np.int64),
            bad=np.empty(len(ends), dtype=np.int64),
            sums=np.zeros(tokens.SUMS, dtype=np.int64),
        )
        sums = output.sums
        texts: list[bytes] = []
        rules = tokens.ClickLineRules(np.uint64(self._sparse_dim or 0), self.max_line_bytes, self._late_clicks)
        most_keys = longest // len(b"0:s") + 1
        line = 0
        while line < len(ends):
            line = tokens.convert_lines(given, ends, line, rules, self._table, most_keys, output)
            texts.append(output.text[: sums[tokens.TEXT_BYTES]].tobytes())
            sums[tokens.TEXT_BYTES] = 0
        records, shows, clicks, refused, ignored, padding = (int(value) for value in sums[: tokens.TEXT_BYTES])
        return Converted(
            text=b"".join(texts),
            records=records,
            shows=shows,
            clicks=clicks,
            refused=RefusedLines(
                block,
                ends,
                output.bad[:refused].copy(),
                (self._slots, self._sparse_dim, self.max_line_bytes, self._late_clicks),
            ),
            ignored=ignored,
            padding=padding,
            offsets=output.offsets[:records].copy(),
        )

    @property
    def no_keys(self) -> bytes:
        """The end of the text of a record without keys. No other record ends with it, because no key is the padding key."""
        return b" 1 %d" % PADDING_KEY * len(self._slots) + b"\n"
