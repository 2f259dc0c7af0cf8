from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from elastic_ctr.cube.dictionary import table

# Each example is looked up both ways; fixtures here choose a code path only.
settings.register_profile(
    "cube",
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("cube")


@pytest.fixture(params=["numba", "numpy"])
def lookup_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both ways a lookup can go, one after the other."""
    monkeypatch.setenv("ELASTIC_CTR_LOOKUP", request.param)
    table.compiled_lookup.cache_clear()
    yield request.param
    table.compiled_lookup.cache_clear()
