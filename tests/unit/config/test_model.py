import pytest
from pydantic import ValidationError

from elastic_ctr.config.load import ConfigRefused, settings
from elastic_ctr.config.model import Model, ModelInput, SparseRule, Table, digest_of_model
from elastic_ctr.config.networks import NETWORKS, WITHOUT_LAYERS, DcnV2, DeepFm

ONE_SLOT = ModelInput(("a",))


def test_equal_settings_have_one_digest_however_they_were_written() -> None:
    given = Model.model_validate({"embeddingDim": 9, "network": {"layers": [128, 64]}})

    assert digest_of_model(given, ModelInput(("a", "b"))) == digest_of_model(
        Model(embedding_dim=9), ModelInput(("a", "b"))
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"embeddingDim": 8},
        {"sparseDim": 1000},
        {"partitions": 30},
        {"network": {"layers": [4]}},
        {"network": {"dropout": 0.1}},
        {"network": {"name": "dcn-v2", "rank": 8}},
        {"dense": {"l2": 1e-6}},
        {"table": {"embeddingL2": 1e-6}},
        {"output": "softmax"},
        {"seed": 2},
        {"table": {"baseThreshold": 1.5}},
        {"table": {"embedx": {"learningRate": 0.1}}},
        {"dense": {"learningRate": 0.1}},
        {"network": "slot-dnn"},
    ],
)
def test_any_other_setting_is_another_digest(changed: dict[str, object]) -> None:
    assert digest_of_model(Model.model_validate(changed), ONE_SLOT) != digest_of_model(Model(), ONE_SLOT)


def test_the_order_of_the_slots_is_part_of_the_model() -> None:
    assert digest_of_model(Model(), ModelInput(("a", "b"))) != digest_of_model(Model(), ModelInput(("b", "a")))
    assert digest_of_model(Model(), ModelInput(("a, b",))) != digest_of_model(Model(), ModelInput(("a", "b")))


def test_the_definition_of_the_features_is_part_of_the_model() -> None:
    assert digest_of_model(Model(), ModelInput(("a",), definition="{}")) != digest_of_model(Model(), ONE_SLOT)


def test_thresholds_let_every_key_through_by_default() -> None:
    table = Model().table

    assert (table.base_threshold, table.embedx_threshold, table.delete_threshold) == (0, 0, 0)
    assert table.embedx.initial_range == 1e-2


def test_a_vector_threshold_beside_decay_is_refused_with_the_reason_and_the_way_out() -> None:
    with pytest.raises(ValidationError) as refused:
        Table(embedx_threshold=10)

    assert (
        "embedxThreshold 10 with showClickDecayRate 0.98 would lose vectors: the parameter server saves a key without its "
        "vector while its score is below embedxThreshold, and scores decay at day end; set showClickDecayRate to 1 or "
        "embedxThreshold to 0" in str(refused.value)
    )
    assert Table(embedx_threshold=10, show_click_decay_rate=1).embedx_threshold == 10


def test_a_rule_needs_room_between_its_bounds() -> None:
    with pytest.raises(ValidationError, match="leave no room; give a lower and a higher number"):
        SparseRule(weight_bounds=(1.0, -1.0))


def test_how_values_are_stored_is_no_part_of_the_digest_because_nothing_is_trained_otherwise() -> None:
    assert digest_of_model(Model(values="int8"), ONE_SLOT) == digest_of_model(Model(), ONE_SLOT)


@pytest.mark.parametrize("network", sorted(WITHOUT_LAYERS))
def test_two_classes_of_a_network_without_layers_are_refused(network: str) -> None:
    with pytest.raises(
        ValidationError, match=f"fully connected layers, which {network} has none of; set output to sigmoid"
    ):
        Model.model_validate({"network": network, "output": "softmax"})


def refused(given: object) -> str:
    with pytest.raises(ConfigRefused) as wrong:
        settings(Model, {"network": given}, "values.yaml")
    return str(wrong.value)


