import pytest
from pydantic import ValidationError

from elastic_ctr.config.model import WITHOUT_LAYERS, Model, ModelInput, SparseRule, Table, digest_of_model

ONE_SLOT = ModelInput(("a",))


def test_equal_settings_have_one_digest_however_they_were_written() -> None:
    given = Model.model_validate({"embeddingDim": 9, "layers": [400, 400, 400]})

    assert digest_of_model(given, ModelInput(("a", "b"))) == digest_of_model(
        Model(embedding_dim=9), ModelInput(("a", "b"))
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"embeddingDim": 8},
        {"sparseDim": 1000},
        {"partitions": 30},
        {"layers": [4]},
        {"output": "softmax"},
        {"seed": 2},
        {"table": {"baseThreshold": 1.5}},
        {"table": {"embedx": {"learningRate": 0.1}}},
        {"dense": {"learningRate": 0.1}},
        {"network": "deepfm"},
    ],
)
def test_any_other_setting_is_another_digest(changed: dict[str, object]) -> None:
    assert digest_of_model(Model.model_validate(changed), ONE_SLOT) != digest_of_model(Model(), ONE_SLOT)


def test_the_order_of_the_slots_is_part_of_the_model() -> None:
    assert digest_of_model(Model(), ModelInput(("a", "b"))) != digest_of_model(Model(), ModelInput(("b", "a")))
    assert digest_of_model(Model(), ModelInput(("a, b",))) != digest_of_model(Model(), ModelInput(("a", "b")))


def test_the_definition_of_the_features_is_part_of_the_model() -> None:
    assert digest_of_model(Model(), ModelInput(("a",), definition="{}")) != digest_of_model(Model(), ONE_SLOT)


def test_thresholds_let_everything_through_unless_told() -> None:
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
