"""A process of low priority for long work beside a role: what answers comes first, and the memory that the work takes is given back."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

from elastic_ctr.runtime.lifecycle import die_with_parent

NICE = 10


def background_pool() -> ProcessPoolExecutor:
    """One process, which ends with this one. It is started by the first job, from the thread that submits it."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin, (os.getpid(),))


def end_at_once(pool: ProcessPoolExecutor) -> None:
    """Its job fails with BrokenProcessPool."""
    for process in list((pool._processes or {}).values()):  # noqa: SLF001 (nothing public ends them at once)
        process.terminate()


def _begin(parent: int) -> None:
    die_with_parent(parent)
    os.nice(NICE)
