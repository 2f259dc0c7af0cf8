from pathlib import Path

import pytest

from elastic_ctr.store.backends.temporary import appearing, is_temporary, temporary_beside


@pytest.mark.parametrize(("path", "folder"), [("a/b/c", "a/b/"), ("c", "")])
def test_a_temporary_name_is_beside_its_file_and_never_given_twice(path: str, folder: str) -> None:
    names = {temporary_beside(path) for _ in range(100)}

    assert len(names) == 100
    assert all(name.startswith(folder) and is_temporary(name.removeprefix(folder)) for name in names)


def test_a_file_appears_whole(tmp_path: Path) -> None:
    with appearing(tmp_path / "new" / "file") as out:
        out.write(b"whole")
        assert not (tmp_path / "new" / "file").exists()

    assert [each.name for each in (tmp_path / "new").iterdir()] == ["file"]
    assert (tmp_path / "new" / "file").read_bytes() == b"whole"


def test_a_file_does_not_appear_when_its_writing_failed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")

    def write() -> None:
        with appearing(tmp_path / "file") as out:
            out.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()

    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"
