"""The search: trials until there are enough or the time is over, then the best ones again with another seed."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from elastic_ctr.config.load import ConfigRefused
from elastic_ctr.jobs.tune.passes import SearchFailed
from elastic_ctr.jobs.tune.pool import Ended, Step, TrialPool
from elastic_ctr.jobs.tune.space import Candidate
from elastic_ctr.jobs.tune.study import Result, Study, best_first

# Trials that are trained again with another seed, besides the baseline.
CHECKED = 3
# The search fails after so many refused suggestions in a row.
_MOST_REFUSED = 50


@dataclass(frozen=True)
class CheckedTrial:
    """A trial, and its result with another seed; None if that was not trained to the end."""

    result: Result
    again: dict[str, Any] | None = None

    @property
    def logloss(self) -> float:
        """The mean logloss of both seeds."""
        return self.mean("logloss")

    def mean(self, figure: str) -> float:
        figures = [self.result.found, *([] if self.again is None else [self.again])]
        return sum(float(each[figure] or 0) for each in figures) / len(figures)


@dataclass
class Found:
    """The result of a search. The winner is the baseline if no trial is better."""

    results: list[Result] = field(default_factory=list)
    checked: list[CheckedTrial] = field(default_factory=list)
    interrupted: bool = False

    @property
    def baseline(self) -> CheckedTrial | None:
        return next((each for each in self.checked if each.result.is_baseline), None)

    @property
    def winner(self) -> CheckedTrial | None:
        return chosen(self.checked)


def chosen(checked: Sequence[CheckedTrial]) -> CheckedTrial | None:
    """Return the trial with the lowest logloss among those trained as often as the baseline, which comes first and so wins a tie."""
    baseline = next((each for each in checked if each.result.is_baseline), None)
    if baseline is None:
        return None
    alike = [each for each in checked if (each.again is None) == (baseline.again is None)]
    return min([baseline, *alike], key=lambda each: each.logloss)


def candidates(results: Sequence[Result], most: int = CHECKED) -> list[Result]:
    """Return the baseline, and the best of the trials that are better."""
    ranked = best_first(results)
    baseline = next((each for each in ranked if each.is_baseline), None)
    if baseline is None:
        return []
    better: list[Result] = []
    for each in ranked[: ranked.index(baseline)]:
        if each.candidate not in [other.candidate for other in better]:
            better.append(each)
    return [baseline, *better[:most]]


@dataclass
class Search:
    """`deadline` is a time of the monotonic clock. `trials` and `deadline` are no limits if they are None."""

    study: Study
    pool: TrialPool
    trials: int | None
    deadline: float | None
    places: int
    say: Callable[[str], None]
    describe: Callable[[Candidate], str]

    def __post_init__(self) -> None:
        self._open: dict[int, Candidate] = {}
        self._refused = 0

    def run(self) -> Found:
        """Run to the end, or to a KeyboardInterrupt, which keeps the results so far. Raises SearchFailed."""
        found = Found()
        try:
            self._search()
        except KeyboardInterrupt:
            found.interrupted = True
            self._stop_all()
        found.results = self.study.results()
        found.checked = [CheckedTrial(result) for result in candidates(found.results)]
        if not found.interrupted and len(found.checked) > 1:
            try:
                found.checked = self._checked(found.checked)
            except KeyboardInterrupt:
                found.interrupted = True
                self._stop_all()
        return found

    def _search(self) -> None:
        while True:
            ended = len(self.study.results())
            late = self._is_late()
            while not late and self.pool.has_place and self._wants_more(ended):
                self._start()
                # A refused trial has ended at once, so count again.
                ended, late = len(self.study.results()), self._is_late()
            if late and self._open:
                self.say(f"time is up: {len(self._open)} unfinished trials are stopped")
                self._stop_all()
            if not self._open:
                return
            for event in self.pool.wait():
                self._handle(event)

    def _wants_more(self, ended: int) -> bool:
        return self._refused < _MOST_REFUSED and (self.trials is None or ended + len(self._open) < self.trials)

    def _start(self) -> None:
        try:
            number, candidate = self.study.ask()
        except ConfigRefused as wrong:
            self._refused += 1
            self.say(f"a trial is left out: {wrong}")
            if self._refused == _MOST_REFUSED:
                self.say(f"{_MOST_REFUSED} trials in a row were left out, so no more are tried")
            return
        self._refused = 0
        self._open[number] = candidate
        self.pool.start(str(number), candidate)

    def _handle(self, event: Step | Ended) -> None:
        number = int(event.trial)
        if isinstance(event, Step):
            if self.study.is_hopeless(number, event.number, event.logloss):
                ended = self.pool.stop(event.trial)
                self._open.pop(number)
                self.study.pruned(number, ended.seconds)
                self.say(
                    f"{self._place()} #{number} is given up after {ended.seconds:.0f} s, logloss {event.logloss:.5f} so far"
                )
            return
        candidate = self._open.pop(number)
        if event.found is None:
            self.study.failed(number, event.failed, event.seconds)
            self.say(f"{self._place()} #{number} has failed: {event.failed} ({self.describe(candidate)})")
            if candidate == self.study.results()[0].candidate and self.study.results()[0].is_baseline:
                raise SearchFailed(f"the present values cannot be trained: {event.failed}")
            return
        self.study.done(number, event.found, event.seconds)
        best = best_first(self.study.results())[0]
        record = "the best so far" if best.number == number else f"the best is #{best.number} with {best.logloss:.5f}"
        self.say(
            f"{self._place()} #{number} logloss {event.found['logloss']:.5f} AUC {event.found['auc'] or 0:.4f} in {event.seconds:.0f} s, "
            f"{record} ({self.describe(candidate)})"
        )

    def _place(self) -> str:
        ended = len(self.study.results())
        return f"{ended}" if self.trials is None else f"{ended}/{self.trials}"

    def _is_late(self) -> bool:
        """True if the rest of the time is needed to train the best trials again."""
        if self.deadline is None:
            return False
        repeated = candidates(self.study.results())
        needed = sum(each.seconds for each in repeated) / self.places if len(repeated) > 1 else 0.0
        # The baseline is trained without regard to time, because without it there is nothing to compare.
        return bool(self.study.results()) and time.monotonic() + needed > self.deadline

    def _stop_all(self) -> None:
        for trial in self.pool.running:
            self.pool.stop(trial)
        for number in [*self._open]:
            self.study.stopped(number)
        self._open.clear()

    def _checked(self, first: Sequence[CheckedTrial]) -> list[CheckedTrial]:
        self.say(f"the present values and the best {len(first) - 1} are trained once more, with another seed")
        found = {f"check-{each.result.number}": each for each in first}
        waiting = [*found]
        while waiting or self.pool.running:
            while waiting and self.pool.has_place:
                name = waiting.pop(0)
                self.pool.start(name, with_other_seed(found[name].result.candidate))
            for event in self.pool.wait():
                if isinstance(event, Step):
                    continue
                each = found[event.trial]
                if event.found is None:
                    self.say(f"#{each.result.number} has failed with another seed: {event.failed}")
                    continue
                found[event.trial] = each = replace(each, again=event.found)
                self.say(
                    f"#{each.result.number} logloss {each.logloss:.5f} as the mean of two seeds, {event.found['logloss']:.5f} with the other one"
                )
        return [*found.values()]


def with_other_seed(candidate: Candidate) -> Candidate:
    seed = candidate.model.seed
    return replace(candidate, model=candidate.model.model_copy(update={"seed": seed + 1 if seed < 2**31 - 1 else 0}))
