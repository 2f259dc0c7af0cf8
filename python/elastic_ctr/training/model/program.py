"""The training program, which parameter servers and trainers build alike from the same settings.

The sparse table is Paddle's MemorySparseTable with its SparseAccessor: a row is a first-order weight and a vector.
"""

import os
import zlib  # noqa: F401  (before paddle: its libpaddle carries zlib symbols of its own, and a later import crashes)
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic_ctr.config.model import Model, ModelInput, VectorRule
from elastic_ctr.runtime.math_library import choose_code_path
from elastic_ctr.training.model.networks.by_name import logit_of
from elastic_ctr.training.model.score_counter import ScoreCounter

SUPPORTED = "2.6."
TABLE = "embedding"
OFFSET = "offset"

_RULES: Mapping[str, tuple[str, str]] = {
    # our name: (Paddle's class, Paddle's sub-message)
    "naive": ("SparseNaiveSGDRule", "naive"),
    "adagrad": ("SparseAdaGradSGDRule", "adagrad"),
    "std_adagrad": ("StdAdaGradSGDRule", "adagrad"),
    "adagrad_v2": ("SparseAdaGradV2SGDRule", "adagrad"),
    "adam": ("SparseAdamSGDRule", "adam"),
    "shared_adam": ("SparseSharedAdamSGDRule", "adam"),
}


def prepare_environment(scratch: Path) -> None:
    """Set up the process before paddle is imported: one thread, the fastest code path, quiet logs, a private working directory."""
    os.environ.update(
        OMP_NUM_THREADS="1", CPU_NUM="1", GLOG_v="0", GLOG_minloglevel="2", PADDLE_WITH_GLOO="0", TEST_MODE="1",
        # Otherwise Paddle would wait for TCP ports, which do not exist.
        FLAGS_LAUNCH_BARRIER="0",
    )  # fmt: skip
    choose_code_path()
    os.environ.pop("PADDLE_TRAINER_ENDPOINTS", None)
    scratch.mkdir(parents=True, exist_ok=True)
    # The servers' sockets are in this folder, and only its mode protects them from other users.
    scratch.chmod(0o700)
    os.chdir(scratch)


def table_settings(model: Model) -> dict[str, dict[str, Any]]:
    """Return Paddle's `sparse_table_configs` for `model`. Names are mapped only here."""
    table = model.table
    settings: dict[str, Any] = {
        "table_class": "MemorySparseTable",
        "shard_num": model.partitions,
        "accessor.accessor_class": "SparseAccessor",
        "accessor.fea_dim": model.embedding_dim + 2,
        "accessor.embedx_dim": model.embedding_dim - 1,
        "accessor.embedx_threshold": table.embedx_threshold,
    }
    for field, value in table.model_dump(exclude={"embedx_threshold", "embedding_l2", "embed", "embedx"}).items():
        settings[f"accessor.ctr_accessor_param.{field}"] = value
    for block, rule in (("embed_sgd_param", table.embed), ("embedx_sgd_param", table.embedx)):
        name, message = _RULES[rule.name]
        settings[f"accessor.{block}.name"] = name
        settings[f"accessor.{block}.{message}.learning_rate"] = rule.learning_rate
        settings[f"accessor.{block}.{message}.weight_bounds"] = list(rule.weight_bounds)
        if isinstance(rule, VectorRule):
            settings[f"accessor.{block}.{message}.initial_range"] = rule.initial_range
        if message == "adagrad":
            settings[f"accessor.{block}.adagrad.initial_g2sum"] = rule.initial_g2sum
    return {TABLE: {f"table_parameters.{TABLE}.{key}": value for key, value in settings.items()}}


@dataclass
class Graph:
    """Inputs and outputs of the training program that the engine uses. The program calls `counter` with every batch that it scores."""

    feeds: list[Any]
    slots: list[Any]
    pooled: list[Any]
    counter: ScoreCounter


def start_paddle(model: Model) -> None:
    """Switch Paddle to static mode and seed it. Raises RuntimeError for an unsupported version."""
    import paddle

    if not paddle.__version__.startswith(SUPPORTED):
        raise RuntimeError(f"paddlepaddle {paddle.__version__} is not {SUPPORTED}*; install requirements/run.txt")
    paddle.enable_static()
    paddle.seed(model.seed)


