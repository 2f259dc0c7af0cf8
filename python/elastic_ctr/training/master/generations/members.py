"""The current generation of server processes, the pservers and trainers of the training, their leases, and the results of jobs."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.ledger.ledger import Ledger

log = logging.getLogger(__name__)


_START: dict[str, Any] = {
    "name": "",
    "pass": 0,
    "mid": None,
    "follows": None,
    "base": None,
    "stands_on": "",
    "compacted": False,
}


class Generations:
    """The current generation. Its state is in the ledger, so a restarted master continues it."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock = clock

    @property
    def present(self) -> int:
        return self._ledger.facts.generation

    @property
    def _last(self) -> dict[str, Any]:
        """Return the row of the checkpoint that the next recovery returns to, or that of the start."""
        return next(reversed(self._ledger.saves.checkpoints()), _START)

    @property
    def last_checkpoint(self) -> str:
        """Return the name of the checkpoint that the next recovery returns to; "" is the start."""
        return str(self._last["name"])

    @property
    def take_over(self) -> str:
        """Return the last checkpoint if it is of another model whose dense values have other shapes, else ""."""
        started = self._ledger.facts.started_from
        return self.last_checkpoint if started is not None and not started.dense and self._last["pass"] == 0 else ""

    @property
    def dense_of(self) -> int:
        """Return the version whose network has the last checkpoint's dense values, if that is by log or compacted; else 0."""
        last = self._last
        return int(last["follows"]) if last["stands_on"] or last["compacted"] else 0

    @property
    def used(self) -> bool:
        """True if a trainer has got the order to initialise it, so its servers may have rows."""
        return self._ledger.facts.used == self.present

    @property
    def ready(self) -> bool:
        """True if its servers have first values, or a checkpoint whose rows were counted."""
        return self._ledger.facts.initialised == self.present

    @property
    def initialised_by(self) -> int:
        """Return the trainer whose values are in the servers; 0 while they are empty."""
        generation, trainer = self._ledger.facts.initialised_by
        return trainer if generation == self.present else 0

    def open(self, rows: Sequence[int]) -> None:
        """Let trainers join the generation. `rows`: rows in the table of each pserver."""
        with self._ledger:
            self._ledger.set_facts(initialised=self.present, load_failures=0, table_rows=rows)
            self._ledger.end_recoveries(self._clock())
        log.info("generation %d is ready", self.present)

    def start_pass_over(self, ordinal: int) -> None:
        """Remove the pass's mid-pass checkpoints: its files may have changed, so a recovery must return to before it."""
        for row in self._ledger.saves.checkpoints():
            if row["pass"] == ordinal and row["mid"]:
                self._ledger.saves.remove_checkpoint(row["name"])

    def set_aside(self, names: Iterable[str], reason: str) -> None:
        """Set damaged checkpoints aside, so that the next recovery returns to the one before them."""
        for name in names:
            log.error("checkpoint %s is damaged and is set aside: %s", name, reason)
            self._ledger.saves.set_aside(name, reason)

    def holds(self, ordinal: int) -> bool:
        """True if the last checkpoint was made after the whole of this pass."""
        return self._last["pass"] == ordinal and not self._last["mid"]

    def roll_back(self, role: str, reason: str) -> None:
        """Return to the last checkpoint, in a new generation of server processes. Called within a transaction."""
        generation, last = self._ledger.increment("generation"), self._last
        lost = self._ledger.roll_back(last["pass"], last if last["mid"] else None)
        self._ledger.set_facts(follows=last["follows"], base=last["base"], finished=False)
        self._ledger.saves.abandon_versions(last["follows"] or 0)
        self._ledger.increment("rolled_back", lost)
        self._ledger.add_recovery(role, reason, self._clock(), lost)
        log.warning("generation %d begins at %s: %s", generation, last["name"] or "the start", reason)


