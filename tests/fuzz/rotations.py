"""Files of a followed folder that are appended to and rotated at random, with looks, reads and restarts of the master in between.

The master's own finder lists the files and cuts the ranges, and a trainer's own functions read them. An oracle knows what was written.
"""

import gzip
import itertools
import json
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO, cast
from unittest import mock

import pyarrow as pa

from elastic_ctr.config.data import Data
from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.formats.blocks import lines_in_range
from elastic_ctr.sources.streams import followed_folder
from elastic_ctr.sources.streams.folder_listing import files_below
from elastic_ctr.sources.streams.followed_file import FileIdentity, FollowedFile, bytes_between
from elastic_ctr.sources.streams.followed_folder import FollowedFolder
from elastic_ctr.sources.streams.interface import Places
from elastic_ctr.store.backends import NotInStore, StoreError
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.calendar.stream_schedule import Ranges, Span, Window, pieces, places_after
from elastic_ctr.training.master.coordinator import Coordinator
from elastic_ctr.training.master.ledger.rows import PassRow, StreamPlaces
from elastic_ctr.training.master.work.finder import WindowFinder
from elastic_ctr.training.trainer.task_lines import pieces_of

_STEPS_OF_A_FOLDER = 60
_WANTED = PassRow(1, "stream/1", (), 0, False)
_DEEPEST = 4


class _Found:
    """A coordinator's part of a stream: a ledger as JSON, and the tasks that trainers have not read yet."""

    def __init__(self) -> None:
        self.ledger = ""
        self.tasks: Ranges = []
        self.gone = 0

    @property
    def stream(self) -> StreamPlaces | None:
        """The value of the ledger's facts."""
        if not self.ledger:
            return None
        following, files = json.loads(self.ledger)
        return StreamPlaces(following=following, files=files)

    def stream_begins(self, places: Places) -> None:
        self.ledger = json.dumps(places)

    def stream_needed(self) -> dict[str, int]:
        return {}

    def window_found(self, one: PassRow, window: Window, now: Places, least: int, came: Sequence[Span]) -> None:  # noqa: ARG002
        before = self.stream or Places({}, {})
        self.ledger = json.dumps(places_after(before, window, now, set))
        self.gone += window.gone
        self.tasks += pieces(window.ranges, 2, 40)

    def knows(self, text: bytes) -> bool:
        known = [FileIdentity.parse(each) for each in (self.stream or Places({}, {})).files.values()]
        return any(each is not None and each.begins(text) for each in known)

    def file_of(self, partition: str) -> str:
        places = self.stream
        return "" if places is None else places.files.get(partition, "")


