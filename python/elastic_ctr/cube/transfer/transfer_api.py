"""The HTTP door of cube-transfer; the calls are described in `release`."""

import asyncio
import logging
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from elastic_ctr.cube.release import AgentReport, ReaderReport, RollbackOrder
from elastic_ctr.cube.transfer.controller import CubeTransfer, StillListening
from elastic_ctr.cube.transfer.heartbeats import address_rule, complaint_about
from elastic_ctr.cube.transfer.release_status import metrics_of, status_of
from elastic_ctr.cube.transfer.state import RollbackRefused
from elastic_ctr.runtime.http import RequestRefused, application, read_record, require_token, serving
from elastic_ctr.runtime.lifecycle import stop_on_signal_async
from elastic_ctr.store import open_store

log = logging.getLogger(__name__)

LONGEST_WAIT = 60.0


def transfer_app(transfer: CubeTransfer, token: str | None) -> Starlette:
    async def release(request: Request) -> Response:
        after = _number(request, "after")
        wait = min(_seconds(request, "wait"), LONGEST_WAIT)
        try:
            document = await transfer.next_document(after, _number(request, "generation"), wait)
        except StillListening as still:
            raise RequestRefused(503, str(still)) from still
        if document is None:
            return Response(status_code=304)
        return Response(document.model_dump_json(by_alias=True), media_type="application/json")

    async def agents(request: Request) -> Response:
        require_token(request, token)
        report = await read_record(request, AgentReport)
        complaint = complaint_about(report, transfer.allowed_address)
        if complaint is not None:
            raise RequestRefused(400, complaint)
        transfer.hear_agent(report)
        return Response(status_code=204)

    async def readers(request: Request) -> Response:
        require_token(request, token)
        transfer.hear_reader(await read_record(request, ReaderReport))
        return Response(status_code=204)

    async def rollback(request: Request) -> Response:
        require_token(request, token)
        order = await read_record(request, RollbackOrder, limit=1 << 10)
        if order.resume == (order.version is not None):
            raise RequestRefused(400, 'say either {"version": V} or {"resume": true}')
        try:
            state = transfer.order(order)
        except StillListening as still:
            raise RequestRefused(503, str(still)) from still
        except RollbackRefused as refused:
            raise RequestRefused(409, str(refused)) from refused
        return JSONResponse(
            {
                "live": state.live,
                "candidate": state.candidate,
                "previous": state.previous,
                "promotionPaused": state.promotion_paused,
            }
        )

    def ready() -> tuple[bool, str]:
        return (True, "ready") if not transfer.listening else (False, "listening for what pods carry")

    routes = [
        Route("/release", release),
        Route("/agents", agents, methods=["POST"]),
        Route("/readers", readers, methods=["POST"]),
        Route("/rollback", rollback, methods=["POST"]),
    ]
    return application(routes, ready=ready, status=lambda: status_of(transfer), metrics=metrics_of(transfer))


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not text.isdigit() or len(text) > 20:
        raise RequestRefused(400, f"{name}: {text[:40]!r} is not a whole number")
    return int(text)


def _seconds(request: Request, name: str) -> float:
    text = request.query_params.get(name, "0")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e6:
        raise RequestRefused(400, f"{name}: {text[:40]!r} is not a number of seconds")
    return seconds


def run_cube_transfer(
    *,
    store_url: str,
    store_user: str = "root",
    state_dir: Path,
    host: str,
    port: int,
    builder_url: str,
    shards: int,
    replicas: int = 1,
    min_ready_replicas: int = 1,
    validation_timeout_seconds: float = 120.0,
    keep_versions: int = 5,
    cube_domain: str | None = None,
    token: str | None = None,
    poll_seconds: float = 1.0,
    report_timeout_seconds: float = 10.0,
    state_recovery_seconds: float = 10.0,
) -> None:
    """Serve until SIGTERM or SIGINT. Raises PortInUse, StateInUse, StoreError."""

    async def main() -> None:
        transfer = CubeTransfer(
            open_store(store_url, user=store_user, token=token),
            state_dir,
            builder_url=builder_url,
            shards=shards,
            replicas=replicas,
            min_ready_replicas=min_ready_replicas,
            validation_timeout_seconds=validation_timeout_seconds,
            keep_versions=keep_versions,
            allowed_address=address_rule(cube_domain),
            token=token,
            poll_seconds=poll_seconds,
            report_timeout_seconds=report_timeout_seconds,
            state_recovery_seconds=state_recovery_seconds,
        )
        with stop_on_signal_async() as stop:
            async with serving(transfer_app(transfer, token), host, port) as door:
                log.info("the release document is at http://%s:%s/release", host, door.port)
                await transfer.run(stop)

    asyncio.run(main())
