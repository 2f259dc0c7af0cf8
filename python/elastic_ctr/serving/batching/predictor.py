"""The dense network of a version. The only module of serving that knows Paddle, and it imports it when asked.

The files are what `save_inference_model` wrote: `network.pdmodel` and `network.pdiparams`. The inputs are `pooled`, f32
[rows, slots * dim]: the sums or means of each slot's values, slots in order, and `numbers`, f32 [rows, numbers], where the model has
any; one output, f32 [rows, 1]: the probability of a click.
"""

from __future__ import annotations

import os
import time

# Before Paddle, whose library brings symbols of its own zlib: imported later, the module crashes in inflate.
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.runtime.lifecycle import preserve_sigterm_handler
from elastic_ctr.runtime.math_library import choose_code_path

Floats = npt.NDArray[np.float32]

MODEL_FILE = "network.pdmodel"
PARAMETERS_FILE = "network.pdiparams"
INPUT, NUMBERS = "pooled", "numbers"

_WARM_UP_ROWS = 64
_TIMED_CALLS = 5
_ZLIB = zlib.ZLIB_VERSION
_PADDLE_ERRORS = (RuntimeError, ValueError, OSError, SystemError)


class NetworkUnusable(ValueError):
    """The files do not hold the network that serving expects: which, why."""


class DenseNetwork:
    """One loaded network. Every method is for the one Paddle thread, or for its owner while that is idle.

    `row_seconds`: what a row of a batch took at best, when it was warmed up.

    Raises:
        NetworkUnusable: Paddle cannot read the files, or inputs, outputs or width are not as described.
    """

    def __init__(self, folder: Path, width: int, numbers: int = 0) -> None:
        self.width = width
        self._numbers = numbers
        self._predictor = _load(folder / MODEL_FILE, folder / PARAMETERS_FILE)
        try:
            self._set_up(folder)
        except BaseException:
            # On this thread: the holder of the error, and with it of this network, may drop it on another.
            self.close()
            raise

    def _set_up(self, folder: Path) -> None:
        inputs, outputs = self._predictor.get_input_names(), self._predictor.get_output_names()
        expected = [INPUT, NUMBERS] if self._numbers else [INPUT]
        if sorted(inputs) != sorted(expected) or len(outputs) != 1:
            raise NetworkUnusable(
                f"the network in {folder.name} has inputs {inputs} and {len(outputs)} outputs; it must have {expected} and one "
                "output; export it again"
            )
        self._inputs = [self._predictor.get_input_handle(name) for name in expected]
        self._output = self._predictor.get_output_handle(outputs[0])
        try:
            self.predict(*self._zeros(1))
            self.row_seconds = min(self._seconds(_WARM_UP_ROWS) for _ in range(_TIMED_CALLS)) / _WARM_UP_ROWS
        except NetworkUnusable:
            raise
        except _PADDLE_ERRORS as failed:
            raise NetworkUnusable(
                f"the network in {folder.name} does not take {self.width} floats a row (slots * dim of its manifest): "
                f"{_first_sentence(failed)}"
            ) from failed

    def _zeros(self, rows: int) -> tuple[Floats, Floats]:
        return np.zeros((rows, self.width), np.float32), np.zeros((rows, self._numbers), np.float32)

    def predict(self, pooled: Floats, numbers: Floats | None = None) -> Floats:
        """Probabilities f32 [rows] of pooled f32 [rows, width] and numbers f32 [rows, numbers], C-contiguous.

        Raises NetworkUnusable.
        """
        for handle, array in zip(self._inputs, (pooled, numbers), strict=False):
            assert array is not None
            handle.reshape(array.shape)
            handle.copy_from_cpu(array)
        self._predictor.run()
        probabilities: Floats = self._output.copy_to_cpu()
        if probabilities.size != len(pooled):
            raise NetworkUnusable(
                f"the network answers {probabilities.shape} to {len(pooled)} rows; one probability a row is expected"
            )
        return probabilities.reshape(-1)

    def _seconds(self, rows: int) -> float:
        given = self._zeros(rows)
        started = time.perf_counter()
        self.predict(*given)
        return time.perf_counter() - started

    def close(self) -> None:
        """Give the memory back now, on this thread."""
        self._inputs, self._output, self._predictor = [], None, None


def preload() -> Any:
    """Import `paddle.inference`: seconds that the first version then need not wait for.

    Paddle takes SIGTERM when it is imported, and would end the process with answers under way.
    """
    # Paddle and its mathematics read these when they are loaded.
    for name, value in (("GLOG_minloglevel", "2"), ("GLOG_v", "0"), ("OMP_NUM_THREADS", "1")):
        os.environ.setdefault(name, value)
    choose_code_path()
    with preserve_sigterm_handler():
        from paddle import inference
    return inference


def _load(model: Path, parameters: Path) -> Any:
    inference = preload()
    unreadable = f"Paddle cannot load {model.name} of {model.parent.name}"
    for file in (model, parameters):
        # Paddle ends the process over some of what it cannot read; an absent file is the part we can see first.
        if not file.is_file() or not file.stat().st_size:
            raise NetworkUnusable(f"{file.name} is missing or empty in {file.parent.name}")
    # Paddle's own reader ends the process with SIGSEGV over a file that is no program.
    from google.protobuf.message import DecodeError
    from paddle.base.proto import framework_pb2

    program = framework_pb2.ProgramDesc()
    try:
        program.ParseFromString(model.read_bytes())
    except DecodeError as wrong:
        raise NetworkUnusable(f"{unreadable}: {wrong}") from wrong
    if not program.blocks:
        raise NetworkUnusable(f"{unreadable}: it has no operators")
    config = inference.Config(str(model), str(parameters))
    config.disable_gpu()
    config.set_cpu_math_library_num_threads(1)
    # oneDNN takes the last layer alone, and 20 microseconds more a call than MKL does; an unlocked read of its cache crashed 2 of
    # 14 starts (docs/decisions/0007-serving-frontends.md).
    config.disable_mkldnn()
    config.disable_glog_info()
    try:
        return inference.create_predictor(config)
    except _PADDLE_ERRORS as failed:
        raise NetworkUnusable(f"{unreadable}: {_first_sentence(failed)}") from failed


def _first_sentence(failed: BaseException) -> str:
    """Paddle's errors carry a stack of C++ frames; the reason is the last line that is not blank."""
    lines = [line.strip() for line in str(failed).splitlines() if line.strip() and "----" not in line]
    reasons = [line for line in lines if "Error:" in line] or lines[-1:]
    return (reasons[0] if reasons else type(failed).__name__)[:300]
