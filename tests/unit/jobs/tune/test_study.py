"""The journal of a search over Optuna itself."""

from pathlib import Path

import pytest

from jobs.tune.test_space import space_of

pytest.importorskip("optuna", reason="make setup-dev installs it")
from elastic_ctr.config.load import ConfigRefused
from elastic_ctr.jobs.tune.space import Candidate, Sampler, Space
from elastic_ctr.jobs.tune.study import Study


def study_of(folder: Path, space: Space | None = None) -> Study:
    return Study(folder / "journal.log", space or space_of({}), 1, by_epoch=False)


def found(logloss: float) -> dict[str, float]:
    return {"logloss": logloss, "auc": 0.7}


def test_the_first_trial_has_the_present_values_and_the_next_ones_are_presets(tmp_path: Path) -> None:
    space = space_of({"embeddingDim": 100, "network": "xdeepfm"})
    study = study_of(tmp_path, space)

    first, second = study.ask(), study.ask()

    assert first == (0, space.base)
    assert second[1].model.network.name == "deepfm"
    assert second[1].model.table.embedding_l2 == 5e-3


def test_a_later_process_goes_on_with_what_is_known(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    numbers = [study.ask()[0] for _ in range(4)]
    study.done(numbers[0], found(0.5), 3.0)
    study.failed(numbers[1], "it broke", 1.0)
    study.stopped(numbers[2])
    # The fourth one runs when the process is killed.

    again = study_of(tmp_path)

    assert [(each.number, each.state, each.reason) for each in again.results()] == [
        (0, "done", ""),
        (1, "failed", "it broke"),
    ]
    assert again.results()[0].candidate.model.model_dump() == space_of({}).base.model.model_dump()
    assert again.results()[0].is_baseline
    assert not [each for each in [again.ask() for _ in range(3)] if each[1] == space_of({}).base]


def test_present_values_that_were_not_trained_to_their_end_are_the_next_trial_again(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    study.stopped(study.ask()[0])

    assert study_of(tmp_path).ask()[1] == space_of({}).base


def test_a_preset_that_waited_when_the_process_was_killed_is_still_tried(tmp_path: Path) -> None:
    space = space_of({"embeddingDim": 100, "network": "xdeepfm"})
    study = study_of(tmp_path, space)
    study.ask()

    again = study_of(tmp_path, space)
    asked = [again.ask()[1] for _ in range(1 + len(space.presets()))]

    (tmp_path / "other").mkdir()
    wanted = study_of(tmp_path / "other", space)
    assert {each.model.model_dump_json() for each in asked} == {
        wanted.ask()[1].model.model_dump_json() for _ in range(1 + len(space.presets()))
    }


def test_a_trial_worse_than_the_median_is_hopeless_and_the_present_values_never_are(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    first, _ = study.ask()
    assert not study.is_hopeless(first, 1, 9.0)
    for number in range(8):
        trial = study.ask()[0]
        for step in (1, 2, 3):
            study.is_hopeless(trial, step, 0.4 + number / 100)
        study.done(trial, found(0.4 + number / 100), 1.0)

    bad, good = study.ask()[0], study.ask()[0]

    assert study.is_hopeless(bad, 3, 0.9)
    assert not study.is_hopeless(good, 3, 0.1)
    assert not study.is_hopeless(first, 3, 9.0)


class Refusing(Space):
    def suggest(self, sampler: Sampler) -> Candidate:
        del sampler
        raise ConfigRefused("these do not go together")


def test_a_refused_combination_counts_as_a_failed_trial_so_a_search_ends(tmp_path: Path) -> None:
    base = space_of({})
    study = study_of(tmp_path, Refusing(base.base, base.networks, (), 5000, whole=True))
    study.done(study.ask()[0], found(0.5), 1.0)

    with pytest.raises(ConfigRefused):
        study.ask()

    assert [each.reason for each in study.results()] == ["", "these do not go together"]
