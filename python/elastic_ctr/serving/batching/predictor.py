"""The dense network of a version. Paddle is imported when the first network is loaded, not with this module.

`save_inference_model` has written the files `network.pdmodel` and `network.pdiparams`. The inputs are `pooled`, f32 [rows,
slots * dim], the sums or means of each slot's values, slots in order, and `numbers`, f32 [rows, numbers], if the model has any. The
output, f32 [rows, 1], is the probability of a click.
"""

from __future__ import annotations

import os
import time

# Imported before Paddle, whose library exports symbols of its own zlib: a later import of this module crashes in inflate.
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.runtime.lifecycle import preserve_sigterm_handler
from elastic_ctr.runtime.math_library import choose_code_path
from elastic_ctr.serving.batching.parameters import OtherParameters, Shapes, framework_proto, read_parameters, shapes_of
from elastic_ctr.training.model.probability import inside

Floats = npt.NDArray[np.float32]

MODEL_FILE = "network.pdmodel"
PARAMETERS_FILE = "network.pdiparams"
INPUT, NUMBERS = "pooled", "numbers"

# This pass computes with parameters once, and its results would stay after the parameters are exchanged.
DELETED_PASSES = ["constant_folding_pass"]
_WARM_UP_ROWS = 64
_TIMED_CALLS = 5
_ZLIB = zlib.ZLIB_VERSION
_PADDLE_ERRORS = (RuntimeError, ValueError, OSError, SystemError)


class NetworkUnusable(ValueError):
    """The files are not the network that serving expects; the text has the file and the reason."""


class DenseNetwork:
    """One loaded network. Only the one Paddle thread may call its methods, or its owner while that thread is idle.

    `row_seconds`: the shortest time per row that was measured during warm-up.

    Raises:
        NetworkUnusable: Paddle cannot read the files, or inputs, outputs or width are not as described.
    """

    def __init__(self, folder: Path, width: int, numbers: int = 0) -> None:
        self.width = width
        self.numbers = numbers
        preload()
        self.program = _program(folder / MODEL_FILE)
        self._predictor = _load(folder / MODEL_FILE, folder / PARAMETERS_FILE)
        try:
            self._set_up(folder)
        except BaseException:
            # Close on this thread: the error refers to this network and may be dropped on another thread.
            self.close()
            raise

    def _set_up(self, folder: Path) -> None:
        inputs, outputs = self._predictor.get_input_names(), self._predictor.get_output_names()
        expected = [INPUT, NUMBERS] if self.numbers else [INPUT]
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

    def shapes(self) -> Shapes:
        """Return names and shapes of the parameters, see `parameters.shapes_of`. Raises OtherParameters."""
        program = framework_proto().ProgramDesc()
        program.ParseFromString(self.program)
        return shapes_of(program)

    def renew(self, folder: Path) -> None:
        """Exchange the parameters for another version's of the same program, in a hundredth of the time of a load.

        Paddle optimises a program with its present parameters and may keep results of them, which spare_networks.py tests for.

        Raises:
            OtherParameters: They are not the program's, or Paddle rejects them. The network must be renewed before it answers.
            OSError: They cannot be read.
        """
        values = read_parameters((folder / PARAMETERS_FILE).read_bytes(), self.shapes())
        try:
            # In spite of its name, this finds every variable of the predictor, not only inputs.
            handles = {name: self._predictor.get_input_handle(name) for name in values}
        except _PADDLE_ERRORS as failed:
            raise OtherParameters(_first_sentence(failed)) from failed
        for name, handle in handles.items():
            if tuple(handle.shape()) != values[name].shape:
                raise OtherParameters(f"Paddle holds {name} as {handle.shape()} instead of {values[name].shape}")
        try:
            for name, handle in handles.items():
                handle.copy_from_cpu(values[name])
        except _PADDLE_ERRORS as failed:
            raise OtherParameters(_first_sentence(failed)) from failed

    def _zeros(self, rows: int) -> tuple[Floats, Floats]:
        return np.zeros((rows, self.width), np.float32), np.zeros((rows, self.numbers), np.float32)

    def predict(self, pooled: Floats, numbers: Floats | None = None) -> Floats:
        """Return f32 [rows], each `inside` (0, 1) or NaN, of C-contiguous pooled f32 [rows, width] and numbers f32 [rows, numbers].

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
        return inside(probabilities.reshape(-1))

    def _seconds(self, rows: int) -> float:
        given = self._zeros(rows)
        started = time.perf_counter()
        self.predict(*given)
        return time.perf_counter() - started

    def close(self) -> None:
        """Free the memory now, on this thread."""
        self._inputs, self._output, self._predictor = [], None, None


def preload() -> Any:
    """Import `paddle.inference`, which takes seconds, before the first version needs it.

    Paddle's import replaces the handler of SIGTERM, which is restored: Paddle's would end the process with answers under way.
    """
    # Paddle and its math libraries read these variables when they are loaded.
    for name, value in (("GLOG_minloglevel", "2"), ("GLOG_v", "0"), ("OMP_NUM_THREADS", "1")):
        os.environ.setdefault(name, value)
    choose_code_path()
    with preserve_sigterm_handler():
        from paddle import inference
    return inference


def _program(model: Path) -> bytes:
    """Return the bytes of a program after parsing it: Paddle's own reader crashes with SIGSEGV on a file that is no program."""
    from google.protobuf.message import DecodeError

    data = _read(model)
    program = framework_proto().ProgramDesc()
    try:
        program.ParseFromString(data)
    except DecodeError as wrong:
        raise NetworkUnusable(f"{_unreadable(model)}: {wrong}") from wrong
    if not program.blocks:
        raise NetworkUnusable(f"{_unreadable(model)}: it has no operators")
    return data


def _read(file: Path) -> bytes:
    _require(file)
    return file.read_bytes()


def _require(file: Path) -> None:
    if not file.is_file() or not file.stat().st_size:
        raise NetworkUnusable(f"{file.name} is missing or empty in {file.parent.name}")


def _unreadable(model: Path) -> str:
    return f"Paddle cannot load {model.name} of {model.parent.name}"


def _load(model: Path, parameters: Path) -> Any:
    inference = preload()
    # Paddle ends the process if the file is absent.
    _require(parameters)
    config = inference.Config(str(model), str(parameters))
    config.disable_gpu()
    config.set_cpu_math_library_num_threads(1)
    # oneDNN computes only the last layer, and takes 20 microseconds more per call than MKL; an unlocked read of its cache crashed
    # 2 of 14 starts (docs/decisions/0007-serving-frontends.md).
    config.disable_mkldnn()
    config.disable_glog_info()
    # The passes are deleted last, because any later setting would add them again.
    for each in DELETED_PASSES:
        config.delete_pass(each)
    try:
        return inference.create_predictor(config)
    except _PADDLE_ERRORS as failed:
        raise NetworkUnusable(f"{_unreadable(model)}: {_first_sentence(failed)}") from failed


def _first_sentence(failed: BaseException) -> str:
    """Return the reason in an error of Paddle, whose text has a stack of C++ frames: the line with "Error:", else the last line."""
    lines = [line.strip() for line in str(failed).splitlines() if line.strip() and "----" not in line]
    reasons = [line for line in lines if "Error:" in line] or lines[-1:]
    return (reasons[0] if reasons else type(failed).__name__)[:300]
