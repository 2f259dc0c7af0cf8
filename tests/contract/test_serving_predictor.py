"""The one module that knows Paddle, in processes of their own: what it does on import must not reach other tests."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from contract.serving_world import DIM, SLOTS, Exported, export

WIDTH = len(SLOTS) * DIM


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export(tmp_path_factory.mktemp("network"), 5)


def run(program: str, *arguments: object, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, check=False, cwd=cwd
    )


def test_batches_of_any_size_are_answered_as_numpy_does_and_never_with_certainty(
    exported: Exported, tmp_path: Path
) -> None:
    pooled = np.random.default_rng(1).normal(0, 1, (200, WIDTH)).astype(np.float32)
    np.save(tmp_path / "pooled.npy", pooled)
    program = """
import sys
from pathlib import Path
import numpy as np
from elastic_ctr.serving.batching.predictor import DenseNetwork
network = DenseNetwork(Path(sys.argv[1]), int(sys.argv[2]))
pooled = np.load("pooled.npy")
answers = [network.predict(pooled[:rows].copy()) for rows in (200, 1, 7, 200)]
assert [len(each) for each in answers] == [200, 1, 7, 200]
assert (answers[0] == answers[3]).all()
np.save("answers.npy", answers[0])
# Of logits of a million the sigmoid is 0 or 1 in float32.
certain = network.predict(np.float32(1e6) * pooled)
assert 0 < certain.min() < 1e-37 and 0.9999999 < certain.max() < 1
network.close()
"""

    done = run(program, exported.folder, WIDTH, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    hidden = np.maximum(pooled @ exported.dense["w1"] + exported.dense["b1"], 0)
    expected = 1 / (1 + np.exp(-(hidden @ exported.dense["w2"] + exported.dense["b2"])[:, 0]))
    np.testing.assert_allclose(np.load(tmp_path / "answers.npy"), expected, atol=1e-5)


def test_two_networks_live_side_by_side_on_one_thread(exported: Exported, tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
import numpy as np
from elastic_ctr.runtime.inline_executor import InlineExecutor
from elastic_ctr.serving.batching.predictor import DenseNetwork
width = int(sys.argv[2])
pooled = np.ones((3, width), np.float32)
with InlineExecutor("paddle") as thread:
    first = thread.submit(DenseNetwork, Path(sys.argv[1]), width).result()
    before = thread.submit(first.predict, pooled).result()
    for _ in range(20):
        second = thread.submit(DenseNetwork, Path(sys.argv[1]), width).result()
        assert (thread.submit(second.predict, pooled).result() == before).all()
        assert (thread.submit(first.predict, pooled).result() == before).all()
        thread.submit(first.close).result()
        first = second
"""

    done = run(program, exported.folder, WIDTH, cwd=tmp_path)

    assert done.returncode == 0, done.stderr


def test_a_network_made_on_paddles_thread_answers_alike_on_another_while_that_is_idle(
    exported: Exported, tmp_path: Path
) -> None:
    program = """
import sys
from pathlib import Path
import numpy as np
from elastic_ctr.runtime.inline_executor import InlineExecutor
from elastic_ctr.serving.batching.predictor import DenseNetwork
width = int(sys.argv[2])
pooled = np.random.default_rng(0).random((300, width), np.float32)
with InlineExecutor("paddle") as thread:
    network = thread.submit(DenseNetwork, Path(sys.argv[1]), width).result()
    for number in range(60):
        rows = 1 + number * 5
        there = thread.submit(network.predict, pooled[:rows].copy()).result()
        while not thread.idle:
            pass
        assert (network.predict(pooled[:rows].copy()) == there).all()
        if number % 10 == 0:
            old, network = network, thread.submit(DenseNetwork, Path(sys.argv[1]), width).result()
            thread.submit(old.close).result()
"""

    done = run(program, exported.folder, WIDTH, cwd=tmp_path)

    assert done.returncode == 0, done.stderr


def test_a_gzip_file_is_read_after_the_module_in_a_bare_interpreter(exported: Exported, tmp_path: Path) -> None:
    program = """
from elastic_ctr.serving.batching import predictor
predictor.preload()
import gzip
assert gzip.decompress(gzip.compress(b"x" * 100_000)) == b"x" * 100_000
"""

    done = run(program, cwd=tmp_path)

    assert done.returncode == 0, done.stderr


UNUSABLE = """
import sys
from pathlib import Path
from elastic_ctr.serving.batching.predictor import DenseNetwork, NetworkUnusable
try:
    DenseNetwork(Path(sys.argv[1]), int(sys.argv[2]))
except NetworkUnusable as unusable:
    print(unusable)
"""


def test_a_network_of_another_width_is_refused_by_the_width(exported: Exported, tmp_path: Path) -> None:
    done = run(UNUSABLE, exported.folder, WIDTH + 1, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert f"does not take {WIDTH + 1} floats a row" in done.stdout


def test_a_refused_network_is_taken_apart_before_anybody_holds_its_error(exported: Exported, tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from elastic_ctr.serving.batching.predictor import DenseNetwork, NetworkUnusable
try:
    DenseNetwork(Path(sys.argv[1]), int(sys.argv[2]))
except NetworkUnusable as unusable:
    step, held = unusable.__traceback__, []
    while step is not None:
        held.append(step.tb_frame.f_locals.get("self"))
        step = step.tb_next
    networks = [each for each in held if isinstance(each, DenseNetwork)]
    print(len(networks), {each._predictor for each in networks})
"""

    done = run(program, exported.folder, WIDTH + 1, cwd=tmp_path)

    assert done.stdout == "2 {None}\n", done.stderr


def test_missing_files_are_named(tmp_path: Path) -> None:
    done = run(UNUSABLE, tmp_path, WIDTH, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "network.pdmodel is missing or empty" in done.stdout


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_parameters_that_are_cut_off_are_refused(exported: Exported, tmp_path: Path, share: float) -> None:
    whole = (exported.folder / "network.pdiparams").read_bytes()
    (tmp_path / "network.pdmodel").write_bytes((exported.folder / "network.pdmodel").read_bytes())
    (tmp_path / "network.pdiparams").write_bytes(whole[: int(len(whole) * share)])

    done = run(UNUSABLE, tmp_path, WIDTH, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "Paddle cannot load network.pdmodel" in done.stdout


def test_a_program_that_is_none_is_refused(exported: Exported, tmp_path: Path) -> None:
    (tmp_path / "network.pdmodel").write_bytes(b"nonsense" * 100)
    (tmp_path / "network.pdiparams").write_bytes((exported.folder / "network.pdiparams").read_bytes())

    done = run(UNUSABLE, tmp_path, WIDTH, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "Paddle cannot load network.pdmodel" in done.stdout