def build_program(model: Model, given: ModelInput, group: str = "") -> Graph:
    """Fill the default program with feeds, pooled slots, network, loss and distributed optimizer. Call it after `fleet.init`.

    `group` is the slot whose keys group impressions for the GAUC, or "". A record of the engine's text has show, click, the numbers if
    there are any, and the slots, in this order.
    """
    import paddle
    from paddle import static
    from paddle.distributed import fleet

    show = static.data("show", [None, 1], "int64", lod_level=1)
    click = static.data("click", [None, 1], "int64", lod_level=1)
    # Paddle reads all numbers of a dense variable, but drops those near 0 from a sparse one.
    numbers = static.data("numbers", [None, len(given.numbers)], "float32") if given.numbers else None
    slots = [static.data(f"slot.{name}", [None, 1], "int64", lod_level=1) for name in given.slots]
    shows = paddle.cast(show, "float32")
    clicks = paddle.cast(click, "float32")
    entry = paddle.distributed.ShowClickEntry(shows.name, clicks.name)
    pooled = []
    for number, keys in enumerate(slots, 1):
        values = static.nn.sparse_embedding(
            keys,
            [1024, model.embedding_dim],
            padding_idx=0,
            entry=entry,
            slot=number,
            param_attr=paddle.ParamAttr(name=TABLE),
        )
        how = "average" if given.slots[number - 1] in given.averaged else "sum"
        pooled.append(static.nn.sequence_lod.sequence_pool(values, how))
    together = paddle.concat(pooled, axis=1)
    logit = logit_of(model, together, numbers, training=True) + offset()
    counter = ScoreCounter()
    grouping = [slots[given.slots.index(group)]] if group else []

    def count(*scored: Any) -> None:
        # Not the method itself: Paddle inspects the argument names and would pass a value for `self`.
        counter.count(*scored)

    static.py_func(count, [logit.detach(), shows, clicks, *grouping], None)
    # The negative log likelihood of `show` impressions of which `click` were clicked. It is linear in shows and clicks, so a late click
    # may have its own line with show 0. Such lines count in the weight, which would be 0 for a batch of late clicks otherwise.
    weight = paddle.sum(paddle.maximum(shows, clicks))
    loss = paddle.sum(shows * paddle.nn.functional.softplus(logit) - clicks * logit) / weight
    loss = _with_decay(loss, model, together, shows, weight)
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    strategy.adam_d2sum = model.dense.adam_d2sum
    strategy.sparse_table_configs = table_settings(model)
    optimizer = paddle.optimizer.Adam(model.dense.learning_rate, lazy_mode=True)
    fleet.distributed_optimizer(optimizer, strategy).minimize(loss)
    feeds = [show, click, *([] if numbers is None else [numbers]), *slots]
    return Graph(feeds, slots, pooled, counter)


def offset() -> Any:
    """Return a variable [1] that is added to every logit and never trained: the model's offset, plus a version's shift."""
    from paddle import static

    found = static.create_global_var([1], 0.0, "float32", persistable=True, name=OFFSET)
    found.stop_gradient = True
    return found


def _with_decay(loss: Any, model: Model, pooled: Any, shows: Any, weight: Any) -> Any:
    """Return the loss plus half of l2 times the squares of the dense weights and of an impression's pooled values.

    This is part of the loss because Paddle's server has no weight decay for either table.
    """
    import paddle
    from paddle import static

    if model.table.embedding_l2:
        squares = paddle.sum(shows * paddle.sum(pooled * pooled, axis=1, keepdim=True)) / weight
        loss += 0.5 * model.table.embedding_l2 * squares
    if model.dense.l2:
        dense = [each for each in static.default_main_program().all_parameters() if each.name != TABLE]
        # Biases and the weights of layer norms, which have one dimension, are left out.
        weights = [each for each in dense if len(each.shape) > 1]
        for each in weights:
            loss += 0.5 * model.dense.l2 * paddle.sum(each * each)
    return loss
