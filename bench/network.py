"""The dense network that both sides answer with: the product's slot DNN, 26 slots x 9 -> 400 -> 400 -> 400 -> 1, weights drawn.

Models of feasigns take embeddings alone, so the 13 dense inputs of the Criteo shape are left out, on both sides; those of rows take
them. Weights are
drawn (He) so that probabilities spread: a network that answers 0.5 to everything would hide wrong lookups.
"""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SLOTS = tuple(str(number) for number in range(26))
LAYERS = (400, 400, 400)


def weights(dim: int, numbers: int = 0) -> dict[str, NDArray[np.float32]]:
    """By the names of the product's network."""
    random = np.random.default_rng(5)
    drawn: dict[str, NDArray[np.float32]] = {}
    widths = [len(SLOTS) * dim + numbers, *LAYERS, 1]
    for number, (rows, columns) in enumerate(pairwise(widths)):
        name = "out" if number == len(LAYERS) else f"fc{number}"
        drawn[f"{name}.w"] = (random.standard_normal((rows, columns)) * np.sqrt(2 / rows)).astype(np.float32)
        drawn[f"{name}.b"] = np.zeros(columns, np.float32)
    return drawn


def answer(pooled: NDArray[np.float32], dim: int) -> NDArray[np.float64]:
    """The oracle: pooled [rows, slots * dim], numbers beside it if there are any, to probabilities [rows], in numpy."""
    drawn = weights(dim, pooled.shape[1] - len(SLOTS) * dim)
    hidden = pooled.astype(np.float64)
    for number in range(len(LAYERS)):
        hidden = np.maximum(hidden @ drawn[f"fc{number}.w"] + drawn[f"fc{number}.b"], 0)
    logit = (hidden @ drawn["out.w"] + drawn["out.b"])[:, 0]
    probabilities: NDArray[np.float64] = 1 / (1 + np.exp(-logit))
    return probabilities


def export(folder: Path, dim: int, numbers: int = 0, kind: str = "slot-dnn") -> Path:
    """`network.pdmodel` and `.pdiparams` in folder, made by Paddle in a process of its own.

    `kind`: `slot-dnn` has the weights above; `deepfm` is the product's default network, with its own first weights.
    """
    if not (folder / "network.pdiparams").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "bench.network", str(folder), str(dim), str(numbers), kind]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"Paddle did not export the network: {done.stderr[-2000:]}")
    return folder


def _export(folder: Path, dim: int, numbers: int, kind: str) -> None:
    import paddle
    from paddle import static

    from elastic_ctr.config.model import Model
    from elastic_ctr.config.networks import SlotDnn
    from elastic_ctr.training.model.networks.by_name import logit_of

    paddle.enable_static()
    program, start = static.Program(), static.Program()
    with static.program_guard(program, start):
        pooled = static.data("pooled", [None, len(SLOTS) * dim], "float32")
        beside = static.data("numbers", [None, numbers], "float32") if numbers else None
        model = (
            Model(embedding_dim=dim, network=SlotDnn(layers=LAYERS)) if kind == "slot-dnn" else Model(embedding_dim=dim)
        )
        probability = paddle.nn.functional.sigmoid(logit_of(model, pooled, beside))
    executor: Any = static.Executor(paddle.CPUPlace())
    executor.run(start)
    for name, values in weights(dim, numbers).items() if kind == "slot-dnn" else ():
        static.global_scope().find_var(name).get_tensor().set(values, paddle.CPUPlace())
    static.save_inference_model(
        str(folder / "network"), [pooled, beside] if numbers else [pooled], [probability], executor, program=program
    )


if __name__ == "__main__":
    _export(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
