from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.store.backends.backend import StoreError, relative


@pytest.mark.parametrize("path", ["", "/etc/passwd", "..", "a/../../b", "a/..", "a\0b", "//a"])
def test_a_path_that_leaves_the_store_is_refused(path: str) -> None:
    with pytest.raises(StoreError, match="not a path inside the store"):
        relative(path)


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5))
def test_an_accepted_path_has_no_step_up_and_no_root(steps: list[str]) -> None:
    try:
        path = relative("/".join(steps))
    except StoreError:
        return

    assert not PurePosixPath(path).is_absolute()
    assert ".." not in PurePosixPath(path).parts
