from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.config.model import Model
from elastic_ctr.config.networks import NETWORKS
from elastic_ctr.config.training_settings import TrainerSettings
from elastic_ctr.jobs.tune.space import DEFAULT_NETWORKS, KEYS, Candidate, Space, usable_networks
from elastic_ctr.operate.cli.given_values import merged

PRESENT = Candidate(Model(), TrainerSettings())
OTHERS: list[dict[str, Any]] = [
    {},
    {"network": "lr"},
    {"network": {"name": "dcn-v2", "crossLayers": 5, "rank": 4, "layers": [100, 50]}, "embeddingDim": 12},
    {"network": {"name": "final-mlp", "layers": [30], "secondLayers": [15], "heads": 5}},
    {"network": {"name": "deepfm", "layerNorm": True, "layers": []}, "table": {"embedx": {"name": "naive"}}},
    {"table": {"embed": {"name": "std_adagrad", "learningRate": 3}, "embeddingL2": 0.5}, "output": "softmax"},
]  # fmt: skip


class Drawn:
    """Suggestions by hypothesis, with the bounds that a sampler is given."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        self.names: list[str] = []

    def _of(self, name: str, strategy: st.SearchStrategy[Any]) -> Any:
        assert name not in self.names, f"{name} is asked for twice"
        self.names.append(name)
        return self._data.draw(strategy, label=name)

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        return self._of(name, st.sampled_from(list(choices)))

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        assert 0 <= low < high
        assert low or not log
        assert step is None or not log
        return float(self._of(name, st.floats(low, high)))

    def suggest_int(self, name: str, low: int, high: int) -> int:
        return int(self._of(name, st.integers(low, high)))


def space_of(given: dict[str, Any], *, networks: tuple[str, ...] = DEFAULT_NETWORKS, **more: Any) -> Space:
    base = Candidate(Model.model_validate(given), TrainerSettings())
    usable, _ = usable_networks(base, networks)
    return Space(base, usable, more.pop("kept", ()), more.pop("records", 5000), more.pop("whole", True), **more)


@given(data=st.data(), base=st.sampled_from(OTHERS), networks=st.sets(st.sampled_from([*NETWORKS]), min_size=3))
def test_every_suggestion_is_a_model_and_a_trainer_that_the_values_file_may_have(
    data: st.DataObject, base: dict[str, Any], networks: set[str]
) -> None:
    space = space_of(base, networks=tuple(sorted(networks)))

    found = space.suggest(Drawn(data))

    again = Model.model_validate(found.model.model_dump(mode="json", by_alias=True))
    assert again.model_dump() == found.model.model_dump()
    assert 1 <= int(found.trainer.epochs) <= 6


@given(data=st.data(), kept=st.sets(st.sampled_from([*KEYS, "model.network", "model.table", "trainer.config"])))
def test_a_kept_value_is_neither_searched_nor_changed(data: st.DataObject, kept: set[str]) -> None:
    base = {"network": {"name": "dcn-v2", "layers": [48], "crossLayers": 5}, "embeddingDim": 11}
    space = space_of(base, kept=tuple(kept), networks=("dcn-v2",))
    sampler = Drawn(data)

    found = space.suggest(sampler)

    asked = {name.removesuffix(".adam").removesuffix(".adagrad") for name in sampler.names}
    assert not [name for name in asked for each in kept if name == each or name.startswith(f"{each}.")]
    before, after = (
        {"model": each.model.model_dump(by_alias=True), "trainer": {"config": each.trainer.model_dump(by_alias=True)}}
        for each in (space.base, found)
    )
    for key in kept:
        assert value_of(after, key) == value_of(before, key), key


@given(data=st.data())
def test_with_start_from_the_table_stays_that_of_the_other_model(data: st.DataObject) -> None:
    table = {"embed": {"name": "std_adagrad"}, "embedx": {"name": "adagrad"}}
    space = space_of({"startFrom": {"version": 17}, "embeddingDim": 11, "table": table})

    found = space.suggest(Drawn(data)).model

    assert (found.embedding_dim, found.table.embed.name, found.table.embedx.name) == (11, "std_adagrad", "adagrad")
    assert found.start_from == space.base.model.start_from


def value_of(tree: Any, key: str) -> Any:
    for step in key.split("."):
        tree = tree[step]
    return tree


@given(data=st.data())
def test_batch_size_and_epochs_of_sampled_passes_are_not_searched(data: st.DataObject) -> None:
    found = space_of({}, whole=False).suggest(Drawn(data))

    assert found.trainer == PRESENT.trainer


@given(data=st.data())
def test_epochs_that_held_out_records_end_are_not_searched(data: st.DataObject) -> None:
    found = space_of({}, stops_by_itself=True).suggest(Drawn(data))

    assert found.trainer.epochs == "auto"


def test_small_batches_are_for_small_passes() -> None:
    assert space_of({}, records=5000).batch_sizes == ("auto", 16, 32, 64, 128, 256, 512)
    assert space_of({}, records=2_000_000).batch_sizes == ("auto", 256, 512)


def test_networks_that_the_values_forbid_are_left_out_with_the_reason() -> None:
    base = Candidate(Model(output="softmax"), TrainerSettings())

    usable, refused = usable_networks(base, DEFAULT_NETWORKS)

    assert usable == ("deepfm", "wide-deep", "dcn-v2", "final-mlp", "slot-dnn")
    assert [sentence.partition(" is")[0] for sentence in refused] == ["the network lr", "the network fm"]


@pytest.mark.parametrize("networks", [DEFAULT_NETWORKS, ("lr",), ("deepfm",), ("slot-dnn", "dcn-v2")], ids=str)
def test_presets_are_within_what_is_searched(networks: tuple[str, ...]) -> None:
    """As Optuna sees it: it warns of a value outside of a range, and draws another one."""
    optuna = pytest.importorskip("optuna", reason="make setup-dev installs it")
    space = space_of({}, networks=networks)
    for preset in space.presets():
        study = optuna.create_study()
        study.enqueue_trial(preset)
        trial = study.ask()

        space.suggest(trial)

        used = {name: value for name, value in preset.items() if name in trial.params}
        assert used == {name: trial.params[name] for name in used}
        assert used == preset, "nothing of it was asked for in vain"


def test_a_null_of_a_later_file_takes_a_value_away() -> None:
    assert merged({"a": {"b": 1, "c": 2}}, {"a": {"b": None, "d": 3}}) == {"a": {"c": 2, "d": 3}}
    assert merged({}, {"a": None}) == {"a": None}
