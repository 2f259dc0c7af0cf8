"""Settings of each role. `XSettings` has those that a values file may set, in `config:` of the role's block. `XConfig` has those of the role
file, with folders and times that no operator needs to choose: `elastic-ctr local` and tests set them.
"""

from pydantic import Field

from elastic_ctr.config.addresses import StoreUrl, is_bucket
from elastic_ctr.config.buckets import Addressed, BucketSettings
from elastic_ctr.config.data import Data
from elastic_ctr.config.section import (
    EXACT,
    AutoCount,
    Count,
    Hours,
    OptionalPort,
    Port,
    Seconds,
    Section,
    Share,
    SlotName,
)

MAX_ABS_DIFF = 1e-5
"""Above the rounding differences between machines for the same sample."""


class StoreConfig(Addressed):
    """Where model versions live."""

    url: StoreUrl = Field(
        default="file:///var/lib/elastic-ctr/store",
        description="One place for all roles: file:///dir, http://file-server:8080, hdfs://namenode:9000/dir (addresses of HDFS as in "
        "data.source.url), or a bucket: s3://bucket/dir, gs://bucket/dir, az://container/dir.",
    )

    def elsewhere(self, url: str, user: str) -> "StoreConfig":
        """Return another store, which is reached as this one. A keytab has the key of its own user, so that one is kept with it."""
        return self.model_copy(update={"url": url, "user": user if self.keytab is None else self.user})


# A version of a stream is eleven PUTs, 28 GETs and some lists, each of 10 to 100 ms. Two a second, as by default, would not keep up, and
# would cost 21 USD a day at S3's prices; one in 5 s keeps up, and costs 3.
_LEAST_WINDOW_MS = 5000


def check_window(data: Data, store: StoreConfig) -> None:
    """Raises ValueError if a stream would write small objects into a bucket faster than one takes them."""
    if data.is_stream and is_bucket(store.url) and data.stream.window_ms < _LEAST_WINDOW_MS:
        raise ValueError(
            f"store.config.url {store.url} is a bucket, which takes no version each {data.stream.window_ms} ms: set data.stream.windowMs to "
            f"{_LEAST_WINDOW_MS} or more, or leave store.config.url out and keep the versions in the release's own file-server"
        )


class QualityLoss(Section):
    """How much worse than the version before it a version may be and go live: docs/decisions/0014-quality.md.

    A version that loses this much over records which it has just learned is useless. A refusal costs freshness alone.
    """

    auc: Share = Field(
        default=0.1,
        description="A version is refused when its AUC is lower by more than this and three standard errors. 1: never.",
    )
    calibration: float = Field(
        default=0.5,
        ge=0,
        le=EXACT,
        description="A version is refused when its calibration, after the shift that docs/learning.md describes, is farther from 1 by more "
        "than this and three standard errors. A large number: never.",
    )


class LiveLoss(Section):
    """How much the windows of a stream may become worse after their version went live.

    A window predicts each record before it is learned, so it measures the version before it.
    """

    auc: Share = Field(
        default=0.015,
        description="Publishing is held when the AUC is lower by more than this and three standard errors. 1: never.",
    )
    calibration: float = Field(
        default=0.25,
        ge=0,
        le=EXACT,
        description="Publishing is held when the calibration is farther from 1 by more than this and three standard errors. A large "
        "number: never.",
    )


class Restore(Section):
    """The backup from which an empty release begins."""

    url: StoreUrl | None = Field(
        default=None,
        description="The address of a backup, as `elastic-ctr backup --to` was given it. A master without a ledger first restores it into "
        "the empty store; one with a ledger ignores it.",
    )
    user: str = Field(
        default="root",
        min_length=1,
        description="User that reads there; HDFS checks it. With store.config.keytab it is store.config.user.",
    )
    bucket: BucketSettings = BucketSettings()

    def at(self, url: str, user: str, store: StoreConfig) -> StoreConfig:
        """Return the location of a backup. Without `bucket` a bucket is reached as that of the store, and HDFS by the store's keytab."""
        bucket = store.bucket if self.bucket == BucketSettings() else self.bucket
        return store.elsewhere(url, user).model_copy(update={"bucket": bucket})


