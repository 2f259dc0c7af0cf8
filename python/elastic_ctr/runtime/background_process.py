"""A low-priority process for long work beside a role. The role's own threads get the CPU first, and the work's memory is freed."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

from elastic_ctr.runtime.lifecycle import die_with_parent

NICE = 10


def background_pool() -> ProcessPoolExecutor:
    """Return a pool of one process, which ends with this one. The first job starts it, in the thread that submits the job."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin, (os.getpid(),))


def end_at_once(pool: ProcessPoolExecutor) -> None:
    """Terminate the pool's process; its job fails with BrokenProcessPool."""
    for process in list((pool._processes or {}).values()):  # noqa: SLF001 (nothing public ends them at once)
        process.terminate()


def _begin(parent: int) -> None:
    die_with_parent(parent)
    os.nice(NICE)
