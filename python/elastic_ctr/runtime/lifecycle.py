"""How a process starts, is told to stop, and never outlives its parent."""

import asyncio
import ctypes
import errno
import os
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

_PR_SET_PDEATHSIG = 1
# More than `struct sigaction` has on any Linux: it is only kept and given back.
_SIGACTION_BYTES = 512
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class PortInUse(OSError):
    """The port belongs to another process: which address, and what to do."""


def raise_fd_limit(wanted: int) -> int:
    """Raise this process's limit towards `wanted` as far as allowed; what the limit is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set, for a role that works in threads. Only in the main thread."""
    stop = threading.Event()
    heard, told = socket.socketpair()
    told.setblocking(False)

    def listen() -> None:
        while number := heard.recv(1):
            if number[0] in _STOP_SIGNALS:
                stop.set()

    # Not in the handler: it interrupts the main thread anywhere, also where that waits for this event and has its lock.
    listener = threading.Thread(target=listen, name="signals", daemon=True)
    listener.start()
    # First: a signal that met the handler without it would be lost.
    woken_before = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    # Python writes the number of a signal that has a handler to the wake-up descriptor.
    before = {each: signal.signal(each, lambda *_: None) for each in _STOP_SIGNALS}
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(woken_before)
        told.close()
        listener.join()
        heard.close()


@contextmanager
def stop_on_signal_async() -> Iterator[asyncio.Event]:
    """The same for a role that is one event loop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in _STOP_SIGNALS:
        loop.add_signal_handler(each, stop.set)
    try:
        yield stop
    finally:
        for each in _STOP_SIGNALS:
            loop.remove_signal_handler(each)


@contextmanager
def children_without_interrupts() -> Iterator[None]:
    """Processes that are started in it never see SIGINT: Ctrl-C reaches a whole terminal, and the parent ends its children.

    A handler of the child's own would be too late: until it is set the child prints a traceback. A blocked signal stays
    blocked in what is started, and reaches this thread afterwards. A pool of multiprocessing is made before: its resource tracker unblocks
    SIGINT when it is started.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_pool(pool: "ProcessPoolExecutor") -> None:
    """End the processes of a pool at once, whatever they do. The pool is of no use afterwards."""
    answers: Any = pool._result_queue  # noqa: SLF001
    # None once the pool has found one of them gone.
    processes = list((pool._processes or {}).values())  # noqa: SLF001
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
    # A process may end in the middle of an answer, and the pool's thread would wait for the rest as long as somebody could write it;
    # the interpreter waits for that thread when it exits.
    answers._writer.close()  # noqa: SLF001


async def wait_event(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event came within the time.

    `asyncio.wait_for` before Python 3.12 swallows a cancellation that arrives together with the event: a loop around it
    would never end.
    """
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiting}, timeout=seconds)
    finally:
        waiting.cancel()
    return event.is_set()


@contextmanager
def preserve_sigterm_handler() -> Iterator[None]:
    """Restore the handler of SIGTERM afterwards, whatever a library sets meanwhile; in any thread.

    Python cannot do that: its own table does not know of handlers that C code installs, and only its main thread may change it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.create_string_buffer(_SIGACTION_BYTES)
    libc.sigaction(signal.SIGTERM, None, before)
    try:
        yield
    finally:
        libc.sigaction(signal.SIGTERM, before, None)


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


def dies_with_this_process() -> Callable[[], None]:
    """The `preexec_fn` of a child that the kernel kills with this process, from before the child's program begins.

    A child that binds itself is an orphan if its parent is killed while the child still imports its modules. For the
    thread that starts it, see `die_with_parent`.
    """
    parent = os.getpid()
    # PyDLL keeps the interpreter's lock: between fork and exec no other thread exists that could give it back.
    prctl = ctypes.PyDLL(None).prctl

    def bind_child() -> None:
        if prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0 or os.getppid() != parent:
            os._exit(1)

    return bind_child


def bind(host: str, port: int, *, share: bool = False) -> socket.socket:
    """A TCP socket bound to its port, not yet listening; port 0 takes a free one. Raises OSError.

    With `share` the processes of this user that ask so too have the port together, and the kernel spreads connections
    over those that listen.
    """
    # asyncio switches Nagle's algorithm off only for sockets that name their protocol. With it, the body of an answer waits 40 ms for
    # the peer to acknowledge the head.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


def reserve(host: str, port: int) -> socket.socket:
    """A port for workers to share: bound and never listened on, so that no other process is given it.

    Raises PortInUse, OSError.
    """
    # A shared bind succeeds on a port that another server shares: probe without sharing first.
    with _naming_the_port(host, port):
        with bind(host, port) as probe:
            port = probe.getsockname()[1]
        return bind(host, port, share=True)


def listen(host: str, port: int, backlog: int = 1024) -> socket.socket:
    """A listening TCP socket; port 0 takes a free one. Raises PortInUse, OSError."""
    with _naming_the_port(host, port):
        sock = bind(host, port)
        try:
            # Two processes may bind a port without a listener; `listen` fails for the second.
            sock.listen(backlog)
            sock.setblocking(False)
        except OSError:
            sock.close()
            raise
        return sock


@contextmanager
def _naming_the_port(host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as failed:
        if failed.errno == errno.EADDRINUSE:
            raise PortInUse(
                errno.EADDRINUSE,
                f"{host}:{port} is used by another process; end that one, or set another port for this role",
            ) from failed
        raise OSError(failed.errno, f"{host}:{port} cannot be listened on: {failed.strerror}") from failed
