"""The pool of trials, with a process that says what a trial says."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("optuna", reason="make setup-dev installs it")
from elastic_ctr.config.training_settings import TrainerSettings
from elastic_ctr.jobs.tune import pool as module
from elastic_ctr.jobs.tune.pool import Step, TrialPool
from elastic_ctr.jobs.tune.space import Candidate
from jobs.tune.test_space import space_of

_TWO_STEPS = """
import sys, time
sys.stdout.write('{"step": 1, "logloss": 0.9}\\n{"step": 2, "logloss": 0.8}\\n')
sys.stdout.flush()
time.sleep(60)
"""


class _Template:
    """Of a trial's settings, which this process does not read."""

    def model_copy(self, *, update: dict[str, Any]) -> Any:  # noqa: ARG002 (as pydantic's)
        return SimpleNamespace(model_dump_json=lambda **_: "{}")


def test_a_trial_stopped_at_its_first_step_says_nothing_of_a_second_one_that_came_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate = Candidate(space_of({}).base.model, TrainerSettings())
    with TrialPool(_Template(), tmp_path, 1, 60.0, keep=False) as pool:  # type: ignore[arg-type]
        with monkeypatch.context() as patched:
            patched.setattr(module, "python_module", lambda *_: [sys.executable, "-c", _TWO_STEPS])
            pool.start("3", candidate)
        said: list[object] = []
        while not said:
            for step in pool.wait():
                said.append(step)
                pool.stop("3")

    assert said == [Step("3", 1, 0.9)]
