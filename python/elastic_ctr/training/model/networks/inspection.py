"""Checks a network of the user's own for what the engine cannot train or serve, before a process joins a training.

Built-in networks are not inspected; tests cover them.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.config.model import Model, ModelInput
from elastic_ctr.config.own_network import OWN
from elastic_ctr.training.model.networks.by_name import logit_of
from elastic_ctr.training.model.networks.own import FILE, NetworkRefused, sentence_of

ROWS = 7
TOLERANCE = 1e-5
_NORMALISES = frozenset(["batch_norm", "sync_batch_norm", "data_norm", "inplace_abn"])
_CONTROL_FLOW = frozenset(["while", "conditional_block", "recurrent", "static_rnn", "select_input", "run_program"])
_PYTHON = frozenset(["py_func", "py_layer", "print", "assert"])
_TABLES = ("lookup_table", "distributed_lookup_table", "pull_", "push_", "embedding_bag")
_FOREIGN = ("send", "recv", "c_", "save", "load", "read", "sequence_", "fetch", "feed", "barrier")
# Allowed although the name begins with `sequence_`: it does not mix rows, but makes ones and zeros from lengths.
_OF_ONE_ROW = frozenset(["sequence_mask"])
# Names of the engine's own variables.
_RESERVED = frozenset(["embedding", "offset", "pooled", "numbers", "show", "click"])
_RESERVED_PREFIXES = ("slot.", "auc.", "learning_rate_")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the dense network."""

    name: str
    shape: tuple[int, ...]

    @property
    def values(self) -> int:
        return int(np.prod(self.shape))


@dataclass(frozen=True, slots=True)
class _Built:
    program: Any
    startup: Any
    feeds: dict[str, Any]
    logit: Any

    @property
    def operators(self) -> list[Any]:
        return [operator for block in self.program.blocks for operator in block.ops]

    @property
    def parameters(self) -> dict[str, Any]:
        return {each.name: each for each in self.program.all_parameters()}


def inspect_own(model: Model, given: ModelInput) -> list[Parameter]:
    """Return the network's parameters in order; [] for a built-in network. Call `start_paddle` before. It changes no program, value or
    name of this process. Raises NetworkRefused.
    """
    if model.network.name != OWN:
        return []
    trained, served = _built(model, given, training=True), _built(model, given, training=False)
    for each in (trained, served):
        _refuse_operators(each, serves=each is served)
        _refuse_parameters(each)
    _refuse_differences(trained, served)
    _refuse_unused(served)
    _refuse_without_gradient(trained)
    _refuse_other_rows(served)
    return [Parameter(name, tuple(each.shape)) for name, each in served.parameters.items()]


def _built(model: Model, given: ModelInput, *, training: bool) -> _Built:
    import paddle
    from paddle import static

    program, startup = static.Program(), static.Program()
    with static.program_guard(program, startup), paddle.utils.unique_name.guard():
        pooled = static.data("pooled", [None, len(given.slots) * model.embedding_dim], "float32")
        pooled.stop_gradient = False
        feeds = {"pooled": pooled}
        if given.numbers:
            feeds["numbers"] = static.data("numbers", [None, len(given.numbers)], "float32")
        logit = logit_of(model, pooled, feeds.get("numbers"), training=training)
    return _Built(program, startup, feeds, logit)


def _refuse_operators(built: _Built, *, serves: bool) -> None:
    lasting = {each.name for each in built.program.list_vars() if each.persistable}
    for operator in built.operators:
        kind, where = operator.type, _line_of(operator)
        if kind in _NORMALISES:
            raise NetworkRefused(
                f"{where} uses {kind}, whose statistics the parameter servers do not hold; use elastic_ctr.network.layer_normed"
            )
        if kind in _CONTROL_FLOW:
            raise NetworkRefused(
                f"{where} uses {kind}, control flow that depends on the values of a batch; use paddle.where or a mask, row by row"
            )
        if kind in _PYTHON:
            raise NetworkRefused(
                f"{where} uses {kind}, which needs Python or a console where predictions are answered; leave it out"
            )
        if kind.startswith(_TABLES):
            raise NetworkRefused(
                f"{where} uses {kind}, a table of its own; make it a feature, whose vectors the network gets"
            )
        if kind.startswith(_FOREIGN) and kind not in _OF_ONE_ROW:
            raise NetworkRefused(f"{where} uses {kind}, which cannot run inside a network here; leave it out")
        if changed := lasting & set(operator.output_arg_names):
            raise NetworkRefused(
                f"{where} writes to {min(changed)}, which would outlive the batch in one trainer alone; a network has no state but "
                "its parameters"
            )
        if serves and kind == "dropout" and not operator.attr("is_test"):
            raise NetworkRefused(
                f"{where} drops values in predictions, too; write paddle.nn.functional.dropout(…, training=inputs.training)"
            )