def test_a_name_alone_is_the_network_with_its_defaults() -> None:
    for name, kind in NETWORKS.items():
        assert Model.model_validate({"network": name}).network == kind()
        assert Model.model_validate({"network": {"name": name}}).network == kind()
    assert Model().network == DeepFm()
    assert Model.model_validate({"network": {"layers": [4]}}).network == DeepFm(layers=(4,))


def test_every_default_and_bound_of_a_network_is_explained() -> None:
    silent = [
        f"{name}.{key}"
        for name, kind in NETWORKS.items()
        for key, field in kind.model_fields.items()
        if key != "name" and not (field.description or "").endswith(".")
    ]

    assert silent == []
    assert all((kind.__doc__ or "").endswith(".") for kind in NETWORKS.values())


def test_a_network_has_settings_of_its_own() -> None:
    given = {"name": "dcn-v2", "crossLayers": 3, "layers": [256, 128], "dropout": 0.1}

    assert Model.model_validate({"network": given}).network == DcnV2(cross_layers=3, layers=(256, 128), dropout=0.1)


def test_a_setting_of_another_network_is_refused_with_the_settings_there_are_and_the_networks_that_have_it() -> None:
    assert refused({"name": "lr", "crossLayers": 3}) == (
        "values.yaml: network.crossLayers is not a setting of lr, which has none; remove it, or choose a network that has it: dcn, dcn-v2"
    )
    assert refused({"name": "wide-deep", "crossLayers": 3}) == (
        "values.yaml: network.crossLayers is not a setting of wide-deep, which has layers, dropout, layerNorm; remove it, or choose a "
        "network that has it: dcn, dcn-v2"
    )


def test_an_unknown_setting_of_a_network_is_refused_with_the_settings_there_are() -> None:
    assert refused({"name": "dcn", "crosLayers": 3}) == (
        "values.yaml: network.crosLayers is not a setting of dcn, which has layers, dropout, layerNorm, crossLayers; did you mean "
        "crossLayers?"
    )
    assert refused({"name": "deepfm", "zzz": 3}) == (
        "values.yaml: network.zzz is not a setting of deepfm, which has layers, dropout, layerNorm; remove it"
    )


@pytest.mark.parametrize("name", ["../x", "", 5, [5], None], ids=str)
def test_an_unknown_network_is_refused_with_the_names_there_are(name: object) -> None:
    sentence = f"there is no network {name!r}; the networks are deepfm, slot-dnn, lr, fm, wide-deep, dcn, dcn-v2, xdeepfm, autoint, final-mlp, or {{file: my_network.py}} for one of your own"

    assert refused({"name": name}) == f"values.yaml: network: {sentence}"
    if isinstance(name, str):
        assert refused(name) == f"values.yaml: network: {sentence}"


@pytest.mark.parametrize("given", [5, ["deepfm"]], ids=str)
def test_a_network_that_is_neither_a_name_nor_a_map_is_refused(given: object) -> None:
    assert refused(given) == (
        f"values.yaml: network: a network is its name, or a map with its name and its settings, not {given!r}"
    )


def test_a_value_outside_its_bounds_is_refused_by_its_key() -> None:
    assert refused({"name": "dcn", "dropout": 1}) == "values.yaml: network.dropout: input should be less than 1, not 1"


def test_layers_beside_the_network_are_refused_with_their_new_place() -> None:
    with pytest.raises(ConfigRefused, match=r"layers is a setting of the network now; move it into model\.network"):
        settings(Model, {"network": "deepfm", "layers": [4]}, "values.yaml")


def test_heads_that_do_not_divide_a_stream_are_refused_with_its_width() -> None:
    assert refused({"name": "final-mlp", "heads": 3}) == (
        "values.yaml: network: heads 3 does not divide 64, the last width of layers; set heads to a divisor of it"
    )
    assert "does not divide 9, the last width of secondLayers" in refused(
        {"name": "final-mlp", "heads": 4, "secondLayers": [8, 9]}
    )
