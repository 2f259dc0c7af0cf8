"""A started engine: Paddle's server processes and trainer processes as the roles start them, ordered about by a test."""

import contextlib
import gzip
import json
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic_ctr.config.model import Model
from elastic_ctr.runtime.child_process import dies_with_this_process
from elastic_ctr.training.control.server_sockets import address_on_this_machine, socket_name
from elastic_ctr.training.model.grouped_auc import GroupSample, sample_of
from elastic_ctr.training.pserver.folders import owned

DRIVER = Path(__file__).with_name("engine_driver.py")
Clicks = tuple[int, int, dict[str, list[int]]]
"""Shows, clicks, keys by slot."""


@dataclass(frozen=True)
class Row:
    """A row of the sparse table as the server saves it; `rest` is the first-order weight and everything after it."""

    unseen_days: float
    delta_score: float
    show: float
    click: float
    rest: tuple[float, ...]


class Trainer:
    """One trainer process with the id that it is given."""

    def __init__(self, process: "subprocess.Popen[str]", slots: Sequence[str]) -> None:
        self._process = process
        self._slots = slots
        self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the trainer ended with {self._process.wait()}"
        return json.loads(line)

    def _order(self, *command: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def train(self, lines: Sequence[Clicks]) -> dict[int, float]:
        """Each line is a batch of its own. How many impressions fell into which bucket of the histograms."""
        return self._ran("train", lines)

    def predict(self, lines: Sequence[Clicks], offset: float = 0.0) -> dict[int, float]:
        """Like `train`, and nothing learns. `offset` is added to every logit."""
        return self._ran("predict", lines, offset)

    def _ran(self, command: str, lines: Sequence[Clicks], *others: float) -> dict[int, float]:
        rows = []
        for show, click, keys in lines:
            tokens = [f"1 {show} 1 {click}"]
            for slot in self._slots:
                found = keys.get(slot) or [0]
                tokens.append(f"{len(found)} {' '.join(map(str, found))}")
            rows.append(" ".join(tokens))
        return {int(bucket): count for bucket, count in self._order(command, rows, *others).items()}

    def refused(self, file: Path) -> str | None:
        """Why the engine does not start to read the file."""
        found: str | None = self._order("refused", str(file))
        return found

    def groups(self) -> GroupSample:
        """Of the last lines."""
        return sample_of(bytes.fromhex(self._order("groups")))

    def save(self, folder: str, mode: str) -> None:
        self._order("save", folder, mode)

    def shrink(self) -> None:
        self._order("shrink")

    def count_rows(self) -> list[int]:
        """Of each server."""
        found: list[int] = self._order("count_rows")
        return found

    def pull(self, keys: Sequence[int]) -> list[list[float]]:
        found: list[list[float]] = self._order("pull", list(keys))
        return found

    def last_values(self, keys: Sequence[int]) -> list[float]:
        """Of each key's values the last one: of many keys all of them would be too much to send."""
        found: list[float] = self._order("last_values", list(keys))
        return found

    def score(self, pooled: Sequence[Sequence[float]]) -> list[float]:
        """Probabilities by the head, for pooled values [n, slots * dim]."""
        found: list[float] = self._order("score", pooled)
        return found

    def parameters(self) -> dict[str, Any]:
        """The dense parameters that the servers have, by name."""
        found: dict[str, Any] = self._order("parameters")
        return found

    def load_tables(self, folder: str) -> None:
        self._order("load_tables", folder)

    def initialise_from(self, network: Path, slots: Sequence[str]) -> str:
        """What was taken over of the exported network, which has these slots."""
        found: str = self._order("initialise_from", str(network), list(slots))
        return found

    def close(self) -> None:
        """Leave the servers as a trainer does that ends. It takes no other order afterwards."""
        self._order("close")

    def export(self, folder: Path) -> None:
        """The dense network as serving loads it."""
        self._order("export", str(folder))

    def by_paddle(
        self, folder: Path, keys: Sequence[int], pooled: Sequence[Sequence[float]]
    ) -> tuple[list[list[float]], list[float]]:
        """Export to the folder, pull and score with nothing but Paddle's own words, each prepared for this once."""
        values, scores = self._order("by_paddle", str(folder), list(keys), pooled)
        return values, scores


class StartedEngine:
    """Server processes and trainers. `rows` reads a folder that they saved, whichever server wrote it."""

    def __init__(self, scratch: Path, trainers: Sequence[Trainer], pservers: int, partitions: int) -> None:
        self.folder = scratch
        self._partitions = partitions
        self.trainers = list(trainers)
        self._pservers = pservers
        self._saves = 0

    def files(self, folder: str) -> list[Path]:
        return [
            f for i in range(self._pservers) for f in sorted((self.folder / f"pserver-{i}" / folder / "000").iterdir())
        ]

    def dense_files(self, folder: str) -> list[Path]:
        return [
            f for i in range(self._pservers) for f in sorted((self.folder / f"pserver-{i}" / folder / "001").iterdir())
        ]

    def give(self, folder: str, name: str, content: bytes) -> None:
        """Put a file of a checkpoint into the working directory of every server; a partition into its owner's alone."""
        partition = re.fullmatch(r"000/part-\d+-(\d+)\.gz", name)
        for index in range(self._pservers):
            file = self.folder / f"pserver-{index}" / folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            foreign = partition and int(partition[1]) not in owned(index, self._pservers, self._partitions)
            file.write_bytes(gzip.compress(b"") if foreign else content)

    def rows(self, folder: str) -> dict[int, Row]:
        found = {}
        for file in self.files(folder):
            text = gzip.decompress(file.read_bytes()).decode() if file.suffix == ".gz" else file.read_text()
            for line in text.splitlines():
                key, _, *rest = line.split()
                unseen, delta, show, click, *values = map(float, rest)
                found[int(key)] = Row(unseen, delta, show, click, tuple(values))
        return found

    def owned_by(self, pserver: int, keys: Collection[int]) -> set[int]:
        """Of these keys, those whose rows a server holds."""
        mine = owned(pserver, self._pservers, self._partitions)
        return {key for key in keys if key % self._partitions in mine}

    def saved(self, mode: str = "checkpoint", trainer: int = 0) -> dict[int, Row]:
        """Save in this mode now and read what was written. `checkpoint` changes nothing in the table."""
        self._saves += 1
        folder = f"save-{self._saves}"
        self.trainers[trainer].save(folder, mode)
        return self.rows(folder)


@contextlib.contextmanager
def engine(
    scratch: Path,
    model: Model,
    slots: Sequence[str] = ("a", "b"),
    *,
    pservers: int = 1,
    trainer_ids: Sequence[int] = (1,),
    gradient_merge: int = 1,
    threads: int = 1,
    group: str = "",
    group_rows: int = 0,
) -> Iterator[StartedEngine]:
    """The first trainer pushes the first dense values, as the master has it."""
    servers = [(scratch / f"pserver-{index}" / socket_name(index)).absolute() for index in range(pservers)]
    common = {
        "model": model.model_dump(mode="json", by_alias=True),
        "input": {"slots": list(slots)},
        "servers": pservers,
        "sockets": [address_on_this_machine(each) for each in servers],
        "gradient_merge": gradient_merge,
        "threads": threads,
        "group": group,
        "group_rows": group_rows,
    }
    with contextlib.ExitStack() as stack:

        def start(name: str, command: list[str], spec: dict[str, Any]) -> "subprocess.Popen[str]":
            folder = scratch / name
            folder.mkdir(parents=True)
            (folder / "spec.json").write_text(json.dumps({**common, "scratch": str(folder), **spec}))
            log = stack.enter_context((folder / "log").open("w"))
            process = subprocess.Popen(
                [sys.executable, *command, str(folder / "spec.json")],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE if "driver" in command[-1] else log, stderr=log, text=True,
                preexec_fn=dies_with_this_process(),  # noqa: PLW1509 (it calls prctl alone)
            )  # fmt: skip
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        for index in range(pservers):
            start(f"pserver-{index}", ["-m", "elastic_ctr.training.pserver.process"], {"index": index})
        trainers = [
            Trainer(start(f"trainer-{id_}", [str(DRIVER)], {"trainer": id_, "initialise": n == 0}), slots)
            for n, id_ in enumerate(trainer_ids)
        ]
        yield StartedEngine(scratch, trainers, pservers, model.partitions)
