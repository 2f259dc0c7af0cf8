"""Trials as processes: a limited number at once, each with a time limit; all of them end with this process."""

import json
import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import Self

from elastic_ctr.jobs.tune.space import Candidate
from elastic_ctr.jobs.tune.trial import TrialSpec, last_line
from elastic_ctr.runtime.child_process import children_without_interrupts, how_it_ended, python_module, start_child

_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Step:
    """A pass or an epoch of a trial is validated."""

    trial: str
    number: int
    logloss: float


@dataclass(frozen=True)
class Ended:
    """A trial has ended: its result, or the sentence of its failure."""

    trial: str
    found: dict[str, Any] | None
    failed: str
    seconds: float


@dataclass
class _RunningTrial:
    process: "subprocess.Popen[bytes]"
    folder: Path
    began: float
    text: bytes = b""
    found: dict[str, Any] | None = None
    failed: str = ""

    def take(self, trial: str, chunk: bytes) -> Iterator[Step]:
        *lines, self.text = (self.text + chunk).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "step" in said:
                yield Step(trial, said["step"], said["logloss"])
            self.found, self.failed = said.get("found", self.found), said.get("failed", self.failed)


class TrialPool:
    """Only the thread that created the pool may use it, because the kernel ends the trials with that thread."""

    def __init__(self, template: TrialSpec, folder: Path, places: int, longest_seconds: float, *, keep: bool) -> None:
        self._template = template
        self._folder = folder
        self._places = places
        self._longest = longest_seconds
        self._keep = keep
        self._running: dict[str, _RunningTrial] = {}
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for trial in [*self._running]:
            self.stop(trial)
        self._selector.close()

    @property
    def running(self) -> list[str]:
        return [*self._running]

    @property
    def has_place(self) -> bool:
        return len(self._running) < self._places

    def start(self, trial: str, candidate: Candidate) -> None:
        folder = self._folder / trial
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        spec = self._template.model_copy(
            update={"model": candidate.model, "trainer": candidate.trainer, "folder": str(folder)}
        )
        (folder / "spec.json").write_text(spec.model_dump_json(by_alias=True))
        with children_without_interrupts():
            process = start_child(
                python_module("elastic_ctr.jobs.tune.trial", str(folder / "spec.json")),
                log=folder / "log",
                stdout=subprocess.PIPE,
            )
        assert process.stdout is not None
        self._running[trial] = _RunningTrial(process, folder, time.monotonic())
        self._selector.register(process.stdout, selectors.EVENT_READ, trial)

    def wait(self) -> Iterator[Step | Ended]:
        """Yield the events of the next half second. A trial that is stopped meanwhile has no further events."""
        for key, _ in self._selector.select(_LOOK_SECONDS):
            trial = key.data
            if trial not in self._running:
                continue
            running = self._running[trial]
            chunk = os.read(key.fd, 1 << 16)
            for step in running.take(trial, chunk):
                yield step
                if trial not in self._running:
                    break
            if not chunk and trial in self._running:
                yield self._ended(trial)
        for trial, running in [*self._running.items()]:
            if time.monotonic() - running.began > self._longest:
                running.failed = f"it took longer than {self._longest / 60:g} minutes"
                running.found = None
                running.process.kill()
                yield self._ended(trial)

    def stop(self, trial: str) -> Ended:
        self._running[trial].process.kill()
        return self._ended(trial)

    def _ended(self, trial: str) -> Ended:
        running = self._running.pop(trial)
        assert running.process.stdout is not None
        self._selector.unregister(running.process.stdout)
        running.process.stdout.close()
        code = running.process.wait()
        failed = running.failed
        if running.found is None and not failed:
            failed = f"its process {how_it_ended(code)}: {last_line(running.folder / 'log')}"
        if not self._keep:
            shutil.rmtree(running.folder, ignore_errors=True)
        return Ended(trial, running.found if not failed else None, failed, time.monotonic() - running.began)
