"""Compile what the doors of serving run, as when an image is made, not when the first pod starts."""

from concurrent.futures import ThreadPoolExecutor

from elastic_ctr.serving.compiled_door import CompiledDoor
from elastic_ctr.serving.compiled_pooling import warm_pooling
from elastic_ctr.serving.counters import Counters
from elastic_ctr.serving.frame_desk import FrameLimits
from elastic_ctr.serving.rounds import Rounds
from elastic_ctr.serving.scan import warm_scan


def warm_doors() -> None:
    """Fill numba's cache (`NUMBA_CACHE_DIR`) with what the doors run."""
    warm_scan()
    warm_pooling()
    counters = Counters()

    async def nothing() -> int | None:
        return None

    CompiledDoor(Rounds(ThreadPoolExecutor(1), nothing, counters), counters, FrameLimits()).close()
