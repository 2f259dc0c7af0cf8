"""Start and stop of a process: signals and sockets."""

import asyncio
import ctypes
import errno
import resource
import signal
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

# More than the size of `struct sigaction` on any Linux; the bytes are only saved and restored.
_SIGACTION_BYTES = 512
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class PortInUse(OSError):
    """Another process uses the port. The message has the address and the way out."""


def raise_fd_limit(wanted: int) -> int:
    """Raise this process's limit of open files towards `wanted` as far as allowed. Return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set, for a role that works in threads. Only in the main thread."""
    stop = threading.Event()
    heard, told = socket.socketpair()
    told.setblocking(False)

    def listen() -> None:
        while number := heard.recv(1):
            if number[0] in _STOP_SIGNALS:
                stop.set()

    # The handler does not set the event: it interrupts the main thread anywhere, even in `stop.wait` while that has the event's lock.
    listener = threading.Thread(target=listen, name="signals", daemon=True)
    listener.start()
    # Before the handlers: a signal that reached a handler without the descriptor would be lost.
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
    """Yield an event that SIGTERM and SIGINT set, for a role that is one event loop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in _STOP_SIGNALS:
        loop.add_signal_handler(each, stop.set)
    try:
        yield stop
    finally:
        for each in _STOP_SIGNALS:
            loop.remove_signal_handler(each)


async def run_until_one_ends(*work: Coroutine[Any, Any, object]) -> None:
    """Run these side by side until one ends, then cancel the others. Raises the error of the one that ended."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def wait_event(event: asyncio.Event, seconds: float) -> bool:
    """True if the event was set within `seconds`.

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
    """Restore the handler of SIGTERM afterwards, even if a library has set another one; in any thread.

    Python's `signal` cannot: its table lacks handlers that C code installs, and only the main thread may change it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.create_string_buffer(_SIGACTION_BYTES)
    libc.sigaction(signal.SIGTERM, None, before)
    try:
        yield
    finally:
        libc.sigaction(signal.SIGTERM, before, None)


def bind(host: str, port: int, *, share: bool = False) -> socket.socket:
    """Return a TCP socket that is bound but not listening; port 0 chooses a free port. Raises OSError.

    The host `::` means every address, of IPv6 and of IPv4; on a kernel without IPv6, of IPv4. With `share` (SO_REUSEPORT), several
    processes of this user can bind the port, and the kernel spreads connections over those that listen.
    """
    # asyncio switches Nagle's algorithm off only for sockets created with an explicit protocol. With Nagle, the body of an answer
    # waits 40 ms for the peer's acknowledgement of the head.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as failed:
        if host != "::" or failed.errno != errno.EAFNOSUPPORT:
            raise
        return bind("0.0.0.0", port, share=share)  # noqa: S104 (as was asked for)
    try:
        if host == "::":
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
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
    """Return a socket that reserves a port for workers to share: it is bound and never listens.

    Raises PortInUse, OSError.
    """
    # A shared bind succeeds on a port that another server shares: probe without sharing first.
    with _naming_the_port(host, port):
        with bind(host, port) as probe:
            port = probe.getsockname()[1]
        return bind(host, port, share=True)


def listen(host: str, port: int, backlog: int = 1024) -> socket.socket:
    """Return a listening TCP socket; port 0 chooses a free port. Raises PortInUse, OSError."""
    with _naming_the_port(host, port):
        sock = bind(host, port)
        try:
            # Two processes can bind a port on which none listens; `listen` then fails for the second.
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
