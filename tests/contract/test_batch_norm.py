"""Why no network has batch normalisation: what Paddle's parameter servers are told of its statistics (docs/decisions/0013)."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

# Paddle itself is imported in a process of its own: here it would stay.
# tests/contract/test_own_networks.py has a network with batch_norm refused.
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(importlib.util.find_spec("paddle") is None, reason="paddlepaddle is not installed"),
]

PROGRAM = """
import json, math, sys
from pathlib import Path
from elastic_ctr.config.model import Model, ModelInput
from elastic_ctr.training.model.networks import by_name
from elastic_ctr.training.model.networks.parts import connected, layer_normed, output
from elastic_ctr.training.model.program import build_program, prepare_environment, start_paddle
prepare_environment(Path(sys.argv[1]))
start_paddle(Model())
import paddle
from paddle import static
from paddle.distributed import fleet
from google.protobuf import text_format
from paddle.distributed.fleet.proto import the_one_ps_pb2

def batch(inputs, settings):
    hidden = connected(inputs.pooled, 4, "fc0")
    names = {"param_attr": paddle.ParamAttr(name="norm.w"), "bias_attr": paddle.ParamAttr(name="norm.b")}
    moving = {"moving_mean_name": "norm.mean", "moving_variance_name": "norm.variance"}
    return output(static.nn.batch_norm(hidden, **names, **moving), inputs)

def layer(inputs, settings):
    return output(layer_normed(connected(inputs.pooled, 4, "fc0"), 4, "norm"), inputs)

found = {}
for network in (batch, layer):
    by_name.NETWORKS["slot-dnn"] = network
    fleet.fleet._runtime_handle = None
    fleet.init(fleet.UserDefinedRoleMaker(
        current_id=0, role=fleet.Role.SERVER, worker_num=1, server_endpoints=["127.0.0.1:1"]
    ))
    with static.program_guard(static.Program(), static.Program()), paddle.utils.unique_name.guard():
        build_program(Model(network="slot-dnn", embedding_dim=5), ModelInput(("a", "b")))
        told = text_format.Parse(
            fleet.fleet._runtime_handle.ps_desc_builder.build_server_desc(), the_one_ps_pb2.PSParameter()
        )
        tables = told.server_param.downpour_server_param.downpour_table_param
        [dense] = [each for each in tables if each.type == the_one_ps_pb2.PS_DENSE_TABLE]
        found[network.__name__] = {
            "parameters": {
                each.name: math.prod(each.shape)
                for each in fleet.fleet.origin_main_program.all_parameters()
                if each.name != "embedding"
            },
            "held by servers": dense.accessor.fea_dim,
        }
print("RESULT" + json.dumps(found))
"""


def test_the_servers_hold_no_statistics_of_batch_norm_and_all_that_layer_norm_has(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.rpartition("RESULT")[2])

    batch, layer = found["batch"]["parameters"], found["layer"]["parameters"]
    assert (batch["norm.mean"], batch["norm.variance"]) == (4, 4)
    assert found["batch"]["held by servers"] == sum(batch.values()) - 8
    assert {"norm.w", "norm.b"} <= layer.keys()
    assert found["layer"]["held by servers"] == sum(layer.values())
