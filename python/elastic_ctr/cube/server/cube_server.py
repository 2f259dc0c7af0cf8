"""`cube-server`: the process of a cube pod. It answers lookups, and its agent loads the parts that the pod owes.

The admin API is HTTP:

    GET  /healthz /readyz /status /metrics
    POST /drain    as SIGTERM: drain, then end; needs an internal token
"""

import asyncio
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from elastic_ctr.config.role_files import CubeServerFile
from elastic_ctr.cube.agent.agent import CubeAgent
from elastic_ctr.cube.server.lookup_server import LookupServer
from elastic_ctr.runtime.access import Access
from elastic_ctr.runtime.audit import AuditLog
from elastic_ctr.runtime.auth import Right
from elastic_ctr.runtime.http import application, serving
from elastic_ctr.runtime.lifecycle import run_until_one_ends, stop_on_signal_async
from elastic_ctr.runtime.lock import StateLock
from elastic_ctr.store.backends import open_store

_log = logging.getLogger(__name__)


def cube_app(server: LookupServer, agent: CubeAgent, stop: asyncio.Event, access: Access) -> Starlette:
    async def drain(request: Request) -> Response:
        with access.audited(request, Right.INTERNAL, "drain"):
            agent.drain()
            stop.set()
        return Response(status_code=202)

    def ready() -> tuple[bool, str]:
        return agent.ready() if server.ready else (False, "not every worker answers lookups yet")

    for name, what, value in (
        ("agent_ready", "1 when the pod holds the live version for all it owes.", lambda: agent.ready()[0]),
        ("agent_draining", "1 while the pod is going.", lambda: agent.draining),
        ("agent_errors", "Current errors; /status lists them.", lambda: len(agent.errors)),
        ("agent_loaded_partitions", "Partitions that the server answers, over all versions.", agent.loaded_partitions),
    ):
        server.metrics.gauge(name, what).set_function(value)
    fetched = "Bytes of parts that came from the store."
    server.metrics.counter_of("agent_fetched_bytes", fetched, lambda: agent.cache.fetched_bytes)
    return application(
        [Route("/drain", drain, methods=["POST"])],
        ready=ready,
        status=lambda: {**server.status(), **agent.status()},
        metrics=server.metrics,
    )


def _give_way() -> None:
    """Lower the priority of this thread: fetches and digests share the cores of the workers that answer lookups."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)


def run_cube_server(config: CubeServerFile, *, pod: str, address: str) -> None:
    """Answer lookups until SIGTERM or SIGINT, then drain. `address` is where readers reach this pod.

    An error of the agent ends the process: a pod without it would answer old versions for ever.
    Raises ValueError for a pod name without a shard, PortInUse, StateInUse, StoreError, CannotWork.
    """

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(initializer=_give_way))
        tokens, folder = config.auth.internal(), Path(config.cube.cache_dir)
        store = open_store(config.store, tokens=tokens)
        access = Access(config.auth.rights(), AuditLog("cube-server", folder))
        with closing(LookupServer(config.cube, config.host)) as server, stop_on_signal_async() as stop:
            agent = CubeAgent(config, store, server, pod=pod, address=address, tokens=tokens)
            async with serving(cube_app(server, agent, stop, access), config.host, config.cube.admin_port):
                _log.info("pod %s, shard %d: lookups at %s, parts from %s", pod, agent.shard, address, folder)
                try:
                    await run_until_one_ends(server.run(), agent.run(stop))
                except (OSError, ValueError) as failed:
                    # From here on these are no errors of the settings, which would end the process with exit code 2.
                    raise RuntimeError(f"the cube pod has failed: {failed}") from failed

    with StateLock(Path(config.cube.cache_dir)):
        asyncio.run(main())