def _refuse_parameters(built: _Built) -> None:
    import paddle

    for name, each in built.parameters.items():
        where = f"{_first_use(built, name)} makes the parameter {name}"
        if name in _RESERVED or name.startswith(_RESERVED_PREFIXES):
            raise NetworkRefused(f"{where}, a name that the engine uses itself; choose another one, or none")
        if not _NAME.fullmatch(name):
            raise NetworkRefused(f"{where}; a name has at most 200 letters, digits, and _ . -")
        if each.dtype != paddle.float32:
            raise NetworkRefused(
                f"{where} of {str(each.dtype).rpartition('.')[2]}; the parameter servers hold float32 alone"
            )
        if any(size < 1 for size in each.shape):
            raise NetworkRefused(
                f"{where} of the shape {list(each.shape)}, which has no values; every size must be at least 1"
            )
        if not each.trainable:
            raise NetworkRefused(
                f"{where}, which is not trained; use a constant, such as paddle.full or paddle.to_tensor"
            )
        if each.optimize_attr.get("learning_rate", 1.0) != 1.0 or each.regularizer is not None:
            raise NetworkRefused(
                f"{where} with a learning rate or a regularizer of its own, which the parameter servers do not read; set "
                "model.dense.learningRate and model.dense.l2, which are those of all parameters"
            )
    lasting = {each.name for each in built.program.list_vars() if each.persistable} - built.parameters.keys()
    if lasting:
        raise NetworkRefused(
            f"{_first_use(built, min(lasting))} makes {min(lasting)}, a variable that is kept and is no parameter; use a constant, such as "
            "paddle.full or paddle.to_tensor"
        )


def _refuse_differences(trained: _Built, served: _Built) -> None:
    one, other = ({name: list(each.shape) for name, each in built.parameters.items()} for built in (trained, served))
    different = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    if different:
        name = different[0]
        raise NetworkRefused(
            f"{FILE} builds the parameter {name} as {one.get(name, 'none')} in training and as {other.get(name, 'none')} for predictions; "
            "inputs.training may switch dropout, not parameters"
        )


def _refuse_unused(built: _Built) -> None:
    needed = {built.logit.name}
    for operator in reversed(built.operators):
        if needed & set(operator.output_arg_names):
            needed |= set(operator.input_arg_names)
    if "pooled" not in needed:
        raise NetworkRefused(
            f"the logit of {FILE} does not depend on inputs.pooled, so no key would learn; use its values"
        )
    if "numbers" in built.feeds and "numbers" not in needed:
        raise NetworkRefused(
            f"the logit of {FILE} does not depend on inputs.numbers; use them (elastic_ctr.network.first_order and flat do), or take the "
            "numeric features out of the values file"
        )
    for name in built.parameters:
        if name not in needed:
            raise NetworkRefused(f"the logit of {FILE} does not depend on the parameter {name}; leave it out")


def _refuse_without_gradient(built: _Built) -> None:
    import paddle
    from paddle import static

    wanted = {"inputs.pooled": built.feeds["pooled"], **{f"the parameter {n}": p for n, p in built.parameters.items()}}
    try:
        with static.program_guard(built.program, built.startup), paddle.utils.unique_name.guard("gradient."):
            found = static.gradients([paddle.sum(built.logit)], [*wanted.values()])
    except Exception as failed:
        raise NetworkRefused(f"{FILE} cannot be trained: {sentence_of(failed)}") from failed
    for name, gradient in zip(wanted, found, strict=True):
        if gradient is None:
            raise NetworkRefused(
                f"{name} of {FILE} gets no gradient, so it would not learn; do not detach it, and lead it past comparisons and rounding"
            )


def _refuse_other_rows(built: _Built) -> None:
    """Raises NetworkRefused if the score of a row depends on other rows: serving batches rows as they arrive."""
    import paddle
    from paddle import static

    dice = np.random.default_rng(1)
    given = {name: dice.standard_normal((ROWS, feed.shape[1])).astype(np.float32) for name, feed in built.feeds.items()}
    executor = static.Executor(paddle.CPUPlace())

    def logits(rows: slice) -> npt.NDArray[np.float32]:
        feed = {name: values[rows] for name, values in given.items()}
        [found] = executor.run(built.program, feed=feed, fetch_list=[built.logit])
        return np.asarray(found, np.float32)

    try:
        with static.scope_guard(static.Scope()):
            executor.run(built.startup)
            together, again = logits(slice(None)), logits(slice(None))
            alone = [logits(slice(row, row + 1)) for row in range(ROWS)]
    except Exception as failed:
        raise NetworkRefused(
            f"{FILE} does not run with batches of {ROWS} and of 1 row: {sentence_of(failed)}"
        ) from failed
    if together.shape != (ROWS, 1) or any(each.shape != (1, 1) for each in alone):
        raise NetworkRefused(f"{FILE} gives {list(together.shape)} for {ROWS} rows; return one logit a row, [batch, 1]")
    if not np.isfinite(together).all():
        raise NetworkRefused(
            f"{FILE} gives {together[~np.isfinite(together)][0]} for values drawn from a normal distribution; guard log, sqrt and "
            "divisions"
        )
    near = TOLERANCE * np.maximum(1, np.abs(together))
    if (np.abs(together - again) > near).any():
        raise NetworkRefused(f"{FILE} gives other logits for the same rows; predictions must not draw random numbers")
    if (np.abs(together - np.concatenate(alone)) > near).any():
        raise NetworkRefused(
            f"{FILE} gives a row another logit in a batch than alone; keep rows apart: no sum, mean or softmax over axis 0, and no "
            "batch size"
        )


def _first_use(built: _Built, name: str) -> str:
    return next((_line_of(each) for each in built.operators if name in each.input_arg_names), FILE)


def _line_of(operator: Any) -> str:
    """Return `<file> line 7` from the stack that Paddle records for each operator."""
    stack = operator.attr("op_callstack") if operator.has_attr("op_callstack") else []
    lines = [frame for frame in stack if f'File "{FILE}", line ' in frame]
    return f"{FILE} line {lines[-1].partition(', line ')[2].partition(',')[0]}" if lines else FILE
