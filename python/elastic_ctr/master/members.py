"""The pservers and trainers of the present training, and the results of jobs that every pserver is given."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elastic_ctr.control import control_pb2 as control
from elastic_ctr.master.ledger import Ledger

GENERATION_PORTS = 16


@dataclass
class Pserver:
    """One pserver as its parent last described it."""

    incarnation: str
    host: str
    port: int
    admin_port: int
    generation: int
    serving: bool
    error: str
    seen_at: float


class Pservers:
    """The set of all `count` of them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._known: dict[int, Pserver] = {}

    def begin(self, count: int) -> None:
        """Others, and so many of them; none is known yet."""
        self.count = count
        self._known = {}

    def learn(self, state: control.PserverState, now: float) -> None:
        self._known[state.index] = Pserver(
            state.incarnation,
            state.host,
            state.port,
            state.admin_port,
            state.generation,
            state.serving,
            state.error,
            now,
        )

    def forget(self, index: int) -> None:
        self._known.pop(index, None)

    def get(self, index: int) -> Pserver | None:
        return self._known.get(index)

    def items(self) -> list[tuple[int, Pserver]]:
        return sorted(self._known.items())

    def endpoints(self, generation: int) -> list[str]:
        """Addresses of the children of a generation, in order; empty until every parent is known.

        Each generation has a port of its own: a trainer that slept through a recovery cannot reach the new table.
        """
        if len(self._known) < self.count:
            return []
        return [f"{each.host}:{each.port + generation % GENERATION_PORTS}" for _, each in self.items()]

    def waiting_for(self, generation: int) -> str:
        """Empty when all serve; else who is missing, in words."""
        missing = [
            index
            for index in range(self.count)
            if (one := self._known.get(index)) is None or one.generation != generation or not one.serving
        ]
        if not missing:
            return ""
        errors = [f" ({one.error})" for index in missing if (one := self._known.get(index)) is not None and one.error]
        return f"pserver {', '.join(map(str, missing))} of {self.count}{errors[0] if errors else ''}"

    def silent_since(self, moment: float) -> list[int]:
        """Those that have not called since a moment, whether they ever did or not."""
        return [i for i in range(self.count) if (one := self._known.get(i)) is None or one.seen_at < moment]

    def silent(self, now: float, timeout: float) -> list[int]:
        return [index for index, each in self.items() if now - each.seen_at > timeout]


class Trainers:
    """Names and times live in memory, the last id given out in the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[int, tuple[str, float]] = {}

    def _last(self) -> int:
        return int(self._ledger.get("last_trainer", 0))

    def enter(self, name: str, trainer: int, now: float) -> int:
        """The id of a trainer that asks to be let in: its own, or a new one where it brings none that was given out here."""
        if not trainer or not self.given_out(trainer):
            trainer = self._ledger.increment("last_trainer")
        self._known[trainer] = (name, now)
        return trainer

    def given_out(self, trainer: int) -> bool:
        return trainer <= self._last()

    def heard(self, trainer: int, now: float) -> None:
        name = self._known.get(trainer, ("", 0.0))[0]
        self._known[trainer] = (name, now)

    def leave(self, trainer: int) -> None:
        self._known.pop(trainer, None)

    def heard_since(self, moment: float) -> dict[int, tuple[str, float]]:
        """Id -> (name, last heard at)."""
        return {trainer: each for trainer, each in self._known.items() if each[1] >= moment}


class JobResults:
    """Lives in memory: parents keep their results until the job is asked for no more, so a restart loses none."""

    def __init__(self, pservers: int) -> None:
        self._pservers = pservers
        self._taken: dict[int, dict[str, control.JobResult]] = {}

    def clear(self) -> None:
        self._taken = {}

    def take(self, index: int, result: control.JobResult) -> None:
        self._taken.setdefault(index, {})[result.id] = result

    def give_up(self, index: int, job: str) -> None:
        """As if it had not come: it comes again."""
        self._taken.get(index, {}).pop(job, None)

    def open(self, index: int, jobs: Iterable[control.Job]) -> list[control.Job]:
        """The jobs that a pserver has not answered."""
        done = self._taken.get(index, {})
        return [job for job in jobs if job.id not in done]

    def complete(self, jobs: Sequence[control.Job]) -> bool:
        return not any(self.open(index, jobs) for index in range(self._pservers))

    def all(self) -> list[control.JobResult]:
        return [result for by_id in self._taken.values() for result in by_id.values()]
