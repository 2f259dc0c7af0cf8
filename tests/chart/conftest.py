from collections.abc import Iterator
from pathlib import Path

import pytest
from rendering import Renderer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # A chart renders in milliseconds: what takes half a minute hangs.
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(60))


@pytest.fixture(scope="session")
def render() -> Iterator[Renderer]:
    renderer = Renderer()
    yield renderer
    renderer.close()
