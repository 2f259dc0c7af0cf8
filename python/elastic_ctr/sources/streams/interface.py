"""The interface of streams: partitions, the offsets that each one keeps, and the lines between two offsets."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import BinaryIO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt


class Kept(NamedTuple):
    """The readable offsets of a partition, from `first` up to `end`, exclusive. `away`: the partition is unreadable now, and the offsets
    are those last seen, or 0.
    """

    first: int
    end: int
    away: bool = False


class Places(NamedTuple):
    """For each partition, the first offset of the next pass and, if the stream has files, the identity of its file."""

    following: Mapping[str, int]
    files: Mapping[str, str]


class TopicBefore(NamedTuple):
    """The topic that fills an intake's log. `lag` counts its messages that are not in the log yet; None while `error` prevents reading."""

    url: str
    lag: int | None
    error: str | None


class MadeAt(NamedTuple):
    """Creation times of messages in Unix seconds, by the timestamps of senders or of the stream. The median is robust to a few senders
    with a wrong clock.
    """

    median: float
    newest: float

    @classmethod
    def of(cls, times: Sequence[float]) -> "MadeAt | None":
        """Return None if no message has a timestamp."""
        return cls(median_low(times), max(times)) if times else None


@dataclass(frozen=True)
class Lines:
    """The lines between two offsets of a partition, as a file.

    Attributes:
        raw: the lines, possibly with others before and after them.
        start, stop: the lines are those that begin in these bytes of `raw`; None: up to its end.
        gone: the number of offsets of the range that the stream no longer has.
        messages: int64 [n, 2], for each message its offset and the position of its first byte in `raw`; empty if offsets count bytes.
        following: the offset after the lines, if `most_bytes` limited them.
        at: when the messages were made; None if they have no timestamps.
        base: the offset of the first byte of `raw`, if offsets count bytes.
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
        """Return the offset of the message that contains byte `place` of `raw`."""
        if not len(self.messages):
            return self.base + place
        return int(self.messages[np.searchsorted(self.messages[:, 1], place, side="right") - 1, 0])

    def range_of(self, offset: int) -> tuple[int, int]:
        """Return the [first, end) bytes of an offset's message in `raw`, (0, 0) if it is absent; one place if offsets count bytes."""
        if not len(self.messages):
            return max(offset - self.base, 0), max(offset - self.base + 1, 0)
        at = int(np.searchsorted(self.messages[:, 0], offset))
        if at == len(self.messages) or self.messages[at, 0] != offset:
            return 0, 0
        begin = int(self.messages[at, 1])
        return begin, int(self.messages[at + 1, 1]) if at + 1 < len(self.messages) else 1 << 62


class Stream(Protocol):
    """A log with offsets. Its methods raise StoreError; StoreUnavailable if the same call may succeed later.

    A stream that inherits from this class implements what differs from a log whose partitions keep their names, and whose owner
    needs no reports. A bare `return` marks a method as not abstract.
    """

    url: str
    unit: str
    """What offsets count: `records` or `bytes`."""
    topic_before: TopicBefore | None = None
    """As of the last `partitions`, if there is one."""
    notices: tuple[str, ...] = ()
    """Sentences for operators about what is there and not read, as of the last `partitions`."""

    def know(self, places: Places) -> None:  # noqa: ARG002 (used by streams that override it)
        """Set the positions of the ledger before `partitions`. A followed folder needs them to recognise its files."""
        return

    def files(self) -> dict[str, str]:
        """Return the identity of each partition's file, as of the last `partitions`, which `read` accepts; {} if names are enough."""
        return {}

    def partitions(self) -> dict[str, Kept]:
        """Return every partition with the offsets that it keeps now."""

    def read(self, partition: str, start: int, stop: int, most_bytes: int | None = None) -> Lines:
        """Return the lines of an offset range, up to and with the message that brings them to `most_bytes`. Every read returns the same
        lines while the stream keeps them.
        """

    def keep_from(self, needed: Mapping[str, int], following: Mapping[str, int]) -> None:  # noqa: ARG002
        """Report, for each partition, the first offset that a recovery may train again, and the first offset that no pass has yet."""
        return

    def close(self) -> None:
        """Close connections, if there are any."""
        return


def lines_of_messages(
    messages: Sequence[tuple[int, bytes]], *, gone: int, following: int | None = None, at: MadeAt | None = None
) -> Lines:
    """Return Lines of messages, each an offset and a text of one or more lines."""
    texts = [text if text.endswith(b"\n") else text + b"\n" for _, text in messages]
    places = np.zeros((len(messages), 2), np.int64)
    places[:, 0] = [offset for offset, _ in messages]
    places[1:, 1] = np.cumsum([len(text) for text in texts[:-1]], dtype=np.int64)
    return Lines(io.BytesIO(b"".join(texts)), 0, None, gone, places, following, at)
