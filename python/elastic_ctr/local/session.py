"""One local run from start to end: start the roles, watch until the last hour is live, ask each version as it comes."""

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elastic_ctr.config.load import dump
from elastic_ctr.local.endpoints import EndpointUnavailable, ask, predict
from elastic_ctr.local.plan import HOST, Places, ports, roles
from elastic_ctr.local.report import Observed, SampleResult, build
from elastic_ctr.local.supervisor import Supervisor
from elastic_ctr.model.metrics import weighted_auc
from elastic_ctr.runtime.lifecycle import PortInUse, listen
from elastic_ctr.runtime.lock import StateLock
from elastic_ctr.store import StoreError, open_store
from elastic_ctr.versions import layout
from elastic_ctr.versions.manifest import ManifestDamaged, read_version

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.25


class RunFailed(RuntimeError):
    """The run cannot reach its end: why."""


class Session:
    """Owns the folder and the processes of a run."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._lock = StateLock(places.folder / "state")
        self.supervisor = Supervisor(places, list(roles(places)))
        self.seen = Observed()
        self.status: dict[str, Any] | None = None
        self.release: dict[str, Any] | None = None
        self._store = open_store(places.store_url, user=places.store.user)

    @contextmanager
    def running(self) -> Iterator["Session"]:
        """All roles, from their start to their end. Raises StateInUse, PortInUse, OSError."""
        with self._lock:
            self._find_doors_free()
            self._write_files()
            self.supervisor.start()
            try:
                yield self
            finally:
                self.supervisor.stop()

    def _find_doors_free(self) -> None:
        """Before anything is started. Raises PortInUse naming the setting."""
        for setting, found in ports(self.places.values):
            for port in found:
                try:
                    listen(HOST, port).close()
                except PortInUse as taken:  # noqa: PERF203 (a few dozen ports, once)
                    raise PortInUse(f"{setting}: {taken.strerror}") from taken

    def _write_files(self) -> None:
        token = self.places.token_file
        token.parent.mkdir(parents=True, exist_ok=True)
        if not token.exists():
            token.touch(mode=0o600)
            token.write_text(secrets.token_urlsafe(32) + "\n")
        for role in self.supervisor.roles:
            file = self.places.config_file(role)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(dump(role.file))

    # -- looking ---------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """One round of watching. Raises RoleRefused."""
        self.supervisor.watch()
        try:
            self.status = ask(f"{self.places.master_status}/status")
        except EndpointUnavailable:
            pass  # It restarts, or has not started: the last known status stays.
        try:
            self.release = ask(f"http://{self.places.transfer}/release")
        except EndpointUnavailable:
            pass
        live = self.live
        if live is not None and live not in self.seen.asked:
            self._ask_sample(live)

    @property
    def live(self) -> int | None:
        return None if self.release is None else self.release.get("live")

    def _ask_sample(self, version: int) -> None:
        """The version's own sample lines, through the front door; served once the answer names the version."""
        try:
            manifest = read_version(self._store, version)
            lines = [json.loads(line) for line in self._store.get_bytes(layout.sample_file(version)).splitlines()]
            probabilities, versions = predict(
                self.places.serving, self.places.values.serving.config.model_name, [each["line"] for each in lines]
            )
        except (EndpointUnavailable, StoreError, ManifestDamaged) as closed:
            log.debug("version %d is not served yet: %s", version, closed)
            return
        if set(versions) != {version}:
            return
        self.seen.live_at[version] = time.time()
        differences = [abs(p - each["published"]) for p, each in zip(probabilities, lines, strict=True)]
        self.seen.asked[version] = SampleResult(
            samples=len(lines),
            max_abs_diff=max(differences, default=0.0),
            auc=weighted_auc(probabilities, [e["click"] for e in lines], [e["show"] for e in lines]),
            auc_published=manifest.auc_published,
        )

    # -- judging ---------------------------------------------------------------------------------------------------

    def finished(self) -> bool:
        """The last version there will be is live and has answered. Raises RunFailed when that cannot happen."""
        status, release = self.status, self.release
        if status is None:
            return False
        current = status["current"]
        if current is not None and current["state"] == "stopped":
            raise RunFailed(f"pass {current['pass']} is stopped: {current['reason']}")
        if not status["finished"] or release is None:
            return False
        published = [each["id"] for each in status["versions"] if each["state"] == "published"]
        refused = {int(version): reason for version, reason in (release.get("refused") or {}).items()}
        if not published:
            wrong = [each for each in status["versions"] if each["state"] == "refused"]
            if wrong:
                raise RunFailed(f"no version was published: {wrong[-1]['reason']}")
            return True
        last = max(published)
        if last in refused:
            raise RunFailed(f"version {last} was refused: {refused[last]}")
        return self.live == last and last in self.seen.asked

    def report(self) -> dict[str, Any]:
        if self.status is None:
            raise RunFailed("the master never answered; its log says why")
        return build(self.status, self.live, self.seen, self.supervisor.restarts)

    def wait(self, stop: threading.Event, show: Callable[["Session"], None]) -> bool:
        """Until finished (True) or told to stop (False). Raises RunFailed, RoleRefused."""
        while not stop.is_set():
            self.look()
            show(self)
            if self.finished():
                return True
            stop.wait(_LOOK_SECONDS)
        return False


def write_report(path: Path, report: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(path.suffix + ".part")
    temporary.write_text(json.dumps(report, indent=1) + "\n")
    temporary.replace(path)
