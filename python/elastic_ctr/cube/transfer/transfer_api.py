"""The HTTP API of cube-transfer; `release` describes the calls."""

import asyncio
import json
import logging
from pathlib import Path

from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from elastic_ctr.config.role_files import CubeTransferFile
from elastic_ctr.cube.release import AgentReport, ReaderReport, RollbackOrder
from elastic_ctr.cube.transfer.controller import CubeTransfer
from elastic_ctr.cube.transfer.heartbeats import complaint_about
from elastic_ctr.cube.transfer.release_status import metrics_of, status_of
from elastic_ctr.cube.transfer.state import RollbackRefused
from elastic_ctr.runtime.access import Access
from elastic_ctr.runtime.audit import AuditLog
from elastic_ctr.runtime.auth import Right
from elastic_ctr.runtime.documents import DocumentDamaged, read_document
from elastic_ctr.runtime.http import RequestRefused, application, read_record, serving
from elastic_ctr.runtime.lifecycle import stop_on_signal_async
from elastic_ctr.store.backends import open_store

log = logging.getLogger(__name__)

LONGEST_WAIT = 60.0


def transfer_app(transfer: CubeTransfer, access: Access) -> Starlette:
    async def release(request: Request) -> Response:
        try:
            poll = read_document(_Poll, json.dumps(dict(request.query_params)))
        except DocumentDamaged as wrong:
            raise RequestRefused(400, str(wrong)) from wrong
        document = await transfer.next_document(poll.after, poll.generation, min(poll.wait, LONGEST_WAIT))
        if document is None:
            return Response(status_code=304)
        return Response(document.model_dump_json(by_alias=True), media_type="application/json")

    async def agents(request: Request) -> Response:
        access.require(request, Right.INTERNAL)
        report = await read_record(request, AgentReport)
        complaint = complaint_about(report, transfer.config.cube_domain)
        if complaint is not None:
            raise RequestRefused(400, complaint)
        transfer.record(report)
        return Response(status_code=204)

    async def readers(request: Request) -> Response:
        access.require(request, Right.INTERNAL)
        transfer.record(await read_record(request, ReaderReport))
        return Response(status_code=204)

    async def rollback(request: Request) -> Response:
        with access.audited(request, Right.OPERATE, "rollback") as call:
            order = await read_record(request, RollbackOrder, limit=1 << 10)
            call.on = "resume" if order.resume else f"version {order.version}"
            return JSONResponse(await _rolled_back(order))

    async def _rolled_back(order: RollbackOrder) -> dict[str, object]:
        if order.resume == (order.version is not None):
            raise RequestRefused(400, 'say either {"version": V} or {"resume": true}')
        if order.resume:
            await transfer.watch.obey_hold()
        held = None if transfer.state is None else transfer.state.held
        try:
            state = transfer.order(order)
        except RollbackRefused as refused:
            raise RequestRefused(409, str(refused)) from refused
        told = {"live", "candidate", "previous", "promotion_paused"}
        ended = {} if held is None or not order.resume else {"endedHold": held.reason}
        return {**state.model_dump(mode="json", by_alias=True, include=told), **ended}

    def ready() -> tuple[bool, str]:
        return (True, "ready") if not transfer.listening else (False, "collecting reports of pods")

    routes = [
        Route("/release", release),
        Route("/agents", agents, methods=["POST"]),
        Route("/readers", readers, methods=["POST"]),
        Route("/rollback", rollback, methods=["POST"]),
    ]
    return application(routes, ready=ready, status=lambda: status_of(transfer), metrics=metrics_of(transfer))


class _Poll(BaseModel):
    after: int | None = Field(default=None, ge=0, lt=10**20)
    generation: int | None = Field(default=None, ge=0, lt=10**20)
    wait: float = Field(default=0, ge=0, lt=1e6)


def run_cube_transfer(config: CubeTransferFile) -> None:
    """Serve until SIGTERM or SIGINT. Raises PortInUse, StateInUse, StoreError."""

    async def main() -> None:
        tokens = config.auth.internal()
        store = open_store(config.store, tokens=tokens)
        transfer = CubeTransfer(config, store, tokens)
        access = Access(config.auth.rights(), AuditLog("cube-transfer", Path(config.cube_transfer.state_dir)))
        with stop_on_signal_async() as stop:
            async with serving(transfer_app(transfer, access), config.host, config.cube_transfer.port) as server:
                log.info("the release document is at http://%s:%s/release", config.host, server.port)
                await transfer.run(stop)

    asyncio.run(main())
