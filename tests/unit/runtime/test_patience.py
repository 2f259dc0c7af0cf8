import pytest

from elastic_ctr.runtime.patience import HUNG_SECONDS, LONG_SECONDS, LOOK_SECONDS, SILENT_SECONDS, Patience


def looks(patience: Patience, seconds: float) -> list[str]:
    """What is said in so many seconds of looking on."""
    said = (patience.look() for _ in range(int(seconds / LOOK_SECONDS)))
    return [wrong for wrong in said if wrong is not None]


@pytest.fixture
def patience() -> Patience:
    """Of a worker that has begun and has nothing long to do."""
    patience = Patience(order_seconds=2 * LONG_SECONDS)
    patience.heard()
    patience.busy = False
    return patience


def test_a_worker_that_says_something_now_and_then_is_left_alone(patience: Patience) -> None:
    for _ in range(10):
        assert looks(patience, HUNG_SECONDS - LOOK_SECONDS) == []
        patience.heard()


def test_a_worker_that_hangs_is_given_up_once_and_long_before_that_is_silent(patience: Patience) -> None:
    silent = [patience.silent]
    said = looks(patience, SILENT_SECONDS)
    silent.append(patience.silent)

    assert (silent, said) == ([False, True], [])
    assert looks(patience, 10 * HUNG_SECONDS) == [f"has said nothing for {HUNG_SECONDS:.0f} s"]


def test_a_worker_that_is_heard_again_is_silent_no_more(patience: Patience) -> None:
    looks(patience, SILENT_SECONDS)

    patience.heard()

    assert not patience.silent


def test_a_worker_at_something_long_may_say_nothing_for_long_before_it_is_given_up(patience: Patience) -> None:
    patience.busy = True

    assert looks(patience, LONG_SECONDS - LOOK_SECONDS) == []
    assert not patience.silent
    assert looks(patience, LOOK_SECONDS) == [f"has said nothing for {LONG_SECONDS:.0f} s"]


def test_a_worker_that_has_just_been_started_is_at_something_long() -> None:
    assert looks(Patience(), LONG_SECONDS - LOOK_SECONDS) == []


def test_a_worker_that_talks_and_owes_an_answer_for_too_long_is_given_up(patience: Patience) -> None:
    patience.ordered(1)
    patience.ordered(2)
    patience.answered(1)
    said = []
    for _ in range(int(3 * LONG_SECONDS / LOOK_SECONDS)):
        patience.heard()
        said += looks(patience, LOOK_SECONDS)

    assert said == [f"has owed an answer for {2 * LONG_SECONDS:.0f} s"]
