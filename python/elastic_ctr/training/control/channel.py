"""The gRPC channel between the master and its trainers and pservers."""

import os
import time
from collections.abc import Callable
from typing import Any

import grpc

from elastic_ctr.runtime.auth import Tokens, bearer
from elastic_ctr.training.control import control_pb2_grpc

# Far above the published values of the largest sample, 65,536 lines of 300 slots.
MAX_MESSAGE = 512 << 20
# For a task's result, with histograms, scores and column statistics.
MAX_RESULT = 64 << 20
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    # Calls between roles must not go through a company's web proxy.
    ("grpc.enable_http_proxy", 0),
]
# Calls under way to a master that ends get CANCELLED.
_PATIENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


class MasterClient:
    """A channel to the master. `call` retries while the master is unavailable; `call_once` does not."""

    def __init__(self, address: str, tokens: Tokens | None) -> None:
        # By default gRPC polls a broken channel every 5 s, so a client reaches a restarted master 5 to 10 s late, which is as long
        # as a lease. gRPC reads this when the first channel is made.
        os.environ.setdefault("GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS", "250")
        # The minimal backoff is also the timeout of one attempt to connect. Its default of 20 s is too long while DNS still has
        # the address of a deleted pod, which never answers.
        options = [
            *OPTIONS,
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 2000),
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        self._channel = grpc.insecure_channel(address, options=options)
        self._stub = control_pb2_grpc.ControlStub(self._channel)
        self._tokens = tokens

    def call_once(self, method: str, request: Any, timeout: float = 10) -> Any:
        """Call a method once and return the reply. Raises grpc.RpcError."""
        return getattr(self._stub, method)(request, timeout=timeout, metadata=tuple(bearer(self._tokens).items()))

    def call(self, method: str, request: Any, *, give_up: Callable[[], bool] = lambda: False) -> Any:
        """Call a method with retries while the master is unreachable. Return None when `give_up()` is True."""
        while not give_up():
            try:
                return self.call_once(method, request)
            except grpc.RpcError as failed:  # noqa: PERF203 (trying again is what it is for)
                if failed.code() not in _PATIENT:
                    raise
                time.sleep(0.2)
        return None

    def close(self) -> None:
        self._channel.close()


class ForeignMasterGrace:
    """The time for which a pod retries before it follows an order to leave from a master of another training.

    That master may be about to be replaced, and the pod may belong to the new training. If it ended, its Job would be complete
    before it began, and Kubernetes never restarts a completed Job.
    """

    SECONDS = 60.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._foreign_since: float | None = None

    def may_end(self, *, wrong_training: bool) -> bool:
        """True if an order to leave is to be followed. Call it with every answer."""
        if not wrong_training:
            self._foreign_since = None
            return True
        if self._foreign_since is None:
            self._foreign_since = self._clock()
        return self._clock() - self._foreign_since >= self.SECONDS
