"""The admin API of a cube pod, whose lookups are a real server and whose transfer is played."""

import asyncio
from contextlib import closing
from pathlib import Path

import httpx
import numpy as np

from credentials import access, tokens
from cube.agent.played import ADDRESS, MINE, Played, pod, put_real_dictionary
from elastic_ctr.config.cube_settings import CubePodConfig
from elastic_ctr.cube.server.cube_server import cube_app
from elastic_ctr.cube.server.lookup_server import LookupServer
from elastic_ctr.runtime.audit import CHANGES, AuditLog
from elastic_ctr.runtime.auth import bearer
from elastic_ctr.runtime.http import serving
from elastic_ctr.store.backends import FileStore


async def test_one_port_shows_lookups_and_agent_and_drains_the_pod_by_a_call_with_the_token(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    put_real_dictionary(store, tmp_path / "work", 5, np.arange(1, 301, dtype=np.uint64))
    played = Played()
    played.say(5)
    with closing(LookupServer(CubePodConfig().model_copy(update={"port": 0}))) as server:
        async with pod(tmp_path, played, store=store, lookups=server) as it:
            app = cube_app(server, it.agent, it.stop, access("secret", AuditLog("cube-server", tmp_path)))
            async with (
                serving(app, "127.0.0.1", 0) as door,
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{door.port}") as client,
            ):
                await it.until(lambda: it.agent.document)
                assert (await client.get("/readyz")).text == "not every worker answers lookups yet\n"
                running = asyncio.create_task(server.run())
                await it.until(lambda: played.reports and played.reports[-1].loaded == {5: MINE})

                assert (await client.get("/readyz")).text == "ready; holds version 5\n"
                status = (await client.get("/status")).json()
                assert (status["role"], status["address"], status["live"]) == ("cube-server", ADDRESS, 5)
                assert (status["versions"], len(status["workers"])) == ({"5": [0, 2]}, 1)
                metrics = (await client.get("/metrics")).text
                assert "elastic_ctr_cube_agent_ready 1.0" in metrics
                assert "elastic_ctr_cube_workers_ready 1.0" in metrics
                assert (await client.post("/drain")).status_code == 401
                assert (await client.post("/drain", headers=bearer(tokens("secret")))).status_code == 202
                assert (await client.get("/readyz")).text == "draining\n"
                await it.until(it.agent.drained.is_set)
                assert server.loaded().draining
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    assert '"drain"' in (tmp_path / f"cube-server.{CHANGES}").read_text()
