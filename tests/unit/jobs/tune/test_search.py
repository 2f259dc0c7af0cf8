"""When a search ends, with a study and a pool that train nothing."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("optuna", reason="make setup-dev installs it")
from elastic_ctr.config.load import ConfigRefused
from elastic_ctr.config.training_settings import TrainerSettings
from elastic_ctr.jobs.tune import search as module
from elastic_ctr.jobs.tune.pool import Ended
from elastic_ctr.jobs.tune.search import Search
from elastic_ctr.jobs.tune.space import Candidate
from elastic_ctr.jobs.tune.study import Result
from jobs.tune.test_space import space_of

SECONDS = 10.0


class World:
    """Each trial takes ten seconds of a clock of its own, and each is worse than the one before."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ended: list[Result] = []
        self.running: list[str] = []
        self.said: list[str] = []
        self._base = space_of({}).base
        self._asked = 0

    def candidate(self, number: int) -> Candidate:
        return Candidate(self._base.model.model_copy(update={"seed": number}), TrainerSettings())

    # -- the study --------------------------------------------------------------------------------------------------

    def results(self) -> list[Result]:
        return self.ended

    def ask(self) -> tuple[int, Candidate]:
        self._asked += 1
        return self._asked - 1, self.candidate(self._asked - 1)

    def done(self, number: int, found: dict[str, Any], seconds: float) -> None:
        self.ended.append(Result(number, "done", number == 0, self.candidate(number), found, seconds))

    def stopped(self, number: int) -> None:
        pass

    # -- the pool ---------------------------------------------------------------------------------------------------

    @property
    def has_place(self) -> bool:
        return not self.running

    def start(self, trial: str, _candidate: Candidate) -> None:
        self.running.append(trial)

    def stop(self, trial: str) -> Ended:
        self.running.remove(trial)
        return Ended(trial, None, "", 0.0)

    def wait(self) -> list[Ended]:
        self.now += SECONDS
        return [
            Ended(self.running.pop(), {"logloss": 0.5 + self.now / 1e6, "auc": 0.7, "calibration": 1.0}, "", SECONDS)
        ]

    def search(self, trials: int | None, deadline: float | None) -> list[int]:
        one = Search(self, self, trials, deadline, 1, self.said.append, str)  # type: ignore[arg-type]
        return [result.number for result in one.run().results]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    one = World()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: one.now))
    return one


def test_a_search_ends_after_its_trials(world: World) -> None:
    assert world.search(trials=4, deadline=None) == [0, 1, 2, 3]
    assert world.said[0].startswith("1/4 #0 logloss 0.5000")


def test_a_search_without_a_number_of_trials_goes_on_until_its_time_is_up(world: World) -> None:
    found = world.search(trials=None, deadline=365)

    assert len(found) == 37
    assert world.said[0].startswith("1 #0 logloss 0.5000")


def test_a_search_with_both_ends_with_what_comes_first(world: World) -> None:
    assert len(world.search(trials=50, deadline=95)) == 10


def test_a_search_whose_suggestions_are_all_refused_ends_with_what_it_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = world.ask

    def refuse() -> tuple[int, Candidate]:
        if world.ended:
            raise ConfigRefused("model.layers: too wide")
        return ask()

    monkeypatch.setattr(world, "ask", refuse)

    assert world.search(trials=None, deadline=None) == [0]
    assert world.said[1:] == [
        *["a trial is left out: model.layers: too wide"] * 50,
        "50 trials in a row were left out, so no more are tried",
    ]
