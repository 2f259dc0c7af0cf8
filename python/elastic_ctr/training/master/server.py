"""The master's process: its servers, its status and metrics, and the loop that finds passes and commits saves.

The gRPC server checks the caller's token and passes each call to the coordinator.
"""

import http.client
import logging
import math
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import grpc
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from elastic_ctr.config.data import Data
from elastic_ctr.config.feature_rules import input_of
from elastic_ctr.config.features import Features, Numeric
from elastic_ctr.config.model import Model, ModelInput, digest_of_model
from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.config.section import Section
from elastic_ctr.runtime.access import Access
from elastic_ctr.runtime.audit import AuditLog
from elastic_ctr.runtime.auth import Right
from elastic_ctr.runtime.http import HttpThread, RequestRefused, application, read_record
from elastic_ctr.runtime.lock import StateLock
from elastic_ctr.runtime.metrics import Metrics
from elastic_ctr.runtime.mlflow import TrackingServer
from elastic_ctr.runtime.status.master_status import TrainingStatus
from elastic_ctr.sources.streams.interface import Stream
from elastic_ctr.sources.tables.table_log import TableLog
from elastic_ctr.store.backends import Store, StoreError, open_store
from elastic_ctr.store.backends.address import tokens_for
from elastic_ctr.store.backends.source import Source
from elastic_ctr.store.versions.safeguards import read_refusals
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.control import control_pb2_grpc
from elastic_ctr.training.control.channel import MAX_MESSAGE, MAX_RESULT, OPTIONS
from elastic_ctr.training.master.coordinator import Coordinator
from elastic_ctr.training.master.generations.checkpoint_files import names_given
from elastic_ctr.training.master.generations.store_queries import StoreQueries
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.ledger.ledger_file import LEDGER, not_written
from elastic_ctr.training.master.metrics import MasterMetrics
from elastic_ctr.training.master.saves.publishing_hold import HoldAnnouncer
from elastic_ctr.training.master.tracking import Tracking
from elastic_ctr.training.master.training_status import status
from elastic_ctr.training.master.work import start_from
from elastic_ctr.training.master.work.finder import finder_of
from elastic_ctr.training.master.work.publisher import Publisher
from elastic_ctr.training.master.work.statistics import PassStatistics, pin_given

log = logging.getLogger(__name__)
Reply = TypeVar("Reply")

_DIGEST, _MODEL = "model and data.slots", "model"
_TICK = 0.1
_ASK_SECONDS = 2.0
_REFUSALS_SECONDS = 10.0
# SyncPserver has the values of a sample's keys, ReportTask has scores, histograms and statistics.
_MOST_BYTES = {"SyncPserver": MAX_MESSAGE, "ReportTask": MAX_RESULT}
_SMALL_BYTES = 1 << 20
# Threads of the gRPC server, and the most of them that block in a LeaseTask call without work.
_THREADS = 64
_MOST_HELD = 32
_LONGEST_HOLD = 2.0
# The most records that one order skips.
MOST_SKIPPED = 200
# Seconds between checks in a blocked call: some new work is not a write to the ledger, such as an expired lease.
_LOOK_AGAIN = 0.5


class SkippedRecord(Section):
    """The file or partition and the offset of a record, as in its quarantine or in the message of its pass."""

    path: str = Field(min_length=1, max_length=1 << 12)
    offset: int = Field(ge=0, lt=1 << 62)


class RetryOrder(Section):
    """The order to begin a stopped pass again, without these records."""

    pass_id: str = Field(alias="pass", max_length=40)
    skip: tuple[SkippedRecord, ...] = Field(default=(), max_length=MOST_SKIPPED)


def _facts_of_model(model: Model, given: ModelInput) -> dict[str, str]:
    """Return the settings that identify a model for operators; the digest only shows that it is another one."""
    return {
        "model.network": model.network.name,
        "model.embeddingDim": str(model.embedding_dim),
        "model.sparseDim": str(model.sparse_dim),
        "model.partitions": str(model.partitions),
        "model.output": str(model.output),
        "the slots": ", ".join(given.slots),
        "the numbers": ", ".join(given.numbers),
    }


def refuse_raw_numbers(ledger: Ledger, settings: MasterFile) -> None:
    """Raises ValueError if an earlier release, which did not standardize by default, trained the model on raw numbers."""
    known, features = ledger.facts.made_with, settings.features
    if known is None or features is None:
        return
    numbers = {name: each for name, each in features.root.items() if isinstance(each, Numeric)}
    names = [name for name, each in numbers.items() if each.transform is None]
    raw = {name: numbers[name].model_copy(update={"transform": ()}) for name in names}
    before = Features({**features.root, **raw})
    if names and known["model and data.slots"] == digest_of_model(settings.model, input_of(settings.data, before)):
        others = f"there, and in {', '.join(names[1:])}," if names[1:] else "there"
        raise ValueError(
            f"features.{names[0]} has no `transform`, which means standardized now, and this model was trained on the number as it is; write "
            f"`transform: []` {others} to go on as before, or begin with an empty state and store (another --dir)"
        )


