"""Computes networks with weights that are drawn: `python network_driver.py CASES.json FOLDER`.

A case is a model and how many slots and numbers; FOLDER/<its place>.npz then has `pooled`, `numbers`, every parameter by its name, `logit`,
and `slope of …`, what the sum of the logits changes by with each of `pooled` and of the parameters.
"""

import json
import os
import sys
import zlib  # noqa: F401  (before paddle)
from pathlib import Path
from typing import Any

import numpy as np

from elastic_ctr.config.model import Model
from elastic_ctr.training.model.networks.by_name import logit_of

ROWS = 5


def computed(model: Model, slots: int, width: int, seed: int) -> dict[str, Any]:
    import paddle
    from paddle import static

    dice = np.random.default_rng(seed)
    program, start = static.Program(), static.Program()
    with static.program_guard(program, start), static.scope_guard(static.Scope()), paddle.utils.unique_name.guard():
        pooled = static.data("pooled", [None, slots * model.embedding_dim], "float32")
        pooled.stop_gradient = False
        numbers = static.data("numbers", [None, width], "float32") if width else None
        logit = logit_of(model, pooled, numbers)
        parameters = program.all_parameters()
        slopes = static.gradients([paddle.sum(logit)], [pooled, *parameters])
        executor: Any = static.Executor(paddle.CPUPlace())
        executor.run(start)
        drawn = {}
        for each in parameters:
            drawn[each.name] = (dice.standard_normal(each.shape) / 2).astype(np.float32)
            static.global_scope().find_var(each.name).get_tensor().set(drawn[each.name], paddle.CPUPlace())
        given = {"pooled": dice.standard_normal((ROWS, slots * model.embedding_dim)).astype(np.float32)}
        if width:
            given["numbers"] = dice.standard_normal((ROWS, width)).astype(np.float32)
        found = executor.run(program, feed=given, fetch_list=[logit, *slopes])
    names = [f"slope of {name}" for name in ("pooled", *drawn)]
    return {**given, **drawn, "logit": found[0], **dict(zip(names, found[1:], strict=True))}


def main() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    import paddle

    paddle.enable_static()
    for place, case in enumerate(json.loads(Path(sys.argv[1]).read_text())):
        model = Model.model_validate(case["model"])
        np.savez(Path(sys.argv[2]) / f"{place}.npz", **computed(model, case["slots"], case["numbers"], place))
    os._exit(0)


if __name__ == "__main__":
    main()
