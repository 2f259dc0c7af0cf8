"""The dense network of a version. The only module of serving that knows Paddle, and it imports it when asked.

The files are what `save_inference_model` wrote: `network.pdmodel` and `network.pdiparams`. One input, `pooled`, f32
[rows, slots * dim]: the sums of each slot's values, slots in order; one output, f32 [rows, 1]: the probability of a
click.
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

Floats = npt.NDArray[np.float32]

MODEL_FILE = "network.pdmodel"
PARAMETERS_FILE = "network.pdiparams"
INPUT = "pooled"

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

    def __init__(self, folder: Path, width: int) -> None:
        self.width = width
        self._predictor = _load(folder / MODEL_FILE, folder / PARAMETERS_FILE)
        try:
            self._set_up(folder)
        except BaseException:
            # On this thread: the holder of the error, and with it of this network, may drop it on another.
            self.close()
            raise

    def _set_up(self, folder: Path) -> None:
        inputs, outputs = self._predictor.get_input_names(), self._predictor.get_output_names()
        if inputs != [INPUT] or len(outputs) != 1:
            raise NetworkUnusable(
                f"the network in {folder.name} has inputs {inputs} and {len(outputs)} outputs; it must have one input "
                f"{INPUT!r} and one output; export it again"
            )
        self._input = self._predictor.get_input_handle(INPUT)
        self._output = self._predictor.get_output_handle(outputs[0])
        try:
            self.predict(np.zeros((1, self.width), dtype=np.float32))
            self.row_seconds = min(self._seconds(_WARM_UP_ROWS) for _ in range(_TIMED_CALLS)) / _WARM_UP_ROWS
        except NetworkUnusable:
            raise
        except _PADDLE_ERRORS as failed:
            raise NetworkUnusable(
                f"the network in {folder.name} does not take {self.width} floats a row (slots * dim of its manifest): "
                f"{_first_sentence(failed)}"
            ) from failed

    def predict(self, pooled: Floats) -> Floats:
        """Probabilities f32 [rows] of pooled f32 [rows, width], C-contiguous. Raises NetworkUnusable."""
        self._input.reshape(pooled.shape)
        self._input.copy_from_cpu(pooled)
        self._predictor.run()
        probabilities: Floats = self._output.copy_to_cpu()
        if probabilities.size != len(pooled):
            raise NetworkUnusable(
                f"the network answers {probabilities.shape} to {len(pooled)} rows; one probability a row is expected"
            )
        return probabilities.reshape(-1)

    def _seconds(self, rows: int) -> float:
        pooled = np.zeros((rows, self.width), dtype=np.float32)
        started = time.perf_counter()
        self.predict(pooled)
        return time.perf_counter() - started

    def close(self) -> None:
        """Give the memory back now, on this thread."""
        self._input = self._output = self._predictor = None


def preload() -> Any:
    """Import `paddle.inference`: seconds that the first version then need not wait for.

    Paddle takes SIGTERM when it is imported, and would end the process with answers under way.
    """
    # Paddle and its mathematics read these when they are loaded.
    for name, value in (("GLOG_minloglevel", "2"), ("GLOG_v", "0"), ("OMP_NUM_THREADS", "1")):
        os.environ.setdefault(name, value)
    if mkl_is_slow(_cpu()):
        os.environ.setdefault("MKL_DEBUG_CPU_TYPE", "5")
    with preserve_sigterm_handler():
        from paddle import inference
    return inference


def mkl_is_slow(cpu: dict[str, str]) -> bool:
    """Whether Paddle's MKL takes the path for CPUs of the last millennium: it does so on every CPU but Intel's.

    `cpu` is a block of /proc/cpuinfo. The library of Paddle 2.6 still heeds MKL_DEBUG_CPU_TYPE=5, "as on an Intel with
    AVX2": 3 to 10 times faster on an EPYC (docs/decisions/0007-serving-frontends.md).
    """
    return cpu.get("vendor_id") in {"AuthenticAMD", "HygonGenuine"} and "avx2" in cpu.get("flags", "").split()


def _cpu() -> dict[str, str]:
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}


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
