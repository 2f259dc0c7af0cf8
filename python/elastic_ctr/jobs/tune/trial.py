"""The process of a trial: it trains the passes as a training would, beside one parameter server, and predicts validation records.

    python -m elastic_ctr.jobs.tune.trial SPEC.json

Every line that it prints is a JSON object: `{"step": …, "logloss": …, "auc": …}` after a pass or an epoch, at the end
`{"found": {…}}`, or `{"failed": SENTENCE}`. The parameter server ends with this process.
"""

import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from elastic_ctr.config.model import Model, ModelInput
from elastic_ctr.config.section import Section
from elastic_ctr.config.training_settings import TrainerSettings
from elastic_ctr.jobs.tune.passes import ConvertedPiece, Hours, TrainedPass
from elastic_ctr.runtime.child_process import end_child, log_lines, python_module, start_child
from elastic_ctr.store.versions.manifest import Quality
from elastic_ctr.training.control.server_call import ping
from elastic_ctr.training.control.server_sockets import address_on_this_machine, link_sockets, socket_name
from elastic_ctr.training.master.passes import learning
from elastic_ctr.training.model.evaluation import BUCKETS, Histograms, quality_of_histogram
from elastic_ctr.training.model.program import prepare_environment
from elastic_ctr.training.trainer.converted_files import parts_of
from elastic_ctr.training.trainer.engine import Engine, EngineBroken

_START_SECONDS = 120


class TrialSpec(Section):
    """The task of a trial.

    Attributes:
        input: the network's inputs.
        evaluates: each pass is predicted after it is trained, for the shift.
        holds_out: data.holdout is above 0.
        hours: the file of `Hours`, with its pieces in the same folder.
        folder: the scratch folder of this trial.
    """

    model: Model
    trainer: TrainerSettings
    input: ModelInput
    evaluates: bool
    holds_out: bool
    hours: str
    folder: str


class TrialFailed(RuntimeError):
    """A trial cannot continue; the text is a sentence."""


class TrialTraining:
    """Follows `training.master.passes.epochs`: the same batches, epochs, offset and shift."""

    def __init__(self, engine: Engine, spec: TrialSpec, hours: Hours, say: Any) -> None:
        self._engine = engine
        self._spec = spec
        self._hours = hours
        self._folder = Path(spec.hours).parent
        self._say = say
        self._offset: float | None = None
        self._shift = 0.0
        self._steps = 0

    def run(self) -> Quality:
        by_epoch = len(self._hours.passes) == 1
        for one in self._hours.passes:
            self._train(one, by_epoch=by_epoch)
            found = self._validated()
            if not by_epoch:
                self._tell(found)
        return found

    def _train(self, one: TrainedPass, *, by_epoch: bool) -> None:
        trainer, stops_by_held_out = self._spec.trainer, self._spec.holds_out and self._spec.trainer.epochs == "auto"
        before = None
        if stops_by_held_out:
            found = quality_of_histogram(*self._predicted(one.pieces, "held", self._shift))
            before = None if found is None else found.logloss
        if self._offset is None:
            self._offset = learning.log_odds(one.clicks, one.shows)
        losses: list[float | None] = [before]
        after: Histograms | None = None
        while learning.goes_on(trainer, one.records, losses, clicks=one.clicks):
            size = learning.batch_size(trainer, one.records, len(losses), clicks=one.clicks)
            for dataset in self._loaded(one.pieces, "trained", size):
                self._engine.set_offset(self._offset)
                self._engine.train(dataset)
                dataset.release_memory()
            self._engine.flush()
            if by_epoch:
                self._tell(self._validated(calibrated_by_itself=True))
            after = self._predicted(one.pieces, "held", 0.0) if stops_by_held_out else None
            judged = None
            if after is not None and after[0].sum() + after[1].sum():
                shift = learning.calibrating_shift(*after, before=self._shift)
                judged = quality_of_histogram(*after, shift=shift)
            losses.append(None if judged is None else judged.logloss)
        if self._spec.evaluates or self._spec.holds_out:
            histograms = after or self._predicted(one.pieces, "held" if self._spec.holds_out else "all", 0.0)
            if histograms[0].sum() + histograms[1].sum():
                self._shift = learning.calibrating_shift(*histograms, before=self._shift)
        if one.ends_day:
            self._engine.shrink()

    def _validated(self, *, calibrated_by_itself: bool = False) -> Quality:
        """Return the quality of the version at this point; between epochs there is no shift yet, so the best shift is used."""
        histograms = self._predicted(self._hours.validation, "all", 0.0)
        shift = learning.calibrating_shift(*histograms) if calibrated_by_itself else self._shift
        found = quality_of_histogram(*histograms, shift=shift)
        if found is None or not math.isfinite(found.logloss):
            raise TrialFailed("the training diverged: a prediction is not a number")
        return found

    def _tell(self, found: Quality) -> None:
        self._steps += 1
        self._say({"step": self._steps, "logloss": found.logloss, "auc": found.auc})

    def _predicted(self, pieces: Sequence[ConvertedPiece], part: str, shift: float) -> Histograms:
        positives, negatives = np.zeros(BUCKETS), np.zeros(BUCKETS)
        for dataset in self._loaded(pieces, part, 512):
            self._engine.set_offset((self._offset or 0.0) + shift)
            found = self._engine.predict(dataset)
            dataset.release_memory()
            positives, negatives = positives + found[0], negatives + found[1]
        return positives, negatives

    def _loaded(self, pieces: Sequence[ConvertedPiece], part: str, batch_size: int) -> Iterator[Any]:
        """Yield the datasets of pieces that have records; the next one is read while one is used."""
        waiting: list[tuple[Any, int]] = []
        for piece in pieces:
            file, records = self._part_of(piece, part)
            if records:
                waiting.append((self._engine.preload(file, batch_size), records))
            if len(waiting) == 2:
                yield self._engine.ready(*waiting.pop(0))
        for each in waiting:
            yield self._engine.ready(*each)

    def _part_of(self, piece: ConvertedPiece, part: str) -> tuple[Path, int]:
        file = self._folder / piece.file
        if part == "all" or not self._spec.holds_out:
            return file, piece.records
        parts = parts_of(file)
        return (parts.held_out, piece.held_out) if part == "held" else (parts.trained, piece.records - piece.held_out)


