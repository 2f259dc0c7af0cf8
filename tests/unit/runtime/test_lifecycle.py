import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from elastic_ctr.runtime.lifecycle import PortInUse, bind, listen, reserve, stop_on_signal, stop_on_signal_async

# The import is in a thread, as serving has it.
_TAKEN = """
import os, signal, threading, time
from elastic_ctr.runtime.lifecycle import preserve_sigterm_handler, stop_on_signal

def take():
    with preserve_sigterm_handler():
        {takes}

with stop_on_signal() as stop:
    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.wait(30)
print("told", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_sets_the_stop_and_the_handler_is_given_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    with stop_on_signal() as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), number)
        assert stop.wait(10)

    assert signal.getsignal(number) is before


@pytest.mark.parametrize("library", ["a handler in C", "paddle"])
def test_a_library_that_takes_the_signal_for_itself_does_not_keep_it(library: str) -> None:
    takes = {
        "a handler in C": "import ctypes; ctypes.CDLL(None).signal(15, None)",
        "paddle": "from paddle import inference",
    }[library]
    script = _TAKEN.format(takes=takes)

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)

    assert done.stdout == "told\n", done.stderr


# Much of such a wait is spent with the lock of the event held.
_WAITS = """
import os, random, signal, threading, time
from elastic_ctr.runtime.lifecycle import stop_on_signal

def tell():
    time.sleep(random.uniform(0, 0.002))
    os.kill(os.getpid(), signal.SIGTERM)

for _ in range(200):
    with stop_on_signal() as stop:
        thread = threading.Thread(target=tell)
        thread.start()
        while not stop.wait(0):
            pass
        thread.join()
print("told", flush=True)
"""


def test_a_signal_that_comes_while_its_event_is_looked_at_is_no_deadlock() -> None:
    done = subprocess.run([sys.executable, "-c", _WAITS], capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout == "told\n", done.stderr


_EARLY = """
import os, signal
from elastic_ctr.runtime.lifecycle import stop_on_signal

taken = signal.signal

def at_once(number, handler):
    before = taken(number, handler)
    if number == signal.SIGTERM and callable(handler):
        os.kill(os.getpid(), number)
    return before

signal.signal = at_once
with stop_on_signal() as stop:
    assert stop.wait(30)
print("told", flush=True)
"""


def test_a_signal_that_comes_as_soon_as_it_is_listened_for_is_heard() -> None:
    done = subprocess.run([sys.executable, "-c", _EARLY], capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout == "told\n", done.stderr


async def test_a_signal_stops_an_event_loops_role() -> None:
    with stop_on_signal_async() as stop:
        threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGTERM)).start()
        await asyncio.wait_for(stop.wait(), 10)

    assert stop.is_set()


def test_a_port_in_use_is_named_with_the_way_out() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]

        with pytest.raises(PortInUse, match=rf"127\.0\.0\.1:{port} is used by another process; .*another port"):
            listen("127.0.0.1", port)


def test_a_reserved_port_is_shared_by_the_workers_and_by_nobody_else() -> None:
    with reserve("127.0.0.1", 0) as reserved:
        port = reserved.getsockname()[1]
        with bind("127.0.0.1", port, share=True) as worker, bind("127.0.0.1", port, share=True) as other:
            worker.listen()
            other.listen()

            with pytest.raises(OSError, match="in use"):
                bind("127.0.0.1", port)
            with pytest.raises(OSError, match="is used by another process"):
                reserve("127.0.0.1", port)


def test_an_address_of_another_machine_is_refused_by_name() -> None:
    with pytest.raises(OSError, match=r"192\.0\.2\.1:0 cannot be listened on"):
        listen("192.0.2.1", 0)


def test_ipv6_is_listened_on_where_the_machine_has_it() -> None:
    if not socket.has_ipv6:
        pytest.skip("this Python has no IPv6")
    try:
        sock = listen("::1", 0)
    except OSError:
        pytest.skip("this machine has no ::1")

    with sock:
        assert sock.family == socket.AF_INET6


def connects(host: str, port: int) -> bool:
    with socket.create_connection((host, port), 5):
        return True


def test_the_host_of_every_address_is_reached_by_ipv4_and_ipv6() -> None:
    with listen("::", 0) as server, reserve("::", 0) as reserved:
        port, shared = server.getsockname()[1], reserved.getsockname()[1]
        with bind("::", shared, share=True) as worker:
            worker.listen()

            assert connects("127.0.0.1", port)
            assert connects("127.0.0.1", shared)
            try:
                assert connects("::1", port)
            except OSError:
                pytest.skip("this machine has no ::1")
            assert connects("::1", shared)


def test_a_kernel_without_ipv6_listens_on_every_address_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def without_ipv6(family: int = -1, *more: int, **named: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return real(family, *more, **named)

    monkeypatch.setattr("elastic_ctr.runtime.lifecycle.socket.socket", without_ipv6)

    with listen("::", 0) as server:
        assert server.family == socket.AF_INET
        assert connects("127.0.0.1", server.getsockname()[1])
    with pytest.raises(OSError, match="::1:0 cannot be listened on: Address family not supported"):
        listen("::1", 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_parts_of_an_answer_do_not_wait_for_one_another(host: str) -> None:
    """Neither on accepted sockets as they are, nor once asyncio has them, which looks at their protocol."""
    with listen(host, 0) as server, socket.create_connection(server.getsockname()[:2]):
        accepted, _ = server.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
            assert accepted.proto == socket.IPPROTO_TCP
