from elastic_ctr.config.model import Model
from elastic_ctr.training.model.program import TABLE, table_settings


def settings_of(model: Model) -> dict[str, object]:
    [(name, found)] = table_settings(model).items()
    assert name == TABLE
    return {key.removeprefix(f"table_parameters.{TABLE}."): value for key, value in found.items()}


def test_the_table_has_as_many_shards_as_the_model_has_partitions_and_the_width_of_its_rows() -> None:
    found = settings_of(Model(partitions=30, embedding_dim=9))

    assert found["shard_num"] == 30
    assert (found["accessor.fea_dim"], found["accessor.embedx_dim"]) == (11, 8)
    assert found["accessor.accessor_class"] == "SparseAccessor"
