import pytest

from elastic_ctr.config.model import Dense, Model, SparseRule, Table
from elastic_ctr.model.program import TABLE, head_of, table_settings


def settings_of(model: Model) -> dict[str, object]:
    [(name, found)] = table_settings(model).items()
    assert name == TABLE
    return {key.removeprefix(f"table_parameters.{TABLE}."): value for key, value in found.items()}


def test_the_table_has_as_many_shards_as_the_model_has_partitions_and_the_width_of_its_rows() -> None:
    found = settings_of(Model(partitions=30, embedding_dim=9))

    assert found["shard_num"] == 30
    assert (found["accessor.fea_dim"], found["accessor.embedx_dim"]) == (11, 8)
    assert found["accessor.accessor_class"] == "SparseAccessor"


@pytest.mark.parametrize("field", [name for name in Table.model_fields if name not in ("embed", "embedx")])
def test_each_setting_of_the_table_is_handed_on_once(field: str) -> None:
    other = Model(table=Table(**{field: 7 if field != "show_click_decay_rate" else 0.5}))

    before, after = settings_of(Model()), settings_of(other)

    changed = [key for key in after if after[key] != before[key]]
    assert [key.rpartition(".")[2] for key in changed] == [field]


@pytest.mark.parametrize("block", ["embed", "embedx"])
@pytest.mark.parametrize("rule", ["naive", "adagrad", "std_adagrad", "adagrad_v2", "adam", "shared_adam"])
def test_each_setting_that_a_rule_knows_is_handed_on_once(block: str, rule: str) -> None:
    given = SparseRule.model_validate(
        {
            "name": rule,
            "learning_rate": 0.5,
            "initial_range": 0.25,
            "initial_g2sum": 5,
            "weight_bounds": [-1, 1],
            "beta1_decay_rate": 0.5,
            "beta2_decay_rate": 0.625,
            "ada_epsilon": 0.125,
        }
    )

    found = settings_of(Model(table=Table(**{block: given})))

    mine = {
        key.rpartition(".")[2]: value
        for key, value in found.items()
        if key.startswith(f"accessor.{block}_sgd_param.") and not key.endswith(".name")
    }
    expected: dict[str, object] = {"learning_rate": 0.5, "initial_range": 0.25, "weight_bounds": [-1.0, 1.0]}
    if "adagrad" in rule:
        expected["initial_g2sum"] = 5.0
    if "adam" in rule:
        expected |= {"beta1_decay_rate": 0.5, "beta2_decay_rate": 0.625, "ada_epsilon": 0.125}
    assert mine == expected


def test_training_and_serving_build_the_same_head() -> None:
    model = Model(network="deepfm", embedding_dim=5, layers=(8, 4), output="softmax", dense=Dense(learning_rate=0.1))

    head = head_of(model, ["a", "b", "c"])

    assert (head.network, head.slots, head.dim, head.layers, head.output) == ("deepfm", 3, 5, (8, 4), "softmax")
