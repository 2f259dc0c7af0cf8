import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading

import psutil
import pytest

from elastic_ctr.runtime.child_process import children_without_interrupts, die_with_parent
from elastic_ctr.runtime.lifecycle import PortInUse, bind, listen, reserve, stop_on_signal, stop_on_signal_async

_PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", '''
import sys, time
from elastic_ctr.runtime.child_process import die_with_parent
die_with_parent(int(sys.argv[1]))
print("bound", flush=True)
time.sleep(600)
''', str(os.getpid())])
print(child.pid, flush=True)
time.sleep(600)
"""


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


def test_a_child_started_without_interrupts_blocks_sigint_and_the_parent_gets_its_own_afterwards() -> None:
    reached: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: reached.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    show_mask = "print(next(line for line in open('/proc/self/status') if line.startswith('SigBlk')))"
    try:
        with children_without_interrupts():
            blocked = subprocess.run(
                [sys.executable, "-c", show_mask], capture_output=True, text=True, check=True
            ).stdout
            # To this thread: another one of the process, if it has any, may take what is sent to the process.
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            within = list(reached)
    finally:
        signal.signal(signal.SIGINT, handler)

    assert int(blocked.split()[1], 16) & 1 << (signal.SIGINT - 1)
    assert (within, reached) == ([], [signal.SIGINT])
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask


_INTERRUPTED_ELSEWHERE = """
import os, signal, threading, time
from elastic_ctr.runtime.child_process import children_without_interrupts

threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
started = []
try:
    with children_without_interrupts():
        # The other thread receives it.
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        started.append("whole")
except KeyboardInterrupt:
    print(started)
"""


def test_an_interrupt_that_another_thread_receives_waits_until_the_children_are_started() -> None:
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED_ELSEWHERE], capture_output=True, text=True, check=True)

    assert done.stdout == "['whole']\n"


_INTERRUPTED_POOL = """
import multiprocessing, os, struct, time
from concurrent.futures import ProcessPoolExecutor
from elastic_ctr.runtime.child_process import end_pool

if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    assert pool.submit(os.getpid).result() != os.getpid()
    pool.submit(time.sleep, 600)
    # As a process leaves it that ends in the middle of an answer: the length, and some bytes of it.
    os.write(pool._result_queue._writer.fileno(), struct.pack("!i", 1000) + b"some")
    time.sleep(0.5)
    end_pool(pool)
    print("ended", flush=True)
"""


def test_a_pool_that_ends_in_the_middle_of_an_answer_lets_its_process_exit() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_POOL], capture_output=True, text=True, check=False, timeout=60
    )

    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr[-2000:]


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


def test_a_child_ends_with_its_parent_however_that_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        lines = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
        lines.discard(b"bound")
        child = psutil.Process(int(lines.pop()))

        parent.kill()
        parent.wait()

        psutil.wait_procs([child], timeout=30)
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_child_of_another_parent_than_it_expects_ends_at_once() -> None:
    code = "from elastic_ctr.runtime.child_process import die_with_parent; die_with_parent(1)"

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)

    assert ended.returncode == 1
    assert b"the parent process 1 has ended" in ended.stderr
    assert die_with_parent.__doc__


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


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_parts_of_an_answer_do_not_wait_for_one_another(host: str) -> None:
    """Neither on accepted sockets as they are, nor once asyncio has them, which looks at their protocol."""
    with listen(host, 0) as server, socket.create_connection(server.getsockname()[:2]):
        accepted, _ = server.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
            assert accepted.proto == socket.IPPROTO_TCP
