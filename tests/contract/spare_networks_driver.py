"""Loads versions of networks anew and into a spare one: `python spare_networks_driver.py CASES.json FOLDER`.

A case is a model and how many slots and numbers, as of network_driver.py, or the name of a program below. Two versions of it are exported
with parameters that are drawn. FOLDER/answers.json then says of each case whether the spare network was used again, and how far its
answers are from those of the second version loaded anew, and the answers of the two versions from each other.
"""

import json
import os
import sys
import zlib  # noqa: F401  (before paddle)
from pathlib import Path
from typing import Any

import numpy as np

from elastic_ctr.config.model import Model
from elastic_ctr.serving.batching import predictor
from elastic_ctr.serving.batching.predictor import DenseNetwork
from elastic_ctr.serving.batching.spare_networks import SpareNetworks
from elastic_ctr.training.model.networks.by_name import logit_of

ROWS = 50


def doubled(pooled: Any) -> Any:
    """It computes with a parameter alone."""
    import paddle

    weights = paddle.static.create_parameter([pooled.shape[1], 1], "float32", name="weights")
    return paddle.matmul(pooled, weights + weights)


def whole_numbers(pooled: Any) -> Any:
    """A parameter that is no float32."""
    import paddle

    added = paddle.static.create_parameter(
        [1], "int64", name="added", default_initializer=paddle.nn.initializer.Constant(1)
    )
    weights = paddle.static.create_parameter([pooled.shape[1], 1], "float32", name="weights")
    return paddle.matmul(pooled, weights) + paddle.cast(added, "float32")


def constant(pooled: Any) -> Any:
    """All rows have one score, so a trial would show nothing."""
    import paddle

    bias = paddle.static.create_parameter([1], "float32", name="bias")
    return paddle.sum(pooled, axis=1, keepdim=True) * 0 + bias


def folded(pooled: Any) -> Any:
    """As `doubled`, but Paddle computes with the parameter when it loads the program."""
    predictor.DELETED_PASSES.clear()
    return doubled(pooled)


PROGRAMS = {each.__name__: each for each in (doubled, whole_numbers, constant, folded)}


def export(case: Any, folder: Path, dice: np.random.Generator) -> tuple[int, int]:
    """Both versions. Answers how many floats and numbers a row has."""
    import paddle
    from paddle import static

    program, start = static.Program(), static.Program()
    with static.program_guard(program, start), static.scope_guard(static.Scope()), paddle.utils.unique_name.guard():
        if isinstance(case, str):
            width, count = 6, 0
            feeds = [static.data("pooled", [None, width], "float32")]
            logit = PROGRAMS[case](feeds[0])
        else:
            model, count = Model.model_validate(case["model"]), case["numbers"]
            width = case["slots"] * model.embedding_dim
            feeds = [static.data("pooled", [None, width], "float32")]
            if count:
                feeds.append(static.data("numbers", [None, count], "float32"))
            logit = logit_of(model, *feeds, *([] if count else [None]))
        answer = paddle.nn.functional.sigmoid(logit)
        executor: Any = static.Executor(paddle.CPUPlace())
        executor.run(start)
        for version in ("1", "2"):
            for each in program.all_parameters():
                if each.dtype == paddle.float32:
                    drawn = (dice.standard_normal(each.shape) / 3).astype(np.float32)
                    static.global_scope().find_var(each.name).get_tensor().set(drawn, paddle.CPUPlace())
            # With names of its own: the two programs would differ in the name of the result.
            with paddle.utils.unique_name.guard():
                prefix = str(folder / version / "network")
                static.save_inference_model(prefix, feeds, [answer], executor, program=program)
    return width, count


def answers_of(case: Any, folder: Path) -> dict[str, Any]:
    dice = np.random.default_rng(1)
    width, count = export(case, folder, dice)
    rows = [dice.standard_normal((ROWS, each)).astype(np.float32) for each in (width, count)]
    spare = SpareNetworks()
    first = spare.load(folder / "1", width, count)
    before = first.predict(*rows)
    spare.put(first)
    second = spare.load(folder / "2", width, count)
    renewed = second.predict(*rows)
    expected = DenseNetwork(folder / "2", width, count).predict(*rows)
    return {
        "again": second is first,
        "wrong": float(np.max(np.abs(renewed - expected))),
        "apart": float(np.max(np.abs(before - expected))),
    }


def main() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    import paddle

    paddle.enable_static()
    folder = Path(sys.argv[2])
    cases = json.loads(Path(sys.argv[1]).read_text())
    answers = [answers_of(case, folder / str(place)) for place, case in enumerate(cases)]
    (folder / "answers.json").write_text(json.dumps(answers))
    os._exit(0)


if __name__ == "__main__":
    main()
