"""The master's reports to a tracking server: the settings once, each pass when it is done, and the end of the training."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from elastic_ctr.runtime.line_plot import line_plot
from elastic_ctr.runtime.mlflow import Reporter, TrackingServer, TrackingUnavailable
from elastic_ctr.runtime.status.master_status import PassStatus, TrainingStatus

log = logging.getLogger(__name__)

_PERIOD = 5.0


def numbers_of(one: PassStatus) -> dict[str, float]:
    """Return the metrics of a pass in the status: counts, quality before and after training (`auc/before`), seconds of each stage."""
    found = {"records": float(one.records), "refused": float(one.refused), "keys": float(one.keys)}
    for moment, figures in (("before", one.quality.before), ("after", one.quality.after)):
        known = {} if figures is None else figures.to_dict()
        found |= {f"{name}/{moment}": float(value) for name, value in known.items() if value is not None}
    return found | {f"seconds_{stage}": took for stage, took in one.seconds.items()}


def settings_of(given: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings with flat keys such as `model.table.embed.learningRate`."""
    flat: dict[str, Any] = {}
    for key, value in given.items():
        flat |= settings_of(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def pictures_of(status: TrainingStatus) -> dict[str, str]:
    """Return SVG documents by file name; {} before a pass with records is done."""
    if not status.curves:
        return {}
    last, done = status.curves[-1], status.done
    roc = {name: [(at / 100, rate) for at, rate in enumerate(each.roc)] for name, each in last.moments.items()}
    deciles = {
        name: [(decile.predicted_ctr, decile.observed_ctr) for decile in each.deciles]
        for name, each in last.moments.items()
    }
    aucs = {
        "before training": [(float(each.ordinal), each.auc_before) for each in done if each.auc_before is not None],
        "after training": [(float(each.ordinal), each.auc) for each in done if each.auc is not None],
    }
    return {
        "roc.svg": line_plot(
            f"ROC of pass {last.id}", "false positive rate", "true positive rate", roc, diagonal=True
        ),
        "calibration.svg": line_plot(
            f"Calibration of pass {last.id} by deciles of the score",
            "predicted CTR", "observed CTR", deciles, diagonal=True,
        ),
        "auc.svg": line_plot(f"AUC until pass {last.id}", "pass", "AUC", aucs),
    }  # fmt: skip


class Tracking(Reporter):
    """Reports the master's `status`, which `stop` reads for the last time."""

    def __init__(
        self,
        server: TrackingServer,
        training: str,
        experiment: str,
        settings: Mapping[str, Any],
        status: Callable[[], TrainingStatus],
    ) -> None:
        super().__init__(_PERIOD, self._send, server)
        self._training = training
        self._experiment = experiment
        self._settings = settings_of(settings)
        self._status = status
        self._run: str | None = None
        # (step, milliseconds) of the passes that the server has.
        self._known: set[tuple[int, int]] = set()
        self._ended = ""
        self._drawn: object = None

    def stop(self) -> None:
        """Report the rest and the end of the run. The caller may close the ledger afterwards, even if the server does not answer."""
        last = self._status()
        self._status = lambda: last
        super().stop()

    def _send(self) -> None:
        """Log the passes that the server lacks. A pass that was trained again after a recovery is logged again."""
        status = self._status()
        run, self._run = self._run, None
        ended = _ended(status, stopping=self.stopping)
        if run is None or (self._ended and not ended):
            run = self._server.run_of(self._training, self._experiment, begin=True)
            if run is None:
                return
            self._ended = ""
            try:
                self._server.log(run, {}, 0, self._settings)
            except TrackingUnavailable as refused:
                # The settings were logged before with other values; go on with the metrics.
                log.warning("%s; not all settings are logged", refused)
            self._known = self._server.history(run, "records")
        for one in status.done:
            assert one.done_at is not None
            mark = (one.ordinal, int(one.done_at * 1000))
            if mark not in self._known:
                self._server.log(run, numbers_of(one), one.ordinal, at=one.done_at)
                self._known.add(mark)
        if ended and ended != self._ended:
            self._server.end(run, ended)
            self._ended = ended
        # Set only now, so that after a failure the next report looks the run up anew: it may have been deleted.
        self._run = run
        self._draw(run, status)

    def _draw(self, run: str, status: TrainingStatus) -> None:
        """Upload plots, which replace those of the last pass."""
        drawn = status.curves[-1:], run
        if drawn == self._drawn:
            return
        for name, picture in pictures_of(status).items():
            self._server.put_artifact(run, name, picture.encode(), "image/svg+xml")
        self._drawn = drawn


def _ended(status: TrainingStatus, *, stopping: bool) -> str:
    """Return MLflow's status of the ended training, or "" while it goes on."""
    if status.finished:
        return "FINISHED"
    if not stopping:
        return ""
    return "FAILED" if status.current is not None and status.current.state == "stopped" else "KILLED"
