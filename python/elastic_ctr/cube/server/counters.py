"""Numbers that workers count and their parent reads: a row of shared memory per worker, i64, no locks.

Each row has one writer. A restarted worker goes on with its row, so sums never fall; it only clears its gauges.
"""

import mmap
import os

import numpy as np
from numpy.typing import NDArray

REQUESTS, KEYS, MISSING, NOT_HELD, BAD_REQUESTS, KEEP_ALIVES, BYTES_IN, BYTES_OUT, ACCEPTED = range(9)
CONNECTIONS, IN_FLIGHT = 9, 10
VERSIONS_AT = 16
MAX_VERSIONS = 48  # lookups and keep-alives that named the version in that place
WIDTH = VERSIONS_AT + MAX_VERSIONS

Counts = NDArray[np.int64]


def create(workers: int) -> tuple[int, Counts]:
    """(descriptor to hand to the workers, counts i64[workers, WIDTH])."""
    descriptor = os.memfd_create("elastic-ctr-counters", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, workers * WIDTH * 8)
    return descriptor, attach(descriptor, workers)


def attach(descriptor: int, workers: int) -> Counts:
    mapped = mmap.mmap(descriptor, workers * WIDTH * 8)
    return np.frombuffer(mapped, np.int64).reshape(workers, WIDTH)


def private() -> Counts:
    """One row that nobody else reads."""
    return np.zeros(WIDTH, np.int64)
