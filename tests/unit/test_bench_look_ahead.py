"""The measurement of the look ahead works; nothing here asserts a time."""

from pathlib import Path

import pytest
from bench.look_ahead import seconds, written


@pytest.mark.parametrize("ahead", [True, False])
def test_the_second_pass_gets_its_tasks(tmp_path: Path, ahead: bool) -> None:
    data = written((tmp_path / "data").as_uri(), 2)
    folder = tmp_path / "master"
    folder.mkdir()

    # It fails by itself if there is no task.
    assert seconds(data, folder, ahead=ahead) > 0
