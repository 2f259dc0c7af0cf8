"""Compile what the doors of serving run, as when an image is made, not when the first pod starts."""

from concurrent.futures import ThreadPoolExecutor

from elastic_ctr.runtime.inline_executor import InlineExecutor
from elastic_ctr.serving.compiled_http_door import CompiledHttpDoor, HttpLimits
from elastic_ctr.serving.counters import Counters
from elastic_ctr.serving.http_door import Door
from elastic_ctr.serving.pooling import warm_pooling
from elastic_ctr.serving.rounds import Rounds
from elastic_ctr.serving.scan import warm_scan
from elastic_ctr.serving.service import Service


def warm_doors() -> None:
    """Fill numba's cache (`NUMBA_CACHE_DIR`) with what the doors run."""
    warm_scan()
    warm_pooling()
    counters = Counters()

    async def nothing() -> int | None:
        return None

    rounds = Rounds(InlineExecutor("paddle"), nothing, counters)
    service = Service(rounds, counters, ThreadPoolExecutor(1), model_name="none", version="0", max_instances=1)
    CompiledHttpDoor(service, Door(service.handle), HttpLimits()).close()
