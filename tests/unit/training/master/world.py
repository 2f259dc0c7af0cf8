"""A whole training in one process: a real Coordinator, Ledger, Publisher and FileStore, with trainers and pservers that
call as the real ones do and keep book of what was really pushed into the table.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from elastic_ctr.config.data import Data
from elastic_ctr.config.features import Features
from elastic_ctr.config.model import Model
from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.config.training_settings import MasterConfig, TrainerConfig
from elastic_ctr.features.statistics.collector import Collector
from elastic_ctr.formats.cells import cells_of
from elastic_ctr.formats.inputs import InputColumns, TextInput
from elastic_ctr.runtime.steady_clock import SteadyClock
from elastic_ctr.store.backends import FileStore, NotInStore, Store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.published_files import published_versions, read_checkpoint
from elastic_ctr.store.versions.safeguards import read_refusals
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.coordinator import Coordinator
from elastic_ctr.training.master.generations.recovery import VERIFY
from elastic_ctr.training.master.generations.store_queries import PublishedVersions, StoreQueries
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.work.publisher import Publisher
from elastic_ctr.training.master.work.statistics import PassStatistics, pin_given
from elastic_ctr.training.model.evaluation import BUCKETS, BUCKETS_PER_LOGIT

RECORDS = 10
# Longer than a lease lives.
LEASE = 10.5
DIM = 2
MODEL = Model(partitions=4, embedding_dim=DIM)
KEYS = np.arange(1, 9, dtype=np.uint64)
Table = dict[str, int]


def data_of(**given: Any) -> Data:
    return Data.model_validate(
        {"source": {"url": "file:///logs"}, "start": "20200401/00", "end": "20200401/01", "slots": ["a"], **given}
    )


def settings_of(**given: Any) -> MasterFile:
    """The master's file, with what a test does not name at its smallest."""
    return MasterFile(
        **{"data": data_of(), "model": MODEL, "store": StoreConfig(url="file:///s"), "master": MasterConfig()}
        | {"trainer": TrainerConfig(epochs=1), "pservers": 1}
        | given
    )


Rows = list[tuple[float, str]]
ROWS: Rows = [(float(number), "red" if number % 3 else "blue") for number in range(RECORDS)]


def features_of(**given: Any) -> Features:
    """One that needs statistics, and one that needs none."""
    price = {"type": "numeric", "transform": ["standardize"]}
    return Features.model_validate({"price": price, "tag": {"type": "categorical"}, **given})


def rows_data_of(**given: Any) -> Data:
    return data_of(**{"slots": None, "format": "csv", "label": "click", **given})


def collected(rows: Rows) -> bytes:
    """What a trainer collects of a task."""
    inputs = InputColumns((TextInput("tag", ""),), ("price",))
    collector = Collector(inputs)
    collector.add(cells_of([([tag.encode()], [price]) for price, tag in rows], inputs))
    return collector.to_bytes()


class Asked(StoreQueries):
    """The store, asked at once."""

    def __init__(self, world: "World") -> None:
        super().__init__(world.store)
        self._world = world

    def published(self) -> PublishedVersions:
        return PublishedVersions(published_versions(self._world.store), read_refusals(self._world.store))

    def whole_checkpoint(self, names: Sequence[str]) -> str:
        return next((name for name in names if name not in self._world.damaged), "")

    def rows_of(self, checkpoint: str) -> dict[int, int]:
        return read_checkpoint(self._world.store, checkpoint).rows


