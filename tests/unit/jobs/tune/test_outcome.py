from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from elastic_ctr.config.model import Model
from elastic_ctr.config.training_settings import TrainerSettings
from elastic_ctr.jobs.tune.passes import ConvertedPiece, Hours, TrainedPass
from elastic_ctr.jobs.tune.space import Candidate
from elastic_ctr.operate.cli.given_values import load_values
from jobs.tune.test_space import OTHERS, Drawn, space_of

pytest.importorskip("optuna", reason="make setup-dev installs it")
from elastic_ctr.jobs.tune.outcome import changes, described, document, leaderboard, tuned_yaml, verdict
from elastic_ctr.jobs.tune.search import CheckedTrial, Found, candidates, chosen, with_other_seed
from elastic_ctr.jobs.tune.study import Result

BASE = Candidate(Model(), TrainerSettings())
HOURS = Hours(
    passes=(TrainedPass(id="20200401/00", pieces=(ConvertedPiece(file="1.txt", records=90),), shows=90, clicks=9, ends_day=False),),
    validation=(ConvertedPiece(file="2.txt", records=10),), validated="20200401/01", share=1,
)  # fmt: skip


def model(**given: Any) -> Candidate:
    return Candidate(Model.model_validate(given), TrainerSettings())


def result(number: int, logloss: float | None, candidate: Candidate | None = None) -> Result:
    found = {} if logloss is None else {"logloss": logloss, "auc": 1 - logloss, "calibration": 1.0}
    other = model(embeddingDim=2 + number) if number else BASE
    state = "failed" if logloss is None else "done"
    return Result(number, state, number == 0, candidate or other, found, 2.0, "" if logloss else "it broke")


def again(one: Result, logloss: float | None) -> CheckedTrial:
    return CheckedTrial(one, None if logloss is None else {"logloss": logloss, "auc": 1 - logloss, "calibration": 1.0})


@given(data=st.data(), base=st.sampled_from(OTHERS))
def test_the_values_to_add_give_what_was_found_behind_the_values_of_before(
    data: st.DataObject, base: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Read as `elastic-ctr local` reads both files; nulls take away what the other network lacks."""
    space = space_of(base)
    winner = space.suggest(Drawn(data))
    folder = tmp_path_factory.mktemp("values")
    where = {"source": {"url": "file:///logs"}, "start": "20200401/00", "slots": ["a"]}
    (folder / "values.yaml").write_text(yaml.safe_dump({"data": where, "model": base}))
    (folder / "tuned.yaml").write_text(yaml.safe_dump(changes(space.base, winner)))

    read = load_values([folder / "values.yaml", folder / "tuned.yaml"], None)

    assert read.model.model_dump() == winner.model.model_dump()
    assert read.trainer.config == winner.trainer


def test_only_keys_that_differ_are_written() -> None:
    other = model(network={"name": "deepfm", "dropout": 0.2}, table={"embed": {"learningRate": 0.003}})

    assert changes(BASE, BASE) == {}
    assert changes(BASE, other) == {"model": {"network": {"dropout": 0.2}, "table": {"embed": {"learningRate": 0.003}}}}


def test_settings_that_another_network_lacks_are_taken_away() -> None:
    base = model(network={"name": "dcn-v2", "crossLayers": 5, "layers": [8]})

    assert changes(base, model(network="lr"))["model"]["network"] == {"name": "lr", "crossLayers": None, "layers": None}


def test_a_trial_is_described_in_one_line() -> None:
    other = model(network={"name": "dcn-v2", "layers": [64, 32]}, table={"embedx": {"learningRate": 1e-3}})

    assert described(BASE, BASE) == "network deepfm, all as it is"
    assert described(BASE, other) == "network dcn-v2, layers 64-32, embedx.learningRate 0.001"


def test_only_trials_that_beat_the_present_values_are_trained_once_more() -> None:
    results = [
        result(0, 0.5),
        result(1, 0.6),
        result(2, 0.4),
        result(3, None),
        result(4, 0.3),
        result(5, 0.45),
        result(6, 0.44),
    ]

    assert [each.number for each in candidates(results)] == [0, 4, 2, 6]
    assert [each.number for each in candidates(results[:2])] == [0]
    assert candidates(results[1:]) == []


def test_the_same_settings_are_trained_once_more_only_once() -> None:
    same = model(embeddingDim=7)

    assert [each.number for each in candidates([result(0, 0.5), result(1, 0.3, same), result(2, 0.2, same)])] == [0, 2]


@pytest.mark.parametrize(
    ("loglosses", "winner"),
    [
        ([(0.5, 0.5), (0.40, 0.46), (0.41, 0.43)], 2),  # by the mean, not by the first seed
        ([(0.5, 0.4), (0.40, 0.55), (0.42, 0.49)], 0),  # none is better in the mean: the present values stay
        ([(0.5, 0.5), (0.40, None), (0.45, 0.45)], 2),  # one that another seed made fail is not trusted
        ([(0.5, None), (0.40, None), (0.45, None)], 1),  # interrupted before
        ([(0.5, 0.5), (0.5, 0.5)], 0),
    ],
)
def test_the_winner_has_the_lowest_mean_of_both_seeds(loglosses: list[tuple[float, float | None]], winner: int) -> None:
    found = chosen([again(result(number, first), other) for number, (first, other) in enumerate(loglosses)])

    assert found is not None
    assert found.result.number == winner


def test_without_the_present_values_there_is_no_winner() -> None:
    assert chosen([again(result(1, 0.3), None)]) is None
    assert "nothing can be said" in verdict(Found([result(1, 0.3)]))


def test_the_file_says_how_it_was_found_and_the_leaderboard_shows_the_winner_first_and_the_present_values() -> None:
    results = [result(number, 0.5 - number / 100) for number in range(14)]
    checked = [again(results[0], 0.5), again(results[13], 0.9), again(results[12], 0.30)]
    found = Found(results, checked)

    text = tuned_yaml(BASE, found, HOURS)
    with (console := Console(width=200)).capture() as shown:
        console.print(leaderboard(BASE, found))
    rows = [line.split() for line in shown.get().splitlines() if "#" in line]

    assert yaml.safe_load(text) == {"model": {"embeddingDim": 14}}
    assert "# Trial #12 is better than the present values: logloss 0.34000 instead of 0.50000" in text
    assert "AUC 0.6600 instead of 0.5000" in text
    assert "# Trained with 90 records: 20200401/00." in text
    assert [row[1] for row in rows] == ["#12", "#13", *(f"#{number}" for number in range(11, 3, -1)), "#0"]
    assert rows[0][5] == "0.30000"
    assert document(BASE, found, HOURS)["winner"]["trial"] == 12
    assert document(BASE, found, HOURS)["trials"][0] == {
        "trial": 0, "state": "done", "isBaseline": True, "values": {}, "logloss": 0.5, "auc": 0.5, "calibration": 1.0, "seconds": 2.0,
    }  # fmt: skip


def test_where_nothing_is_better_the_file_changes_nothing_and_says_so() -> None:
    found = Found([result(0, 0.4), result(1, 0.5)], [again(result(0, 0.4), None)])

    text = tuned_yaml(BASE, found, HOURS)

    assert yaml.safe_load(text) == {}
    assert "Nothing was better than the present values" in text


def test_another_seed_is_the_only_change_of_the_second_training() -> None:
    other = with_other_seed(BASE)

    assert changes(BASE, other) == {}
    assert other.model.seed != BASE.model.seed
    assert with_other_seed(model(seed=2**31 - 1)).model.seed == 0
