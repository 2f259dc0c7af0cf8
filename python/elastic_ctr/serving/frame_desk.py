"""What both ways of reading the binary door's sockets are agreed on: limits, what a frame is judged by, what is counted.

The format of frames is in `wire`. A peer costs only itself: lengths, rows and feasigns are checked before they are used, a
connection owes and holds no more than its limits, and what stays half said or unread is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from elastic_ctr.features.slots import SlotList
from elastic_ctr.frames.wire import LENGTH_BYTES
from elastic_ctr.serving import wire
from elastic_ctr.serving.counters import Counters
from elastic_ctr.serving.instances import Instances
from elastic_ctr.serving.refusal import Refusal, refusal_of
from elastic_ctr.serving.rounds import ModelVersion, Rounds
from elastic_ctr.serving.wire import Hello, Kind, RequestHead, Status

DOOR = "binary"
MAX_SLOTS = 65_535
LARGEST_FRAME = 16 << 20
"""Of any limit: every connection has that much room reserved."""

_STATUS = {
    400: Status.BAD_REQUEST,
    409: Status.OTHER_SLOTS,
    413: Status.TOO_LARGE,
    503: Status.UNAVAILABLE,
}


class FrameLimits(NamedTuple):
    """What one peer may ask of the door. Seconds: to greet, of a whole frame or an unread answer, between two frames."""

    max_rows: int = 8192
    max_feasigns: int = 1 << 20
    max_frame_bytes: int = LARGEST_FRAME
    # Asked by one connection and not answered yet; it is not read beyond.
    max_in_flight: int = 256
    max_connections: int = 1024
    # Of frames that are not whole yet, over all connections; those below 64 KiB are not counted.
    max_pending_bytes: int = 64 << 20
    hello_seconds: float = 10.0
    frame_seconds: float = 60.0
    idle_seconds: float = 300.0


@dataclass
class Desk:
    """What both ways share: the rounds that are asked, the limits, and what is counted."""

    rounds: Rounds
    counters: Counters
    limits: FrameLimits
    stopping: bool = False

    def model(self) -> ModelVersion | None:
        return None if self.rounds.pinned is None else self.rounds.versions[self.rounds.pinned]

    def hello(self) -> bytes:
        model = self.model()
        slots = 0 if model is None else min(len(model.slots), MAX_SLOTS)
        return Hello(slots, self.limits.max_rows, self.limits.max_feasigns).pack()

    def judge(self, head: RequestHead) -> Refusal | None:
        """What is wrong with a request that the head alone shows."""
        limits = self.limits
        if head.kind not in {Kind.PREDICT, Kind.SLOTS}:
            return Refusal(400, f"kind is {head.kind}; there are 1 (predict) and 2 (the slot list)")
        if head.slots > MAX_SLOTS or head.due_bytes != head.frame_bytes:
            return Refusal(
                400,
                f"length is {head.length}; {head.rows} rows of {head.slots} slots with {head.n} feasigns have "
                f"{head.due_bytes - LENGTH_BYTES}, the connection is closed",
            )
        if head.kind == Kind.SLOTS:
            return Refusal(400, "a request for the slot list has no rows") if head.rows or head.n else None
        if head.rows > limits.max_rows:
            return Refusal(413, f"{head.rows} rows; {limits.max_rows} are allowed in one request, send several")
        if head.n > limits.max_feasigns:
            return Refusal(413, f"{head.n} feasigns; {limits.max_feasigns} are allowed in one request, send several")
        if head.frame_bytes > limits.max_frame_bytes:
            return Refusal(413, f"the frame has {head.frame_bytes} bytes; {limits.max_frame_bytes} are allowed")
        if head.rows == 0:
            return Refusal(400, "rows is 0; give at least one instance")
        try:
            model = self.rounds.current()
        except Refusal as refusal:
            return refusal
        return None if head.slots == len(model.slots) and head.list == model.list_check else other_slots(model.slots)

    def slots(self, head: RequestHead) -> bytes:
        """The reply to a request for the slot list."""
        try:
            model = self.rounds.current()
        except Refusal as refusal:
            return self.refusal(head.id, refusal)
        self.count(200)
        return wire.pack_slots(head.id, model.version, model.slots, draining=self.stopping)

    def refusal(self, request: int, error: Exception) -> bytes:
        refusal = refusal_of(error)
        self.count(refusal.status)
        status = _STATUS.get(refusal.status, Status.FAILED)
        return wire.pack_refusal(status, request, refusal.sentence, draining=self.stopping)

    def count(self, code: int, times: int = 1) -> None:
        self.counters.requests[DOOR, code] += times


def loses_its_place(head: RequestHead) -> bool:
    """Where the next frame begins is not certain."""
    return head.slots > MAX_SLOTS or head.due_bytes != head.frame_bytes


def other_slots(slots: SlotList) -> Refusal:
    return Refusal(
        409, f"the slot list is not that of the model, which has {len(slots)} slots; ask for it (kind 2) and send again"
    )


def wrong_counts(head: RequestHead) -> Refusal:
    return Refusal(400, f"the counts do not add up to the {head.n} feasigns")


def too_many_pending() -> Refusal:
    return Refusal(503, "too many large requests are under way; ask again later, the connection is closed")


def not_again(slots: SlotList) -> Instances:
    """A frame cannot be read for another slot list than the one it was checked with."""
    raise other_slots(slots)
