from pathlib import Path

import pytest

from elastic_ctr.cube.release import AgentReport
from elastic_ctr.cube.transfer.memory import Memory, MemoryFile, StateDamaged
from elastic_ctr.cube.transfer.state import ReleaseState, Times

MEMORY = Memory(
    state=ReleaseState(generation=3, live=5, refused={4: "x"}, times={5: Times(live=1.5)}),
    revisions=2000,
    agents=(AgentReport(pod="c-s0-0", address="a:1", shard=0, holds={5: (0, 1)}),),
)


def test_what_is_written_is_read_after_a_restart(tmp_path: Path) -> None:
    MemoryFile(tmp_path).write(MEMORY)

    assert MemoryFile(tmp_path).read() == MEMORY
    assert [each.name for each in tmp_path.iterdir()] == ["release.json"]


def test_without_a_file_there_is_no_state(tmp_path: Path) -> None:
    assert MemoryFile(tmp_path).read() is None


def test_a_write_that_fails_leaves_the_old_state(tmp_path: Path) -> None:
    file = MemoryFile(tmp_path)
    file.write(MEMORY)
    (tmp_path / "release.new").mkdir()

    with pytest.raises(IsADirectoryError):
        file.write(MEMORY.model_copy(update={"revisions": 1}))

    assert file.read() == MEMORY


def test_a_damaged_file_is_named_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "release.json").write_text('{"state": {')

    with pytest.raises(StateDamaged, match=r"release\.json cannot be read .* what pods carry is taken up again"):
        MemoryFile(tmp_path).read()
