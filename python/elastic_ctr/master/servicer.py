"""The master's gRPC door: checks the token, hands each call to the coordinator."""

import hmac
import logging
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import grpc

from elastic_ctr.control import control_pb2 as control
from elastic_ctr.control import control_pb2_grpc
from elastic_ctr.control.options import OPTIONS
from elastic_ctr.master.coordinator import Coordinator
from elastic_ctr.master.ledger import not_written

log = logging.getLogger(__name__)
Reply = TypeVar("Reply")


class ControlServicer(control_pb2_grpc.ControlServicer):
    """One method a call of the protocol."""

    def __init__(
        self,
        coordinator: Coordinator,
        look: Callable[[int, str, int, str], None],
        token: str,
        ends: threading.Event | None = None,
    ) -> None:
        """Once `ends` is set every caller is put off until the next master answers."""
        self._coordinator = coordinator
        self._ends = ends or threading.Event()
        self._look = look
        self._token = token

    def _answer(self, context: Any, call: Callable[[], Reply]) -> Reply:
        given = dict(context.invocation_metadata()).get("authorization", "")
        if self._token and not hmac.compare_digest(str(given).encode(), f"Bearer {self._token}".encode()):
            context.abort(
                grpc.StatusCode.UNAUTHENTICATED, "the token is missing or wrong; give both sides the same token file"
            )
        if self._ends.is_set():
            # Whoever ends together with this master, as in an upgrade, asks the next one whether it may: that one knows why.
            context.abort(grpc.StatusCode.UNAVAILABLE, "the master ends; ask again")
        try:
            return call()
        except sqlite3.OperationalError as failed:
            # Whoever calls has patience with a master that is away, and this is no more than that.
            context.abort(grpc.StatusCode.UNAVAILABLE, not_written(failed))
            raise
        except Exception as failed:
            log.exception("a call failed")
            context.abort(grpc.StatusCode.INTERNAL, f"the master failed: {failed}")
            raise

    def SyncPserver(self, request: control.PserverState, context: Any) -> control.PserverOrders:
        return self._answer(context, lambda: self._coordinator.sync_pserver(request))

    def JoinTrainer(self, request: control.JoinRequest, context: Any) -> control.JoinReply:
        return self._answer(context, lambda: self._coordinator.join(request.name, request.trainer_id, request.training))

    def ReportInitialised(self, request: control.Membership, context: Any) -> control.Acknowledgement:
        return self._answer(context, lambda: self._coordinator.initialised_by(request))

    def LeaseTask(self, request: control.LeaseRequest, context: Any) -> control.LeaseReply:
        return self._answer(context, lambda: self._coordinator.lease(request))

    def RenewLeases(self, request: control.RenewRequest, context: Any) -> control.Acknowledgement:
        return self._answer(context, lambda: self._coordinator.renew(request))

    def ReportTask(self, request: control.TaskResult, context: Any) -> control.Acknowledgement:
        return self._answer(context, lambda: self._coordinator.report(request))

    def ReportUnreachable(self, request: control.UnreachableReport, context: Any) -> control.Acknowledgement:
        def look() -> control.Acknowledgement:
            suspect = self._coordinator.unreachable(request)
            if suspect is not None:
                self._look(*suspect, request.reason)
            return control.Acknowledgement(rejoin=True, reason="the way to a pserver broke")

        return self._answer(context, look)

    def LeaveTrainer(self, request: control.Membership, context: Any) -> control.Acknowledgement:
        return self._answer(context, lambda: self._coordinator.leave(request))


def start_server(servicer: ControlServicer, host: str, port: int) -> grpc.Server:
    """Raises OSError naming the port if it is taken."""
    server = grpc.server(
        ThreadPoolExecutor(max_workers=32, thread_name_prefix="control"), options=[*OPTIONS, ("grpc.so_reuseport", 0)]
    )
    control_pb2_grpc.add_ControlServicer_to_server(servicer, server)
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as taken:
        raise OSError(f"{host}:{port} is in use; free it or set master.config.port") from taken
    if not bound:
        raise OSError(f"{host}:{port} is in use; free it or set master.config.port")
    server.start()
    return server
