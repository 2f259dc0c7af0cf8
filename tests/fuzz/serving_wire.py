"""The frames of serving's binary door."""

import numpy as np

from elastic_ctr.features.slots import SlotList
from elastic_ctr.serving import wire
from elastic_ctr.serving.wire import Hello, Status, WireError
from fuzz.mutation import Mutator

SLOTS = SlotList(("0", "1", "7"))
_REQUEST_FIELDS = ((0, 4), (4, 2), (6, 2), (8, 4), (12, 4), (16, 8), (24, 4), (28, 4), (32, 2), (34, 2), (36, 4))
_REPLY_FIELDS = ((0, 4), (4, 2), (6, 2), (8, 4), (12, 8), (20, 8))


class ServingFrames:
    """Hellos, requests and replies through the codec."""

    name = "serving-frames"

    def __init__(self, seed: int) -> None:
        self._mutator = Mutator(seed)
        check = wire.slot_list_check(SLOTS)
        self._requests = [wire.pack_slots_request(3)]
        for rows, most in ((1, 1), (2, 3), (9, 2), (1, 70_000)):
            counts = np.full((rows, len(SLOTS)), 1, np.int64)
            counts[0, 0] = most
            feasigns = np.arange(counts.sum(), dtype=np.uint64)
            self._requests.append(wire.pack_request(5, feasigns, counts, check))
        self._replies = [
            wire.pack_reply(1, 2, np.ones(5, np.float32)),
            wire.pack_slots(1, 2, SLOTS),
            wire.pack_refusal(Status.BAD_REQUEST, 1, "rows is 0"),
        ]

    def batch(self, count: int) -> int:
        """How many frames were understood."""
        understood = 0
        for _ in range(count):
            draw = self._mutator.random
            kind = draw.randrange(10)
            try:
                if kind == 0:
                    Hello.unpack(self._mutator.mutated(Hello(3, 4, 5).pack(), ((4, 2), (6, 2))))
                elif kind < 7:
                    # The large one is slow to copy, and no different.
                    golden = self._requests[4] if draw.random() < 0.001 else draw.choice(self._requests[:4])
                    request = wire.unpack_request(self._mutator.mutated(golden, _REQUEST_FIELDS))
                    assert request.counts.sum() == request.feasigns.size == request.head.n
                else:
                    wire.unpack_reply(self._mutator.mutated(draw.choice(self._replies), _REPLY_FIELDS))
            except WireError:
                continue
            understood += 1
        return understood
