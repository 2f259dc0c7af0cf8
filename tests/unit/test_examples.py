"""Every file in examples/ is one that `elastic-ctr local run` takes."""

from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.config.values_file import Values
from elastic_ctr.formats.hours import HourTree, parse_hour
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.operate.cli.given_values import load_values
from elastic_ctr.operate.local.plan import RunPlaces, roles
from elastic_ctr.training.model.program import TABLE, table_settings

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(EXAMPLES.rglob("*.yaml"))


@pytest.fixture
def data_values(tmp_path: Path) -> Path:
    """The values that `import` and `synth` write beside their hours: what examples/demo.yaml stands on."""
    with HourTree(tmp_path / "data") as tree:
        tree.append("20200401/00/part-00000", b"1 0 1:a\n")
        first = parse_hour("20200401/00")
        tree.publish(SlotList(("a",)), first, first)
    return tmp_path / "data" / "values.yaml"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(EXAMPLES)))
def test_each_example_is_a_run_of_one_machine(file: Path, data_values: Path, tmp_path: Path) -> None:
    below = [] if "\ndata:" in file.read_text() else [data_values]

    places = RunPlaces(tmp_path, load_values([*below, file], None))

    names = [role.command for role in roles(places)]
    assert {"master", "trainer", "pserver", "cube-transfer", "cube-server", "serving"} <= set(names)


def paddlerec() -> Values:
    return load_values([EXAMPLES / "paddlerec-online.yaml"], None)


def test_the_online_trainers_numbers_reach_paddle_under_its_own_names() -> None:
    [(name, found)] = table_settings(paddlerec().model).items()
    given = {key.removeprefix(f"table_parameters.{TABLE}.accessor."): value for key, value in found.items()}
    rule: dict[str, Any] = {
        "name": "SparseAdaGradSGDRule", "adagrad.learning_rate": 0.05,
        "adagrad.initial_g2sum": 3.0, "adagrad.weight_bounds": [-10.0, 10.0],
    }  # fmt: skip

    assert name == TABLE
    assert {
        key.removeprefix("ctr_accessor_param."): value for key, value in given.items() if "_sgd_param" not in key
    } == {
        f"table_parameters.{TABLE}.table_class": "MemorySparseTable", f"table_parameters.{TABLE}.shard_num": 60,
        "accessor_class": "SparseAccessor", "fea_dim": 11, "embedx_dim": 8, "embedx_threshold": 10,
        "nonclk_coeff": 0.1, "click_coeff": 1, "base_threshold": 1.5, "delta_threshold": 0.25, "delta_keep_days": 16,
        "show_click_decay_rate": 1, "delete_threshold": 0.8, "delete_after_unseen_days": 30,
    }  # fmt: skip
    for block, more in (("embed_sgd_param.", {}), ("embedx_sgd_param.", {"adagrad.initial_range": 1e-4})):
        assert {key.removeprefix(block): value for key, value in given.items() if key.startswith(block)} == rule | more


def test_the_online_trainers_cadence_is_kept() -> None:
    values = paddlerec()

    assert (values.data.split_interval, values.data.splits_per_pass) == (5, 2)
    assert (values.master.config.checkpoint_per_pass, values.master.config.delta_per_pass) == (6, 6)
    assert (values.trainer.config.batch_size, values.model.dense.learning_rate) == (32, 5e-6)
    assert values.data.slots is not None
    assert len(values.data.slots) == 300


def test_five_minute_folders_have_no_end() -> None:
    values = load_values([EXAMPLES / "five-minute-folders.yaml"], None)

    assert values.data.end is None
    assert values.data.split_interval == 5
