"""The status documents that the page shows."""

from dataclasses import dataclass

from elastic_ctr.runtime.status.master_status import TrainingStatus
from elastic_ctr.runtime.status.serving_status import FreshnessQuantiles
from elastic_ctr.runtime.status.transfer_status import ReleaseStatus


@dataclass(frozen=True)
class Report:
    """`source` names the run or release. `release` is None if cube-transfer did not answer, `freshness` if no serving pod has any."""

    source: str
    training: TrainingStatus
    release: ReleaseStatus | None = None
    freshness: FreshnessQuantiles | None = None

    def seconds_to_live(self, version: int | None) -> float | None:
        return None if self.release is None or version is None else self.release.seconds_to_live_of(version)
