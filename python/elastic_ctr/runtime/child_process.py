"""Child processes: their start, their end, and the rule that none of them outlives its parent.

A parent restarts a child after `growing_pause`. `runtime.process_pool` has workers that take orders.
"""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

_PR_SET_PDEATHSIG = 1
_BACKGROUND_NICE = 10


def python_module(name: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with this interpreter."""
    return [sys.executable, "-m", name, *arguments]


def start_child(
    command: Sequence[str],
    *,
    binds_itself: bool = False,
    own_group: bool = False,
    log: Path | None = None,
    stdout: IO[str] | int | None = None,
    environment: Mapping[str, str] | None = None,
    descriptors: Sequence[int] = (),
) -> "subprocess.Popen[bytes]":
    """Start a process that the kernel kills when this one ends. Its output is appended to `log`, its stdout goes to `stdout` if given.

    `binds_itself`: the program calls `die_with_parent`. Binding it from here needs a fork, for which gRPC waits until its threads are
    idle; after a minute it aborts. `own_group`: Ctrl-C does not reach the child, only this process, which ends it. The child inherits
    `descriptors`. Call this from a thread that outlives the child, as the kernel kills it with the thread that started it. Raises OSError.
    """
    prepare = None if binds_itself else dies_with_this_process(own_group=own_group)
    out = None if log is None else log.open("ab")
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out if stdout is None else stdout,
            stderr=out,
            env=environment,
            pass_fds=descriptors,
            preexec_fn=prepare,  # noqa: PLW1509 (it calls setpgid and prctl alone)
        )
    finally:
        if out is not None:
            out.close()


def end_child(child: "subprocess.Popen[bytes]") -> int:
    """End a child at once, and return its exit code."""
    child.kill()
    return child.wait()


def end_children(children: Sequence["subprocess.Popen[bytes]"], grace_seconds: float) -> None:
    """SIGTERM these children, and SIGKILL those that still run after the grace."""
    for child in children:
        child.terminate()
    ends = time.monotonic() + grace_seconds
    for child in children:
        with suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, ends - time.monotonic()))
        end_child(child)


def how_it_ended(code: int) -> str:
    """Return the end of a child by its exit code, as the predicate of a sentence."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def log_lines(log: Path) -> list[str]:
    """Return the lines of a child's log: none if it left no log, a sentence with the reason if the log cannot be read."""
    try:
        return log.read_text(errors="replace").strip().splitlines()
    except FileNotFoundError:
        return []
    except OSError as failed:
        return [f"{log} cannot be read: {failed.strerror}"]


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; `parent` is the pid that the child expects.

    The kernel watches the thread that started the child: start children from a thread that lives as long as they may.
    Raises SystemExit when the parent is gone already.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"this process cannot be bound to its parent: {os.strerror(code)}")
    # If the parent ended before the call above, no signal would ever come.
    if os.getppid() != parent:
        raise SystemExit(f"the parent process {parent} has ended; this process ends too")


def dies_with_this_process(*, own_group: bool = False) -> Callable[[], None]:
    """Return a `preexec_fn` that has the kernel kill the child when this process ends, from before the child's program begins.

    A child that calls `die_with_parent` itself is orphaned if the parent is killed while the child still imports its modules.
    The rule for the starting thread is the same as there.
    """
    parent = os.getpid()
    # PyDLL keeps the GIL: between fork and exec no other thread exists that could give it back.
    prctl = ctypes.PyDLL(None).prctl

    def bind_child() -> None:
        if own_group:
            os.setpgid(0, 0)
        if prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0 or os.getppid() != parent:
            os._exit(1)

    return bind_child


@contextmanager
def children_without_interrupts() -> Iterator[None]:
    """Processes started in this context never see SIGINT: Ctrl-C reaches the whole terminal, and the parent ends its children.

    A handler in the child would come too late: until the child sets it, SIGINT prints a traceback. A child inherits the blocked
    signal, and this process handles it afterwards, also where another of its threads received it: an interrupt in the middle of a start
    would leave a child without its orders. Create a multiprocessing pool before this context: the start of its resource tracker
    unblocks SIGINT.
    """
    missed: list[int] = []
    handles = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, lambda number, _: missed.append(number)) if handles else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        # In this order: with the handler back first, an interrupt in between would leave this thread without SIGINT.
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if handles:
            signal.signal(signal.SIGINT, signal.SIG_DFL if handler is None else handler)
        if missed:
            signal.raise_signal(signal.SIGINT)


def background_pool() -> ProcessPoolExecutor:
    """Return a pool of one process of low priority, which ends with this one, for long work beside a role.

    The role's own threads get the CPU first, and the work's memory is freed. The first job starts the process, in the thread that
    submits the job.
    """
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin_background, (os.getpid(),))


def _begin_background(parent: int) -> None:
    die_with_parent(parent)
    os.nice(_BACKGROUND_NICE)


def end_at_once(pool: ProcessPoolExecutor) -> None:
    """Terminate the processes of a pool; their jobs fail with BrokenProcessPool."""
    # `_processes` is None once the pool has noticed the end of one of them. Nothing public ends them at once.
    for process in list((pool._processes or {}).values()):  # noqa: SLF001
        process.terminate()


def end_pool(pool: ProcessPoolExecutor) -> None:
    """Kill the processes of a pool at once, even in the middle of a job. The pool cannot be used afterwards."""
    answers: Any = pool._result_queue  # noqa: SLF001
    # `_processes` is None once the pool has noticed the end of one of them.
    processes = list((pool._processes or {}).values())  # noqa: SLF001
    # Not SIGTERM: during the import of Paddle its own handler of SIGTERM is in place, which may hang.
    for process in processes:
        process.kill()
    # A process may write to its folder until it has ended.
    for process in processes:
        process.join()
    # A process may end in the middle of an answer. The pool's thread then waits for the rest while any writer of the pipe is open.
    answers._writer.close()  # noqa: SLF001
    # If that thread still ran when the interpreter exits, both would close its pipe, and the exit would print a traceback.
    pool.shutdown(wait=True, cancel_futures=True)
