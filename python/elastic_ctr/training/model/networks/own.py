"""A network of the user's own: its source runs as a module, and its function builds the logit as built-in networks do.

Only processes that build the training program import this: trainers, pservers and `elastic-ctr network check`.
"""

import inspect
import linecache
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType, ModuleType
from typing import Any

from elastic_ctr.config.own_network import FUNCTION, OwnNetwork
from elastic_ctr.training.model.networks.parts import Inputs

FILE = "model.network.source"
_MODULE = "elastic_ctr_own_network"
_PREFIX = "own."
_WORDS = 300


class NetworkRefused(ValueError):
    """The network of the user's own cannot be trained or served. The message has the line or the object, and the way out."""


def own(inputs: Inputs, settings: OwnNetwork) -> Any:
    """Return the logit, float32 [batch, 1], that the user's function builds. Raises NetworkRefused."""
    import paddle

    function = _function(settings.source)
    # Unnamed parameters are numbered from 0 in every program, so training and export give them the same names. The prefix
    # distinguishes them from other variables.
    with paddle.utils.unique_name.guard(_PREFIX):
        try:
            logit = function(inputs, MappingProxyType(settings.settings))
        except (Exception, SystemExit) as failed:
            raise NetworkRefused(_raised(failed)) from failed
    _require_logit(logit)
    return logit


def _require_logit(logit: Any) -> None:
    import paddle

    if not isinstance(logit, paddle.static.Variable):
        raise NetworkRefused(
            f"{FUNCTION} of {FILE} returns {type(logit).__name__}; return Paddle's variable of the logit, of the shape [batch, 1]"
        )
    shape = ["batch" if size == -1 else size for size in logit.shape]
    if len(shape) != 2 or logit.shape[0] != -1 or logit.shape[1] != 1:
        hint = "; paddle.unsqueeze(…, 1) makes it that" if shape == ["batch"] else ""
        raise NetworkRefused(
            f"{FUNCTION} of {FILE} returns the shape [{', '.join(map(str, shape))}]; return one logit a row, [batch, 1]{hint}"
        )
    if logit.dtype != paddle.float32:
        raise NetworkRefused(
            f"{FUNCTION} of {FILE} returns {_dtype(logit)}; return float32, with paddle.cast(…, 'float32') where it must be"
        )


def _dtype(variable: Any) -> str:
    return str(variable.dtype).rpartition(".")[2].lower()


@cache
def _function(source: str) -> Callable[[Inputs, Mapping[str, Any]], Any]:
    """Return the function of the source, which runs once in a process. Raises NetworkRefused."""
    import paddle
    from paddle import static

    # So that tracebacks show the lines, and dataclasses and inspect find the module.
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    module = sys.modules[_MODULE] = ModuleType(_MODULE)
    module.__file__ = FILE
    try:
        # Variables that the module builds outside its function go to a program that is not trained.
        outside = static.Program()
        with static.program_guard(outside, static.Program()), paddle.utils.unique_name.guard(_PREFIX):
            exec(compile(source, FILE, "exec", dont_inherit=True), vars(module))  # noqa: S102 (given by the operator)
    except ModuleNotFoundError as absent:
        raise NetworkRefused(
            f"{FILE}{_line_of(absent)} imports {absent.name}, which is not installed here; docs/models.md has the recipe of an image "
            "with more packages"
        ) from absent
    except (Exception, SystemExit) as failed:
        raise NetworkRefused(_raised(failed)) from failed
    function = getattr(module, FUNCTION, None)
    if not callable(function):
        raise NetworkRefused(f"{FILE} has no function {FUNCTION}; add `def {FUNCTION}(inputs, settings)`")
    if made := outside.all_parameters():
        raise NetworkRefused(
            f"{FILE} makes the parameter {made[0].name} when it is imported; make layers and parameters inside {FUNCTION}, which builds "
            "several programs"
        )
    _require_two_arguments(function)
    return function  # type: ignore[no-any-return]


def _require_two_arguments(function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some builtins have no signature.
        return
    try:
        signature.bind("inputs", "settings")
    except TypeError as wrong:
        raise NetworkRefused(
            f"{FUNCTION} of {FILE} takes {signature}; it is called with two arguments, {FUNCTION}(inputs, settings)"
        ) from wrong


def _raised(failed: BaseException) -> str:
    """Return `<file> line 7 raises ValueError: …`, with the innermost line of the user's code."""
    text = sentence_of(failed)
    way_out = "; it would end the process, so raise an error instead" if isinstance(failed, SystemExit) else ""
    return f"{FILE}{_line_of(failed)} raises {type(failed).__name__}{f': {text}' if text else ''}{way_out}"


def _line_of(failed: BaseException) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(failed.__traceback__) if frame.filename == FILE]
    return f" line {lines[-1]}" if lines else ""


def sentence_of(failed: BaseException) -> str:
    """Return the reason of an error, without the C++ stack before it and the hint and the place in Paddle after it."""
    lines = [line.strip() for line in str(failed).splitlines() if line.strip() and "----" not in line]
    starts = [place for place, line in enumerate(lines) if "Error: " in line or line.startswith("(")]
    text = " ".join(lines[starts[-1] :] if starts else lines)
    # A C++ message begins with its kind, in one of two forms.
    text = re.sub(r"^(\(\w+\)|\w+Error:) ", "", text)
    return re.split(r" ?\[Hint: | \(at /| \[operator <", text)[0][:_WORDS]
