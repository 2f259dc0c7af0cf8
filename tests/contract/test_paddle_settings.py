"""Every setting of the sparse table under the names that Paddle really has: a wrong name would be refused there."""

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest

# Paddle itself is imported in a process of its own: here it would stay.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("paddle") is None, reason="paddlepaddle is not installed")

PROGRAM = """
import json, sys
from pathlib import Path
from elastic_ctr.model.program import TABLE, prepare_environment, start_paddle, table_settings
from elastic_ctr.config.model import Model, SparseRule, Table
rules = ["naive", "adagrad", "std_adagrad", "adagrad_v2", "adam", "shared_adam"]
prepare_environment(Path(sys.argv[1]))
start_paddle(Model())
from google.protobuf.json_format import MessageToDict
from paddle.distributed import fleet
found = {}
for rule in rules:
    block = SparseRule(
        name=rule, learning_rate=0.5, initial_range=0.25, initial_g2sum=5, weight_bounds=(-1, 1),
        beta1_decay_rate=0.5, beta2_decay_rate=0.625, ada_epsilon=0.125,
    )
    table = Table(
        nonclk_coeff=0.25, click_coeff=0.5, embedx_threshold=3, base_threshold=1.5, delta_threshold=0.75,
        delta_keep_days=4, show_click_decay_rate=0.875, delete_threshold=0.625, delete_after_unseen_days=6,
        ssd_unseenday_threshold=2, embed=block, embedx=block,
    )
    strategy = fleet.DistributedStrategy()
    strategy.sparse_table_configs = table_settings(Model(partitions=30, embedding_dim=5, table=table))
    [one] = strategy.sparse_table_configs
    found[rule] = MessageToDict(one, preserving_proto_field_name=True)
print("RESULT" + json.dumps(found))
"""


@pytest.fixture(scope="module")
def strategies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("paddle")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout.rpartition("RESULT")[2]))


RULES = {
    "naive": ("SparseNaiveSGDRule", "naive", {}),
    "adagrad": ("SparseAdaGradSGDRule", "adagrad", {"initial_g2sum": 5.0}),
    "std_adagrad": ("StdAdaGradSGDRule", "adagrad", {"initial_g2sum": 5.0}),
    "adagrad_v2": ("SparseAdaGradV2SGDRule", "adagrad", {"initial_g2sum": 5.0}),
    "adam": ("SparseAdamSGDRule", "adam", {"beta1_decay_rate": 0.5, "beta2_decay_rate": 0.625, "ada_epsilon": 0.125}),
    "shared_adam": (
        "SparseSharedAdamSGDRule",
        "adam",
        {"beta1_decay_rate": 0.5, "beta2_decay_rate": 0.625, "ada_epsilon": 0.125},
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_paddle_takes_every_setting_of_a_rule(strategies: dict[str, Any], rule: str) -> None:
    name, message, more = RULES[rule]
    accessor = strategies[rule]["accessor"]

    for block in ("embed_sgd_param", "embedx_sgd_param"):
        assert accessor[block] == {
            "name": name,
            message: {"learning_rate": 0.5, "initial_range": 0.25, "weight_bounds": [-1.0, 1.0], **more},
        }


@pytest.mark.parametrize("rule", RULES)
def test_paddle_takes_every_setting_of_the_table(strategies: dict[str, Any], rule: str) -> None:
    table = strategies[rule]
    accessor = table["accessor"]

    assert int(table["shard_num"]) == 30
    assert (accessor["accessor_class"], accessor["fea_dim"], accessor["embedx_dim"]) == ("SparseAccessor", 7, 4)
    assert accessor["embedx_threshold"] == 3
    assert accessor["ctr_accessor_param"] == {
        "nonclk_coeff": 0.25,
        "click_coeff": 0.5,
        "base_threshold": 1.5,
        "delta_threshold": 0.75,
        "delta_keep_days": 4.0,
        "show_click_decay_rate": 0.875,
        "delete_threshold": 0.625,
        "delete_after_unseen_days": 6.0,
        "ssd_unseenday_threshold": 2,
    }
