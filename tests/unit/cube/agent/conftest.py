"""What tests of the agent share."""

from pathlib import Path

import pytest

from cube.agent.played import Played, put_dictionary
from elastic_ctr.store.backends import FileStore


@pytest.fixture
def played(tmp_path: Path) -> Played:
    put_dictionary(FileStore(tmp_path / "store"), tmp_path / "work", 4, 5, 6, 7)
    return Played()
