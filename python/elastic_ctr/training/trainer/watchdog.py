"""A trainer's watchdog thread, which renews its leases and probes every pserver each half second.

If Paddle loses a pserver, it sleeps 300 s and then trains on an empty table without an error. So a trainer that cannot reach a
pserver exits at once and rejoins. The master decides what was lost.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.control.channel import MasterClient
from elastic_ctr.training.control.server_call import ping
from elastic_ctr.training.control.server_sockets import socket_name
from elastic_ctr.training.trainer.converted_files import on_scratch

log = logging.getLogger(__name__)

REJOIN = 75
_MISSES = 3
_PERIOD = 0.5


class ServerWatchdog(threading.Thread):
    """Runs beside the engine. It ends the process with REJOIN, or calls `end`, when the trainer is no longer a member.

    `held` are the attempts of leased tasks, `running` is the one being trained. `servers` are the addresses of the pservers, whose
    sockets are in `folder`. An address names one process, so no other one answers there.
    """

    def __init__(
        self,
        client: MasterClient,
        trainer_id: int,
        generation: int,
        servers: Sequence[str],
        folder: str,
        lease_seconds: float,
        held: Iterable[str] = (),
        running: str = "",
        end: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._client = client
        self._trainer_id = trainer_id
        self._generation = generation
        self._misses = dict.fromkeys(servers, 0)
        self._folder = Path(folder)
        self._lease_seconds = lease_seconds
        self._held = set(held)
        self._running = running
        self._over = False
        self._lock = threading.Lock()
        self._end = end or _end_process

    def state(self) -> dict[str, Any]:
        """Return the arguments, except the client and `end`, with which another process continues this watchdog."""
        with self._lock:
            return {
                "trainer_id": self._trainer_id,
                "generation": self._generation,
                "servers": list(self._misses),
                "folder": str(self._folder),
                "lease_seconds": self._lease_seconds,
                "held": sorted(self._held),
                "running": self._running,
            }

    @property
    def period(self) -> float:
        return min(_PERIOD, self._lease_seconds / 4)

    def hold(self, attempt: str) -> None:
        with self._lock:
            self._held.add(attempt)

    def release(self, attempt: str) -> None:
        with self._lock:
            self._held.discard(attempt)

    def release_all(self) -> None:
        """Drop all leases because the trainer leaves. The watchdog, even in a round under way, no longer ends the process."""
        with self._lock:
            self._held.clear()
            self._running = ""
            self._over = True

    def running(self, attempt: str) -> None:
        """Report that a task's training begins. Return when the master has the report, so before the first gradient is pushed."""
        with self._lock:
            self._running = attempt
        while attempt and not self._renew():
            time.sleep(self.period)

    def run(self) -> None:
        while True:
            began = time.monotonic()
            self.round()
            time.sleep(max(0.05, self.period - (time.monotonic() - began)))

    def round(self) -> None:
        if self._over:
            return
        self._look()
        self._renew()

    def _rejoin(self, reason: str) -> None:
        if not self._over:
            self._end(reason)

    def _renew(self) -> bool:
        """Renew the leases. Return False if the master did not answer."""
        with self._lock:
            held, running = sorted(self._held), self._running
        request = control.RenewRequest(
            trainer_id=self._trainer_id, generation=self._generation, attempts=held, running=running
        )
        try:
            answer = self._client.call_once("RenewLeases", request, timeout=5)
        except grpc.RpcError as failed:
            log.warning("the master did not take a renewal: %s", failed.code().name)
            return False
        with self._lock:
            # Ignore the answer if a lease was released meanwhile.
            still = set(held) <= self._held
        if answer.rejoin and still:
            self._rejoin(answer.reason)
        return True

    def _look(self) -> None:
        for index, server in enumerate(self._misses):
            try:
                ping(self._folder / socket_name(index))
            except OSError as failed:
                self._misses[server] += 1
                if self._misses[server] >= _MISSES:
                    self._unreachable(server, str(failed) or type(failed).__name__)
                continue
            self._misses[server] = 0

    def _unreachable(self, server: str, reason: str) -> None:
        report = control.UnreachableReport(
            trainer_id=self._trainer_id, generation=self._generation, server=server, reason=reason
        )
        try:
            self._client.call_once("ReportUnreachable", report, timeout=5)
        except grpc.RpcError as failed:
            log.warning("the master did not take the report: %s", failed.code().name)
        self._rejoin(f"{server}: {reason}")


@contextmanager
def delegated_to_parent(watchdog: ServerWatchdog, file: Path) -> Iterator[None]:
    """Let the supervisor run the watchdog from the state in `file`, because the engine may block the GIL, and with it all threads of this
    process. Raises ScratchFailed.
    """
    temporary = file.with_suffix(".part")
    with on_scratch(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(watchdog.state()))
        temporary.replace(file)
    try:
        yield
    finally:
        with on_scratch(file):
            file.unlink(missing_ok=True)


def _end_process(reason: str) -> None:
    log.warning("rejoining: %s", reason)
    logging.shutdown()
    # Not sys.exit: the engine's threads may never return from a call to a lost server.
    os._exit(REJOIN)
