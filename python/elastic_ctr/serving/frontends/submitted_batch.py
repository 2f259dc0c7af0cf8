"""The requests of a native batch that are submitted to the batcher as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.serving.batching.instances import Instances
from elastic_ctr.serving.frontends import http_batches
from elastic_ctr.serving.frontends.http_batches import Batch


@dataclass(slots=True, eq=False)
class SubmittedBatch:
    """Requests `begin` to `end` of a batch, submitted as one request. `send` is set once the answers are known."""

    batch: Batch
    begin: int
    end: int
    instances: Instances
    started: float
    send: Callable[[], None] | None = None

    @property
    def requests(self) -> NDArray[np.int64]:
        """The rows of these requests, i64 [requests, REQUEST_WIDTH]."""
        return self.batch.requests[self.begin : self.end]

    def runs(self, flags: NDArray[np.bool_]) -> list[SubmittedBatch]:
        """Cut wherever the flag of a request, bool [requests], differs from that of the one before it."""
        cuts = [0, *(np.flatnonzero(flags[1:] != flags[:-1]) + 1).tolist(), len(flags)]
        rows = np.concatenate(([0], np.cumsum(self.requests[:, http_batches.REQUEST_ROWS])))
        parts = self.instances.cut(rows[cuts].tolist())
        return [
            replace(self, begin=self.begin + begin, end=self.begin + end, instances=part)
            for (begin, end), part in zip(pairwise(cuts), parts, strict=True)
        ]

    def halves(self) -> list[SubmittedBatch]:
        """Cut into two pieces of about as many rows; one piece, if one request has most of them."""
        rows = np.cumsum(self.requests[:, http_batches.REQUEST_ROWS])
        count = int(np.searchsorted(rows, self.instances.rows // 2)) + 1
        middle = self.begin + count
        if middle == self.end:
            return [self]
        first_rows = int(rows[count - 1])
        return [
            replace(self, end=middle, instances=self.instances.part(0, first_rows)),
            replace(self, begin=middle, instances=self.instances.part(first_rows, self.instances.rows)),
        ]