class MasterSettings(Section):
    """Hours, tasks, saves."""

    port: Port = Field(default=8700, description="Control calls of trainers and pservers (gRPC).")
    status_port: Port = Field(default=8701, description="Status, health and metrics (HTTP).")
    lease_seconds: Seconds = Field(default=10, description="A trainer loses its task if it does not renew this long.")
    task_timeout_seconds: Seconds = Field(
        default=3600, description="Longest time of one task from its beginning. Renewed leases do not extend it."
    )
    save_timeout_seconds: Seconds = Field(
        default=1800,
        description="Longest time of one save, scoring or initialisation; afterwards the trainer counts as lost.",
    )
    max_failures: Count = Field(default=3, description="Failures of a task in a row after which its pass stops.")
    checkpoint_per_pass: Count = Field(default=1, description="Passes from one checkpoint to the next.")
    delta_per_pass: Count = Field(default=1, description="Passes from one delta to the next.")
    evaluate: bool = Field(
        default=True,
        description="Predict each pass once more when it is trained: its AUC after training. "
        "Off, that AUC is of records scored just before each was trained.",
    )
    first_base: bool = Field(default=True, description="Publish a base after the first pass, not only at day end.")
    keep_checkpoints: Count = Field(default=2, description="Checkpoints kept in the store.")
    samples: int = Field(default=512, ge=1, le=65536, description="Samples of a pass that validate a new version.")
    max_publish_loss: Share = Field(
        default=0.01, description="A version is refused when its files give an AUC that is lower by more than this."
    )
    max_quality_loss: QualityLoss = Field(
        default_factory=QualityLoss,
        description="How much worse than the version before it a version may be and go live. Both predict the same records.",
    )
    max_live_loss: LiveLoss = Field(
        default_factory=LiveLoss,
        description="Of a stream: how much worse its newest windows, of 10,000 clicks, may be than those before. Past that, or past "
        "maxQualityLoss in 100 clicks, the release goes back to the last version that a good window followed, and no version is published "
        "until `elastic-ctr rollback --resume`.",
    )
    pserver_timeout_seconds: Seconds = Field(
        default=5, description="A pserver silent for so long, and not answering the master's own question, is lost."
    )


class MasterConfig(MasterSettings):
    """Settings in the master's role file."""

    state_dir: str = "/var/lib/elastic-ctr/master"
    # Leases of a task lost in a row after which it is parked, or of a save after which its pass stops: the work itself may end its
    # trainers. A trainer whose disk is full counts; an orderly leave and a recovery do not.
    max_lost_leases: Count = 10


class TrainerSettings(Section):
    """How a trainer works through its tasks."""

    batch_size: AutoCount = Field(
        default="auto",
        description="Records in one step. auto: about one in 256 of the pass, from 16 to 4096, and four times as many in each further epoch; a "
        "pass of a stream has about 32 steps. Both take more records where clicks are few.",
    )
    epochs: AutoCount = Field(
        default="auto",
        description="Epochs of each pass. auto: two of a pass below 30,000 records that has clicks, else one; with data.holdout up to eight, "
        "until the logloss of the held-out records no longer falls. A stream has one.",
    )
    patience: Count = Field(default=1, description="Epochs in a row without a lower logloss that end `epochs: auto`.")
    gradient_merge: int = Field(
        default=2,
        ge=1,
        le=1024,
        description="Batches of a trainer whose gradients are summed, at most, before a step of the parameter servers. Paddle's own is 13.",
    )
    threads: int = Field(
        default=2,
        ge=1,
        le=256,
        description="Training threads of a trainer. With two, one waits for the pservers while the other works.",
    )
    admin_port: Port = Field(default=8740, description="Health and metrics of the supervisor.")


class TrainerConfig(TrainerSettings):
    """Settings in a trainer's role file."""

    scratch_dir: str = "/var/lib/elastic-ctr/trainer"


class PserverSettings(Section):
    """One server of the sparse and dense tables."""

    port: Port = Field(
        default=8800,
        description="Port of the forwarder, through which trainers of other pods reach the server. On one machine nothing listens on it.",
    )
    admin_port: Port = Field(default=8790, description="Health and metrics of the supervisor.")


