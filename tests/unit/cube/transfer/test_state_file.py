from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.cube.release import AgentReport
from elastic_ctr.cube.transfer.state import ReleaseState, StepTimes
from elastic_ctr.cube.transfer.state_file import PersistedState, StateFile

STATE = PersistedState(
    state=ReleaseState(generation=3, live=5, refused={4: "x"}, times={5: StepTimes(live=1.5)}),
    revisions=2000,
    agents=(AgentReport(pod="c-s0-0", address="a:1", shard=0, loaded={5: (0, 1)}),),
)


def test_a_state_is_read_after_a_restart_as_it_was_written(tmp_path: Path) -> None:
    StateFile(tmp_path).write(STATE)

    assert StateFile(tmp_path).read() == STATE
    assert [each.name for each in tmp_path.iterdir()] == ["release.json"]


def test_the_first_schema_writes_no_number_which_older_releases_would_refuse(tmp_path: Path) -> None:
    assert b"schemaNumber" not in STATE.to_json()


def test_a_state_of_a_newer_release_is_kept_aside_with_its_number_as_the_reason(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    file.path.write_bytes(STATE.to_json().replace(b"{", b'{"schemaNumber": 2, "unknown": 1,', 1))

    assert file.read() is None

    assert file.error is not None
    assert "it has schema number 2 and this release knows up to 1, because a newer release has written it" in file.error
    assert (tmp_path / "release.json.damaged").exists()


def test_without_a_file_there_is_no_state(tmp_path: Path) -> None:
    assert StateFile(tmp_path).read() is None


def test_a_write_that_fails_leaves_the_old_state(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    file.write(STATE)
    (tmp_path / "release.new").mkdir()

    with pytest.raises(IsADirectoryError):
        file.write(STATE.model_copy(update={"revisions": 1}))

    assert file.read() == STATE


@given(st.binary() | st.sampled_from([STATE.to_json()[:-20], b"", b"[" * 100_000, b'{"state": {"generation": 1e999}}']))
def test_a_file_with_any_bytes_is_kept_aside_and_the_state_counts_as_lost(content: bytes) -> None:
    with TemporaryDirectory() as name:
        file = StateFile(Path(name))
        file.path.write_bytes(content)

        assert file.read() is None

        assert (Path(name) / "release.json.damaged").read_bytes() == content
        assert file.error is not None
        assert "it is kept as release.json.damaged" in file.error
        file.write(STATE)
        assert StateFile(Path(name)).read() == STATE
