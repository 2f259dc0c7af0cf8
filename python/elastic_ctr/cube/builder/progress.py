"""What transfer and builder say to each other: an order, and how far it is."""

from pydantic import Field

from elastic_ctr.versions.manifest import Record, VersionId


class BuildOrder(Record):
    version: VersionId


class BuildProgress(Record):
    """Stages: idle, planning, building, merging, publishing, done, failed. `final`: trying again cannot help."""

    version: VersionId | None = None
    stage: str = "idle"
    partitions_done: int = 0
    partitions: int = 0
    seconds: float = 0.0
    seconds_by_stage: dict[str, float] = Field(
        default_factory=dict, description="Reading, building, publishing: summed over partitions built side by side."
    )
    error: str | None = None
    final: bool = False