def remember_settings(ledger: Ledger, data: Data, model: Model, given: ModelInput) -> None:
    """Record the settings that determine passes and table. Raises ValueError naming the key if one differs from the ledger's."""
    digest, facts = digest_of_model(model, given), _facts_of_model(model, given)
    now = {
        # The start of a table is in its place.
        "data.start": "" if data.is_table else data.start,
        "data.splitInterval": data.split_interval,
        "data.splitsPerPass": data.splits_per_pass,
        "data.path": data.path,
    }
    known = ledger.facts.made_with
    if known is None or known == {**now, _DIGEST: digest}:
        # A ledger of an earlier release only has the digest.
        ledger.set_facts(made_with={**now, _DIGEST: digest, _MODEL: facts})
        return
    for key, value in now.items():
        if known[key] != value:
            raise ValueError(
                f"{key} was {known[key]} when this ledger began and is {value} now: hours would be left out or trained twice, "
                "or another model trained on; put it back, or begin with an empty state and store (another --dir)"
            )
    if known[_DIGEST] != digest:
        before = known.get(_MODEL, {})
        changed = [f"{name} {before[name]} -> {fact}" for name, fact in facts.items() if before.get(name, fact) != fact]
        raise ValueError(
            f"{'; '.join(changed) or 'settings of the model or of its features'}: the ledger and the store are another model's, which is not "
            "trained on with these. Put the settings back; or begin with an empty state and store (another --dir), and with what the old "
            "model knows by model.startFrom"
        )


