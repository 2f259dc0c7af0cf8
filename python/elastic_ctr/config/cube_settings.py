"""Settings of the lookup store: of its pods and readers, of cube-transfer and of cube-builder."""

from pydantic import Field

from elastic_ctr.config.section import EXACT, Count, Port, Seconds, Section, Share


class CubePodSettings(Section):
    """The lookup store as its pods and readers know it: nothing here changes with shards or replicas."""

    port: Port = Field(default=8600, description="Lookups.")
    admin_port: Port = Field(default=8601, description="Health, metrics, status and the order to drain.")
    workers: int = Field(default=1, ge=1, le=256, description="Processes that answer lookups, one a core.")
    max_keys: int = Field(default=200_000, ge=1, le=16_000_000, description="Keys in one request; more are refused.")
    busy_poll_us: int = Field(
        default=100,
        ge=0,
        le=10_000,
        description="Microseconds a worker busy-polls after a request before it sleeps, which hides the core's wake-up latency. 0: it never polls.",
    )
    lookup_timeout_ms: Count = Field(default=200, description="After this a lookup is retried on another replica.")
    lookup_deadline_ms: Count = Field(
        default=5000,
        description="Overall deadline of a lookup. Until then it is retried on holders that answered recently.",
    )
    fetch_bytes_per_second: int = Field(
        default=100 << 20, ge=1 << 10, le=EXACT, description="Rate limit of one pod's fetching."
    )
    drain_seconds: Seconds = Field(
        default=30,
        description="After this time without a lookup, a version or partitions of another pod may be unloaded.",
    )


class CubePodConfig(CubePodSettings):
    """Settings of the lookup store in role files: of servers and readers."""

    cache_dir: str = "/var/lib/elastic-ctr/cube"
    # Rate at which a cube-server verifies its mapped parts again: 64 takes 16 seconds per GB.
    scrub_megabytes_per_second: int = Field(default=64, ge=1, le=100_000)
    # A second replica gets a lookup that the first one has not answered by then.
    hedge_ms: Count = 20
    # Between two reports of a pod to cube-transfer.
    report_seconds: Seconds = 1
    # A draining pod ends once no lookup has come for this long.
    drain_idle_seconds: Seconds = 5


class CubeSettings(CubePodSettings):
    """The lookup store."""

    shards: int = Field(
        default=2,
        ge=1,
        le=4096,
        description="Over how many pods the dictionary is spread. May be changed at any time; reads go on.",
    )

    @property
    def of_pod(self) -> CubePodConfig:
        """The settings of server and reader."""
        return CubePodConfig.model_validate(self.model_dump(exclude={"shards"}, exclude_unset=True))


class CubeTransferSettings(Section):
    """Which versions cube holds and which one is live."""

    port: int = Field(
        default=8300,
        ge=1,
        le=65534,
        description="The release document, reports, rollback and status (HTTP). cube-builder uses the next port, inside the pod.",
    )
    builder_jobs: Count = Field(default=1, description="Partitions built at the same time.")
    min_ready_replicas: Count = Field(
        default=1, description="Holders every partition needs before a version goes live."
    )
    validation_timeout_seconds: Seconds = Field(
        default=120,
        description="How long a new version waits for serving pods that have not validated it and cube pods that have not loaded it.",
    )
    keep_versions: Count = Field(default=5, description="Versions kept in the store besides those in use.")
    overlay_share: Share = Field(default=0.02, description="A larger delta is merged into full parts.")


class CubeTransferConfig(CubeTransferSettings):
    """Settings in the role files of cube-transfer and cube-builder."""

    state_dir: str = "/var/lib/elastic-ctr/cube-transfer"
    scratch_dir: str = "/var/lib/elastic-ctr/cube-builder"
    builder_port: Port = 8301
    # Between two looks at the donefiles.
    poll_seconds: Seconds = 1
    # A pod that has not reported for this long counts as gone.
    report_timeout_seconds: Seconds = 10
    # How long cube-transfer collects reports before it publishes, after a start without its state file.
    state_recovery_seconds: Seconds = 10
