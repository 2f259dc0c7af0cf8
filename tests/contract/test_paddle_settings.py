"""Every setting of the tables as the server process is given it: in the description that Paddle makes for its server, after
Paddle has put in values of its own.
"""

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
from elastic_ctr.config.model import Dense, Model, ModelInput, SparseRule, Table, VectorRule
from elastic_ctr.config.networks import SlotDnn
from elastic_ctr.training.model.program import build_program, prepare_environment, start_paddle
prepare_environment(Path(sys.argv[1]))
start_paddle(Model())
import paddle
from google.protobuf import text_format
from google.protobuf.json_format import MessageToDict
from paddle.distributed import fleet
from paddle.distributed.fleet.proto import the_one_ps_pb2
found = {}
for rule in json.loads(sys.argv[2]):
    block = dict(name=rule, learning_rate=0.5, initial_g2sum=5, weight_bounds=(-1, 1))
    table = Table(
        nonclk_coeff=0.25, click_coeff=0.5, embedx_threshold=3, base_threshold=1.5, delta_threshold=0.75,
        delta_keep_days=4, show_click_decay_rate=1, delete_threshold=0.625, delete_after_unseen_days=6,
        embed=SparseRule(**block), embedx=VectorRule(**block, initial_range=0.25),
    )
    dense = Dense(learning_rate=0.03125, adam_d2sum=rule == "naive")
    # Else it stays that of the first program.
    fleet.fleet._runtime_handle = None
    fleet.init(fleet.UserDefinedRoleMaker(
        current_id=0, role=fleet.Role.SERVER, worker_num=1, server_endpoints=["127.0.0.1:1"]
    ))
    with paddle.static.program_guard(paddle.static.Program(), paddle.static.Program()), paddle.utils.unique_name.guard():
        build_program(Model(partitions=30, embedding_dim=5, network=SlotDnn(layers=(4,)), table=table, dense=dense), ModelInput(("a",)))
        told = text_format.Parse(
            fleet.fleet._runtime_handle.ps_desc_builder.build_server_desc(), the_one_ps_pb2.PSParameter()
        )
    tables = told.server_param.downpour_server_param.downpour_table_param
    found[rule] = [MessageToDict(each, preserving_proto_field_name=True) for each in tables]
print("RESULT" + json.dumps(found))
"""

MOMENTS = {"beta1_decay_rate": 0.9, "beta2_decay_rate": 0.999, "ada_epsilon": 1e-8}
RULES: dict[str, tuple[str, str, dict[str, float]]] = {
    "naive": ("SparseNaiveSGDRule", "naive", {}),
    "adagrad": ("SparseAdaGradSGDRule", "adagrad", {"initial_g2sum": 5.0}),
    "std_adagrad": ("StdAdaGradSGDRule", "adagrad", {"initial_g2sum": 5.0}),
    "adagrad_v2": ("SparseAdaGradV2SGDRule", "adagrad", {"initial_g2sum": 5.0}),
    "adam": ("SparseAdamSGDRule", "adam", MOMENTS),
    "shared_adam": ("SparseSharedAdamSGDRule", "adam", MOMENTS),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By rule: the description of the sparse and of the dense table."""
    folder = tmp_path_factory.mktemp("paddle")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), json.dumps(list(RULES))],
        capture_output=True, text=True, check=False, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return {
        rule: {each["type"]: each for each in tables}
        for rule, tables in json.loads(done.stdout.rpartition("RESULT")[2]).items()
    }


@pytest.mark.parametrize("rule", RULES)
def test_the_server_is_given_every_setting_of_a_rule(told: dict[str, Any], rule: str) -> None:
    name, message, more = RULES[rule]
    accessor = told[rule]["PS_SPARSE_TABLE"]["accessor"]

    for block in ("embed_sgd_param", "embedx_sgd_param"):
        given = accessor[block]
        assert (given["name"], given[message].pop("weight_bounds")) == (name, [-1.0, 1.0])
        if block == "embed_sgd_param":
            # First-order weights begin at 0, whatever Paddle puts here.
            given[message]["initial_range"] = 0.25
        assert given[message] == pytest.approx({"learning_rate": 0.5, "initial_range": 0.25, **more})


def test_the_server_is_given_every_setting_of_the_table(told: dict[str, Any]) -> None:
    table = told["adam"]["PS_SPARSE_TABLE"]
    accessor = table["accessor"]
    rules = accessor["ctr_accessor_param"]

    assert (table["table_class"], int(table["shard_num"])) == ("MemorySparseTable", 30)
    assert (accessor["accessor_class"], accessor["fea_dim"], accessor["embedx_dim"]) == ("SparseAccessor", 7, 4)
    assert accessor["embedx_threshold"] == 3
    # Paddle's own, for the SSD table that is not used.
    del rules["ssd_unseenday_threshold"]
    assert rules == {
        "nonclk_coeff": 0.25,
        "click_coeff": 0.5,
        "base_threshold": 1.5,
        "delta_threshold": 0.75,
        "delta_keep_days": 4.0,
        "show_click_decay_rate": 1.0,
        "delete_threshold": 0.625,
        "delete_after_unseen_days": 6.0,
    }


@pytest.mark.parametrize(("rule", "dense"), [("adam", "adam"), ("naive", "adam_d2sum")])
def test_the_server_is_given_the_settings_of_the_dense_network(told: dict[str, Any], rule: str, dense: str) -> None:
    common = told[rule]["PS_DENSE_TABLE"]["common"]

    assert common["name"] == dense
    assert common["initializers"][common["params"].index("LearningRate")] == "fill_constant&0.03125"
