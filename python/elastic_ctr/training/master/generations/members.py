"""The pservers and trainers of the current training, their leases, and the results of pserver jobs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.ledger.ledger import Ledger


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