class Master:
    """The master. It owns the state directory; other roles call it by gRPC and HTTP."""

    def __init__(self, settings: MasterFile, *, source: Source | Stream | TableLog, store: Store) -> None:
        self._settings = settings
        self._data = settings.data
        self._config = config = settings.master
        self._finder = finder_of(source, settings)
        self._store = store
        audit = AuditLog("master", Path(config.state_dir))
        self._access = Access(settings.auth.rights(), audit)
        self._lock = StateLock(Path(config.state_dir))
        self._lock.acquire()
        self._ledger = Ledger(Path(config.state_dir) / LEDGER)
        try:
            # In one transaction, so that a refused start can be repeated with other settings.
            with self._ledger:
                self._begin()
        except (ValueError, StoreError):
            self._ledger.close()
            self._lock.release()
            raise
        self._queries = StoreQueries(store)
        self._coordinator = Coordinator(self._ledger, settings, self._queries)
        self._publisher = Publisher(self._coordinator, store, settings)
        self._hold = HoldAnnouncer(self._coordinator.lock, store)
        self._statistics = PassStatistics(self._coordinator, store, settings.features)
        self._copy_waits_for = ""
        self._error = ""
        self._refusals_at = -math.inf

    def _begin(self) -> None:
        """Check the settings against the ledger, or begin a new ledger. Raises ValueError with a message for operators, StoreError."""
        settings, ledger = self._settings, self._ledger
        refuse_raw_numbers(ledger, settings)
        remember_settings(ledger, self._data, settings.model, settings.input)
        self._start_ignored = ""
        wanted = settings.model.start_from
        if start_from.may_change(ledger.facts.started_from, wanted, self._store.url):
            assert wanted is not None
            start_from.begin_again(ledger, settings, self._store, self._other_store(wanted.store))
        elif ledger.facts.id:
            self._start_ignored = start_from.ignored(ledger, wanted, self._store.url)
            if self._start_ignored:
                log.warning("%s", self._start_ignored)
        else:
            self._finder.refuse_missing()
            self._store.verify()
            other = self._other_store(None if wanted is None else wanted.store)
            generation, begun = names_given({self._store, other})
            ledger.set_facts(id=uuid.uuid4().hex[:8], generation=generation, last_version=begun)
            if wanted is not None:
                start_from.begin(ledger, settings, self._store, other, generation)
        pin_given(ledger, self._store, settings.features, settings.statistics)

    def _other_store(self, url: str | None) -> Store:
        """Return the store of the model that this one starts from."""
        wanted = self._settings.model.start_from
        if url is None or url.rstrip("/") == self._store.url.rstrip("/"):
            return self._store
        own = self._settings.store
        other = own.elsewhere(url, own.user if wanted is None else wanted.user)
        return open_store(other, tokens=tokens_for(other, own, self._settings.auth.internal()))

    def _copy_start(self, stop: threading.Event) -> bool:
        """Copy the checkpoint that the model starts from, if that is not done. Return False if `stop` was set before the end."""
        started = self._ledger.facts.started_from
        if started is None or started.copied:
            return True

        def said(waits: str, error: str) -> None:
            self._copy_waits_for = waits
            self._waits(error)

        return self._start_copy(started.store, said).run(stop)

    def _start_copy(self, url: str, said: Callable[[str, str], None]) -> start_from.CheckpointCopy:
        wanted, other, scratch = self._settings.model.start_from, self._other_store(url), Path(self._config.state_dir)

        def choose_again() -> None:
            with self._coordinator.lock.writing() as ledger, ledger:
                start_from.begin_again(ledger, self._settings, self._store, other)
                pin_given(ledger, self._store, self._settings.features, self._settings.statistics)

        newest = wanted is not None and wanted.version == "latest"
        return start_from.CheckpointCopy(
            self._coordinator, self._store, other, scratch, said, choose_again if newest else None
        )

    def status(self) -> TrainingStatus:
        now = {
            "waits_for": self._copy_waits_for or self._finder.waits_for,
            "error": self._error,
            "late_files": self._finder.late,
            "stream": self._finder.status(),
            "archive": self._publisher.archiver and self._publisher.archiver.status,
        }
        present = {name: each for name, each in now.items() if each is not None}
        return status(self._coordinator, self._start_ignored).model_copy(update=present)

    def run(self, stop: threading.Event) -> int:
        """Run until `stop` is set. Return the exit code 0. Raises OSError if a port is taken."""
        metrics = Metrics("master")
        metrics.registry.register(MasterMetrics(self._coordinator, self._finder.lag, self._finder.away))
        app = application([Route("/retry", self._retry, methods=["POST"])], status=self.status, metrics=metrics)
        with ExitStack() as ends:
            ends.callback(self._lock.release)
            ends.callback(self._ledger.close)
            page = HttpThread(app, self._settings.host, self._config.status_port).start()
            ends.callback(page.stop)
            if not self._copy_start(stop):
                return 0
            server = start_server(
                ControlServicer(self._coordinator, self._ask, self._access, stop),
                self._settings.host,
                self._config.port,
            )
            ends.callback(lambda: server.stop(grace=1).wait())
            log.info("the ledger stands at generation %d", self._coordinator.generation)
            if (tracked := self._settings.tracking) is not None:
                told = self._settings.model_dump(mode="json", by_alias=True, include={"model", "trainer", "pservers"})
                told |= {"path": self._data.path, "start": self._data.start}
                tracking_server = TrackingServer(tracked.url)
                tracking = Tracking(tracking_server, self._settings.training, tracked.experiment, told, self.status)
                ends.callback(tracking.start().stop)
            self._publisher.begin()
            if (archiver := self._publisher.archiver) is not None:
                ends.enter_context(archiver.running(stop, metrics))
            while not stop.is_set():
                revision = self._coordinator.lock.revision
                if not self._turn():
                    self._coordinator.lock.wait_for_news(revision, _TICK)
        return 0

    def _turn(self) -> bool:
        """Run one turn of the loop. Return True if the next turn should follow at once."""
        try:
            self._coordinator.tick()
            for index, host, port in self._coordinator.silent_pservers():
                self._ask(index, host, port, "it is silent")
            while self._publisher.step() or self._statistics.step():
                pass
            self._find_hours()
            stopped = self._coordinator.stopped_pass()
            if stopped is not None and self._finder.is_changed(stopped):
                log.info("the files of pass %s were changed", stopped.id)
                self._coordinator.retry(stopped.id)
            now = time.monotonic()
            if now - self._refusals_at > _REFUSALS_SECONDS:
                self._refusals_at = now
                refused = read_refusals(self._store)
                with self._coordinator.lock.writing():
                    self._coordinator.planning.refused_versions(refused)
            self._hold.step()
            answered = self._queries.ask()
            self._waits(self._coordinator.save_waits)
        except (StoreError, ValueError) as failed:
            # The next turn tries the same step again.
            self._waits(str(failed))
        except sqlite3.OperationalError as failed:
            self._waits(not_written(failed))
        else:
            return answered
        return False

    def _waits(self, error: str) -> None:
        if error and error != self._error:
            log.warning("%s", error)
        self._error = error

    def _find_hours(self) -> None:
        wanted = self._coordinator.found.wants_hours()
        if wanted is None:
            self._finder.waits_for = ""
            self._finder.look_on(self._coordinator)
            return
        self._finder.find(self._coordinator, wanted)

    async def _retry(self, request: Request) -> Response:
        with self._access.audited(request, Right.OPERATE, "pass retry") as call:
            order = await read_record(request, RetryOrder, limit=_SMALL_BYTES)
            skip = [(each.path, each.offset) for each in order.skip]
            call.on = f"pass {order.pass_id}" + "".join(f", without {path}:{offset}" for path, offset in skip)
            if refused := await run_in_threadpool(self._coordinator.retry, order.pass_id, skip):
                raise RequestRefused(409, refused)
        return JSONResponse({"pass": order.pass_id})

    def _ask(self, index: int, host: str, port: int, reason: str) -> None:
        """Probe a pserver: only the master declares one lost, and only after its own probe."""
        try:
            connection = http.client.HTTPConnection(host, port, timeout=_ASK_SECONDS)
            connection.request("GET", "/healthz")
            well = connection.getresponse().status == http.HTTPStatus.OK
            connection.close()
            wrong = "" if well else "reports that it is not healthy"
        except (OSError, http.client.HTTPException) as failed:
            wrong = f"does not answer ({failed})"
        if wrong:
            self._coordinator.declare_lost(index, f"{reason}, and its supervisor {wrong}")


