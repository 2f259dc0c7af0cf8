from collections.abc import Iterator
from pathlib import Path

import pytest

from chart.cases import CASES
from chart.rendering import Rendered, Renderer, on_top_of_smallest


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


@pytest.fixture(params=CASES, scope="session")
def rendered(request: pytest.FixtureRequest, render: Renderer) -> Rendered:
    """Each of the cases in turn; a module with questions of its own has its own."""
    return render(below=on_top_of_smallest(CASES[request.param]))
