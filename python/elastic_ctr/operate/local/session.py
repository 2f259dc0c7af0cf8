"""One local run from start to end: it starts the roles, watches them, and predicts samples with each version that goes live."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from elastic_ctr.config.load import dump
from elastic_ctr.cube.release import ReleaseDocument
from elastic_ctr.operate.local.endpoints import EndpointUnavailable, predict, release_document, role_status
from elastic_ctr.operate.local.plan import HOST, RunPlaces, ports, roles
from elastic_ctr.operate.local.processes import Supervisor
from elastic_ctr.operate.local.report import SampleResult, SampleResults, build
from elastic_ctr.operate.local.run_folder import RunFolder
from elastic_ctr.runtime.documents import DocumentDamaged, read_document
from elastic_ctr.runtime.lifecycle import PortInUse, listen
from elastic_ctr.runtime.lock import StateLock
from elastic_ctr.runtime.status.master_status import TrainingStatus
from elastic_ctr.store.backends import StoreError, open_store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import ManifestDamaged
from elastic_ctr.store.versions.published_files import read_version
from elastic_ctr.training.model.evaluation import weighted_auc

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.25
# Looks take at most this share of time, because a look also costs the roles time, and the status of a stream has a thousand passes. A
# look also restarts processes, so the pause after a slow one is bounded.
_LOOK_SHARE, _LONGEST_PAUSE = 0.05, 2.0


class RunFailed(RuntimeError):
    """The run cannot reach its end; the text is the reason."""


class RoleRefused(RunFailed):
    """A role cannot run with its settings or on this machine."""


def find_ports_free(places: RunPlaces) -> None:
    """Raises PortInUse, with the name of the setting, if a port of the run is in use."""
    for setting, found in ports(places.values):
        for port in found:
            try:
                listen(HOST, port).close()
            except PortInUse as taken:  # noqa: PERF203 (a few dozen ports, once)
                raise PortInUse(
                    taken.errno,
                    f"{setting}: {taken.strerror}; `local.portBase`, 1000 higher, moves all ports of the run",
                ) from taken


class _Sample(BaseModel):
    """A sample line of a version, without the fields that only serving reads."""

    line: str
    show: int
    click: int
    published: float


def last_published(status: TrainingStatus) -> int | None:
    """Return the newest version that training has published."""
    return max((each.id for each in status.versions if each.state == "published"), default=None)


def failure(status: TrainingStatus | None, release: ReleaseDocument | None) -> str:
    """Return why training or its last version is stopped until an operator removes the cause; empty if neither is."""
    if status is None:
        return ""
    current = status.current
    if current is not None and current.state == "stopped":
        return f"pass {current.id} is stopped: {current.reason}"
    if not status.finished or release is None:
        return ""
    last = last_published(status)
    if last is None:
        wrong = [each for each in status.versions if each.state == "refused"]
        return f"no version was published: {wrong[-1].reason}" if wrong else ""
    refused = release.refused.get(last)
    return "" if refused is None else f"version {last} was refused: {refused}"


def has_come_to_its_end(status: TrainingStatus | None, release: ReleaseDocument | None) -> bool:
    """True once training has finished and the last version that it published is live."""
    if status is None or not status.finished or release is None or failure(status, release):
        return False
    return last_published(status) in (None, release.live)


def pause_of(status: TrainingStatus, release: ReleaseDocument | None) -> str:
    """Why the version of the last hour does not come by itself: a sentence; empty while it is on its way."""
    if release is not None and release.promotion_paused:
        return "promotion is paused: `elastic-ctr rollback --resume` lets the newest version go live"
    return f"the master waits for {status.waits_for}" if status.waits_for else ""


def troubles(status: TrainingStatus | None) -> list[str]:
    """Return errors that are retried, which explain why a run makes no progress."""
    if status is None:
        return []
    pservers = [f"pserver {each.index}: {each.error}" for each in status.pservers if each.error]
    return pservers if not status.error else [status.error, *pservers]


def pause_after(took: float) -> float:
    """Return the seconds from the end of a look that took `took` seconds to the next one."""
    return min(max(_LOOK_SECONDS, took / _LOOK_SHARE), _LONGEST_PAUSE)


def status_and_release(places: RunPlaces) -> tuple[TrainingStatus | None, ReleaseDocument | None]:
    """Return the master's status and cube-transfer's document; None for a role that does not answer."""
    status = release = None
    with suppress(EndpointUnavailable):
        status = role_status(TrainingStatus, places.info.master)
    with suppress(EndpointUnavailable):
        release = release_document(places.transfer)
    return status, release


class Session:
    """Owns the folder and the processes of a run."""

    def __init__(self, places: RunPlaces) -> None:
        self.places = places
        self._lock = StateLock(places.folder / "state")
        self.supervisor = Supervisor(places, list(roles(places)))
        self.seen: SampleResults = {}
        self.status: TrainingStatus | None = None
        self.release: ReleaseDocument | None = None
        self.run_folder = RunFolder(places.folder)
        self._info = places.info
        self.end_reason = "told to end"
        self._store = open_store(places.store)

    @contextmanager
    def running(self) -> Iterator["Session"]:
        """Run all roles within the block. Raises StateInUse, PortInUse, OSError, ValueError for a token file without tokens."""
        with self.run_folder.private(), self._lock:
            find_ports_free(self.places)
            self.run_folder.close_to_others()
            self._write_files()
            self.run_folder.write(self._info)
            try:
                self.supervisor.start()
                yield self
            except BaseException as failed:
                self.end_reason = str(failed) or type(failed).__name__
                raise
            finally:
                self.supervisor.stop()
                self._inform(ended_at=time.time(), ended=self.end_reason)

    def _inform(self, **changes: Any) -> None:
        self._info = replace(self._info, **changes)
        try:
            self.run_folder.write(self._info)
        except OSError as failed:
            # The disk is full; the roles continue without this file.
            log.warning("%s cannot be written: %s", self.run_folder.path, failed.strerror)

    def _write_files(self) -> None:
        self.run_folder.write_tokens()
        for role in self.supervisor.roles:
            file = self.places.config_file(role)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(dump(role.file))

    def look(self) -> None:
        """Watch the roles once."""
        self.supervisor.watch()
        status, release = status_and_release(self.places)
        # While a role restarts, its last answer is kept.
        self.status, self.release = status or self.status, release or self.release
        if (problems := [*self.problems(), *troubles(status)]) != self._info.problems:
            self._inform(problems=problems)
        if self.live is not None and self.live not in self.seen:
            self._ask_sample(self.live)

    @property
    def live(self) -> int | None:
        return None if self.release is None else self.release.live

    @property
    def candidate(self) -> int | None:
        return None if self.release is None else self.release.candidate

    def _ask_sample(self, version: int) -> None:
        """Predict the version's own sample lines; serving has the version once an answer names it."""
        try:
            manifest = read_version(self._store, version)
            samples = self._store.get_bytes(layout.sample_file(version)).splitlines()
            lines = [read_document(_Sample, line) for line in samples]
            model = self.places.values.serving.config.model_name
            probabilities, versions = predict(self.places.serving, model, [each.line for each in lines])
        except (EndpointUnavailable, StoreError, ManifestDamaged, DocumentDamaged) as closed:
            log.debug("version %d is not served yet: %s", version, closed)
            return
        if set(versions) != {version}:
            return
        differences = [abs(p - each.published) for p, each in zip(probabilities, lines, strict=True)]
        self.seen[version] = SampleResult(
            live_at=time.time(),
            samples=len(lines),
            max_abs_diff=max(differences, default=0.0),
            auc=weighted_auc(probabilities, [e.click for e in lines], [e.show for e in lines]),
            auc_published=manifest.auc_published,
        )

    def finished(self) -> bool:
        """True once the last version of the run is live and has answered."""
        status = self.status
        if status is None or not has_come_to_its_end(status, self.release):
            return False
        return self.live in self.seen or last_published(status) is None

    def problems(self) -> list[str]:
        """Return problems that an operator must solve: of the processes, of training, of the last version."""
        stands_still = failure(self.status, self.release)
        return [*self.supervisor.problems(), *([stands_still] if stands_still else [])]

    def report(self) -> dict[str, Any]:
        if self.status is None:
            raise RunFailed("the master never answered; its log says why")
        return build(self.status, self.live, self.seen, self.supervisor.restarts)

    def wait(self, stop: threading.Event, show: Callable[["Session"], None], *, keep: bool = False) -> bool:
        """Watch until the run is finished (return True) or `stop` is set (False). Raises RunFailed for a problem unless `keep`."""
        while not stop.is_set():
            began = time.monotonic()
            self.look()
            took = time.monotonic() - began
            show(self)
            if not keep:
                self.raise_for_problems()
            if self.finished():
                return True
            stop.wait(pause_after(took))
        return False

    def raise_for_problems(self) -> None:
        """Raises RunFailed or RoleRefused for a problem."""
        if wrong := self.supervisor.problems():
            raise RoleRefused("\n".join(wrong))
        if wrong := self.problems():
            raise RunFailed("\n".join(wrong))
