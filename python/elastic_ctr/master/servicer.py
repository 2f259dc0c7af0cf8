"""The master's gRPC server: checks the token, hands each call to the coordinator."""

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
from elastic_ctr.control.channel import MAX_MESSAGE, OPTIONS
from elastic_ctr.master.coordinator import Coordinator
from elastic_ctr.master.ledger import not_written

log = logging.getLogger(__name__)
Reply = TypeVar("Reply")

# The values of a sample's keys come with SyncPserver, scores and histograms with ReportTask.
_MOST_BYTES = {"SyncPserver": MAX_MESSAGE, "ReportTask": 64 << 20}
_SMALL_BYTES = 1 << 20


class Gate(grpc.ServerInterceptor):  # type: ignore[misc]  # grpc comes without types
    """Refuses callers without the token before their message is read, and large messages before they are parsed."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode() if token else None

    def intercept_service(self, continuation: Callable[[Any], Any], call: Any) -> Any:
        given = str(dict(call.invocation_metadata).get("authorization", "")).encode()
        if self._expected is not None and not hmac.compare_digest(given, self._expected):
            return _UNAUTHENTICATED
        handler = continuation(call)
        if handler is None:
            return None
        most = _MOST_BYTES.get(call.method.rpartition("/")[2], _SMALL_BYTES)

        def parse(message: bytes) -> Any:
            if len(message) > most:
                raise ValueError(f"{call.method} takes {most} bytes, not {len(message)}")
            return handler.request_deserializer(message)

        return grpc.unary_unary_rpc_method_handler(handler.unary_unary, parse, handler.response_serializer)


def _unauthenticated(_messages: Any, context: Any) -> None:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is missing or wrong; give both sides the same token file")


# As a stream of messages, which gRPC reads one at a time when asked: none is.
_UNAUTHENTICATED = grpc.stream_unary_rpc_method_handler(_unauthenticated)


class ControlServicer(control_pb2_grpc.ControlServicer):
    """One method a call of the protocol."""

    def __init__(
        self,
        coordinator: Coordinator,
        look: Callable[[int, str, int, str], None],
        token: str,
        ends: threading.Event | None = None,
    ) -> None:
        """Once `ends` is set, every call fails with UNAVAILABLE until the next master answers."""
        self._coordinator = coordinator
        self._ends = ends or threading.Event()
        self._look = look
        self.token = token

    def _answer(self, context: Any, call: Callable[[], Reply]) -> Reply:
        if self._ends.is_set():
            # A member that ends together with this master, as in an upgrade, must ask the next master whether it may.
            context.abort(grpc.StatusCode.UNAVAILABLE, "the master ends; ask again")
        try:
            return call()
        except sqlite3.OperationalError as failed:
            # Callers retry while the master is unavailable.
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
            return control.Acknowledgement(rejoin=True, reason="the connection to a pserver broke")

        return self._answer(context, look)

    def LeaveTrainer(self, request: control.Membership, context: Any) -> control.Acknowledgement:
        return self._answer(context, lambda: self._coordinator.leave(request))


def start_server(servicer: ControlServicer, host: str, port: int) -> grpc.Server:
    """Raises OSError naming the port if it is taken."""
    server = grpc.server(
        ThreadPoolExecutor(max_workers=32, thread_name_prefix="control"),
        options=[*OPTIONS, ("grpc.so_reuseport", 0)],
        interceptors=[Gate(servicer.token)],
    )
    control_pb2_grpc.add_ControlServicer_to_server(servicer, server)
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError:
        bound = 0
    if not bound:
        raise OSError(f"{host}:{port} is in use; free it or set master.config.port")
    server.start()
    return server
