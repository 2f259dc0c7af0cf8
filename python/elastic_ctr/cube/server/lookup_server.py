"""`cube-server`: the parent process. It owns the ports, the workers and the admin API; workers answer the lookups.

The admin API is HTTP and JSON:

    GET  /healthz /readyz /status /metrics
    GET  /loaded  {"versions": {version: partitions}, "damaged": {version: {partition: sentence}}, "lastAskedSeconds",
                   "draining", "lastLookupSeconds"}
    POST /load    {"version", "dim", "partitions", "parts": {"17": {"full": path, "overlay": path or null,
                   "recent": path or null}}}
    POST /unload  {"version", "partitions": [..] or null}
    POST /drain   {"draining": bool}

A POST needs an internal token. 200 means that every worker has carried out the order; after any other answer nothing
has changed: 400 not understood, 401 no token, 409 does not fit the loaded parts, 422 files refused, 503 no worker
serves. A partition whose files are found damaged after the load is no longer answered: it moves from `versions` to
`damaged` until it is loaded again. `draining` is true from the order on, before every worker has carried it out.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from elastic_ctr.config.role_files import Auth
from elastic_ctr.config.roles import CubePodConfig
from elastic_ctr.cube.dictionary.format import MAX_DIM, DictionaryDamaged, DictionaryPart
from elastic_ctr.cube.dictionary.table import PartsDoNotFit, Paths, check_fit
from elastic_ctr.cube.server import lookup_counters as counters
from elastic_ctr.cube.server.holdings import Assignments, DoesNotFit
from elastic_ctr.cube.server.lookup_counters import Activity
from elastic_ctr.cube.server.lookup_workers import NoWorker, WorkerRefused, Workers
from elastic_ctr.cube.server.scrubber import Scrubber
from elastic_ctr.runtime.access import Access
from elastic_ctr.runtime.audit import AuditLog
from elastic_ctr.runtime.auth import Right
from elastic_ctr.runtime.http import HttpServer, RequestRefused, application, read_record
from elastic_ctr.runtime.lifecycle import reserve, stop_on_signal_async
from elastic_ctr.runtime.metrics import Metrics

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0


_METRICS = {
    "requests": (counters.REQUESTS, "Lookup requests received."),
    "keys": (counters.KEYS, "Keys asked for."),
    "missing_keys": (counters.MISSING, "Keys answered as missing."),
    "not_held_replies": (counters.NOT_HELD, "Requests for a version or partition that is not held here."),
    "bad_requests": (counters.BAD_REQUESTS, "Requests refused for their form."),
    "keep_alives": (counters.KEEP_ALIVES, "Keep-alives received."),
    "received_bytes": (counters.BYTES_IN, "Bytes received on the lookup port."),
    "sent_bytes": (counters.BYTES_OUT, "Bytes sent on the lookup port."),
    "accepted_connections": (counters.ACCEPTED, "Connections accepted on the lookup port."),
}


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class PartFiles(_Body):
    full: str
    overlay: str | None = None
    recent: str | None = None

    def names(self) -> tuple[str, str | None, str | None]:
        return self.full, self.overlay, self.recent


class Load(_Body):
    version: int = Field(ge=0, lt=1 << 64)
    dim: int = Field(ge=1, le=MAX_DIM)
    partitions: int = Field(ge=1, lt=1 << 32)
    parts: dict[str, PartFiles] = Field(min_length=1)


class Unload(_Body):
    version: int = Field(ge=0, lt=1 << 64)
    partitions: list[int] | None = None


class Drain(_Body):
    draining: bool


class CubeServer:
    """Answers lookups on host from parts under `cacheDir`, the only folder that parts are loaded from.

    Both ports are bound in the constructor. Without token files, any caller of the admin port may load and unload parts.
    Raises PortInUse, OSError.
    """

    def __init__(self, cube: CubePodConfig, host: str = "127.0.0.1", auth: Auth | None = None) -> None:
        self._reserved = reserve(host, cube.port)
        self.port: int = self._reserved.getsockname()[1]
        self._address = f"{host}:{self.port}"
        self._max_keys = cube.max_keys
        self._dict_dir = Path(cube.cache_dir).resolve()
        self._access = Access((auth or Auth()).rights(), AuditLog("cube-server", Path(cube.cache_dir)))
        self._workers = Workers(host, self.port, cube)
        self._activity = Activity(self._workers.counts)
        self._scrubber = Scrubber(cube.scrub_megabytes_per_second, self._on_damage)
        routes = [
            Route("/loaded", self.loaded),
            Route("/load", self._guarded(self.load), methods=["POST"]),
            Route("/unload", self._guarded(self.unload), methods=["POST"]),
            Route("/drain", self._guarded(self.drain), methods=["POST"]),
        ]
        app = application(routes, ready=self._ready, status=self._status, metrics=self._metrics())
        try:
            self._http = HttpServer(app, host, cube.admin_port)
        except OSError:
            self._reserved.close()
            raise
        self.admin_port = self._http.port

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT. Raises CannotWork."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        with stop_on_signal_async() as stop:
            self._workers.pool.start()
            self._scrubber.start()
            await self._http.start()
            _log.info("lookups on port %d, admin on port %d, parts from %s", self.port, self.admin_port, self._dict_dir)
            tasks = [asyncio.create_task(each) for each in (stop.wait(), self._look_often(), self._workers.pool.kept())]
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
            # Every task but `stop` ends only by an error, which is raised here.
            ended.result()

    async def _look_often(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._look()

    def _look(self) -> None:
        assigned = self._workers.assigned
        self._scrubber.keep_only(assigned.files)
        self._activity.look({version: own.place for version, own in assigned.versions.items()})
        self._partitions.clear()
        for version, numbers in assigned.by_version().items():
            self._partitions.labels(version).set(len(numbers))

    def _on_damage(self, path: Path, sentence: str) -> None:
        asyncio.run_coroutine_threadsafe(self._drop(path, sentence), self._loop)

    async def _drop(self, path: Path, sentence: str) -> None:
        try:
            await self._workers.drop({path: sentence})
        except WorkerRefused:
            _log.exception("%s is still answered; the next round looks at it again", path)
        self._look()

    def _ready(self) -> tuple[bool, str]:
        if self._workers.ready:
            return True, "ready"
        return False, "not every worker answers lookups yet"

    def _metrics(self) -> Metrics:
        metrics, workers = Metrics("cube"), self._workers
        for name, (column, text) in _METRICS.items():
            metrics.counter_of(name, text, partial(self._sum, column))
        metrics.counter_of("worker_restarts", "Workers started again after they ended.", lambda: workers.pool.restarts)
        scrubbed = "Bytes of mapped parts verified again in the background."
        metrics.counter_of("scrubbed_bytes", scrubbed, lambda: self._scrubber.verified_bytes)
        lost = "Partitions no longer answered because a file was found damaged."
        metrics.counter_of("damaged_partitions", lost, lambda: workers.damaged_parts)
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "connections": ("Open connections on the lookup port.", partial(self._sum, counters.CONNECTIONS)),
            "lookups_in_flight": ("Lookups of the rounds being answered.", partial(self._sum, counters.IN_FLIGHT)),
            "workers_ready": ("Workers that answer lookups.", lambda: len(workers.pids())),
            "draining": ("1 while readers are told to ask another holder.", lambda: float(workers.draining)),
        }
        for name, (text, value) in gauges.items():
            metrics.gauge(name, text).set_function(value)
        self._partitions = metrics.gauge("loaded_partitions", "Partitions loaded, by version.", ("version",))
        return metrics

    def _sum(self, column: int) -> int:
        return int(self._workers.counts[:, column].sum())

    async def loaded(self, _: Request) -> Response:
        return JSONResponse(self._loaded())

    def _loaded(self) -> dict[str, Any]:
        self._look()
        damaged: dict[int, dict[int, str]] = {}
        for (version, number), sentence in sorted(self._workers.damaged.items()):
            damaged.setdefault(version, {})[number] = sentence
        return {
            "versions": self._workers.assigned.by_version(),
            "damaged": damaged,
            "lastAskedSeconds": self._activity.last_asked_seconds(),
            "draining": self._workers.draining,
            "lastLookupSeconds": self._activity.last_lookup_seconds(),
        }

    def _status(self) -> dict[str, Any]:
        shapes = {(own.dim, own.partitions) for own in self._workers.assigned.versions.values()}
        dim, partitions = next(iter(shapes), (None, None))
        return {
            "address": self._address,
            "maxKeys": self._max_keys,
            **self._loaded(),
            "ready": self._workers.ready,
            "scrub": self._scrubber.status(),
            "dim": dim,
            "partitions": partitions,
            "workers": self._workers.pids(),
            "workerRestarts": self._workers.pool.restarts,
            "connections": self._sum(counters.CONNECTIONS),
            **{name: self._sum(column) for name, (column, _) in _METRICS.items() if "_" not in name},
        }

    async def load(self, request: Request) -> Response:
        """Order every worker to verify and load the files."""
        body = await read_record(request, Load)
        numbered = {_partition(number): files for number, files in body.parts.items()}
        # Each file once, because an overlay may be one file of all partitions.
        names = {name for files in numbered.values() for name in files.names() if name is not None}
        # Most files of a stream's version belong to the version before, too, and were checked with it.
        known = {str(path): path for path in self._workers.assigned.files}
        checked = {name: known.get(name) or self._checked(name) for name in names}
        paths = {
            number: Paths._make(None if name is None else checked[name] for name in files.names())
            for number, files in numbered.items()
        }

        def rule(assigned: Assignments) -> Assignments:
            return assigned.loaded(body.version, body.dim, body.partitions, paths)

        # Refuse parts that do not fit before the files are read.
        rule(self._workers.assigned)
        parts = await asyncio.to_thread(map_parts, body.partitions, body.dim, paths, self._scrubber.parts)
        held = self._workers.assigned.files
        # Read one part after the other, so that a stopping server waits for one part at most.
        for part in parts:
            if part.path not in held:
                await asyncio.to_thread(part.read_in)
        await self._workers.change(rule)
        self._scrubber.watch(parts)
        return self._changed(body.version, paths)

    async def unload(self, request: Request) -> Response:
        body = await read_record(request, Unload)
        await self._workers.change(lambda assigned: assigned.unloaded(body.version, body.partitions))
        return self._changed(body.version, body.partitions)

    async def drain(self, request: Request) -> Response:
        body = await read_record(request, Drain)
        await self._workers.drain(draining=body.draining)
        return JSONResponse({"draining": self._workers.draining})

    def _changed(self, version: int, partitions: Collection[int] | None) -> Response:
        """Clear the damage of the loaded or unloaded partitions (None: all of the version), and return the answer."""
        for each, number in list(self._workers.damaged):
            if each == version and (partitions is None or number in partitions):
                del self._workers.damaged[each, number]
        return JSONResponse({"versions": self._loaded()["versions"]})

    def _checked(self, name: str) -> Path:
        path = Path(name).resolve()
        if not path.is_relative_to(self._dict_dir):
            raise RequestRefused(422, f"{name} is outside {self._dict_dir}, the only folder this server loads from")
        return path

    def _guarded(self, action: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            self._access.require(request, Right.INTERNAL)
            try:
                return await action(request)
            except DoesNotFit as refused:
                raise RequestRefused(409, str(refused)) from refused
            except NoWorker as refused:
                raise RequestRefused(503, str(refused)) from refused
            except (DictionaryDamaged, PartsDoNotFit, WorkerRefused, OSError) as refused:
                raise RequestRefused(422, str(refused)) from refused

        return answer


def map_parts(
    partitions: int, dim: int, paths: Mapping[int, Paths], mapped: Mapping[Path, DictionaryPart]
) -> list[DictionaryPart]:
    """Map the files without verifying them; a part of `mapped` whose file is still the same is reused. Raises
    DictionaryDamaged, PartsDoNotFit, OSError.
    """

    def opened_once(path: Path) -> DictionaryPart:
        known = mapped.get(path)
        return known if known is not None and path.stat().st_ino == known.inode else DictionaryPart.open(path)

    # Each file once, because an overlay may be one file of all partitions.
    parts = {path: opened_once(path) for path in {path for files in paths.values() for path in files.files()}}
    opened = {number: files.parts(parts.__getitem__) for number, files in paths.items()}
    check_fit(partitions, dim, opened)
    return list(parts.values())


def _partition(number: str) -> int:
    if not number.isdecimal():
        raise RequestRefused(400, f"parts: {number!r} is no partition; partitions are decimal numbers")
    return int(number)
