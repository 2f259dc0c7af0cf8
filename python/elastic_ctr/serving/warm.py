"""Compile what the frontends of serving run, as when an image is made, not when the first pod starts."""

from concurrent.futures import ThreadPoolExecutor

from elastic_ctr.runtime.inline_executor import InlineExecutor
from elastic_ctr.serving.batching.batcher import Batcher
from elastic_ctr.serving.batching.pooling import warm_pooling
from elastic_ctr.serving.frontends.asyncio_http import HttpFrontend
from elastic_ctr.serving.frontends.native_http import NativeHttpFrontend, NativeLimits
from elastic_ctr.serving.protocols.json_scanner import warm_scan
from elastic_ctr.serving.routes import Routes
from elastic_ctr.serving.worker_counters import Counters


def precompile() -> None:
    """Fill numba's cache (`NUMBA_CACHE_DIR`) with what the frontends run."""
    warm_scan()
    warm_pooling()
    counters = Counters()

    async def nothing() -> int | None:
        return None

    batcher = Batcher(InlineExecutor("paddle"), nothing, counters)
    service = Routes(batcher, counters, ThreadPoolExecutor(1), model_name="none", version="0", max_instances=1)
    NativeHttpFrontend(service, HttpFrontend(service.handle), NativeLimits()).close()
