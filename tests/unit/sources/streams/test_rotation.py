"""Files of a followed folder that are renamed, copied, compressed, deleted and made anew while they are read."""

import gzip
import os
import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pytest

from elastic_ctr.formats.blocks import lines_in_range
from elastic_ctr.sources.streams import followed_folder
from elastic_ctr.sources.streams.followed_file import FollowedFile
from elastic_ctr.sources.streams.followed_folder import FollowedFolder
from elastic_ctr.sources.streams.interface import Kept, Places
from elastic_ctr.store.backends import NotInStore, StoreError
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.calendar.stream_schedule import cut_window, first_offsets, places_after
from elastic_ctr.training.trainer.task_lines import pieces_of
from fuzz.rotations import Rotations


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_PAUSE_SECONDS", "_SEARCH_PAUSE_SECONDS"):
        monkeypatch.setattr(followed_folder, name, 0)


def lines(first: int, count: int) -> bytes:
    return b"".join(b"%d some click\n" % number for number in range(first, first + count))


class Run:
    """A master that looks, and a trainer that reads what is cut; `places` is the ledger."""

    def __init__(self, folder: Path, places: Places | None = None) -> None:
        self.folder = folder
        self.places = places
        self.gone = 0
        self.tasks: list[control.Task] = []
        self.restart()

    def restart(self) -> None:
        self.stream = FollowedFolder(self.folder)

    def cut(self, limit: int = 1 << 20) -> None:
        before = self.places or Places({}, {})
        self.stream.know(before)
        kept = self.stream.partitions()
        following = first_offsets(kept, before.following if self.places else None, "earliest")
        window = cut_window(kept, following, limit)
        self.gone += window.gone
        following = {name: max(place, kept[name].first) for name, place in following.items()}
        self.places = places_after(before, window, Places(following, self.stream.files()), set)
        self.tasks += [
            control.Task(path=name, start=start, end=stop, file=self.places.files[name])
            for name, start, stop in window.ranges
        ]

    def read(self) -> bytes:
        """The lines of the tasks, read by a trainer that has seen nothing of the folder."""
        found = b""
        while self.tasks:
            for _, piece in pieces_of(FollowedFolder(self.folder), self.tasks.pop(0)):
                self.gone += piece.gone
                found += b"".join(block for _, block in lines_in_range(piece.raw, piece.start, piece.stop))
        return found

    def new(self) -> bytes:
        self.cut()
        return self.read()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Of a folder whose file has a hundred lines that were read."""
    (tmp_path / "x").write_bytes(lines(0, 100))
    one = Run(tmp_path)
    assert one.new() == lines(0, 100)
    return one


def append(file: Path, text: bytes) -> None:
    with file.open("ab") as out:
        out.write(text)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_renamed_file_goes_on_and_the_new_one_under_its_name_begins_at_its_first_line(
    run: Run, restarts: bool
) -> None:
    append(run.folder / "x", lines(100, 10))
    (run.folder / "x").rename(run.folder / "x.1")
    append(run.folder / "x.1", lines(110, 10))
    (run.folder / "x").write_bytes(lines(120, 500))
    if restarts:
        run.restart()

    assert sorted(run.new().splitlines()) == sorted(lines(100, 520).splitlines())
    assert run.gone == 0


def test_a_range_of_a_file_that_is_renamed_before_it_is_read_is_read_under_its_new_name(run: Run) -> None:
    append(run.folder / "x", lines(100, 10))
    run.cut()
    (run.folder / "deep").mkdir()
    (run.folder / "x").rename(run.folder / "deep" / "x.1")
    (run.folder / "x").write_bytes(lines(500, 500))

    assert run.read() == lines(100, 10)
    assert run.new() == lines(500, 500)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_file_that_is_copied_and_cut_is_read_on_in_its_copy(run: Run, restarts: bool) -> None:
    append(run.folder / "x", lines(100, 10))
    run.cut()
    append(run.folder / "x", lines(110, 10))
    shutil.copyfile(run.folder / "x", run.folder / "x.1")
    os.truncate(run.folder / "x", 0)
    append(run.folder / "x", lines(500, 300))
    if restarts:
        run.restart()

    assert run.read() == lines(100, 10)
    assert sorted(run.new().splitlines()) == sorted((lines(110, 10) + lines(500, 300)).splitlines())
    assert run.gone == 0


def test_a_copy_is_not_read_while_its_original_is_there_and_the_status_says_so(run: Run) -> None:
    shutil.copyfile(run.folder / "x", run.folder / "backup")
    append(run.folder / "x", lines(100, 10))

    assert run.new() == lines(100, 10)
    assert run.stream.notices == (f"backup in {run.folder} is not read: it has what x has",)


def test_a_file_that_begins_as_another_one_is_read_once_it_differs(run: Run) -> None:
    (run.folder / "y").write_bytes(lines(0, 2))
    assert run.new() == b""

    append(run.folder / "y", b"another\n")

    assert run.new() == lines(0, 2) + b"another\n"


@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_compressed_file_is_read_on_where_it_was(run: Run, ending: str, restarts: bool) -> None:
    append(run.folder / "x", lines(100, 10))
    run.cut()
    append(run.folder / "x", lines(110, 10))
    text = (run.folder / "x").read_bytes()
    packed = gzip.compress(text) if ending == ".gz" else pa.Codec("zstd").compress(text, asbytes=True)
    (run.folder / f"x.1{ending}").write_bytes(packed)
    (run.folder / "x").unlink()
    if restarts:
        run.restart()

    assert run.read() == lines(100, 10)
    assert run.new() == lines(110, 10)
    run.restart()
    assert run.new() == b""
    assert (run.gone, run.stream.notices) == (0, ())


def test_of_several_copies_the_longest_is_read_on(run: Run) -> None:
    shutil.copyfile(run.folder / "x", run.folder / "backup")
    append(run.folder / "x", lines(100, 10))
    run.cut()
    append(run.folder / "x", lines(110, 10))
    (run.folder / "x.gz").write_bytes(gzip.compress((run.folder / "x").read_bytes()))
    append(run.folder / "backup", lines(100, 15))
    (run.folder / "x").unlink()
    run.restart()

    assert run.read() == lines(100, 10)
    assert run.new() == lines(110, 10)
    assert run.gone == 0


def test_a_compressed_file_that_was_never_followed_is_named_and_not_read(run: Run) -> None:
    (run.folder / "old.gz").write_bytes(gzip.compress(lines(700, 10)))
    run.cut()

    assert run.new() == b""
    [notice] = run.stream.notices
    assert "1 compressed files in" in notice
    assert "(old.gz): they are not read; unpack those that are to be trained" in notice


def test_a_damaged_compressed_file_is_named_and_read_once_it_is_whole(run: Run) -> None:
    append(run.folder / "x", lines(100, 2000))
    packed = gzip.compress((run.folder / "x").read_bytes())
    (run.folder / "x").unlink()
    (run.folder / "x.gz").write_bytes(packed[: len(packed) // 2])
    assert run.new() == b""
    assert "x.gz in" in run.stream.notices[0]
    assert "is damaged or cut off" in run.stream.notices[0]

    (run.folder / "x.gz").write_bytes(packed)

    assert run.new() == lines(100, 2000)


def test_a_file_that_is_deleted_and_made_anew_is_another_one_though_it_has_the_same_inode(run: Run) -> None:
    inode = (run.folder / "x").stat().st_ino
    for again in range(20):
        (run.folder / "x").unlink()
        (run.folder / "x").write_bytes(lines(1000 * (again + 1), 200))
        assert run.new() == lines(1000 * (again + 1), 200)
        if (run.folder / "x").stat().st_ino == inode:
            return


def test_links_to_a_file_are_one_file_and_a_loop_of_links_is_passed_over(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    (run.folder / "a-link").symlink_to("x")
    (run.folder / "hard").hardlink_to(run.folder / "x")
    (run.folder / "loop").symlink_to("loop")
    (run.folder / "nothing").symlink_to("absent")
    (run.folder / "round").symlink_to(run.folder)
    append(run.folder / "x", lines(100, 10))

    assert run.new() == lines(100, 10)
    run.cut()
    assert caplog.text.count(f"loop in {run.folder} is not read: Too many levels of symbolic links") == 1

    (run.folder / "x").unlink()
    append(run.folder / "hard", lines(110, 10))
    assert run.new() == lines(110, 10)


def test_lines_written_between_a_copy_and_the_cut_are_counted_as_dropped(run: Run) -> None:
    shutil.copyfile(run.folder / "x", run.folder / "x.1")
    append(run.folder / "x", b"lost\n")
    run.cut()
    os.truncate(run.folder / "x", 0)

    assert run.read() == b""
    assert run.gone == len(b"lost\n")
    append(run.folder / "x", lines(500, 10))
    assert run.new() == lines(500, 10)
    assert run.gone == len(b"lost\n")


def test_lines_seen_in_a_file_and_absent_from_its_copy_are_counted_as_dropped_once(run: Run) -> None:
    append(run.folder / "x", lines(100, 10))
    shutil.copyfile(run.folder / "x", run.folder / "x.1")
    append(run.folder / "x", b"lost\n")
    run.cut(limit=1)
    os.truncate(run.folder / "x", 0)
    append(run.folder / "x", lines(500, 10))

    assert sorted((run.read() + run.new() + run.new() + run.new()).splitlines()) == sorted(
        (lines(100, 10) + lines(500, 10)).splitlines()
    )
    assert run.gone == len(b"lost\n")


def test_a_file_that_is_cut_in_its_middle_stops_the_stream_and_is_named(run: Run) -> None:
    os.truncate(run.folder / "x", len(lines(0, 90)))

    with pytest.raises(
        StoreError, match=r"x has 1250 bytes and had 1390, .* a followed file may grow, or be cut to nothing"
    ):
        run.cut()


def test_a_file_that_is_deleted_before_its_range_is_read_is_named(run: Run) -> None:
    append(run.folder / "x", lines(100, 10))
    run.cut()
    kept = (run.folder / "x").read_bytes()
    (run.folder / "x").unlink()
    [task] = run.tasks

    with pytest.raises(
        NotInStore, match=r"x is not in .*, under any name, and its bytes .* were not read; put it back"
    ):
        list(pieces_of(FollowedFolder(run.folder), task))

    (run.folder / "any-name").write_bytes(kept)
    assert run.read() == lines(100, 10)
    assert run.new() == b""


def test_a_range_is_read_though_another_file_cannot_be(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (run.folder / "a").write_bytes(lines(900, 10))
    append(run.folder / "x", lines(100, 10))
    run.cut()
    run.tasks = [task for task in run.tasks if task.path == "x"]
    (run.folder / "x").rename(run.folder / "x.1")
    opened = FollowedFile.opened

    def refused(file: FollowedFile) -> AbstractContextManager[BinaryIO]:
        if file.name == "a":
            raise PermissionError(13, "Permission denied")
        return opened(file)

    monkeypatch.setattr(FollowedFile, "opened", refused)
    assert run.read() == lines(100, 10)

    (run.folder / "x.1").unlink()
    with pytest.raises(StoreError, match=r"a in .* cannot be read: Permission denied"):
        FollowedFolder(run.folder).read(run.places.files["x"] if run.places else "", 0, 10)


def test_a_file_that_is_gone_when_the_master_begins_is_named(run: Run) -> None:
    (run.folder / "x").unlink()
    run.restart()
    run.cut()

    assert f"x in {run.folder} was there before the master began, and is not any more" in run.stream.notices[0]
    run.restart()
    run.cut()
    assert run.stream.notices == ()


@pytest.mark.parametrize("renamed", [False, True])
def test_a_ledger_that_knows_files_by_name_alone_goes_on(run: Run, renamed: bool) -> None:
    """As an earlier release has written it."""
    assert run.places is not None
    old = Run(run.folder, Places(run.places.following, {}))
    (run.folder / "deep").mkdir()
    (run.folder / "deep" / "unread").write_bytes(lines(900, 10))
    append(run.folder / "x", lines(100, 10))
    assert old.new() == lines(100, 10), "and nothing of folders, which that release did not read"
    if renamed:
        (run.folder / "x").rename(run.folder / "x.1")
        (run.folder / "x").write_bytes(lines(500, 10))
    append(run.folder / "deep" / "unread", lines(910, 1))

    expected = lines(910, 1) + (lines(500, 10) if renamed else b"")
    assert sorted(old.new().splitlines()) == sorted(expected.splitlines())


def test_a_task_of_a_ledger_that_knows_files_by_name_alone_is_read_by_its_name(run: Run) -> None:
    task = control.Task(path="x", start=0, end=100)

    [(_, piece)] = pieces_of(run.stream, task)

    assert piece.raw.read() == lines(0, 8)[:101] + lines(0, 8)[101 : lines(0, 8).find(b"\n", 99) + 1]


def test_a_file_of_an_older_ledger_that_is_shorter_than_what_was_read_is_named(run: Run) -> None:
    old = Run(run.folder, Places({"x": 5000}, {}))

    with pytest.raises(
        StoreError, match=r"x in .* ends at byte 1390, and passes have read it up to 5000: it was create"
    ):
        old.cut()


def test_files_that_are_gone_stay_known_up_to_a_number_and_those_that_a_pass_has_for_as_long_as_it_may_be_begun_again() -> (
    None
):
    absent = {f"x.{number}": number for number in range(1000)}
    before = Places(absent, dict.fromkeys(absent, "/x@1-1-0-1-0"))

    after = places_after(before, cut_window({}, {}, 1), Places({}, before.files), lambda: {"x.3"})

    assert len(after.following) == 101
    assert after.following["x.3"] == 3
    assert list(after.files) == list(after.following)


def test_a_new_file_is_read_in_folders_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "deep" / "deeper" / "x").write_bytes(lines(0, 3))
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x").write_bytes(lines(0, 3))
    stream = FollowedFolder(tmp_path)

    assert stream.partitions() == {"deep/deeper/x": Kept(0, len(lines(0, 3)))}


def test_however_files_are_rotated_each_line_is_read_once() -> None:
    """`python -m fuzz --only rotations --inputs 10000` in tests/ plays more."""
    assert Rotations(7).batch(300) > 300
