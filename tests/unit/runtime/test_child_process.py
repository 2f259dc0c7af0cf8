import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil

from elastic_ctr.runtime.child_process import (
    children_without_interrupts,
    die_with_parent,
    end_child,
    end_children,
    how_it_ended,
    log_lines,
    start_child,
)

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


_DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"


def program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_the_output_of_a_child_is_appended_to_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for word in ("first", "second"):
        start_child(program(f"import sys; print({word!r}); print('error', file=sys.stderr)"), log=log).wait()

    assert sorted(log_lines(log)) == ["error", "error", "first", "second"]
    assert log_lines(tmp_path / "absent") == []


def test_a_log_that_cannot_be_read_is_one_line_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "ring").symlink_to("ring")

    assert log_lines(tmp_path) == [f"{tmp_path} cannot be read: Is a directory"]
    assert log_lines(tmp_path / "ring") == [f"{tmp_path}/ring cannot be read: Too many levels of symbolic links"]


def test_a_child_with_a_group_of_its_own_gets_no_interrupt_of_the_terminal() -> None:
    shared, apart = (start_child(program("import signal; signal.pause()"), own_group=own) for own in (False, True))

    groups = [os.getpgid(each.pid) for each in (shared, apart)]

    end_children([shared, apart], 0)
    assert groups == [os.getpgrp(), apart.pid]


def test_children_that_ignore_sigterm_are_killed_after_the_grace(tmp_path: Path) -> None:
    deaf = start_child(program(_DEAF), stdout=subprocess.PIPE)
    assert deaf.stdout is not None
    assert deaf.stdout.readline() == b"deaf\n"
    polite = start_child(program("import signal; signal.pause()"))

    end_children([deaf, polite], 0.5)

    deaf.stdout.close()
    assert (deaf.returncode, polite.returncode) == (-signal.SIGKILL, -signal.SIGTERM)


def test_the_end_of_a_child_is_told_by_signal_or_exit_code() -> None:
    killed = end_child(start_child(program("import signal; signal.pause()")))

    assert how_it_ended(killed) == "was ended by SIGKILL"
    assert how_it_ended(3) == "ended with exit code 3"


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