class _Writer:
    """One program's log. It goes on writing into a renamed file until it opens its name again."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.half = b""
        self.out = self._open()

    def _open(self) -> BinaryIO:
        return (self.folder / self.name).open("ab", buffering=0)

    def reopen(self) -> None:
        self.out.close()
        self.out = self._open()

    def rotated(self) -> list[Path]:
        """Its old files that are closed, the newest first."""
        mine = os.fstat(self.out.fileno()).st_ino
        found = [each for each in self.folder.rglob(f"{Path(self.name).name}.*") if "copy" not in each.name]
        return sorted(each for each in found if each.stat().st_ino != mine)


class Rotations:
    """`batch(count)`: so many rotations. AssertionError: a line was read twice, or never."""

    name = "rotations"

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._serial = itertools.count()

    def batch(self, count: int) -> int:
        """How many lines were read."""
        done = lines = 0
        with mock.patch.multiple(followed_folder, _PAUSE_SECONDS=0, _SEARCH_PAUSE_SECONDS=0):
            while done < count:
                with tempfile.TemporaryDirectory(prefix="rotations-") as folder:
                    one = _Folder(Path(folder), self._random, self._serial)
                    lines += one.play(min(_STEPS_OF_A_FOLDER, 10 * (count - done)))
                    done += max(1, one.rotations)
        return lines


class _Folder:
    def __init__(self, folder: Path, draw: random.Random, serial: "itertools.count[int]") -> None:
        self.folder, self.draw, self.serial = folder, draw, serial
        (folder / "deep").mkdir()
        self.writers = [_Writer(folder, name) for name in draw.sample(["a", "b.log", "deep/c"], draw.randint(1, 3))]
        self.written: list[bytes] = []
        self.optional: set[bytes] = set()
        self.read: Counter[bytes] = Counter()
        self.reported = 0
        self.rotations = 0
        self.told: list[str] = []
        self.found = _Found()
        self.between = False
        # So many may still happen in one look or read, which are tried again a few times.
        self.meanwhile = 0
        self.now = 0.0
        self.restart()

    def restart(self) -> None:
        self.told.append("restart")
        data = Data.model_validate(
            {"source": {"url": f"file://{self.folder}?follow"}, "start": "earliest", "slots": ["a"]}
            | {"stream": {"maxBytes": self.draw.choice([3000, 1 << 20])}}
        )
        self.stream = FollowedFolder(self.folder)
        settings = cast("MasterFile", SimpleNamespace(data=data))
        self.finder = WindowFinder(self.stream, settings, lambda: self.now, lambda: self.now)

    def play(self, steps: int) -> int:
        """How many lines were read."""
        moves: list[tuple[Callable[[], None], int]] = [
            (self.append, 8), (self.look, 8), (self.read_some, 6), (self.rename, 4), (self.copy_and_truncate, 3),
            (self.compress, 3), (self.move, 1), (self.copy, 1), (self.link, 1), (self.delete, 2), (self.restart, 1),
            (self.unpack, 1), (self.reopen, 3),
        ]  # fmt: skip
        calls, weights = [each for each, _ in moves], [each for _, each in moves]
        with (
            mock.patch.object(followed_folder, "files_below", self._files_below),
            mock.patch.object(followed_folder, "bytes_between", self._bytes_between),
        ):
            try:
                for step in self.draw.choices(calls, weights, k=steps):
                    step()
                self.finish()
            except BaseException as failed:
                failed.args = (f"{failed}\nsteps: {chr(32).join(self.told[-40:])}",)
                raise
        for each in self.writers:
            each.out.close()
        return sum(self.read.values())

    # Rotations while a folder is listed and while a file is read.

    def _files_below(self, root: Path, passed_over: Callable[[str], None]) -> list[FollowedFile]:
        found = files_below(root, passed_over)
        self._meanwhile()
        return found

    def _bytes_between(self, lines: BinaryIO, start: int, stop: int) -> bytes:
        self._meanwhile()
        found = bytes_between(lines, start, stop)
        self._meanwhile()
        return found

    def _meanwhile(self) -> None:
        if not self.between and self.meanwhile and self.draw.random() < 0.1:
            self.between = True
            self.meanwhile -= 1
            try:
                self.draw.choice([self.append, self.rename, self.copy_and_truncate, self.compress, self.move])()
            finally:
                self.between = False

    # Writers.

    def _line(self) -> bytes:
        return b"%d %s\n" % (next(self.serial), b"x" * self.draw.choice([0, 5, 60, 3000]))

    def append(self, one: _Writer | None = None) -> None:
        one = one or self.draw.choice(self.writers)
        self.complete(one)
        lines = [self._line() for _ in range(self.draw.randint(1, 5))]
        self.written += lines
        if self.draw.random() < 0.3:
            # The last one is being written.
            cut = self.draw.randint(1, len(lines[-1]) - 1)
            lines[-1], one.half = lines[-1][:cut], lines[-1][cut:]
        one.out.write(b"".join(lines))
        self.told.append(f"append:{one.name}")

    def complete(self, one: _Writer) -> None:
        if one.half:
            one.out.write(one.half)
            one.half = b""

    def reopen(self) -> None:
        for one in self.writers:
            self.complete(one)
            one.reopen()
        self.told.append("reopen")

    # Rotations.

    def _shift(self, one: _Writer) -> None:
        """x.1 becomes x.2, and so on, compressed or not."""
        for number in range(_DEEPEST, 0, -1):
            for ending in ("", ".gz", ".zst"):
                file = self.folder / f"{one.name}.{number}{ending}"
                if file.exists():
                    target = self.folder / f"{one.name}.{number + 1}{ending}"
                    target = target if not target.exists() else self.folder / f"{one.name}.{next(self.serial)}0{ending}"
                    file.rename(target)
                    self._perhaps_look()

    def _perhaps_look(self) -> None:
        """In the middle of a rotation."""
        if not self.between and self.draw.random() < 0.2:
            self.between = True
            try:
                self.draw.choice([self.look, self.read_some])()
            finally:
                self.between = False

    def rename(self) -> None:
        one = self.draw.choice(self.writers)
        if not (self.folder / one.name).exists():
            return
        self._shift(one)
        (self.folder / one.name).rename(self.folder / f"{one.name}.1")
        self.rotations += 1
        self.told.append(f"rename:{one.name}")
        self._perhaps_look()
        if self.draw.random() < 0.5:
            self.append(one)
        self._perhaps_look()
        if self.draw.random() < 0.7:
            self.complete(one)
            one.reopen()

    def copy_and_truncate(self) -> None:
        one = self.draw.choice(self.writers)
        self.complete(one)
        one.reopen()
        self._shift(one)
        text = (self.folder / one.name).read_bytes()
        with (self.folder / f"{one.name}.1").open("wb") as out:
            out.write(text[: len(text) // 2])
            out.flush()
            self._perhaps_look()
            out.write(text[len(text) // 2 :])
        self._perhaps_look()
        if self.draw.random() < 0.2:
            # By its nature it loses what is written between the two.
            line = self._line()
            one.out.write(line)
            self.optional.add(line)
            self._perhaps_look()
        os.truncate(self.folder / one.name, 0)
        self.rotations += 1
        self.told.append(f"copytruncate:{one.name}")
        self._perhaps_look()

    def compress(self) -> None:
        files = [each for one in self.writers for each in one.rotated() if each.suffix not in (".gz", ".zst")]
        if not files:
            return
        file = self.draw.choice(files)
        text = file.read_bytes()
        if not self.found.knows(text):
            # A file that is compressed before the ledger has it is named, and not read.
            return
        if self.draw.random() < 0.5:
            packed, target = gzip.compress(text, 1), file.with_name(f"{file.name}.gz")
        else:
            packed, target = pa.Codec("zstd").compress(text, asbytes=True), file.with_name(f"{file.name}.zst")
        if target.exists():
            return
        with target.open("wb") as out:
            out.write(packed[: len(packed) // 2])
            out.flush()
            self._perhaps_look()
            out.write(packed[len(packed) // 2 :])
        self._perhaps_look()
        file.unlink(missing_ok=True)
        self.rotations += 1
        self.told.append(f"compress:{file.name}")

    def unpack(self) -> None:
        files = [each for one in self.writers for each in one.rotated() if each.suffix == ".gz"]
        if not files or self.between:
            return
        file = self.draw.choice(files)
        target = file.with_suffix("")
        if not target.exists():
            text = gzip.decompress(file.read_bytes())
            with target.open("wb") as out:
                out.write(text[: len(text) // 2])
                out.flush()
                self._perhaps_look()
                out.write(text[len(text) // 2 :])
            if file.exists():
                file.unlink()
            self.told.append(f"unpack:{file.name}")

    def move(self) -> None:
        files = [each for one in self.writers for each in one.rotated()]
        if not files:
            return
        file = self.draw.choice(files)
        target = (
            self.folder
            / self.draw.choice(["", "deep", "old"])
            / f"{file.name.split('.')[0]}.{next(self.serial)}{_ending(file)}"
        )
        target.parent.mkdir(exist_ok=True)
        file.rename(target)
        self.rotations += 1
        self.told.append(f"move:{file.name}:{target.name}")

    def copy(self) -> None:
        """A backup that stays for a while."""
        files = [each for one in self.writers for each in one.rotated()]
        for each in self.folder.rglob("copy*"):
            each.unlink()
        if files:
            file = self.draw.choice(files)
            shutil.copyfile(file, self.folder / f"copy{_ending(file)}")
            self.told.append(f"copy:{file.name}")

    def link(self) -> None:
        """Links to one file are one file, and to nothing are none."""
        for name in ("loop", "link", "hard.9"):
            (self.folder / name).unlink(missing_ok=True)
        (self.folder / "loop").symlink_to("loop")
        one = self.draw.choice(self.writers)
        if (self.folder / one.name).exists():
            (self.folder / "link").symlink_to(self.folder / one.name)
        self.told.append("link")

    def delete(self) -> None:
        """Files that were read to their ends may go, and their inodes be given again."""
        self.drain()
        for one in self.writers:
            for file in one.rotated():
                if self.draw.random() < 0.5:
                    file.unlink()
            if self.draw.random() < 0.3 and not one.half:
                (self.folder / one.name).unlink(missing_ok=True)
                one.reopen()
                self.rotations += 1
        self.told.append("delete")

    # The master and the trainers.

    def look(self) -> None:
        self.now, self.meanwhile = self.now + 100, 2
        self.told.append("look")
        try:
            self.finder.find(cast("Coordinator", SimpleNamespace(found=self.found, facts=self.found)), _WANTED)
        except StoreError:
            # A file that is unpacked may have the inode that it had before, and a part of what it had: it is waited for.
            self.told.append("waits")

    def read_some(self) -> None:
        while self.found.tasks and self.draw.random() < 0.8:
            name, start, stop = self.found.tasks.pop(self.draw.randrange(len(self.found.tasks)))
            self.meanwhile = 2
            self.told.append(f"read:{name}:{start}-{stop}")
            task = control.Task(path=name, start=start, end=stop, file=self.found.file_of(name))
            with mock.patch(
                "elastic_ctr.training.trainer.task_lines._PIECE_BYTES", self.draw.choice([50, 4000, 32 << 20])
            ):
                self._read(task)

    def _read(self, task: control.Task) -> None:
        source = self.stream if self.draw.random() < 0.5 else FollowedFolder(self.folder)
        try:
            for _, lines in pieces_of(source, task):
                self.reported += lines.gone
                for _, block in lines_in_range(lines.raw, lines.start, lines.stop):
                    self.read.update(block.splitlines(keepends=True))
        except NotInStore:
            # The pass stops and names the file. Of what is not to be lost, the end finds it.
            self.told.append("stops")

    def drain(self) -> None:
        """Until nothing is left to read."""
        was, self.between = self.between, True
        for _ in range(2000):
            before = self.found.ledger
            self.look()
            while self.found.tasks:
                self.read_some()
            if self.found.ledger == before and not self.finder.lag():
                break
        self.between = was

    def finish(self) -> None:
        for one in self.writers:
            self.complete(one)
        for each in self.folder.rglob("copy*"):
            each.unlink()
        self.drain()
        wanted = Counter(self.written)
        lost = wanted - self.read
        twice = self.read - wanted - Counter(self.optional)
        assert not lost, f"never read: {[line[:12] for line in lost]}, notices {self.stream.notices}"
        assert not twice, f"read twice, or never written: {[line[:12] for line in twice]}"
        unread = sum(len(line) for line in self.optional if not self.read[line])
        assert self.found.gone + self.reported <= unread, "more counts as dropped than was lost"


def _ending(file: Path) -> str:
    return file.suffix if file.suffix in (".gz", ".zst") else ""
