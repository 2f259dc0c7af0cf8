"""Servers for clients."""

from collections.abc import Callable, Iterator

import pytest

from cube.running import Running
from elastic_ctr.cube.server import lookup_counters as counters
from elastic_ctr.cube.server.loop import LookupLoop


@pytest.fixture
def start() -> Iterator[Callable[[], Running]]:
    """Starts servers; their loops run in threads of this process."""
    started: list[Running] = []

    def start_one(max_keys: int = 1000) -> Running:
        started.append(Running(LookupLoop(counters.private(), max_keys, 1000)))
        return started[-1]

    yield start_one
    for server in started:
        server.stop()
