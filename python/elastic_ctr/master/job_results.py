"""What the pservers have answered of a set of jobs that all of them are given."""

from collections.abc import Iterable, Sequence

from elastic_ctr.control import control_pb2 as control


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
