"""Test of a user's network, as in training and serving: one batch, one export, one comparison."""

import json
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from elastic_ctr.config.feature_rules import input_of
from elastic_ctr.config.section import Section
from elastic_ctr.config.serving_settings import MAX_ABS_DIFF
from elastic_ctr.config.values_file import Values
from elastic_ctr.operate.local import network_trial
from elastic_ctr.operate.local.network_trial import SERVER
from elastic_ctr.runtime.child_process import end_child, how_it_ended, log_lines, python_module, start_child
from elastic_ctr.runtime.lifecycle import stop_on_signal

_SECONDS = 600.0
_POLL_SECONDS = 0.1
_BATCH = 512
"""Records of the batch where `trainer.config.batchSize` is auto."""


class CheckRefused(ValueError):
    """The network cannot be used; the text is one sentence."""


class Trial(Section):
    """The result of a check. Microseconds are per record on one thread, for training beside a parameter server and for serving."""

    parameters: list[dict[str, Any]]
    unchanged: list[str]
    records: int
    training_microseconds: float
    max_abs_diff: float
    prediction_microseconds: float

    @property
    def values(self) -> int:
        return sum(each["values"] for each in self.parameters)


def try_network(values: Values) -> Trial:
    """Check a network; only in the main thread. Raises CheckRefused, OSError, and KeyboardInterrupt at SIGINT and SIGTERM."""
    with stop_on_signal() as stop, TemporaryDirectory(prefix="elastic-ctr-network-") as name:
        folder = Path(name)
        spec = {
            "model": values.model.model_dump(mode="json", by_alias=True),
            "input": asdict(input_of(values.data, values.features)),
            "servers": 1,
        }
        with ExitStack() as ends:
            pserver = _start(
                "pserver",
                ["elastic_ctr.training.pserver.process"],
                {**spec, "index": 0, "scratch": f"{folder}/{SERVER}"},
                folder,
            )
            ends.callback(end_child, pserver)
            size = values.trainer.config.batch_size
            given = {**spec, "scratch": str(folder), "batchSize": _BATCH if size == "auto" else size}
            trained = _answer("train", given, folder, stop)
            found = _answer("serve", given, folder, stop)
    # The difference is NaN if serving's score of a row is.
    if not found["maxAbsDiff"] <= MAX_ABS_DIFF:
        raise CheckRefused(
            f"serving scores rows by {found['maxAbsDiff']:.1e} otherwise than training, above {MAX_ABS_DIFF:g}; the network must compute "
            "the same in both"
        )
    return Trial.model_validate({**trained, **found})


def _start(name: str, command: list[str], spec: dict[str, Any], folder: Path) -> "subprocess.Popen[bytes]":
    file = folder / f"{name}.json"
    file.write_text(json.dumps(spec))
    # Prints of the user's file go to stderr, because stdout is for the result.
    out = None if name == "pserver" else sys.__stderr__
    return start_child(python_module(*command, str(file)), log=folder / f"{name}.log", stdout=out)


def _answer(step: str, spec: dict[str, Any], folder: Path, stop: threading.Event) -> dict[str, Any]:
    """Run one step in its own process and return its answer. Raises CheckRefused, and KeyboardInterrupt once `stop` is set."""
    answer = folder / network_trial.ANSWER
    answer.unlink(missing_ok=True)
    does = {"train": "it was trained", "serve": "the exported network was loaded"}[step]
    process = _start(step, ["elastic_ctr.operate.local.network_trial", step], spec, folder)
    late = time.monotonic() + _SECONDS
    try:
        while (code := process.poll()) is None:
            if stop.wait(_POLL_SECONDS):
                raise KeyboardInterrupt
            if time.monotonic() > late:
                raise CheckRefused(f"it did not end within {_SECONDS:.0f} s while {does}")
    finally:
        end_child(process)
    if code or not answer.exists():
        lines = log_lines(folder / f"{step}.log") or ["it said nothing"]
        raise CheckRefused(f"the engine {how_it_ended(code)} while {does}: {lines[-1].strip()[:500]}")
    found: dict[str, Any] = json.loads(answer.read_text())
    if "refused" in found:
        raise CheckRefused(found["refused"])
    return found
