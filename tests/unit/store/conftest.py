from collections.abc import Iterator

import pytest
import stamina


@pytest.fixture
def no_pauses() -> Iterator[None]:
    """Tries follow one another at once; there are enough of them."""
    with stamina.set_testing(True, attempts=1000):
        yield
