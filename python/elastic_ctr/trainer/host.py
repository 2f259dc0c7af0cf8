"""What a trainer's machine is doing, told to a tracking server beside the training."""

import logging
import threading
import time

import psutil

from elastic_ctr.runtime.tracking import TrackingAway, TrackingServer

log = logging.getLogger(__name__)

_PERIOD = 15.0


class HostTracking:
    """A thread of the trainer's parent; the run is the master's to begin."""

    def __init__(self, server: TrackingServer, name: str, training: str, experiment: str) -> None:
        self._server = server
        self._name = name
        self._training = training
        self._experiment = experiment
        self._run: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="host", daemon=True)

    def start(self) -> "HostTracking":
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=10)
        self._server.close()

    def _go_on(self) -> None:
        while not self._stop.wait(_PERIOD):
            self.round()

    def round(self) -> None:
        """CPU of the machine, per cent of all its cores since the last round; memory of this pod's processes, bytes."""
        own = psutil.Process()
        memory = 0
        for each in (own, *own.children(recursive=True)):
            try:
                memory += each.memory_info().rss
            except psutil.NoSuchProcess:  # noqa: PERF203 (each may have ended)
                pass
        metrics = {
            f"host/{self._name}/cpu_percent": psutil.cpu_percent(),
            f"host/{self._name}/memory_bytes": float(memory),
        }
        try:
            if self._run is None:
                self._run = self._server.run_of(self._training, self._experiment, begin=False)
            if self._run is not None:
                self._server.log(self._run, metrics, int(time.time()))
        except TrackingAway as away:
            log.debug("%s", away)
