"""Reports the load of a trainer's machine to the tracking server."""

import time

import psutil

from elastic_ctr.runtime.mlflow import Reporter, TrackingServer

_PERIOD = 15.0


class HostMetrics(Reporter):
    """A reporter in the trainer's supervisor. It waits for the master to begin the run."""

    def __init__(self, server: TrackingServer, name: str, training: str, experiment: str) -> None:
        super().__init__(_PERIOD, self._send, server)
        self._name = name
        self._training = training
        self._experiment = experiment
        self._run: str | None = None

    def _send(self) -> None:
        """Report the machine's CPU in per cent of all cores since the last report, and the bytes of this pod's processes."""
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
        run, self._run = self._run, None
        if run is None:
            run = self._server.run_of(self._training, self._experiment, begin=False)
        if run is not None:
            self._server.log(run, metrics, int(time.time()))
        # Kept only after a success, so that a deleted run is looked up again.
        self._run = run