class Pservers:
    """The `count` pservers, each with the last state that its supervisor reported."""

    def __init__(self, count: int) -> None:
        self.begin(count)

    def begin(self, count: int) -> None:
        """Expect `count` new pservers, none of which is known yet."""
        self.count = count
        self._known: dict[int, control.PserverState] = {}
        self._seen_at: dict[int, float] = {}

    def learn(self, state: control.PserverState, now: float) -> None:
        self._known[state.index] = state
        self._seen_at[state.index] = now

    def forget(self, index: int) -> None:
        self._known.pop(index, None)

    def items(self) -> list[tuple[int, control.PserverState]]:
        return sorted(self._known.items())

    @property
    def complete(self) -> bool:
        """True if every supervisor has called."""
        return len(self._known) == self.count

    def servers(self, generation: int) -> list[str]:
        """Return the addresses of a generation's server processes, in order; [] until all are started.

        Each process has its own address, so a trainer that was suspended over a recovery cannot reach the new table.
        """
        found = [each.server for _, each in self.items() if each.generation == generation and each.server]
        return found if len(found) == self.count else []

    def waiting_for(self, generation: int) -> str:
        """Return the pservers that do not serve this generation yet, in words; "" if all do."""
        serving = {index for index, one in self.items() if one.serving and one.generation == generation}
        missing = [index for index in range(self.count) if index not in serving]
        if not missing:
            return ""
        errors = [f" ({one.error})" for index, one in self.items() if index in missing and one.error]
        return f"pserver {', '.join(map(str, missing))} of {self.count}{errors[0] if errors else ''}"

    def fetched_rows(self) -> list[int]:
        """Return the number of rows in the files that each pserver has prepared for the load."""
        return [int(one.fetched_rows) for _, one in self.items()]

    def silent_since(self, moment: float) -> list[int]:
        """Return the pservers that have not called since a moment, or never."""
        return [i for i in range(self.count) if i not in self._known or self._seen_at[i] < moment]

    def silent(self, now: float, timeout: float) -> list[int]:
        return [index for index, _ in self.items() if now - self._seen_at[index] > timeout]


class Trainers:
    """The trainers' names and last calls, in memory. The ledger has the last id that was assigned."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[int, tuple[str, float]] = {}

    def enter(self, name: str, trainer: int, now: float) -> int:
        """Return the id of a joining trainer: its own, or a new one if this ledger did not assign its own."""
        if not trainer or not self.given_out(trainer):
            trainer = self._ledger.increment("last_trainer")
        self._known[trainer] = (name, now)
        return trainer

    def replaced_by(self, trainer: int) -> list[int]:
        """Return the ids of earlier processes of this trainer's pod. They are gone, because a pod has one process at a time."""
        name = self._known[trainer][0]
        return [each for each, (other, _) in self._known.items() if other == name and each != trainer]

    def given_out(self, trainer: int) -> bool:
        return trainer <= self._ledger.facts.last_trainer

    def heard(self, trainer: int, now: float) -> None:
        name = self._known.get(trainer, ("", 0.0))[0]
        self._known[trainer] = (name, now)

    def leave(self, trainer: int) -> None:
        self._known.pop(trainer, None)

    def heard_since(self, moment: float) -> dict[int, tuple[str, float]]:
        """Return id -> (name, time of the last call) of the trainers that called since a moment."""
        return {trainer: each for trainer, each in self._known.items() if each[1] >= moment}


@dataclass
class Lease:
    """A lease; times are in Unix seconds. It ends at most `longest` s after `began`, because a hung trainer may renew for ever."""

    trainer: int
    attempt: str
    began: float
    ends: float
    longest: float

    def over(self, now: float) -> bool:
        return now > self.ends or self.overdue(now)

    def overdue(self, now: float) -> bool:
        return now - self.began > self.longest


class JobResults:
    """Results of jobs, in memory. Pservers keep a result until the job is no longer requested, so a restart of the master loses none."""

    def __init__(self, pservers: int) -> None:
        self._pservers = pservers
        self._taken: dict[int, dict[str, control.JobResult]] = {}

    def serve(self, pservers: int) -> None:
        """Set the number of pservers whose results are needed."""
        if pservers != self._pservers:
            self._pservers = pservers
            self.clear()

    def clear(self) -> None:
        self._taken = {}

    def take(self, index: int, result: control.JobResult) -> None:
        self._taken.setdefault(index, {})[result.id] = result

    def give_up(self, index: int, job: str) -> None:
        """Drop a result, so that the pserver sends it again."""
        self._taken.get(index, {}).pop(job, None)

    def open(self, index: int, jobs: Iterable[control.Job]) -> list[control.Job]:
        """Return the jobs that a pserver has not answered."""
        done = self._taken.get(index, {})
        return [job for job in jobs if job.id not in done]

    def complete(self, jobs: Sequence[control.Job]) -> bool:
        return not any(self.open(index, jobs) for index in range(self._pservers))

    def by_pserver(self) -> list[list[control.JobResult]]:
        return [list(self._taken.get(index, {}).values()) for index in range(self._pservers)]

    def all(self) -> list[control.JobResult]:
        return [result for results in self.by_pserver() for result in results]
