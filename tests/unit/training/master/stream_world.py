"""A World that follows a real folder."""

from collections import Counter
from pathlib import Path
from typing import Any

from elastic_ctr.config.training_settings import MasterConfig
from elastic_ctr.sources.streams.followed_folder import FollowedFolder
from elastic_ctr.sources.streams.interface import Stream
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.work.finder import WindowFinder
from training.master.world import Trainer, World, data_of

LINE = b"1 0 a:1\n"


class StreamWorld(World):
    """A World that follows a folder; each line has as many bytes, and those of each file are others."""

    def __init__(self, folder: Path, *, config: dict[str, Any] | None = None, **data: Any) -> None:
        self.log = folder / "log"
        self.log.mkdir(exist_ok=True)
        self._lines: dict[str, bytes] = {}
        self.stream: Stream = FollowedFolder(self.log)
        source = {"url": f"file://{self.log}?follow"}
        given = {"source": source, "start": "earliest", "end": None, **data}
        super().__init__(folder, data=data_of(**given), config=MasterConfig().model_copy(update=config or {}))

    def start_master(self) -> None:
        super().start_master()
        self.finder = WindowFinder(self.stream, self.settings, lambda: self.now, lambda: self.now)

    def append(self, lines: int, file: str = "clicks") -> None:
        with (self.log / file).open("ab") as out:
            out.write(lines * self._lines.setdefault(file, LINE.replace(b"a", b"%c" % (97 + len(self._lines)))))

    def find_hours(self) -> None:
        wanted = self.coordinator.found.wants_hours()
        if wanted is not None:
            self.finder.find(self.coordinator, wanted)
        else:
            self.finder.look_on(self.coordinator)

    def fill(self, task: control.Task, result: control.TaskResult) -> None:
        if task.path:
            self.records[task.path] = (task.end - task.start) // len(LINE)
        super().fill(task, result)

    def done(self, passes: int) -> None:
        """Go on until so many passes are done."""
        self.until(lambda: sum(each.state == "done" for each in self.ledger.passes.all()) >= passes)

    def done_up_to(self, ordinal: int) -> None:
        def done() -> bool:
            return any(each.state == "done" and each.ordinal == ordinal for each in self.ledger.passes.all())

        self.until(done)

    def until_trained(self) -> Trainer:
        """Go on until a trainer, whichever, holds a task of training."""

        def training() -> list[Trainer]:
            return [each for each in self.trainers if each.task is not None and each.task.phase == control.TRAIN]

        self.until(training)
        return training()[0]

    def in_the_table(self) -> Counter[tuple[str, int]]:
        """How often each line is, by file and offset."""
        ranges = {task.id: (task.path, task.start, task.end) for task in self.tasks if task.path}
        found: Counter[tuple[str, int]] = Counter()
        for task, times in self.trained().items():
            path, start, stop = ranges[task]
            for place in range(start, stop, len(LINE)):
                found[path, place] += times
        return found

    def appended(self) -> Counter[tuple[str, int]]:
        return Counter(
            (file.name, place) for file in self.log.iterdir() for place in range(0, file.stat().st_size, len(LINE))
        )

    def trained_is_answered(self) -> bool:
        """The newest version has every task as often as the table has it."""
        return self.answered() == self.trained()
