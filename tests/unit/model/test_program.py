from elastic_ctr.config.model import Dense, Model
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


def test_training_and_serving_build_the_same_head() -> None:
    model = Model(network="deepfm", embedding_dim=5, layers=(8, 4), output="softmax", dense=Dense(learning_rate=0.1))

    head = head_of(model, ["a", "b", "c"])

    assert (head.network, head.slots, head.dim, head.layers, head.output) == ("deepfm", 3, 5, (8, 4), "softmax")
