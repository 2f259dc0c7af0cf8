"""The small HTTP server of every role: health, metrics, status, orders.

Errors are JSON `{"error": sentence}`. `runtime.access` checks tokens. The size of a body is bounded before it is read.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

import uvicorn
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from typing_extensions import Self

from elastic_ctr.runtime.documents import MOST_VALUES, DocumentDamaged, read_document
from elastic_ctr.runtime.http_connection import HttpConnection
from elastic_ctr.runtime.lifecycle import listen
from elastic_ctr.runtime.metrics import Metrics
from elastic_ctr.runtime.status.status_document import StatusDocument

log = logging.getLogger(__name__)

BODY_LIMIT = 4 << 20
M = TypeVar("M", bound=BaseModel)


class RequestRefused(HTTPException):
    """The request is wrong: an HTTP status and a sentence."""


async def read_body(request: Request, limit: int = BODY_LIMIT) -> bytes:
    """Return the body. Raises RequestRefused: 413 once more than `limit` bytes are declared or received, 400 if the body breaks off."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise RequestRefused(413, f"the body has {declared} bytes; {limit} are the most")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise RequestRefused(413, f"the body has more than {limit} bytes")
    except ClientDisconnect as gone:
        # The client is gone and reads no answer. Any other exception would be logged with a traceback, as a fault of this role.
        raise RequestRefused(400, f"the connection ended after {len(body)} bytes of the body") from gone
    return bytes(body)


async def read_record(request: Request, kind: type[M], limit: int = BODY_LIMIT) -> M:
    """Return the body as a document of `kind`. Raises RequestRefused: 400 with the field that is wrong, 413."""
    try:
        return read_document(kind, await read_body(request, limit), most_values=MOST_VALUES)
    except DocumentDamaged as wrong:
        raise RequestRefused(400, str(wrong)) from wrong


def application(
    routes: list[Route],
    *,
    ready: Callable[[], tuple[bool, str]] = lambda: (True, "ready"),
    status: Callable[[], StatusDocument | dict[str, Any]] = dict,
    metrics: Metrics | None = None,
) -> Starlette:
    """Return the application of a role: its own routes, and /healthz, /readyz, /status, /metrics."""

    async def healthz(request: Request) -> Response:  # noqa: ARG001 (the signature of an endpoint)
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:  # noqa: ARG001
        is_ready, why = ready()
        return PlainTextResponse(f"{why}\n", status_code=200 if is_ready else 503)

    async def show(request: Request) -> Response:  # noqa: ARG001
        found = status()
        return JSONResponse(found if isinstance(found, dict) else found.to_dict())

    async def measure(request: Request) -> Response:
        assert metrics is not None
        body, content_type = metrics.render(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    shared = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/status", show)]
    if metrics is not None:
        shared.append(Route("/metrics", measure))
    return Starlette(
        routes=[*routes, *shared],
        exception_handlers={HTTPException: _refusal, Exception: _failure},
    )


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where = "" if isinstance(error, RequestRefused) else f"{request.method} {request.url.path}: "
    return JSONResponse({"error": where + error.detail}, status_code=error.status_code, headers=error.headers)


async def _failure(request: Request, error: Exception) -> Response:
    # The message may contain addresses or paths. uvicorn logs it; the caller does not get it.
    return JSONResponse(
        {"error": f"{request.method} {request.url.path} failed ({type(error).__name__}); the log says why"},
        status_code=500,
    )


class _Server(uvicorn.Server):
    """A server on `port`; for port 0 the attribute has the port that was chosen. Raises PortInUse when made."""

    def __init__(self, app: Starlette, host: str, port: int) -> None:
        self._socket = listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_keep_alive=int(HttpConnection.limits.idle_seconds) + 1,
                timeout_graceful_shutdown=2,
                loop="none",
                http=HttpConnection,
                ws="none",
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers: the role handles signals and stops its servers in its own order."""
        yield


class HttpServer(_Server):
    """A server inside the caller's event loop."""

    _task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once connections are accepted."""
        self._task = asyncio.create_task(self.serve(sockets=[self._socket]))
        while not self.started:
            if self._task.done():
                self._task.result()
                raise OSError(f"the HTTP server on port {self.port} ended while it started")
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Ends gracefully: requests under way have 2 s."""
        self.should_exit = True
        if self._task is not None:
            await self._task
        self._socket.close()


@contextlib.asynccontextmanager
async def serving(app: Starlette, host: str, port: int) -> AsyncIterator[HttpServer]:
    server = HttpServer(app, host, port)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


class HttpThread(_Server):
    """A server in its own thread, for a role without an event loop."""

    def __init__(self, app: Starlette, host: str, port: int) -> None:
        super().__init__(app, host, port)
        self._thread = threading.Thread(target=self._serve_here, name=f"http-{self.port}", daemon=True)

    def start(self) -> Self:
        """Returns once connections are accepted."""
        self._thread.start()
        while not self.started:
            self._thread.join(0.005)
            if not self._thread.is_alive():
                raise OSError(f"the HTTP server on port {self.port} ended while it started; the log says why")
        return self

    def stop(self) -> None:
        """Ends gracefully: requests under way have 2 s."""
        self.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def _serve_here(self) -> None:
        try:
            asyncio.run(self.serve(sockets=[self._socket]))
        except Exception:
            log.exception("the HTTP server on port %s ended", self.port)
            raise
