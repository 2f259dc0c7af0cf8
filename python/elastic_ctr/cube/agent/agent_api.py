"""The agent's own door.

GET  /healthz /readyz /status /metrics
POST /drain    as SIGTERM: drain, then end; needs the token
"""

import asyncio
import contextlib
import logging
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from elastic_ctr.cube.agent.agent import CubeAgent
from elastic_ctr.cube.agent.drain_client import LONGEST_DRAIN_SECONDS
from elastic_ctr.cube.placement import shard_of_pod
from elastic_ctr.runtime.http import application, require_token, serving
from elastic_ctr.runtime.lifecycle import stop_on_signal_async
from elastic_ctr.runtime.lock import StateLock
from elastic_ctr.runtime.metrics import Metrics
from elastic_ctr.store import open_store

log = logging.getLogger(__name__)


def agent_app(agent: CubeAgent, stop: asyncio.Event, token: str | None) -> Starlette:
    async def drain(request: Request) -> Response:
        require_token(request, token)
        agent.drain()
        stop.set()
        return Response(status_code=202)

    metrics = Metrics("cube-agent")
    metrics.gauge("ready", "1 when the pod holds the live version for all it owes.").set_function(
        lambda: float(agent.ready()[0])
    )
    metrics.gauge("draining", "1 while the pod is going.").set_function(lambda: float(agent.draining))
    metrics.gauge("errors", "Things that do not work just now; the status names them.").set_function(
        lambda: float(len(agent.errors))
    )
    metrics.gauge("loaded_partitions", "Partitions that the server answers, over all versions.").set_function(
        lambda: float(sum(map(len, agent.loaded.versions.values())) if agent.loaded else 0)
    )
    metrics.counter_of("fetched_bytes", "Bytes of parts that came from the store.", lambda: agent.fetched_bytes)
    routes = [Route("/drain", drain, methods=["POST"])]
    return application(routes, ready=agent.ready, status=agent.status, metrics=metrics)


def run_cube_agent(
    *,
    pod: str,
    address: str,
    server_url: str,
    transfer_url: str,
    store_url: str,
    store_user: str = "root",
    cache_dir: Path,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
    bytes_per_second: float = 100 << 20,
    drain_seconds: float = 30.0,
    report_seconds: float = 1.0,
    grace_seconds: float = LONGEST_DRAIN_SECONDS,
    drain_idle_seconds: float = 5.0,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Without a port there is no door.

    `cache_dir` is the folder that the server loads from. Raises ValueError for a pod name without a shard, PortInUse,
    StateInUse, StoreError.
    """
    shard = shard_of_pod(pod)

    async def main() -> None:
        agent = CubeAgent(
            pod,
            shard,
            address,
            server_url=server_url,
            transfer_url=transfer_url,
            store=open_store(store_url, user=store_user, token=token),
            cache_dir=cache_dir,
            token=token,
            bytes_per_second=bytes_per_second,
            drain_seconds=drain_seconds,
            report_seconds=report_seconds,
            grace_seconds=grace_seconds,
            drain_idle_seconds=drain_idle_seconds,
        )
        async with contextlib.AsyncExitStack() as stack:
            stop = stack.enter_context(stop_on_signal_async())
            if port is not None:
                await stack.enter_async_context(serving(agent_app(agent, stop, token), host, port))
            log.info("pod %s, shard %s: looking after the cube-server at %s", pod, shard, server_url)
            await agent.run(stop)

    with StateLock(cache_dir):
        asyncio.run(main())
