"""Settings of master, trainer and pserver."""

from pydantic import Field

from elastic_ctr.config.section import EXACT, AutoCount, Count, Port, Seconds, Section, Share


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