def histogram(count: float, logit: float = 0) -> bytes:
    counts = np.zeros(BUCKETS)
    counts[BUCKETS // 2 + int(logit * BUCKETS_PER_LOGIT)] = count
    return counts.tobytes()


class Pserver:
    """A parent with its child, as far as the master sees them."""

    def __init__(self, world: "World", index: int) -> None:
        self.world = world
        self.index = index
        self.training = world.training
        self.servers = world.servers
        self.leaving = False
        self.restart()

    def restart(self) -> None:
        """A new parent: nothing of the old one is left."""
        self.world.lives += 1
        self.incarnation = f"life-{self.world.lives}"
        self.generation = 0
        self.gone = False
        self._empty()

    def _empty(self) -> None:
        self.up = self.lost = False
        self.fetched = self.damaged = ""
        self.to_load: Table = {}
        self.saved: dict[str, Table] = {}
        self.results: dict[str, control.JobResult] = {}
        self.wanted: set[str] = set()

    def state(self) -> control.PserverState:
        return control.PserverState(
            index=self.index,
            incarnation=self.incarnation,
            host="127.0.0.1",
            server=f"unix:/pserver-{self.index}/{self.generation}" if self.up else "",
            admin_port=1,
            generation=self.generation,
            serving=self.up and not self.lost,
            lost=self.lost,
            training=self.training,
            leaving=self.leaving,
            damaged_checkpoint=self.damaged,
            error=f"{self.damaged} is not what its manifest says" if self.damaged else "",
            results=[result for name, result in self.results.items() if name in self.wanted],
            fetched_rows=sum(self.to_load.values()),
        )

    def sync(self) -> control.PserverOrders:
        orders = self.world.coordinator.sync_pserver(self.state())
        self.gone = orders.leave or (self.leaving and not orders.keep_running)
        if self.gone:
            return orders
        if orders.generation != self.generation:
            self._empty()
            self.generation = orders.generation
        self.damaged = orders.checkpoint if orders.checkpoint in self.world.damaged else ""
        if not self.up and orders.start and not self.damaged:
            self.up, self.fetched = True, orders.checkpoint
            self.to_load = self.world.checkpoint(self.fetched) if self.fetched else {}
        self.wanted = {job.id for job in orders.jobs}
        for job in orders.jobs:
            if job.id not in self.results:
                self.results[job.id] = self._do(job)
        return orders

    def mine(self) -> list[int]:
        return [p for p in range(MODEL.partitions) if p % self.servers == self.index]

    def _compact(self, job: control.Job) -> control.JobResult:
        try:
            table = self.world.checkpoint(job.log_of)
        except NotInStore:
            return control.JobResult(id=job.id, error=f"{job.log_of} is not there")
        self.world.checkpoints[job.checkpoint], self.world.contents[job.version] = table, dict(table)
        result = control.JobResult(id=job.id)
        for partition in self.mine():
            result.rows[partition] = sum(table.values())
            for path in (
                f"{layout.checkpoint_folder(job.checkpoint)}/000/part-{partition}",
                layout.cube_file(job.version, "base", partition, MODEL.partitions),
            ):
                result.files.append(control.File(path=path, bytes=1, sha256="0" * 64, records=1))
        return result

    def _do(self, job: control.Job) -> control.JobResult:
        if job.kind == control.COMPACT:
            return self._compact(job)
        if job.folder not in self.saved:
            return control.JobResult(id=job.id, error=f"{job.folder} is not there")
        table = self.saved.pop(job.folder) if job.folder != VERIFY else self.saved[VERIFY]
        result = control.JobResult(id=job.id)
        for partition in self.mine():
            path = f"{layout.checkpoint_folder(job.checkpoint)}/000/part-{partition}"
            if job.kind == control.EXPORT:
                path = layout.cube_file(job.version, job.version_kind, partition, MODEL.partitions)
            else:
                result.rows[partition] = sum(table.values())
            result.files.append(control.File(path=path, bytes=1, sha256="0" * 64, records=1))
        if job.kind == control.CHECKPOINT:
            self.world.checkpoints[job.checkpoint] = table
        if job.kind == control.EXPORT:
            self.world.contents[job.version] = dict(table)
            keys = np.frombuffer(job.sample_keys, "<u8")
            keys = keys[np.isin(keys % MODEL.partitions, self.mine())]
            result.keys = keys.tobytes()
            result.values = values_of(keys).tobytes()
            result.written = np.ones(len(keys), np.uint8).tobytes()
        return result


def values_of(keys: "np.ndarray[Any, np.dtype[np.uint64]]") -> "np.ndarray[Any, np.dtype[np.float32]]":
    values = np.zeros((len(keys), DIM), np.float32)
    values[:] = keys[:, None]
    return values


class Trainer:
    """One training process after the other under one name, one call at a time."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.training = world.training
        self.leaving = False
        self.start()

    def start(self) -> None:
        self.id = self.generation = 0
        self.initialises: bool | None = None
        self.dense_of = 0
        self.task: control.Task | None = None
        self.pushed = False
        self.gone = False

    @property
    def joined(self) -> bool:
        return self.generation > 0 and self.initialises is None

    def join(self) -> control.JoinReply:
        reply = self.world.coordinator.join(self.name, self.id, self.training)
        self.id = reply.trainer_id
        if reply.verdict == control.JoinReply.LEAVE:
            self.gone = True
        elif reply.verdict != control.JoinReply.WAIT:
            self.generation = reply.generation
            self.initialises = reply.load if reply.verdict == control.JoinReply.INITIALISE else None
            self.dense_of = reply.dense_of
        return reply

    def initialise(self) -> None:
        world = self.world
        table: Table = {}
        servers = [each for each in world.pservers if each.generation == self.generation and each.up]
        if self.initialises:
            table = dict(servers[0].to_load) if len({each.fetched for each in servers}) == 1 else {}
            for each in servers:
                each.saved[VERIFY] = dict(each.to_load)
        world.tables[self.generation] = table
        self.initialises = None
        member = self.member()
        if self.dense_of:
            member.rows.extend(sum(each.to_load.values()) for each in servers)
        self._obey(world.coordinator.initialised_by(member))

    def member(self) -> control.Membership:
        return control.Membership(trainer_id=self.id, generation=self.generation)

    def _obey(self, answer: control.Acknowledgement) -> control.Acknowledgement:
        if answer.rejoin:
            self.start()
        return answer

    def lease(self, *, prefetch: bool = False) -> control.LeaseReply:
        reply = self.world.coordinator.lease(
            control.LeaseRequest(
                trainer_id=self.id,
                generation=self.generation,
                prefetch=prefetch,
                reads_further=self.world.reads_further,
            )
        )
        if reply.verdict == control.LeaseReply.WORK:
            self.task, self.pushed = reply.task, False
            self.world.leases.append((reply.task.id, reply.task.phase))
        elif reply.verdict == control.LeaseReply.REJOIN:
            self.start()
        elif reply.verdict == control.LeaseReply.LEAVE:
            self.start()
            self.gone = True
        return reply

    def renew(self, *, running: bool = False) -> control.Acknowledgement:
        held = [self.task.attempt] if self.task is not None else []
        request = control.RenewRequest(
            trainer_id=self.id, generation=self.generation, attempts=held, running=held[0] if held and running else ""
        )
        return self._obey(self.world.coordinator.renew(request))

    def work(self) -> None:
        """What a task does to the tables."""
        task = self.task
        if task is None or self.pushed:
            return
        if task.phase == control.TRAIN and not self.renew(running=True).rejoin:
            table = self.world.tables[self.generation]
            table[task.id] = table.get(task.id, 0) + 1
        elif task.phase == control.SAVE:
            self.world.saved.append((self.generation, task.id))
            for step in task.save.steps:
                for each in self.world.pservers:
                    if each.generation == self.generation:
                        each.saved[step.folder] = dict(self.world.tables[self.generation])
        self.pushed = True

    def report(
        self,
        *,
        error: str = "",
        table_unchanged: bool = False,
        store_unavailable: bool = False,
        columns_refused: bool = False,
        unpredictable: Sequence[control.LeftOut] = (),
    ) -> control.Acknowledgement:
        task = self.task
        if task is None:
            raise AssertionError("nothing is held")
        if not error:
            self.work()
        if self.task is None:
            return control.Acknowledgement(rejoin=True)
        result = control.TaskResult(
            trainer_id=self.id, generation=self.generation, task_id=task.id, attempt=task.attempt, error=error,
            table_unchanged=table_unchanged, store_unavailable=store_unavailable, columns_refused=columns_refused,
            unpredictable=unpredictable,
        )  # fmt: skip
        if not error:
            self.world.fill(task, result)
        self.task = None
        return self._obey(self.world.coordinator.report(result))

    def leave(self, reason: str = "", *, table_unchanged: bool = False) -> control.Acknowledgement:
        """With what it holds; another process comes in its place."""
        member = control.Membership(
            trainer_id=self.id, generation=self.generation, reason=reason, table_unchanged=table_unchanged
        )
        self.start()
        return self.world.coordinator.leave(member)

    def stays(self) -> bool:
        """Told to end, and with nothing under way: whether it is needed once more."""
        return self.joined and self.world.coordinator.leave(self.member()).keep_running

    def step(self) -> None:
        """One step of a life without trouble."""
        if self.gone:
            return
        if self.leaving and self.task is None and not self.stays():
            self.gone = True
        elif self.initialises is not None:
            self.initialise()
        elif not self.generation:
            self.join()
        elif self.task is None:
            self.lease()
        else:
            self.report()


@dataclass
class World:
    """Everything but Paddle and the network."""

    folder: Path
    data: Data = field(default_factory=data_of)
    config: MasterConfig = field(default_factory=MasterConfig)
    epochs: int | Literal["auto"] = 1
    servers: int = 2
    files: Sequence[str] = ("one", "two")
    records: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    keyless: Collection[str] = ()
    training: str = "local"
    handover_seconds: float = 0
    # Of rows: what the columns `price` and `tag` hold in a file; without features there are lines.
    features: Features | None = None
    given_statistics: str | None = None
    rows: dict[str, Rows] = field(default_factory=dict)
    model: Model = MODEL
    shows: int = 2  # of a record, which has one click
    # What every record is given in a round.
    logits: dict[int, float] = field(default_factory=dict)
    # Rows at each pserver before a save; empty where no server counts them.
    counted: Sequence[int] = ()

    # Whether trainers take tasks of several files.
    reads_further: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.now = 1_600_000_000.0
        # By how much the machine's clock was set.
        self.clock_set = 0.0
        self.lives = 0
        self.tables: dict[int, Table] = {}
        self.checkpoints: dict[str, Table] = {}
        self.contents: dict[int, Table] = {}  # of each version
        self.keys: dict[str, int] = {}  # the key that each task's records have
        self.leases: list[tuple[str, int]] = []
        self.damaged: set[str] = set()
        self.tasks: list[control.Task] = []  # of each result
        self.used: list[tuple[str, int, str]] = []  # (task, phase, statistics) of each result
        self.saved: list[tuple[int, str]] = []  # (generation, save), each time its steps were taken
        self.store = self.open_store()
        self.ledger = Ledger(self.folder / "ledger.db")
        self.start_master()
        self.pservers: list[Pserver] = []
        self.trainers: list[Trainer] = []
        self.start_training()

    def open_store(self) -> Store:
        return FileStore(self.folder / "store")

    def start_training(self) -> None:
        """All pods of a training; those of another one go on until they hear that it is over."""
        self.pservers = [*self.pservers, *(Pserver(self, index) for index in range(self.servers))]
        self.trainers = [*self.trainers, *(Trainer(self, f"{self.training}-trainer-{n}") for n in range(2))]

    def members(self) -> list[Pserver | Trainer]:
        return [*self.pservers, *self.trainers]

    def replace(self, training: str, servers: int) -> None:
        """What an upgrade with another number of pservers does: the old pods are told to end, and a master with new settings and
        new pods begin.
        """
        for one in self.members():
            one.leaving = True
        self.training, self.servers = training, servers
        self.start_master()
        self.start_training()

    def start_master(self) -> None:
        """As a new process over the same file."""
        self.ledger.close()
        self.ledger = Ledger(self.folder / "ledger.db")
        self.settings = settings_of(
            data=self.data,
            master=self.config,
            pservers=self.servers,
            trainer=TrainerConfig(epochs=self.epochs),
            training=self.training,
            handover_seconds=self.handover_seconds,
            features=self.features,
            statistics=self.given_statistics,
            model=self.model,
        )
        pin_given(self.ledger, self.store, self.features, self.given_statistics)
        clock = SteadyClock(self.ledger.facts.clock_moved, 2.0, lambda: self.now + self.clock_set, lambda: self.now)
        self.coordinator = Coordinator(self.ledger, self.settings, Asked(self), clock)
        self.publisher = Publisher(self.coordinator, self.store, self.settings)
        self.statistics = PassStatistics(self.coordinator, self.store, self.features)

    def fill(self, task: control.Task, result: control.TaskResult) -> None:
        self.used.append((task.id, task.phase, task.statistics))
        if task.phase == control.ANALYZE or task.collect:
            result.statistics = collected(self.rows.get(task.path, ROWS))
        if task.phase == control.ANALYZE:
            result.records = self.records.get(task.path, RECORDS)
            if refused := self.refused.get(task.path, 0):
                result.refused.append(control.Refusal(reason="not_a_value", lines=refused, examples=["x,y"]))
        if task.phase == control.CHECK:
            result.records = self.records.get(task.path, RECORDS)
            result.shows, result.clicks = self.shows * result.records, result.records
            if refused := self.refused.get(task.path, 0):
                result.refused.append(control.Refusal(reason="no_colon", lines=refused, examples=["1 0 17"]))
            keys = KEYS[: 0 if task.path in self.keyless else result.records]
            result.ignored = 3 * (task.path in self.keyless)
            result.samples.extend(control.Sample(line=f"{key}:a", show=2, click=1) for key in keys)
            result.held_out = round(result.records * task.holdout)
        self.tasks.append(task)
        if task.phase in (control.CHECK, control.TRAIN, control.EVALUATE):
            records = result.records if task.phase == control.CHECK else task.records
            # Half are clicks: the logloss is lowest at 0.
            logit = 0 if task.phase == control.CHECK else self.logits.get(task.epoch, 0)
            result.positives = result.negatives = histogram(records, logit)
        if task.phase == control.TRAIN and task.touched:
            key = self.keys.setdefault(task.id, 1000 + len(self.keys))
            result.touched = np.array([key], "<u8").tobytes()
            result.touched_told = True
            result.touched_counts = np.array([self.shows * task.records, task.records], "<f4").tobytes()
        if task.phase == control.SAVE:
            result.save.rows.extend(self.counted)
        if task.phase == control.SAVE and any(step.name == "touched" for step in task.save.steps):
            touched = set(np.frombuffer(task.save.touched, "<u8").tolist())
            self.contents[task.save.version] = {
                one: times for one, times in self.trained().items() if self.keys[one] in touched
            }
            path = layout.cube_file(task.save.version, "delta", 0, 1)
            result.save.cube_files.append(control.File(path=path, bytes=1, sha256="0" * 64, records=len(touched)))
            path = layout.counts_file(task.save.version)
            result.save.counts_file.CopyFrom(control.File(path=path, bytes=1, sha256="0" * 64))
            result.save.live = np.full(len(task.save.samples), 0.5, "<f4").tobytes()
            result.save.published = result.save.live
        elif task.phase == control.SAVE and task.save.version:
            result.save.keys, result.save.values = KEYS.tobytes(), values_of(KEYS).tobytes()
            result.save.live = np.full(len(task.save.samples), 0.5, "<f4").tobytes()
        elif task.phase == control.SCORE:
            result.save.published = task.save.live

    def find_hours(self) -> None:
        wanted = self.coordinator.found.wants_hours()
        if wanted is not None:
            paths = [f"{split}/{file}" for split in wanted.splits for file in self.files]
            self.coordinator.found.hours_found(wanted, dict.fromkeys(paths, 100), [[(path, 0, 0)] for path in paths])

    def turn(self) -> None:
        """One round of everybody."""
        self.now += 0.1
        self.coordinator.tick()
        while self.publisher.step() or self.statistics.step():
            pass
        self.find_hours()
        for pserver in self.pservers:
            if not pserver.gone:
                pserver.sync()
        for trainer in self.trainers:
            trainer.step()

    def until(self, what: Any, rounds: int = 400) -> None:
        for _ in range(rounds):
            if what():
                return
            self.turn()
        raise AssertionError(f"it did not come to that in {rounds} rounds; {self.described()}")

    def described(self) -> str:
        current = self.ledger.passes.current()
        save = None if current is None else self.ledger.saves.of(current.ordinal)
        return f"{current}, {save and (save.stage, save.steps)}, generation {self.coordinator.generation}"

    def finish(self) -> None:
        self.until(lambda: self.coordinator.finished)

    def until_phase(self, phase: int, trainer: int = 0, rounds: int = 400) -> Trainer:
        """Go on until a trainer holds a task of a phase."""
        one = self.trainers[trainer]
        self.until(lambda: one.task is not None and one.task.phase == phase, rounds)
        return one

    def hang(self, one: Trainer, seconds: float) -> control.Acknowledgement:
        """A trainer renews and does nothing else, until it is told to rejoin or the time is over."""
        ends = self.now + seconds
        answer = control.Acknowledgement()
        while self.now < ends and not answer.rejoin:
            self.now += 5
            answer = one.renew()
            self.coordinator.tick()
        return answer

    def until_state(self, state: str) -> None:
        self.until(lambda: (current := self.ledger.passes.current()) is not None and current.state == state)

    def trained(self) -> Table:
        """How often each task with records is in the table of the present generation."""
        return self.tables.get(self.coordinator.generation, {})

    def checkpoint(self, name: str) -> Table:
        """What is loaded from it: one by log is the table as it was saved, with the deltas since on it."""
        if name in self.checkpoints:
            return dict(self.checkpoints[name])
        manifest = read_checkpoint(self.store, name)
        table = dict(self.checkpoints[manifest.stands_on])
        for version in manifest.log:
            table |= self.contents[version]
        return table

    def answered(self) -> Table:
        """What the newest version says of each task: a base, and the deltas on it."""
        merged: Table = {}
        for version in self.ledger.saves.chain():
            merged |= self.contents[version]
        return merged

    def reason(self) -> str:
        current = self.ledger.passes.current()
        return "" if current is None else current.reason


def world(folder: Path, *, config: dict[str, Any] | None = None, **given: Any) -> World:
    """A World with some settings of the master changed."""
    return World(folder, config=MasterConfig().model_copy(update=config or {}), **given)
