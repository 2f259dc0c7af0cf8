"""The admin door of cube-server, HTTP and JSON: health, status, metrics, and what to hold.

    GET  /healthz /readyz /status /metrics /held
    POST /load    {"version", "dim", "partitions", "parts": {"17": {"full": path, "overlay": path or null}}}
    POST /unload  {"version", "partitions": [..] or null}
    POST /drain   {"draining": bool}

A POST needs `authorization: Bearer <token>` where a token is set. 200 means that every worker has done it; on any
other answer nothing has changed: 400 not understood, 401 no token, 409 does not fit what is held, 422 files refused,
503 no worker is there, or this server ends. That it drains is shown from the order on, before every worker says so.
"""

import asyncio
import hmac
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from elastic_ctr.cube.dictionary.format import MAX_DIM, DictionaryDamaged
from elastic_ctr.cube.dictionary.table import PartsDoNotFit, Paths, check_fit
from elastic_ctr.cube.server import counters
from elastic_ctr.cube.server.activity import Activity
from elastic_ctr.cube.server.holdings import Assignments, DoesNotFit
from elastic_ctr.cube.server.workers import NoWorker, WorkerRefused, Workers

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

Body = TypeVar("Body", bound="_Body")


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class PartFiles(_Body):
    full: str
    overlay: str | None = None


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


