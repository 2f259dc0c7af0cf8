"""`cube-server`: the parent process. It holds the ports, the workers and the admin door; it answers no lookups."""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from elastic_ctr.cube.server.activity import Activity
from elastic_ctr.cube.server.admin import Admin
from elastic_ctr.cube.server.loop import AWAKE_US, MAX_CONNECTIONS
from elastic_ctr.cube.server.scrubber import Scrubber
from elastic_ctr.cube.server.workers import WorkerRefused, Workers
from elastic_ctr.runtime.lifecycle import bind, reserve

_log = logging.getLogger(__name__)

DEFAULT_MAX_KEYS = 65536
DEFAULT_SCRUB = 64.0
_LOOK_SECONDS = 1.0
# What is under way at the admin door has so long when the server ends: a worker may owe its answer for much longer.
_LAST_SECONDS = 3.0


class PortInUse(RuntimeError):
    def __init__(self, what: str, host: str, port: int) -> None:
        super().__init__(f"port {port} of {host} is in use; set {what} to a free one or end who holds it")


class _AdminServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the parent's: it has workers to end, too."""
        yield


class CubeServer:
    """Answers lookups on (host, port) from parts under dict_dir, with `workers` processes.

    dict_dir is the only folder that parts are loaded from. A port of 0 becomes a free one at `bind`, which reads it
    back into `port` and `admin_port`. max_keys bounds one request; a worker that was asked again within awake_us
    microseconds stays awake for as long. Without a token, whoever reaches the admin port
    may change what is held.
    """

    def __init__(
        self,
        dict_dir: Path | str,
        host: str = "127.0.0.1",
        port: int = 8027,
        admin_port: int = 8028,
        workers: int = 1,
        max_keys: int = DEFAULT_MAX_KEYS,
        token: str | None = None,
        *,
        admin_host: str = "127.0.0.1",
        max_connections: int = MAX_CONNECTIONS,
        awake_us: int = AWAKE_US,
        scrub_megabytes_per_second: float = DEFAULT_SCRUB,
    ) -> None:
        if not 1 <= max_keys <= 1 << 24:
            raise ValueError(f"a request of {max_keys} keys cannot be: set it between 1 and {1 << 24}")
        if workers < 1:
            raise ValueError(f"{workers} workers answer nothing: set at least 1")
        self.dict_dir = Path(dict_dir)
        self.host = host
        self.port = port
        self.admin_host = admin_host
        self.admin_port = admin_port
        self._worker_count = workers
        self._max_keys = max_keys
        self._max_connections = max_connections
        self._awake_us = awake_us
        self._scrub_megabytes_per_second = scrub_megabytes_per_second
        self._token = token
        self._reserved: socket.socket | None = None
        self._admin_socket: socket.socket | None = None

    def bind(self) -> None:
        """Take both ports. Raises PortInUse."""
        if self._admin_socket is not None:
            return
        with _named("port", self.host, self.port):
            self._reserved = reserve(self.host, self.port)
        self.port = self._reserved.getsockname()[1]
        try:
            with _named("adminPort", self.admin_host, self.admin_port):
                self._admin_socket = bind(self.admin_host, self.admin_port)
        except PortInUse:
            self._reserved.close()
            raise
        # From here on it can be connected to; who does waits until the door is served.
        self._admin_socket.listen()
        self.admin_port = self._admin_socket.getsockname()[1]

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises PortInUse, and whatever else made an end of it."""
        self.bind()
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        assert self._admin_socket is not None
        assert self._reserved is not None
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        workers = Workers(
            self.host, self.port, self._worker_count, self._max_keys, self._max_connections, self._awake_us
        )
        facts = {"address": f"{self.host}:{self.port}", "maxKeys": self._max_keys}

        async def drop(path: Path, sentence: str) -> None:
            try:
                await workers.drop({path: sentence})
            except WorkerRefused:
                _log.exception("%s is still answered; it is looked at again in the next round", path)
            admin.look()

        def on_damage(path: Path, sentence: str) -> None:
            asyncio.run_coroutine_threadsafe(drop(path, sentence), loop)

        scrubber = Scrubber(self._scrub_megabytes_per_second, on_damage)
        admin = Admin(workers, Activity(workers.counts), scrubber, self.dict_dir, self._token, facts)
        config = uvicorn.Config(
            admin.app(), log_level="warning", access_log=False, lifespan="off", http="h11", ws="none"
        )
        http = _AdminServer(config)
        workers.start()
        scrubber.start()
        looking = asyncio.create_task(_look(admin))
        serving = asyncio.create_task(http.serve(sockets=[self._admin_socket]))
        _log.info(
            "lookups on %s:%d, admin on %s:%d, parts from %s",
            self.host, self.port, self.admin_host, self.admin_port, self.dict_dir,
        )  # fmt: skip
        keeping = asyncio.create_task(workers.kept())
        stopping = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait([stopping, serving, looking, keeping], return_when=asyncio.FIRST_COMPLETED)
        _log.info("ending")
        http.should_exit = True
        for task in (stopping, looking, keeping):
            task.cancel()
        await asyncio.wait([serving], timeout=_LAST_SECONDS)
        await workers.stop()
        scrubber.stop()
        # With the workers the orders have ended that were still waited for; whatever else is, is no reason to stay.
        await asyncio.wait([serving], timeout=_LAST_SECONDS)
        serving.cancel()
        await asyncio.gather(serving, stopping, looking, keeping, return_exceptions=True)
        self._reserved.close()
        self._admin_socket.close()
        for ended in done:
            # Only stop ends without an error.
            ended.result()


async def _look(admin: Admin) -> None:
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        admin.look()


@contextlib.contextmanager
def _named(what: str, host: str, port: int) -> Iterator[None]:
    """Who fails to take that port is told which setting it is of."""
    try:
        yield
    except OSError as failed:
        if failed.errno == errno.EADDRINUSE:
            raise PortInUse(what, host, port) from failed
        raise
