"""The record of a search in Optuna's journal: the trials and their results. A later process can resume it."""

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from elastic_ctr.config.load import ConfigRefused
from elastic_ctr.config.model import Model
from elastic_ctr.config.training_settings import TrainerSettings
from elastic_ctr.jobs.tune.space import Candidate, Space

_NAME = "tune"
# Until this many trials are complete, none is pruned, and the sampler draws at random.
_STARTUP = 8
# Optuna's name for the values of an enqueued trial.
_PRESET = "fixed_params"
_BASELINE, _STOPPED = "baseline", "stopped"
_STATES = {TrialState.COMPLETE: "done", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


@dataclass(frozen=True)
class Result:
    """A trial that has ended. `found` has its figures, `reason` the cause of a failure."""

    number: int
    state: str
    is_baseline: bool
    candidate: Candidate
    found: dict[str, Any]
    seconds: float
    reason: str = ""

    @property
    def logloss(self) -> float:
        return float(self.found["logloss"])


class Study:
    """The study in a journal file. The constructor raises OSError if the journal cannot be written."""

    def __init__(self, journal: Path, space: Space, seed: int, *, by_epoch: bool) -> None:
        optuna.logging.set_verbosity(logging.WARNING)
        self._space = space
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # Networks have different settings: `group` samples each set separately. `constant_liar` assumes bad results for
            # running trials, so that concurrent trials differ.
            sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=_STARTUP, multivariate=True, group=True, constant_liar=True
            )
        self._study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(journal))),
            study_name=_NAME,
            sampler=sampler,
            # The first steps are no basis for pruning: in the first epochs, a larger learning rate only falls faster.
            pruner=optuna.pruners.MedianPruner(_STARTUP, n_warmup_steps=3 if by_epoch else 2),
            load_if_exists=True,
        )
        self._open: dict[int, optuna.Trial] = {}
        for trial in self._study.get_trials(states=(TrialState.RUNNING,)):
            # A running trial in the journal belongs to a process that was killed.
            self._study.tell(trial.number, state=TrialState.FAIL)

    def ask(self) -> tuple[int, Candidate]:
        """Return the next trial; the first one is the baseline. Raises ConfigRefused after recording the trial as failed."""
        runs = any(trial.user_attrs.get(_BASELINE) for trial in self._open.values())
        is_baseline = not runs and not any(each.is_baseline for each in self.results())
        trial = self._study.ask()
        try:
            # The baseline is not suggested, because the present values may lie outside of all ranges.
            candidate = self._space.base if is_baseline else self._space.suggest(trial)
        except ConfigRefused as wrong:
            self._describe(trial, self._space.base, is_baseline=False)
            self._open[trial.number] = trial
            self.failed(trial.number, str(wrong), 0)
            raise
        self._describe(trial, candidate, is_baseline=is_baseline)
        self._open[trial.number] = trial
        if is_baseline:
            if taken := self._study.trials[trial.number].system_attrs.get(_PRESET):
                # An earlier process was killed during the baseline, and this trial took one of its enqueued presets.
                self._study.enqueue_trial(taken)
            # Presets are enqueued after the first trial was taken, so that the baseline takes none of them.
            for preset in self._space.presets():
                self._study.enqueue_trial(preset, skip_if_exists=True)
        return trial.number, candidate

    def _describe(self, trial: optuna.Trial, candidate: Candidate, *, is_baseline: bool) -> None:
        trial.set_user_attr(_BASELINE, is_baseline)
        for name, section in (("model", candidate.model), ("trainer", candidate.trainer)):
            trial.set_user_attr(name, section.model_dump(mode="json", by_alias=True, exclude_unset=True))

    def is_hopeless(self, number: int, step: int, logloss: float) -> bool:
        """True if the trial is worse after this step than half of the others were. The baseline is always trained to the end."""
        trial = self._open[number]
        trial.report(logloss, step)
        return not trial.user_attrs[_BASELINE] and trial.should_prune()

    def done(self, number: int, found: dict[str, Any], seconds: float) -> None:
        self._end(number, TrialState.COMPLETE, seconds, found=found)

    def pruned(self, number: int, seconds: float) -> None:
        self._end(number, TrialState.PRUNED, seconds)

    def failed(self, number: int, reason: str, seconds: float) -> None:
        self._end(number, TrialState.FAIL, seconds, reason=reason)

    def stopped(self, number: int) -> None:
        """Record a trial that was stopped by Ctrl-C or for lack of time, which does not count."""
        self._end(number, TrialState.FAIL, 0, reason=_STOPPED)

    def _end(self, number: int, state: TrialState, seconds: float, **told: Any) -> None:
        trial = self._open.pop(number)
        for name, value in {**told, "seconds": seconds}.items():
            trial.set_user_attr(name, value)
        self._study.tell(trial, told["found"]["logloss"] if state == TrialState.COMPLETE else None, state=state)

    def results(self) -> list[Result]:
        """Return the trials that have ended, without those that were stopped."""
        return [
            _result(trial)
            for trial in self._study.get_trials(states=tuple(_STATES))
            if "model" in trial.user_attrs
            and "seconds" in trial.user_attrs
            and trial.user_attrs.get("reason") != _STOPPED
        ]


def _result(trial: FrozenTrial) -> Result:
    told = trial.user_attrs
    return Result(
        trial.number,
        _STATES[trial.state],
        bool(told[_BASELINE]),
        Candidate(Model.model_validate(told["model"]), TrainerSettings.model_validate(told["trainer"])),
        dict(told.get("found", {})),
        float(told["seconds"]),
        str(told.get("reason", "")),
    )


def best_first(results: Sequence[Result]) -> list[Result]:
    """Return the complete trials by rising logloss."""
    return sorted((each for each in results if each.state == "done"), key=lambda each: each.logloss)
