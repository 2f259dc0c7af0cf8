import subprocess
import sys
from pathlib import Path

import pytest

from elastic_ctr.runtime.scratch import scratch_folder

_OWNER = """
import sys
from elastic_ctr.runtime.scratch import scratch_folder
with scratch_folder("mine-") as folder:
    (folder / "part.dict").write_bytes(b"x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def test_the_folder_is_deleted_at_the_end_whatever_happened(temporary: Path) -> None:
    def fails() -> None:
        with scratch_folder("mine-") as folder:
            (folder / "file").touch()
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        fails()

    assert list(temporary.iterdir()) == []


def test_folders_of_killed_processes_are_deleted_and_those_of_living_ones_stay(temporary: Path) -> None:
    (temporary / "elsewhere").mkdir()
    (temporary / "mine-link").symlink_to(temporary / "elsewhere")
    (temporary / "others-x").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        left = Path(owner.stdout.readline().strip())
        with scratch_folder("mine-"):
            assert (left / "part.dict").exists()

        owner.kill()
        owner.wait()
        assert (left / "part.dict").exists()
        with scratch_folder("mine-") as folder:
            assert not left.exists()
            assert folder.is_dir()

    assert sorted(each.name for each in temporary.iterdir()) == ["elsewhere", "mine-link", "others-x"]
    assert list((temporary / "elsewhere").iterdir()) == []
