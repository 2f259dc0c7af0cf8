"""What the master tells a tracking server: the settings once, and each pass when it is done."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from elastic_ctr.runtime.tracking import TrackingAway, TrackingServer

log = logging.getLogger(__name__)

_PERIOD = 5.0
_NUMBERS = {"records": "records", "refused": "refused", "keys": "keys", "aucBefore": "auc_before", "auc": "auc"}


def numbers_of(one: Mapping[str, Any]) -> dict[str, float]:
    """Metrics of a pass as its status shows it: counts, AUC before and after, seconds of each stage."""
    found = {name: float(one[key]) for key, name in _NUMBERS.items() if one[key] is not None}
    return found | {f"seconds_{stage}": float(took) for stage, took in one["seconds"].items()}


def settings_of(given: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings, flat: `model.table.embed.learningRate`."""
    flat: dict[str, Any] = {}
    for key, value in given.items():
        flat |= settings_of(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


class Tracking:
    """A thread beside the master: nothing it does, or fails to do, is waited for."""

    def __init__(
        self,
        server: TrackingServer,
        training: str,
        experiment: str,
        settings: Mapping[str, Any],
        passes: Callable[[], list[dict[str, Any]]],
    ) -> None:
        self._server = server
        self._training = training
        self._experiment = experiment
        self._settings = settings_of(settings)
        self._passes = passes
        self._told: dict[str, str] = {}
        self._run: str | None = None
        self._away = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="tracking", daemon=True)

    def start(self) -> "Tracking":
        self._thread.start()
        return self

    def stop(self) -> None:
        """Say what is left to say, once, and end."""
        self._stop.set()
        self._thread.join(timeout=10)
        self._server.close()

    def _go_on(self) -> None:
        ended = False
        while not ended:
            ended = self._stop.wait(_PERIOD)
            self.round()

    def _say_settings(self) -> None:
        if self._run is not None:
            try:
                self._server.log(self._run, {}, 0, self._settings)
            except TrackingAway as refused:
                # Said before with other values: the numbers are worth having all the same.
                log.warning("%s; its settings are not all told", refused)

    def round(self) -> None:
        """Tell what has not been told. A pass that was rolled back and trained again is told again."""
        try:
            if self._run is None:
                self._run = self._server.run_of(self._training, self._experiment, begin=True)
                self._say_settings()
            for one in self._passes():
                told = f"{one['doneAt']}"
                if self._run is not None and one["state"] == "done" and self._told.get(one["pass"]) != told:
                    self._server.log(self._run, numbers_of(one), one["ordinal"])
                    self._told[one["pass"]] = told
            self._away = ""
        except TrackingAway as away:
            if str(away) != self._away:
                log.warning("%s; training goes on without it", away)
            self._away = str(away)
