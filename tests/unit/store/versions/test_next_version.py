import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.store.versions.manifest import freshness_seconds, next_version


@given(st.floats(0, 1e12), st.lists(st.integers(0, 10**12)))
def test_an_id_is_never_used_twice_whatever_the_clock_says(now: float, known: list[int]) -> None:
    version = next_version(now, known)

    assert version not in known
    assert version > max(known, default=0)
    assert version >= int(now)


@pytest.mark.parametrize(("event", "now", "seconds"), [(100, 160.5, 60.5), (100, 100, 0.0), (3700, 100, 0.0)])
def test_freshness_is_never_negative(event: float, now: float, seconds: float) -> None:
    assert freshness_seconds(event, now) == seconds
