"""A machine whose clock is set, and who measures by it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.runtime.steady_clock import SteadyClock

JUMPS = st.floats(-1e6, 1e6).filter(lambda jump: abs(jump) > 2.5)


@given(st.lists(st.tuples(st.floats(0, 1e4), st.none() | JUMPS), max_size=20))
def test_a_steady_clock_counts_the_time_that_passes_whatever_the_wall_clock_shows(
    steps: list[tuple[float, float | None]],
) -> None:
    wall, up, passed = 1.6e9, 50.0, 0.0
    clock = SteadyClock(0.0, 2.0, lambda: wall, lambda: up)
    begun = clock()
    for seconds, jump in steps:
        wall, up, passed = wall + seconds, up + seconds, passed + seconds
        if jump is not None:
            wall += jump
        assert clock() - begun == pytest.approx(passed, abs=1e-4)
        assert clock() + clock.moved == pytest.approx(wall, abs=1e-4)


def test_a_clock_that_is_slewed_is_followed() -> None:
    wall, up = 1.6e9, 50.0
    clock = SteadyClock(0.0, 2.0, lambda: wall, lambda: up)
    for _ in range(10):
        wall, up = wall + 11.5, up + 10
        clock()

    assert clock() == wall
    assert clock.moved == 0


def test_a_jump_is_logged_once_and_kept_over_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    wall, up = 1.6e9, 50.0
    clock = SteadyClock(0.0, 2.0, lambda: wall, lambda: up)
    before = clock()
    wall -= 3600
    assert clock() == clock() == before
    up = 3.0

    assert SteadyClock(clock.moved, 2.0, lambda: wall, lambda: up)() == before
    assert caplog.text.count("this machine's clock was set by -3600.0 s") == 1
