"""The seam behind which streams are: partitions, the offsets that each one keeps, and the lines between two offsets."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import BinaryIO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt


class Kept(NamedTuple):
    """Offsets of a partition that can be read: from `first` up to, without it, `end`. `away`: as they were last seen, of a partition that nobody
    can read now; both 0 where they were not seen.
    """

    first: int
    end: int
    away: bool = False


class Places(NamedTuple):
    """By partition, the offset that the next pass begins with, and what its file is known by; streams without files have none of the latter."""

    following: Mapping[str, int]
    files: Mapping[str, str]


class TopicBefore(NamedTuple):
    """The topic that fills a stream's log. `lag`: its messages that are not in the log yet; None while it cannot be read, for `error`."""

    url: str
    lag: int | None
    error: str | None


class MadeAt(NamedTuple):
    """Unix seconds at which messages were made, as their senders or the stream say. A sender's clock may be wrong: the median does not follow
    one of few.
    """

    median: float
    newest: float

    @classmethod
    def of(cls, times: Sequence[float]) -> "MadeAt | None":
        """None where nobody says it."""
        return cls(median_low(times), max(times)) if times else None


@dataclass(frozen=True)
class Lines:
    """What is between two offsets of a partition, as a file of lines.

    Attributes:
        raw: the lines, and perhaps others before and behind them.
        start, stop: the lines are those that begin in these bytes of `raw`; None: up to its end.
        gone: offsets of the range that the stream keeps no more, so they are not among the lines.
        messages: int64 [n, 2], of each message its offset and where its first byte is in `raw`; empty where offsets are places.
        following: the offset behind the lines, where fewer may have been wanted than the range has.
        at: when the messages were made; None where nobody says it.
        base: the offset of the first byte of `raw`, where offsets are places.
    """

    raw: BinaryIO
    start: int
    stop: int | None
    gone: int = 0
    messages: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    following: int | None = None
    at: MadeAt | None = None
    base: int = 0

    def offset_of(self, place: int) -> int:
        """The offset of the message that byte `place` of `raw` is in."""
        if not len(self.messages):
            return self.base + place
        return int(self.messages[np.searchsorted(self.messages[:, 1], place, side="right") - 1, 0])

    def range_of(self, offset: int) -> tuple[int, int]:
        """The first place of `raw` at this offset, and the one behind the last: of a message its whole text; empty where it is not there."""
        if not len(self.messages):
            return offset, offset + 1
        at = int(np.searchsorted(self.messages[:, 0], offset))
        if at == len(self.messages) or self.messages[at, 0] != offset:
            return 0, 0
        begin = int(self.messages[at, 1])
        return begin, int(self.messages[at + 1, 1]) if at + 1 < len(self.messages) else 1 << 62


class Stream(Protocol):
    """A log with offsets. Its methods raise StoreError, and StoreUnavailable where the same call may succeed later."""

    url: str
    unit: str
    """What offsets count: `records` or `bytes`."""
    topic_before: TopicBefore | None
    """As of the last `partitions`, if there is one."""
    notices: tuple[str, ...]
    """Sentences for operators about what is there and not read, as of the last `partitions`."""

    def know(self, places: Places) -> None:
        """Before a look: what passes have. A stream whose partitions have other names than their files recognises them by it."""

    def files(self) -> dict[str, str]:
        """By partition, what its file is known by, as of the last look; `read` takes it for the partition. Empty where names are enough."""

    def partitions(self) -> dict[str, Kept]:
        """Every partition, by its name, with what it keeps now."""

    def read(self, partition: str, start: int, stop: int, most_bytes: int | None = None) -> Lines:
        """The lines of an offset range, up to the message with which they have `most_bytes` in memory; the same whenever it is read, as long as
        it is kept.
        """

    def keep_from(self, needed: Mapping[str, int], following: Mapping[str, int]) -> None:
        """Given are, by partition, the first offset that a recovery may train again, and the first one that no pass has yet."""

    def close(self) -> None: ...


def lines_of_messages(
    messages: Sequence[tuple[int, bytes]], *, gone: int, following: int | None = None, at: MadeAt | None = None
) -> Lines:
    """A file of messages, each an offset and a text that is one line or several."""
    texts = [text if text.endswith(b"\n") else text + b"\n" for _, text in messages]
    places = np.zeros((len(messages), 2), np.int64)
    places[:, 0] = [offset for offset, _ in messages]
    places[1:, 1] = np.cumsum([len(text) for text in texts[:-1]], dtype=np.int64)
    return Lines(io.BytesIO(b"".join(texts)), 0, None, gone, places, following, at)