class Gate(grpc.ServerInterceptor):  # type: ignore[misc]  # grpc comes without types
    """Rejects callers without an internal token before their message is read, and large messages before they are parsed."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def intercept_service(self, continuation: Callable[[Any], Any], call: Any) -> Any:
        given = str(dict(call.invocation_metadata).get("authorization", ""))
        # An interceptor cannot see the caller's address.
        if self._access.name_of(given, Right.INTERNAL, call.method, "a member") is None:
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
    context.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        "the internal token is missing or wrong; give both sides the same auth.internalFile",
    )


# A streaming handler, because gRPC then reads messages only on request, and this handler requests none.
_UNAUTHENTICATED = grpc.stream_unary_rpc_method_handler(_unauthenticated)


class ControlServicer(control_pb2_grpc.ControlServicer):
    """The gRPC methods of the protocol."""

    def __init__(
        self,
        coordinator: Coordinator,
        look: Callable[[int, str, int, str], None],
        access: Access,
        ends: threading.Event | None = None,
    ) -> None:
        """Once `ends` is set, every call fails with UNAVAILABLE until the next master answers."""
        self._coordinator = coordinator
        self._ends = ends or threading.Event()
        self._held = threading.BoundedSemaphore(_MOST_HELD)
        self._look = look
        self.access = access

    def _answer(self, context: Any, call: Callable[[], Reply]) -> Reply:
        if self._ends.is_set():
            # In an upgrade members end together with this master, but must get the permission to leave from the next master.
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
        return self._answer(context, lambda: self._hold_lease(request, context.is_active))

    def _hold_lease(self, request: control.LeaseRequest, is_active: Callable[[], bool]) -> control.LeaseReply:
        """Return a lease, or wait for work first (long poll), so that trainers need not call ten times a second."""
        until = time.monotonic() + min(request.hold_seconds, _LONGEST_HOLD)
        revision = self._coordinator.lock.revision
        reply = self._coordinator.lease(request)
        if request.hold_seconds <= 0 or not self._held.acquire(blocking=False):
            return reply
        try:
            while reply.verdict == control.LeaseReply.WAIT and not self._ends.is_set():
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._coordinator.lock.wait_for_news(revision, min(left, _LOOK_AGAIN))
                # A trainer that has gone meanwhile must not get a task.
                if not is_active():
                    break
                revision = self._coordinator.lock.revision
                reply = self._coordinator.lease(request)
        finally:
            self._held.release()
        return reply

    def RenewLeases(self, request: control.RenewRequest, context: Any) -> control.Acknowledgement:
        return self._answer(context, lambda: self._coordinator.renew(request))

    def ReportTask(self, request: control.TaskResult, context: Any) -> control.Acknowledgement:
        return self._answer(context, lambda: self._take(request))

    def _take(self, result: control.TaskResult) -> control.Acknowledgement:
        answer = self._coordinator.report(result)
        if result.HasField("next") and not answer.rejoin:
            answer.next.CopyFrom(self._coordinator.lease(result.next))
        return answer

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
    """Start and return the gRPC server. Raises OSError naming the port if it is taken."""
    server = grpc.server(
        ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="control"),
        options=[*OPTIONS, ("grpc.so_reuseport", 0)],
        interceptors=[Gate(servicer.access)],
    )
    control_pb2_grpc.add_ControlServicer_to_server(servicer, server)
    try:
        bound = server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except RuntimeError:
        bound = 0
    if not bound:
        raise OSError(f"{host}:{port} is in use; free it or set master.config.port")
    server.start()
    return server