class Refused(Exception):
    """An answer other than 200, as a status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Admin:
    """What the admin door does. `facts` are the fixed parts of the status."""

    def __init__(
        self, workers: Workers, activity: Activity, dict_dir: Path, token: str | None, facts: Mapping[str, Any]
    ) -> None:
        self._workers = workers
        self._activity = activity
        self._dict_dir = dict_dir.resolve()
        self._token = token
        self._facts = dict(facts)
        self._ending = threading.Event()
        self._registry = CollectorRegistry()
        self._registry.register(_Metrics(workers))

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/healthz", self.healthz),
                Route("/readyz", self.readyz),
                Route("/status", self.status),
                Route("/metrics", self.metrics),
                Route("/held", self.held),
                Route("/load", self._guarded(self.load), methods=["POST"]),
                Route("/unload", self._guarded(self.unload), methods=["POST"]),
                Route("/drain", self._guarded(self.drain), methods=["POST"]),
            ]
        )

    def end(self) -> None:
        """Verify no more files."""
        self._ending.set()

    def look(self) -> None:
        self._activity.look({version: own.place for version, own in self._workers.assigned.versions.items()})

    async def healthz(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(self, _: Request) -> Response:
        if self._workers.ready:
            return PlainTextResponse("ok\n")
        return PlainTextResponse("not every worker answers lookups yet\n", status_code=503)

    async def held(self, _: Request) -> Response:
        self.look()
        return JSONResponse(self._held())

    def _held(self) -> dict[str, Any]:
        return {
            "versions": {str(version): numbers for version, numbers in self._workers.assigned.held().items()},
            "lastAskedSeconds": {
                str(version): seconds for version, seconds in self._activity.last_asked_seconds().items()
            },
            "draining": self._workers.draining,
            "lastLookupSeconds": self._activity.last_lookup_seconds(),
        }

    async def status(self, _: Request) -> Response:
        self.look()
        sums = self._workers.counts.sum(axis=0)
        shapes = {(own.dim, own.partitions) for own in self._workers.assigned.versions.values()}
        dim, partitions = next(iter(shapes), (None, None))
        return JSONResponse(
            {
                **self._facts,
                **self._held(),
                "ready": self._workers.ready,
                "dim": dim,
                "partitions": partitions,
                "lookups": self._workers.path,
                "workers": self._workers.pids(),
                "workerRestarts": self._workers.restarts,
                "connections": int(sums[counters.CONNECTIONS]),
                **{name: int(sums[column]) for name, (column, _) in _METRICS.items() if "_" not in name},
            }
        )

    async def metrics(self, _: Request) -> Response:
        return Response(generate_latest(self._registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def load(self, request: Request) -> Response:
        """Verify the files once, here, then have every worker hold them."""
        body = _parse(Load, await request.body())
        paths = {_partition(number): self._paths(files) for number, files in body.parts.items()}

        def rule(assigned: Assignments) -> Assignments:
            return assigned.loaded(body.version, body.dim, body.partitions, paths)

        # Before the files are read: a load that cannot fit says so at once.
        rule(self._workers.assigned)
        await asyncio.to_thread(_verify, body.partitions, body.dim, paths, self._ending)
        await self._workers.change(rule)
        self.look()
        return JSONResponse({"versions": self._held()["versions"]})

    async def unload(self, request: Request) -> Response:
        body = _parse(Unload, await request.body())
        await self._workers.change(lambda assigned: assigned.unloaded(body.version, body.partitions))
        self.look()
        return JSONResponse({"versions": self._held()["versions"]})

    async def drain(self, request: Request) -> Response:
        body = _parse(Drain, await request.body())
        await self._workers.drain(draining=body.draining)
        return JSONResponse({"draining": self._workers.draining})

    def _paths(self, files: PartFiles) -> Paths:
        def checked(name: str) -> Path:
            path = Path(name).resolve()
            if not path.is_relative_to(self._dict_dir):
                raise Refused(422, f"{name} is outside {self._dict_dir}, the only folder this server loads from")
            return path

        return Paths(checked(files.full), None if files.overlay is None else checked(files.overlay))

    def _guarded(self, action: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                self._check_token(request.headers.get("authorization", ""))
                return await action(request)
            except Refused as refused:
                return _error(refused.status, refused)
            except DoesNotFit as refused:
                return _error(409, refused)
            except NoWorker as refused:
                return _error(503, refused)
            except (DictionaryDamaged, PartsDoNotFit, WorkerRefused, OSError) as refused:
                return _error(422, refused)

        return answer

    def _check_token(self, header: str) -> None:
        if self._token is not None and not hmac.compare_digest(header.encode(), f"Bearer {self._token}".encode()):
            raise Refused(401, "this call changes what is held: it needs the token, as `authorization: Bearer <token>`")


class _Metrics(Collector):
    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def collect(self) -> Iterable[Metric]:
        sums = self._workers.counts.sum(axis=0)
        for name, (column, text) in _METRICS.items():
            yield CounterMetricFamily(f"elastic_ctr_cube_{name}", text, value=int(sums[column]))
        gauges = {
            "connections": ("Open connections on the lookup port.", int(sums[counters.CONNECTIONS])),
            "lookups_in_flight": ("Lookups of the rounds being answered.", int(sums[counters.IN_FLIGHT])),
            "workers_ready": ("Workers that answer lookups.", len(self._workers.pids())),
            "draining": ("1 while readers are told to ask another holder.", int(self._workers.draining)),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"elastic_ctr_cube_{name}", text, value=value)
        yield CounterMetricFamily(
            "elastic_ctr_cube_worker_restarts", "Workers started again after they ended.", value=self._workers.restarts
        )
        held = GaugeMetricFamily("elastic_ctr_cube_held_partitions", "Partitions held, by version.", labels=["version"])
        for version, numbers in self._workers.assigned.held().items():
            held.add_metric([str(version)], len(numbers))
        yield held


def _verify(partitions: int, dim: int, paths: Mapping[int, Paths], ending: threading.Event) -> None:
    """Read every byte of the files. Raises DictionaryDamaged, PartsDoNotFit, OSError, and Refused when the server ends."""
    for number, files in paths.items():
        if ending.is_set():
            raise Refused(503, "this cube-server is ending")
        parts = files.open()
        check_fit(partitions, dim, {number: parts})
        for part in parts:
            if part is not None:
                part.verify()


def _partition(number: str) -> int:
    if not number.isdecimal():
        raise Refused(400, f"parts: {number!r} is no partition; partitions are decimal numbers")
    return int(number)


def _parse(kind: type[Body], body: bytes) -> Body:
    try:
        return kind.model_validate_json(body)
    except ValidationError as refused:
        first = refused.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise Refused(400, f"{where}: {first['msg']}") from refused


def _error(status: int, refused: Exception) -> Response:
    return JSONResponse({"error": str(refused)}, status_code=status)