class TrialPserver:
    """The parameter server of a trial, which starts while this process imports Paddle."""

    def __init__(self, spec: TrialSpec, folder: Path) -> None:
        scratch, file = folder / "pserver", folder / "pserver.json"
        self.socket = (scratch / socket_name(0)).absolute()
        told = {
            "model": spec.model.model_dump(mode="json", by_alias=True), "input": asdict(spec.input),
            "servers": 1, "index": 0, "scratch": str(scratch),
        }  # fmt: skip
        file.write_text(json.dumps(told))
        self._log = folder / "pserver.log"
        command = python_module("elastic_ctr.training.pserver.process", str(file))
        self._process = start_child(command, log=self._log)

    def wait_until_it_answers(self) -> None:
        """Wait for the first answer. Raises TrialFailed."""
        ends = time.monotonic() + _START_SECONDS
        while self._process.poll() is None and time.monotonic() < ends:
            with suppress(OSError):
                ping(self.socket)
                return
            time.sleep(0.05)
        end_child(self._process)
        raise TrialFailed(f"the parameter server does not start: {last_line(self._log)}")

    def wait_until_it_ends(self) -> str:
        """Wait for the end of the parameter server and return it as a sentence."""
        self._process.wait()
        return f"the parameter server has ended: {last_line(self._log)}"


def last_line(file: Path) -> str:
    """Return the last line of a log that names an error, else the last line. Paddle prints advice and a signal after its error."""
    lines = [line.strip() for line in log_lines(file) if line.strip()]
    named = [line for line in lines if "Error: " in line]
    return (named or lines or ["it says nothing"])[-1][:300]


def main() -> None:
    """Run the trial. Ends the process."""
    spec = TrialSpec.model_validate_json(Path(sys.argv[1]).read_text())
    # Keep the real stdout for events, because Paddle prints to stdout at every dataset run.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(line: dict[str, Any]) -> None:
        out.write(json.dumps(line) + "\n")

    code = 1
    try:
        folder = Path(spec.folder)
        server = TrialPserver(spec, folder)
        prepare_environment(folder / "engine")
        import paddle  # noqa: F401 (both processes import it at the same time)

        server.wait_until_it_answers()
        link_sockets([address_on_this_machine(server.socket)], Path())

        def watch() -> None:
            # Without its server, Paddle waits for minutes and then trains with garbage.
            say({"failed": server.wait_until_it_ends()})
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()
        engine = Engine(
            spec.model, spec.input, 1,
            threads=spec.trainer.threads, gradient_merge=spec.trainer.gradient_merge,
        )  # fmt: skip
        engine.connect(1)
        engine.initialise()
        found = TrialTraining(engine, spec, Hours.model_validate_json(Path(spec.hours).read_text()), say).run()
        figures = {name: getattr(found, name) for name in ("logloss", "auc", "calibration", "shows", "clicks")}
        say({"found": figures})
        code = 0
    except Exception as failed:  # noqa: BLE001 (whatever ends a trial is its result)
        known = isinstance(failed, TrialFailed | EngineBroken)
        say({"failed": f"{failed}" if known else f"{type(failed).__name__}: {failed}"[:500]})
    # Exit at once, because Paddle's threads crash in a regular interpreter shutdown.
    os._exit(code)


if __name__ == "__main__":
    main()
