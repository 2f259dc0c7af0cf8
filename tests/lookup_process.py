"""A cube-server without an agent, as a process: the test gives the orders, over HTTP.

    python lookup_process.py SETTINGS [CODE]

SETTINGS is JSON of `CubePodConfig`, and CODE is Python that runs first. It prints its two ports.

    GET  /readyz /status /metrics   as of a pod
    GET  /loaded
    POST /load    {"version", "dim", "partitions", "parts": {"17": [full, overlay or null, recent or null]}}
    POST /unload  {"version", "partitions": [..] or null}
    POST /drain   {"draining": bool}

An order that is refused is answered with 422.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from elastic_ctr.config.cube_settings import CubePodConfig
from elastic_ctr.cube.agent.lookup_parts import PartsRefused
from elastic_ctr.cube.dictionary.table import Paths
from elastic_ctr.cube.server.lookup_server import LookupServer
from elastic_ctr.runtime.http import RequestRefused, application, serving
from elastic_ctr.runtime.lifecycle import run_until_one_ends, stop_on_signal_async


def orders(server: LookupServer) -> list[Route]:
    def loaded() -> JSONResponse:
        held = server.loaded()
        found = {
            "versions": {version: sorted(parts) for version, parts in held.versions.items()},
            "damaged": held.damaged,
            "lastAskedSeconds": held.last_asked_seconds,
            "lastLookupSeconds": held.last_lookup_seconds,
            "draining": held.draining,
        }
        return JSONResponse(found)

    async def load(body: dict[str, Any]) -> None:
        parts = {
            int(number): Paths(Path(full), *(None if name is None else Path(name) for name in above))
            for number, (full, *above) in body["parts"].items()
        }
        await server.load(body["version"], body["dim"], body["partitions"], parts)

    async def unload(body: dict[str, Any]) -> None:
        partitions = body["partitions"]
        version = body["version"]
        await server.unload(version, server.loaded().versions.get(version, ()) if partitions is None else partitions)

    async def drain(body: dict[str, Any]) -> None:
        await server.drain(draining=body["draining"])

    def carried_out(order: Callable[[dict[str, Any]], Awaitable[None]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                await order(await request.json())
            except PartsRefused as refused:
                raise RequestRefused(422, str(refused)) from refused
            return loaded()

        return answer

    async def show(_: Request) -> Response:
        return loaded()

    posts = {"/load": load, "/unload": unload, "/drain": drain}
    return [
        Route("/loaded", show),
        *(Route(path, carried_out(order), methods=["POST"]) for path, order in posts.items()),
    ]


async def serve(cube: CubePodConfig) -> None:
    with closing(LookupServer(cube)) as server, stop_on_signal_async() as stop:
        app = application(
            orders(server),
            ready=lambda: (server.ready, "whether every worker answers"),
            status=server.status,
            metrics=server.metrics,
        )
        async with serving(app, "127.0.0.1", cube.admin_port) as admin:
            print(server.port, admin.port, flush=True)
            await run_until_one_ends(stop.wait(), server.run())


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    if sys.argv[2:]:
        exec(sys.argv[2])
    # Not checked again: port 0 is for tests.
    asyncio.run(serve(CubePodConfig().model_copy(update={"port": 0, "admin_port": 0, **json.loads(sys.argv[1])})))
