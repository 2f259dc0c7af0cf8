from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.versions.version import next_version


@given(st.floats(0, 1e12), st.lists(st.integers(0, 10**12)))
def test_an_id_is_never_used_twice_whatever_the_clock_says(now: float, known: list[int]) -> None:
    version = next_version(now, known)

    assert version not in known
    assert version > max(known, default=0)
    assert version >= int(now)
