"""A trainer process that tests order about: `python engine_driver.py SPEC.json`, one JSON command a line, one answer a line."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from elastic_ctr.config.model import Model, ModelInput
from elastic_ctr.training.control.server_sockets import link_sockets
from elastic_ctr.training.model.program import prepare_environment
from elastic_ctr.training.trainer.engine import Engine
from elastic_ctr.training.trainer.take_over import Names


def by_paddle(engine: Engine, folder: Path, keys: Any, pooled: Any) -> list[Any]:
    """Export by `save_inference_model`, and the pulled values and scores of executors that have run nothing before."""
    import paddle
    from paddle import static

    program, feeds, output = engine._head()
    with paddle.utils.unique_name.guard():
        static.save_inference_model(str(folder / "network"), feeds, [output], static.Executor(), program=program)
    program, feeds, output = engine._head()
    [scores] = static.Executor().run(program, feed={feeds[0].name: pooled}, fetch_list=[output])
    columns = keys.view(np.int64).reshape(len(engine._graph.slots), -1, 1)
    feed = {
        slot.name: paddle.base.create_lod_tensor(column, [[1] * len(column)], paddle.CPUPlace())
        for slot, column in zip(engine._graph.slots, columns, strict=True)
    }
    pulled = static.Executor().run(engine._pull_program.program, feed=feed, fetch_list=engine._graph.pooled)
    return [np.concatenate(pulled).tolist(), scores.reshape(-1).tolist()]


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    scratch = Path(spec["scratch"])
    prepare_environment(scratch)
    link_sockets(spec["sockets"], Path())
    model, given = Model.model_validate(spec["model"]), ModelInput(**spec["input"])
    engine = Engine(
        model, given, spec["servers"], threads=spec.get("threads", 1), gradient_merge=spec.get("gradient_merge", 1),
        group=spec.get("group", ""),
    )  # fmt: skip
    engine.connect(spec["trainer"])
    if spec["initialise"]:
        engine.initialise()
    answers.write('"ready"\n')
    for line in sys.stdin:
        name, *given = json.loads(line)
        answer: Any = None
        if name in ("train", "predict"):
            rows = given[0]
            file = scratch / "lines.txt"
            file.write_text("".join(f"{row}\n" for row in rows))
            if name == "predict":
                engine.set_offset(given[1])
            dataset = engine.ready(engine.preload(file, 1), len(rows))
            positives, negatives = getattr(engine, name)(dataset, group_rows=spec.get("group_rows", 0))
            # Without a flush: a run ends once the servers have taken all that it pushed.
            dataset.release_memory()
            counts = positives + negatives
            answer = {int(bucket): counts[bucket] for bucket in counts.nonzero()[0]}
        elif name == "refused":
            try:
                engine.preload(Path(given[0]), 1)
            except OSError as failed:
                answer = failed.strerror
        elif name == "groups":
            answer = engine.groups().to_bytes().hex()
        elif name == "last_values":
            answer = engine.pull(np.array(given[0], np.uint64))[:, -1].tolist()
        elif name == "pull":
            answer = engine.pull(np.array(given[0], np.uint64)).tolist()
        elif name == "score":
            engine.pull_dense()
            pooled = np.array(given[0], np.float32)
            answer = engine.score(pooled, np.zeros((len(pooled), 0), np.float32)).tolist()
        elif name == "parameters":
            engine.pull_dense()
            answer = {name: engine._array(name).tolist() for name in engine._first_values}
        elif name == "initialise_from":
            answer = engine.initialise_from(Path(given[0]), Names(tuple(given[1]), ()))
        elif name == "export":
            engine.pull_dense()
            engine.export_dense(Path(given[0]))
        elif name == "by_paddle":
            answer = by_paddle(engine, Path(given[0]), np.array(given[1], np.uint64), np.array(given[2], np.float32))
        elif name == "count_rows":
            answer = engine.count_rows()
        elif name in ("save", "shrink", "load", "load_tables", "close"):
            getattr(engine, name)(*given)
        answers.write(json.dumps(answer) + "\n")
    os._exit(0)


if __name__ == "__main__":
    main()
