"""A thread that is idle when all it was given is over, and not a moment before."""

import threading

import pytest

from elastic_ctr.runtime.inline_executor import InlineExecutor
from waiting import until


def idle(thread: InlineExecutor) -> bool:
    """Asked anew each time."""
    return thread.idle


def test_it_is_idle_before_and_after_its_work_and_not_during_it() -> None:
    go = threading.Event()
    with InlineExecutor("lent") as thread:
        assert idle(thread)
        first, second = thread.submit(go.wait, 30), thread.submit(threading.get_ident)

        assert not idle(thread)
        go.set()
        assert first.result()
        assert second.result() != threading.get_ident()
        until(lambda: idle(thread))


def test_work_that_is_called_off_is_not_waited_for_and_what_runs_is() -> None:
    go = threading.Event()
    with InlineExecutor("lent") as thread:
        running, waiting = thread.submit(go.wait, 30), thread.submit(print)
        until(running.running)

        assert waiting.cancel()
        assert not idle(thread)
        go.set()
        until(lambda: idle(thread))


def test_work_that_fails_is_over() -> None:
    with InlineExecutor("lent") as thread:
        failed = thread.submit(int, "none")

        with pytest.raises(ValueError, match="none"):
            failed.result()
        until(lambda: idle(thread))


def test_an_executor_refuses_work_after_its_shutdown_and_is_idle() -> None:
    thread = InlineExecutor("lent")
    thread.shutdown()

    with pytest.raises(RuntimeError, match="after shutdown"):
        thread.submit(print)
    assert idle(thread)