class PserverConfig(PserverSettings):
    """Settings in a pserver's role file."""

    scratch_dir: str = "/var/lib/elastic-ctr/pserver"


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


class Canary(Section):
    """A share of the requests is answered by the candidate before it goes live."""

    share: float = Field(
        default=0,
        ge=0,
        le=0.5,
        description="The share of requests; 0: none, and a candidate goes live as soon as it is validated.",
    )
    minutes: float = Field(
        default=10,
        gt=0,
        le=1440,
        description="How long the candidate answers its share. All other answers learn of clicks once or twice as much later.",
    )
    feature: SlotName = Field(
        default="",
        description="The slot or feature of a request's first instance that chooses, such as a user: requests with equal values are "
        "answered by the same version. Empty, and where a request has none of it: all features together.",
    )


class ServingSettings(Section):
    """Predictions."""

    port: Port = Field(default=8400, description="Predictions (HTTP).")
    admin_port: Port = Field(default=8401, description="Health, metrics, status.")
    grpc_port: OptionalPort = Field(
        default=8402, description="Predictions (gRPC, Open Inference Protocol); 0 closes this port."
    )
    workers: int = Field(default=1, ge=1, le=256, description="Processes that answer, one a core.")
    model_name: str = Field(default="ctr", pattern=r"^[A-Za-z0-9._-]+$", description="The name in `/v2/models/NAME`.")
    ignore_unknown: bool = Field(
        default=False,
        description="Whether a request may have columns that no feature reads; else they are refused by name.",
    )
    max_instances: Count = Field(default=100_000, description="Instances in one request; more are refused.")
    max_body_bytes: int = Field(
        default=8 << 20,
        ge=1 << 10,
        le=EXACT,
        description="Bytes of one request, also when it is unpacked; more are refused. A request takes up to six times as much memory.",
    )
    max_abs_diff: float = Field(
        default=MAX_ABS_DIFF, gt=0, lt=1, description="How far a served sample may be from the trained one."
    )
    canary: Canary = Canary()


class ServingConfig(ServingSettings):
    """Settings in serving's role file."""

    scratch_dir: str = "/var/lib/elastic-ctr/serving"
    max_batch_rows: Count = 8192


class ServingWorkerConfig(Section):
    """Settings that serving gives to each of its workers."""

    host: str
    serving: ServingConfig
    cube: CubePodConfig


class ScoringSettings(Section):
    """Jobs that score hours with a version in the store."""

    processes: int = Field(default=1, ge=1, le=256, description="Processes of a pod that score, one a core.")


class ScoringConfig(ScoringSettings):
    """Settings in the role file of scoring."""

    scratch_dir: str = "/var/lib/elastic-ctr/scoring"


class IntakeSettings(Section):
    """The log of clicks that come over HTTP."""

    port: Port = Field(default=8310, description="Clicks, the log, health, metrics and status (HTTP).")
    retention_hours: Hours = Field(
        default=72,
        description="Hours that a click is kept. What training has not read by then is lost to it, unless the clicks are those "
        "of a topic: they are kept until they are read.",
    )
    max_bytes: int = Field(
        default=4 << 30,
        ge=128 << 20,
        le=EXACT,
        description="Bytes of the disk that clicks take: the oldest go first. The volume needs a fifth more.",
    )
    max_impression_bytes: int = Field(
        default=512 << 20,
        ge=1 << 20,
        le=EXACT,
        description="With `data.stream.join`: bytes of the disk that impressions take. While there are more the oldest are forgotten before "
        "`windowSeconds`, and counted. The volume needs half as much again for them.",
    )
    max_body_bytes: int = Field(
        default=4 << 20, ge=1 << 10, le=64 << 20, description="Bytes of one request, at most; a larger one is refused."
    )
    skip_damaged: bool = Field(
        default=False, description="Whether training goes on without lines whose checksum is wrong; else it waits."
    )


class IntakeConfig(IntakeSettings):
    """Settings in the intake's role file."""

    dir: str = "/var/lib/elastic-ctr/intake"
