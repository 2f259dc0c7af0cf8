import logging
from collections.abc import Iterator

import pytest

from elastic_ctr.store.backends import RetryPolicy, StoreError, StoreUnavailable
from elastic_ctr.store.backends.retry import resumed


def failing(times: int, error: Exception, tries: list[int], retry: RetryPolicy) -> str:
    for attempt in retry.attempts():
        with attempt:
            tries.append(1)
            if len(tries) <= times:
                raise error
            return "done"
    raise AssertionError


def test_an_error_that_may_pass_is_tried_again_until_it_has_passed(no_pauses: None) -> None:
    tries: list[int] = []

    assert failing(3, StoreUnavailable("away"), tries, RetryPolicy()) == "done"
    assert len(tries) == 4


def test_the_last_error_is_raised_when_the_time_is_over() -> None:
    tries: list[int] = []

    with pytest.raises(StoreUnavailable, match="away"):
        failing(1, StoreUnavailable("away"), tries, RetryPolicy(0))

    assert len(tries) == 1


@pytest.mark.parametrize("error", [StoreError("for good"), OSError("the disk"), KeyError("a mistake")])
def test_an_error_that_will_not_pass_is_not_tried_again(error: Exception, no_pauses: None) -> None:
    tries: list[int] = []

    with pytest.raises(type(error)):
        failing(9, error, tries, RetryPolicy())

    assert len(tries) == 1


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_never_swallowed(end: type[BaseException], no_pauses: None) -> None:
    def interrupted() -> None:
        for attempt in RetryPolicy().attempts():
            with attempt:
                raise end

    with pytest.raises(end):
        interrupted()


def test_a_retry_ends_when_its_caller_gives_up(no_pauses: None) -> None:
    tries: list[int] = []

    with pytest.raises(StoreUnavailable):
        failing(9, StoreUnavailable("away"), tries, RetryPolicy(give_up=lambda: len(tries) == 3))

    assert len(tries) == 3


def test_a_long_wait_is_logged_once(
    no_pauses: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    moments = iter(range(0, 900, 3))
    monkeypatch.setattr("elastic_ctr.store.backends.retry.time.monotonic", lambda: float(next(moments)))

    with caplog.at_level(logging.INFO):
        assert failing(9, StoreUnavailable("it is away"), [], RetryPolicy(600)) == "done"

    assert [each.getMessage() for each in caplog.records] == ["it is away; it is tried again for up to 600 s"]


def test_a_store_that_names_a_pause_is_given_it_within_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", pauses.append)

    failing(1, StoreUnavailable("busy", after=3), [], RetryPolicy())
    failing(1, StoreUnavailable("busy", after=86400), [], RetryPolicy())

    assert pauses == [3, 5]


def test_pauses_grow_and_are_not_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", pauses.append)

    failing(8, StoreUnavailable("away"), [], RetryPolicy())

    assert len(set(pauses)) > 4
    assert 0.1 <= min(pauses) <= max(pauses) <= 2.5


def test_bytes_that_came_are_not_requested_again(no_pauses: None) -> None:
    asked: list[int] = []

    def part(start: int) -> Iterator[bytes]:
        asked.append(start)
        yield b"abcdef"[start : start + 2]
        if start < 4:
            raise StoreUnavailable("broken")

    assert b"".join(resumed(part, 0, RetryPolicy())) == b"abcdef"
    assert asked == [0, 2, 4]
