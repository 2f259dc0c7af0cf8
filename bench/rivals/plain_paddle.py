"""A network of ours trained by Paddle alone: one process with all cores, no parameter server, keys that are known beforehand.

    python -m bench.rivals.plain_paddle SPEC.json

SPEC: {"model": …, "slots": 26, "vocabulary": keys of all slots, "batchSize": …, "feed": …, "data": folder}. The folder has `train` and `held`, each as
.ids.npy (i64[rows, slots], numbered from 0 over all slots), .clicks.npy and, for `dataset`, .dense.txt with the same.

feed: `dataset` is `train_from_dataset` with a thread a core, which update the same parameters without locks (Hogwild). `tensors` is an
`Executor.run` a batch with tensors made before the clock starts; matrix products use all cores. `table` is `tensors` on one thread.
`network` is the dense network alone on one thread: pooled values are fed, there is no table.

Both embeddings and network are trained by Adam, the embeddings' lazily. A slot has one key, so nothing is pooled. Prints JSON: records,
seconds and CPU seconds of the training, AUC of `held`.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.engine_beside_server import without_paddles_output
from elastic_ctr.config.model import Model
from elastic_ctr.training.model.evaluation import weighted_auc
from elastic_ctr.training.model.program import prepare_environment

FEEDS = ("dataset", "tensors")
_WARM = 3  # batches before the clock starts, where each of them is a call
_MOST_BATCHES = 100  # of `network`


class Rival:
    """The program and its data."""

    def __init__(self, spec: dict[str, Any], paddle: Any) -> None:
        self._spec, self._paddle = spec, paddle
        self._model = Model.model_validate(spec["model"])
        self._folder = Path(spec["data"])
        self._feed, self._batch = spec["feed"], spec["batchSize"]
        self._build()
        self._place = paddle.CPUPlace()
        self._executor = paddle.static.Executor(self._place)
        self._executor.run(paddle.static.default_startup_program())

    def _build(self) -> None:
        from elastic_ctr.training.model.networks.by_name import logit_of

        paddle, static, model = self._paddle, self._paddle.static, self._model
        slots, dim = self._spec["slots"], model.embedding_dim
        self._click = static.data("click", [None, 1], "int64")
        if self._feed == "network":
            self._ids = static.data("pooled", [None, slots * dim], "float32")
            self._ids.stop_gradient = False
            pooled = self._ids
        else:
            self._ids = static.data("ids", [None, slots], "int64")
            # One table for both orders is one lookup and one step, and so faster than two. It has one rate, between those of ours: either
            # one alone costs some network AUC.
            table = model.table
            rate = math.sqrt(table.embed.learning_rate * table.embedx.learning_rate)
            scale = table.embedx.initial_range
            values = static.nn.embedding(
                self._ids,
                [self._spec["vocabulary"], dim],
                is_sparse=True,
                param_attr=paddle.ParamAttr(
                    name="table",
                    initializer=paddle.nn.initializer.Uniform(-scale, scale),
                    learning_rate=rate / model.dense.learning_rate,
                ),
            )
            pooled = paddle.reshape(values, [-1, slots * dim])
        self._logit = logit_of(model, pooled, None, training=True)
        loss = paddle.nn.functional.binary_cross_entropy_with_logits(
            self._logit, paddle.cast(self._click, "float32"), reduction="mean"
        )
        self._forward = static.default_main_program().clone(for_test=True)
        paddle.optimizer.Adam(model.dense.learning_rate, lazy_mode=True).minimize(loss)

    def train(self) -> dict[str, Any]:
        work, records = self._of_dataset() if self._feed == "dataset" else self._of_tensors()
        cpu, began = time.process_time(), time.monotonic()
        work()
        seconds = time.monotonic() - began
        return {"records": records, "seconds": seconds, "cpu": time.process_time() - cpu}

    def _of_dataset(self) -> tuple[Callable[[], object], int]:
        paddle = self._paddle
        threads = os.cpu_count() or 1
        dataset = paddle.distributed.InMemoryDataset()
        dataset.init(
            batch_size=self._batch, thread_num=threads, use_var=[self._ids, self._click], pipe_command="cat"
        )  # fmt: skip
        dataset.set_filelist([str(self._folder / "train.dense.txt")])
        dataset.load_into_memory()
        program = paddle.static.default_main_program()

        def work() -> None:
            self._executor.train_from_dataset(program, dataset, thread=threads, print_period=10**9)

        return work, int(dataset.get_memory_data_size())

    def _of_tensors(self) -> tuple[Callable[[], object], int]:
        ids, clicks = self._arrays("train")
        if self._feed == "network":
            ids, clicks = ids[: _MOST_BATCHES * self._batch], clicks[: _MOST_BATCHES * self._batch]
            width = self._spec["slots"] * self._model.embedding_dim
            ids = np.random.default_rng(1).normal(0, 0.1, (len(ids), width)).astype(np.float32)
        feeds = self._batches(ids, clicks)
        program = self._paddle.static.default_main_program()
        for feed in feeds[:_WARM]:
            self._executor.run(program, feed=feed, fetch_list=[])

        def work() -> None:
            for feed in feeds:
                self._executor.run(program, feed=feed, fetch_list=[])

        return work, len(ids)

    def _arrays(self, name: str) -> tuple[Any, Any]:
        return np.load(self._folder / f"{name}.ids.npy"), np.load(self._folder / f"{name}.clicks.npy").reshape(-1, 1)

    def _batches(self, ids: Any, clicks: Any) -> list[dict[str, Any]]:
        def tensor(array: Any) -> Any:
            made = self._paddle.base.core.LoDTensor()
            made.set(np.ascontiguousarray(array), self._place)
            return made

        starts = range(0, len(ids), self._batch)
        cut = [slice(start, start + self._batch) for start in starts]
        return [{self._ids.name: tensor(ids[each]), "click": tensor(clicks[each])} for each in cut]

    def auc(self) -> float | None:
        """Of the records that were held out; None for a network without a table."""
        if self._feed == "network":
            return None
        ids, clicks = self._arrays("held")
        found = [
            self._executor.run(self._forward, feed=feed, fetch_list=[self._logit])[0]
            for feed in self._batches(ids, clicks)
        ]
        logits = np.concatenate(found).reshape(-1).astype(np.float64)
        return weighted_auc(1 / (1 + np.exp(-logits)), clicks.reshape(-1), np.ones(len(clicks)))


def main() -> None:
    out = without_paddles_output()
    spec = json.loads(Path(sys.argv[1]).read_text())
    prepare_environment(Path(sys.argv[1]).parent / "plain-paddle")
    # Threads of a matrix product; with a dataset each core has a thread of its own already.
    products = (os.cpu_count() or 1) if spec["feed"] == "tensors" else 1
    os.environ.update(OMP_NUM_THREADS=str(products), FLAGS_paddle_num_threads=str(products))
    import paddle

    paddle.enable_static()
    paddle.seed(1)
    rival = Rival(spec, paddle)
    found = {**rival.train(), "auc": rival.auc()}
    os.write(out, f"{json.dumps(found)}\n".encode())
    # Paddle's threads crash in an orderly interpreter shutdown.
    os._exit(0)


if __name__ == "__main__":
    main()
