from __future__ import annotations

import errno
import os
from datetime import datetime, timezone
from pathlib import Path

import pytest
import yaml

from elastic_ctr.formats.hours import HoursRefused, HourTree, hour_name, parse_hour
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.operate.cli.given_values import load_values

SLOTS = SlotList.parse(["a", "b"])
FIRST = parse_hour("20200401/22")
LAST = parse_hour("20200402/01")


def files(root: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
    found.pop("values.yaml", None)
    return found


def test_an_hour_has_its_files_and_a_donefile_and_an_empty_hour_an_empty_file(tmp_path: Path) -> None:
    with HourTree(tmp_path / "out") as tree:
        tree.append("20200402/01/part-00000", b"late\n")
        tree.append("20200401/22/part-00001", b"x\n")
        tree.append("20200401/22/part-00000", b"1\n")
        tree.append("20200401/22/part-00000", b"2\n")
        hours = tree.publish(SLOTS, FIRST, LAST)

    assert hours == 4
    assert files(tmp_path / "out") == {
        "20200401/22/donefile": b"",
        "20200401/22/part-00000": b"1\n2\n",
        "20200401/22/part-00001": b"x\n",
        "20200401/23/donefile": b"",
        "20200401/23/part-00000": b"",
        "20200402/00/donefile": b"",
        "20200402/00/part-00000": b"",
        "20200402/01/donefile": b"",
        "20200402/01/part-00000": b"late\n",
        "slot.conf": b"a\nb\n",
    }
    assert not (tmp_path / "out" / ".staging").exists()


def test_the_values_file_beside_the_hours_names_them_and_the_slots(tmp_path: Path) -> None:
    with HourTree(tmp_path / "out put") as tree:
        tree.publish(SLOTS, FIRST, LAST)

    values = yaml.safe_load((tmp_path / "out put" / "values.yaml").read_text())

    assert str(tmp_path) not in (tmp_path / "out put" / "values.yaml").read_text()
    assert load_values([tmp_path / "out put" / "values.yaml"], None).data.source.url == (tmp_path / "out put").as_uri()
    assert values["data"] == {
        "source": {"url": "file:."},
        "path": "/",
        "start": "20200401/22",
        "end": "20200402/01",
        "slots": ["a", "b"],
    }


def test_memory_does_not_decide_what_is_written(tmp_path: Path) -> None:
    for name, held_bytes in (("small", 1), ("large", 1 << 20)):
        with HourTree(tmp_path / name, held_bytes=held_bytes) as tree:
            for number in range(50):
                tree.append(f"20200401/{22 + number % 2}/part-00000", b"%d\n" % number)
            tree.publish(SLOTS, FIRST, LAST)

    assert files(tmp_path / "small") == files(tmp_path / "large")


def test_of_a_tree_that_is_not_published_nothing_is_left(tmp_path: Path) -> None:
    with HourTree(tmp_path / "out", held_bytes=1) as tree:
        tree.append("20200401/22/part-00000", b"1\n")

        assert not (tmp_path / "out" / "20200401").exists()
    assert files(tmp_path) == {}


def test_a_folder_that_is_not_empty_is_refused_unless_forced(tmp_path: Path) -> None:
    for name in ("20200331/05/part-00000", "slot.conf", "truth/20200331/05/part-00000", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old")

    with pytest.raises(HoursRefused, match="is not empty; say --append to add later hours, --force to replace"):
        HourTree(tmp_path)
    with HourTree(tmp_path, force=True) as tree:
        tree.append("20200401/22/part-00000", b"1\n")
        assert (tmp_path / "20200331/05/part-00000").exists()
        tree.publish(SLOTS, FIRST, FIRST)

    assert set(files(tmp_path)) == {"20200401/22/part-00000", "20200401/22/donefile", "slot.conf", "notes.txt"}


def test_files_that_a_killed_run_staged_are_cleared(tmp_path: Path) -> None:
    (tmp_path / ".staging" / "20200401").mkdir(parents=True)
    (tmp_path / ".staging" / "20200401" / "22").touch()

    with HourTree(tmp_path) as tree:
        tree.append("20200401/22/part-00000", b"1\n")
        tree.publish(SLOTS, FIRST, FIRST)

    assert (tmp_path / "20200401/22/part-00000").read_bytes() == b"1\n"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").touch()

    with pytest.raises(HoursRefused, match="is not a folder"):
        HourTree(tmp_path / "out", force=True)


def test_an_hour_is_read_as_it_is_written() -> None:
    hour = parse_hour("20200401/05")

    assert hour == datetime(2020, 4, 1, 5, tzinfo=timezone.utc)
    assert hour_name(hour) == "20200401/05"


@pytest.mark.parametrize("text", ["20200401", "20200401/5", "20200231/05", "20200401/24", "2020-04-01/05", ""])
def test_a_text_that_is_no_hour_is_refused(text: str) -> None:
    with pytest.raises(HoursRefused, match="is not an hour; write it as 20200401/00"):
        parse_hour(text)


def test_a_full_disk_is_named_with_the_folder_and_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = tmp_path / "out"
    tree = HourTree(out, held_bytes=1)
    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(HoursRefused) as refused:
        tree.append("20200401/00/part-00000", b"1 0 2:a\n")

    assert (
        str(refused.value)
        == f"{out} cannot be written: No space left on device; make room there, or name another folder"
    )
