"""`cube-server`: the parent process. It holds the ports, the workers and the admin API; it answers no lookups."""

import asyncio
import logging
from pathlib import Path

from elastic_ctr.config.roles import CubePodConfig
from elastic_ctr.cube.server.activity import Activity
from elastic_ctr.cube.server.admin import Admin
from elastic_ctr.cube.server.scrubber import Scrubber
from elastic_ctr.cube.server.workers import WorkerRefused, Workers
from elastic_ctr.runtime.http import HttpServer
from elastic_ctr.runtime.lifecycle import reserve, stop_on_signal_async

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0


class CubeServer:
    """Answers lookups on host from parts under `cacheDir`, the only folder that parts are loaded from.

    Both ports are taken once it is made. Without a token, whoever reaches the admin port may change what is held.
    Raises PortInUse, OSError.
    """

    def __init__(self, cube: CubePodConfig, host: str = "127.0.0.1", token: str | None = None) -> None:
        self._reserved = reserve(host, cube.port)
        self.port: int = self._reserved.getsockname()[1]
        self._dict_dir = Path(cube.cache_dir)
        self._workers = Workers(host, self.port, cube)
        self._scrubber = Scrubber(cube.scrub_megabytes_per_second, self._on_damage)
        facts = {"address": f"{host}:{self.port}", "maxKeys": cube.max_keys}
        self._admin = Admin(self._workers, Activity(self._workers.counts), self._scrubber, self._dict_dir, token, facts)
        try:
            self._http = HttpServer(self._admin.app(), host, cube.admin_port)
        except OSError:
            self._reserved.close()
            raise
        self.admin_port = self._http.port

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises CannotWork, and whatever else made an end of it."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        with stop_on_signal_async() as stop:
            self._workers.start()
            self._scrubber.start()
            await self._http.start()
            _log.info("lookups on port %d, admin on port %d, parts from %s", self.port, self.admin_port, self._dict_dir)
            tasks = [
                asyncio.create_task(stop.wait()),
                asyncio.create_task(self._look()),
                asyncio.create_task(self._workers.kept()),
            ]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        _log.info("ending")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._scrubber.stop()
        await self._http.stop()
        await self._workers.stop()
        self._reserved.close()
        for ended in done:
            # Only stop ends without an error.
            ended.result()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._admin.look()

    def _on_damage(self, path: Path, sentence: str) -> None:
        asyncio.run_coroutine_threadsafe(self._drop(path, sentence), self._loop)

    async def _drop(self, path: Path, sentence: str) -> None:
        try:
            await self._workers.drop({path: sentence})
        except WorkerRefused:
            _log.exception("%s is still answered; the next round looks at it again", path)
        self._admin.look()
