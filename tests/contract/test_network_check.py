"""`elastic-ctr network check` with its real processes: a parameter server, a trainer's engine and serving's predictor."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elastic_ctr.config.values_file import Values
from elastic_ctr.operate.local import network_trial
from elastic_ctr.operate.local.network_check import CheckRefused, try_network

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-network" / "my_network.py"
SETTINGS = {"pairs": [[0, 1], [0, 2]], "layers": [8], "dropout": 0.2}


def values(source: str) -> Values:
    return Values.model_validate(
        {
            "data": {"source": {"url": "file:///nowhere"}, "start": "20200401/00", "slots": ["a", "b", "c"]},
            "model": {"network": {"source": source, "settings": SETTINGS}, "embeddingDim": 5, "partitions": 4},
            "trainer": {"config": {"batchSize": 64}},
        }
    )


def test_the_example_is_trained_exported_and_scored_by_serving_as_by_the_trainer() -> None:
    found = try_network(values(EXAMPLE.read_text()))

    assert {each["name"]: each["shape"] for each in found.parameters} == {
        "pairs.r": [2, 1], "fc0.w": [12, 8], "fc0.b": [8], "fc.out.w": [8, 1], "fc.out.b": [1],
    }  # fmt: skip
    assert found.values == 2 + 96 + 8 + 8 + 1
    assert found.unchanged == []
    assert found.max_abs_diff < 1e-5
    assert found.training_microseconds > 0 < found.prediction_microseconds


# tests/unit/operate/local/test_network_check.py has another process that is killed.
@pytest.mark.nightly
def test_a_network_that_kills_its_process_is_refused_with_the_signal() -> None:
    source = "import os\nos.kill(os.getpid(), 9)\ndef logit(inputs, settings): ...\n"

    with pytest.raises(CheckRefused, match="the engine was ended by SIGKILL while it was trained"):
        try_network(values(source))


# tests/unit/operate/local/test_network_check.py refuses a difference; the first test here computes one.
@pytest.mark.nightly
def test_scores_that_differ_are_noticed(tmp_path: Path) -> None:
    """The export of one network beside the scores of another."""
    spec: dict[str, Any] = {"input": {"slots": ["a"]}, "scratch": str(tmp_path)}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    program = """
import zlib, os, sys
import paddle
paddle.enable_static()
x = paddle.static.data("pooled", [None, 3], "float32")
one = paddle.static.create_global_var([1], 1.0, "float32", persistable=True)
y = paddle.nn.functional.sigmoid(paddle.sum(x, axis=1, keepdim=True) * one)
exe = paddle.static.Executor(paddle.CPUPlace())
exe.run(paddle.static.default_startup_program())
paddle.static.save_inference_model(sys.argv[1], [x], [y], exe)
os._exit(0)
"""
    (tmp_path / network_trial.EXPORT).mkdir()
    subprocess.run([sys.executable, "-c", program, str(tmp_path / network_trial.EXPORT / "network")], check=True)
    pooled = np.random.default_rng(1).standard_normal((9, 3)).astype(np.float32)
    scores = 1 / (1 + np.exp(-pooled.sum(axis=1)))
    found = []
    for off in (0.0, 1e-3):
        moved = scores.copy()
        moved[4] += off
        np.savez(tmp_path / network_trial.SCORED, pooled=pooled, numbers=np.zeros((9, 0), np.float32), scores=moved)
        command = [
            sys.executable,
            "-m",
            "elastic_ctr.operate.local.network_trial",
            "serve",
            str(tmp_path / "spec.json"),
        ]
        subprocess.run(command, check=True)
        found.append(json.loads((tmp_path / network_trial.ANSWER).read_text())["maxAbsDiff"])

    assert found[0] < 1e-6
    assert found[1] == pytest.approx(1e-3, abs=1e-6)


# tests/unit/operate/cli/test_network.py has the JSON of a refusal; nothing in CI has a file that prints.
@pytest.mark.nightly
def test_the_output_of_a_network_file_goes_to_stderr_and_stdout_has_the_json_alone(tmp_path: Path) -> None:
    (tmp_path / "my_network.py").write_text(
        'def logit(inputs, settings):\n    print("width", inputs.pooled.shape[1])\n    return inputs.pooled\n'
    )
    (tmp_path / "values.yaml").write_text(values(EXAMPLE.read_text()).model_dump_json(by_alias=True, include={"data"}))
    command = [
        sys.executable, "-c", "from elastic_ctr.operate.cli.main import main; main()",
        "network", "check", "my_network.py", "-f", "values.yaml", "--json",
    ]  # fmt: skip

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, env=environment)

    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout) == {
        "ok": False,
        "reason": "logit of my_network.py returns the shape [batch, 27]; return one logit a row, [batch, 1]",
    }
    assert "width 27" in done.stderr


# tests/unit/operate/local/test_network_check.py stops a check.
@pytest.mark.nightly
def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    (tmp_path / "my_network.py").write_text(
        f"import pathlib, time\npathlib.Path({str(tmp_path / 'loads')!r}).touch()\ntime.sleep(600)\ndef logit(inputs, settings): ...\n"
    )
    (tmp_path / "values.yaml").write_text(values(EXAMPLE.read_text()).model_dump_json(by_alias=True, include={"data"}))
    command = [
        sys.executable, "-c", "from elastic_ctr.operate.cli.main import main; main()",
        "network", "check", str(tmp_path / "my_network.py"), "-f", str(tmp_path / "values.yaml"),
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    while not (tmp_path / "loads").exists():
        assert process.poll() is None
        time.sleep(0.05)

    process.send_signal(signal.SIGINT)

    assert process.wait(60) == 130
    assert "stopped; nothing runs any more" in process.stderr.read()
    process.stderr.close()
