"""The status of cube-transfer."""

from pydantic import Field

from elastic_ctr.runtime.status.status_document import PublishingHold, StatusDocument


class CandidateStatus(StatusDocument):
    version: int = Field(description="Its number.")
    restoring: bool = Field(False, description="It is the target of a rollback and needs no validation.")
    canary: bool = Field(False, description="It answers a share of the requests.")
    waits_for: tuple[str, ...] = Field((), description="Sentences on what it waits for.")
    missing_partitions: tuple[int, ...] = Field((), description="Partitions with too few pods.")
    silent_readers: tuple[str, ...] = Field((), description="Serving pods that have not validated it.")
    complete_seconds: float | None = Field(None, description="Seconds since its partitions are complete.")


class BuildStatus(StatusDocument):
    version: int | None = Field(None, description="The version.")
    mend: bool = Field(False, description="Damaged parts are built again.")
    stage: str = Field("idle", description="idle, planning, building, merging, mending, publishing, done or failed.")
    partitions_done: int = Field(0, description="Partitions that are built.")
    partitions: int = Field(0, description="All its partitions.")
    seconds: float = Field(0.0, description="Seconds so far.")
    seconds_by_stage: dict[str, float] = Field(
        {}, description="Seconds by stage, summed over partitions, some of which go on at once."
    )
    error: str | None = Field(None, description="Why it failed.")
    final: bool = Field(False, description="A retry cannot help.")


class CubePodStatus(StatusDocument):
    pod: str = Field(description="Its name.")
    address: str = Field("", description="Its cube-server, HOST:PORT.")
    draining: bool = Field(False, description="It is about to end.")
    errors: tuple[str, ...] = Field((), description="Its current errors.")
    loaded: dict[int, int] = Field({}, description="Partitions that it answers, by version.")
    seconds_since_report: float = Field(0.0, description="Age of its last report.")


class ShardStatus(StatusDocument):
    shard: int = Field(description="Its number.")
    up: bool = Field(False, description="A pod of it is up and not draining.")
    pods: tuple[CubePodStatus, ...] = Field((), description="Its pods.")


class ServingPodStatus(StatusDocument):
    pod: str = Field(description="Its name.")
    validated: tuple[int, ...] = Field((), description="Versions that it validated.")
    refused: dict[int, str] = Field({}, description="Reasons by refused version.")
    pinned: tuple[int, ...] = Field((), description="Versions that its workers answer with.")
    max_abs_diff: dict[int, float] = Field({}, description="Largest difference of a sample's prediction, by version.")
    seconds_since_report: float = Field(0.0, description="Age of its last report.")


class VersionTimes(StatusDocument):
    """Unix seconds at which a version first reached a step."""

    published: float | None = Field(None, description="By the master's clock.")
    seen: float | None = Field(None, description="By cube-transfer's clock, as those below.")
    built: float | None = Field(None, description="All its parts are built.")
    candidate: float | None = Field(None, description="It became the candidate.")
    complete: float | None = Field(None, description="Enough pods have loaded it.")
    live: float | None = Field(None, description="It went live.")
    seconds_to_live: float | None = Field(None, description="Seconds from published to live.")
    build_seconds: float | None = Field(None, description="Seconds of its build.")
    build_seconds_by_stage: dict[str, float] = Field(
        {}, description="The same by stage, summed over partitions, some of which go on at once."
    )


class ReleaseStatus(StatusDocument):
    """Answered by cube-transfer. The page of a run that has ended has only the fields that are in its state."""

    role: str = Field("cube-transfer", description="cube-transfer.")
    listening: bool = Field(False, description="It has just started and collects reports.")
    generation: int | None = Field(None, description="Rises when cube-transfer starts without its state.")
    revision: int | None = Field(None, description="Rises with each change of the release document.")
    live: int | None = Field(description="The live version.")
    previous: int | None = Field(None, description="The version that was live before.")
    promotion_paused: bool = Field(description="Nothing newer goes live after a rollback or during a pause.")
    hold: PublishingHold | None = Field(None, description="The present pause of publishing.")
    candidate: CandidateStatus | None = Field(None, description="The version that goes live next.")
    published: tuple[int, ...] = Field((), description="Versions in the store.")
    built: tuple[int, ...] = Field((), description="Versions whose dictionary is built.")
    building: BuildStatus | None = Field(None, description="The builder's present or last build.")
    next: int | None = Field(None, description="The version to build next.")
    skipped: tuple[int, ...] = Field((), description="Versions that never went live, because a newer one did.")
    abandoned: tuple[int, ...] = Field((), description="Versions whose training went back before them.")
    refused: dict[int, str] = Field({}, description="Reasons by refused version.")
    problems: tuple[str, ...] = Field((), description="Sentences that need an operator.")
    shards: tuple[ShardStatus, ...] = Field((), description="The shards of the cube.")
    readers: tuple[ServingPodStatus, ...] = Field((), description="Serving pods that report.")
    event_time_max: int | None = Field(None, description="Unix seconds of the newest event in the live version.")
    freshness_seconds: float | None = Field(None, description="Seconds since then.")
    versions: dict[int, VersionTimes] = Field({}, description="Times of the last 64 versions.")

    @property
    def seconds_to_live(self) -> float | None:
        """Seconds from publishing the live version to its going live for the first time."""
        return None if self.live is None else self.seconds_to_live_of(self.live)

    def seconds_to_live_of(self, version: int) -> float | None:
        times = self.versions.get(version)
        return None if times is None else times.seconds_to_live
