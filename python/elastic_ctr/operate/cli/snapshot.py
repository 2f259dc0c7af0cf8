"""The answers of all roles of a release or run at one moment."""

from dataclasses import dataclass, field
from typing import Any

from elastic_ctr.operate.cli.cluster import Pod
from elastic_ctr.operate.local.endpoints import RoleStatus
from elastic_ctr.runtime.status.master_status import TrainingStatus
from elastic_ctr.runtime.status.serving_status import ServingStatus
from elastic_ctr.runtime.status.transfer_status import ReleaseStatus


@dataclass
class Snapshot:
    """The roles' own answers; None for a role that did not answer, or that is not there.

    Attributes:
        pods: the pods of a cluster.
        folder: the folder of a run on this machine.
        problems: problems of that run which the answers do not have.
        errors: a sentence for each role that did not answer.
    """

    master: TrainingStatus | None = None
    transfer: ReleaseStatus | None = None
    serving: ServingStatus | None = None
    pods: list[Pod] | None = None
    folder: str | None = None
    problems: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)

    def add(self, answer: RoleStatus) -> None:
        match answer:
            case TrainingStatus():
                self.master = answer
            case ReleaseStatus():
                self.transfer = answer
            case ServingStatus():
                self.serving = answer

    @property
    def is_silent(self) -> bool:
        return self.master is None and self.transfer is None and self.serving is None

    def to_dict(self) -> dict[str, Any]:
        """Return the answers by role, without the roles that did not answer."""
        found: dict[str, Any] = {} if self.pods is None else {"pods": [each.as_dict() for each in self.pods]}
        for role, answer in (("master", self.master), ("transfer", self.transfer), ("serving", self.serving)):
            if answer is not None:
                found[role] = answer.to_dict()
        if self.folder is not None:
            found["run"] = {"folder": self.folder, "problems": self.problems}
        return {**found, "errors": self.errors}
