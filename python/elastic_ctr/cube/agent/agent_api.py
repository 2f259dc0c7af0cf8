"""The HTTP API of cube-agent.

GET  /healthz /readyz /status /metrics
POST /drain    as SIGTERM: drain, then end; needs an internal token
"""

import asyncio
import logging
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from elastic_ctr.config.role_files import CubeAgentFile
from elastic_ctr.cube.agent.agent import CubeAgent
from elastic_ctr.cube.agent.drain_client import LONGEST_DRAIN_SECONDS
from elastic_ctr.runtime.access import Access
from elastic_ctr.runtime.audit import AuditLog
from elastic_ctr.runtime.auth import Right
from elastic_ctr.runtime.http import application, serving
from elastic_ctr.runtime.lifecycle import stop_on_signal_async
from elastic_ctr.runtime.lock import StateLock
from elastic_ctr.runtime.metrics import Metrics
from elastic_ctr.store import open_store

log = logging.getLogger(__name__)


def agent_app(agent: CubeAgent, stop: asyncio.Event, access: Access) -> Starlette:
    async def drain(request: Request) -> Response:
        with access.audited(request, Right.INTERNAL, "drain"):
            agent.drain()
            stop.set()
        return Response(status_code=202)

    metrics = Metrics("cube-agent")
    for name, what, value in (
        ("ready", "1 when the pod holds the live version for all it owes.", lambda: agent.ready()[0]),
        ("draining", "1 while the pod is going.", lambda: agent.draining),
        ("errors", "Current errors; /status lists them.", lambda: len(agent.errors)),
        ("loaded_partitions", "Partitions that the server answers, over all versions.", agent.loaded_partitions),
    ):
        metrics.gauge(name, what).set_function(value)
    metrics.counter_of("fetched_bytes", "Bytes of parts that came from the store.", lambda: agent.cache.fetched_bytes)
    routes = [Route("/drain", drain, methods=["POST"])]
    return application(routes, ready=agent.ready, status=agent.status, metrics=metrics)


def run_cube_agent(
    config: CubeAgentFile, *, pod: str, address: str, grace_seconds: float = LONGEST_DRAIN_SECONDS
) -> None:
    """Serve until SIGTERM or SIGINT, then drain. `cacheDir` is the folder that the server loads from.

    Raises ValueError for a pod name without a shard, PortInUse, StateInUse, StoreError.
    """

    async def main() -> None:
        tokens = config.auth.internal()
        store = open_store(config.store.url, user=config.store.user, tokens=tokens)
        access = Access(config.auth.rights(), AuditLog("cube-agent", Path(config.cube.cache_dir)))
        agent = CubeAgent(config, store, pod=pod, address=address, tokens=tokens, grace_seconds=grace_seconds)
        with stop_on_signal_async() as stop:
            async with serving(agent_app(agent, stop, access), config.host, config.cube.agent_port):
                log.info("pod %s, shard %s: the cube-server is at %s", pod, agent.shard, address)
                await agent.run(stop)

    with StateLock(Path(config.cube.cache_dir)):
        asyncio.run(main())
