"""The `config.yaml` of each role. The chart renders it or `elastic-ctr local` writes it, and the role loads it."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import Field, model_validator

from elastic_ctr.config.addresses import WebUrl
from elastic_ctr.config.cube_settings import CubePodConfig, CubeTransferConfig
from elastic_ctr.config.data import Data
from elastic_ctr.config.feature_rules import check_late_clicks, input_of
from elastic_ctr.config.features import Features
from elastic_ctr.config.intake_settings import IntakeConfig
from elastic_ctr.config.model import Model, ModelInput
from elastic_ctr.config.scoring_settings import ScoringConfig
from elastic_ctr.config.section import Count, Section
from elastic_ctr.config.serving_settings import ServingConfig
from elastic_ctr.config.statistics import StatisticsText
from elastic_ctr.config.store_settings import Restore, StoreConfig, check_window
from elastic_ctr.config.training_settings import MasterConfig, PserverConfig, TrainerConfig
from elastic_ctr.runtime.auth import Right, TokenFile, Tokens


class Auth(Section):
    """The token files of a role, one for each right that it uses or checks. Without any, no call needs a token."""

    clicks_file: str | None = Field(default=None, description="A mounted file with the tokens that post clicks.")
    operate_file: str | None = Field(default=None, description="A mounted file with the tokens of operators.")
    internal_file: str | None = Field(
        default=None,
        description="A mounted file with the tokens of the release's own roles; a role sends the first one.",
    )

    @classmethod
    def of(cls, folder: str, rights: Sequence[Right]) -> "Auth":
        """Return the token files in `folder`, each named after its right."""
        return cls(**{f"{right.value}_file": f"{folder}/{right.value}" for right in rights})

    def rights(self) -> dict[Right, Tokens] | None:
        """Return the tokens that a role accepts, or None if no call needs one. Raises OSError, ValueError for a file without tokens."""
        files = {right: getattr(self, f"{right.value}_file") for right in Right}
        found: dict[Right, Tokens] = {right: TokenFile(Path(each)) for right, each in files.items() if each is not None}
        return found or None

    def internal(self) -> Tokens | None:
        """Return the tokens with which the role calls other roles, or None. Raises OSError, ValueError."""
        return None if self.internal_file is None else TokenFile(Path(self.internal_file))


class RoleFile(Section):
    """Settings of every role. `RIGHTS` are the rights whose token files its process needs."""

    RIGHTS: ClassVar[tuple[Right, ...]] = (Right.INTERNAL,)

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    auth: Auth = Auth()


class TrainingMember(RoleFile):
    """Settings of every role of a training."""

    data: Data
    features: Features | None = None
    model: Model
    store: StoreConfig
    training: str = Field(
        default="local",
        min_length=1,
        max_length=63,
        description="The training's name: the master sends trainers and pservers of another one away.",
    )

    @model_validator(mode="after")
    def _together(self) -> "TrainingMember":
        check_late_clicks(self.data, self.model)
        check_window(self.data, self.store)
        return self

    @property
    def input(self) -> ModelInput:
        return input_of(self.data, self.features)


class TrackingServerSettings(Section):
    """An MLflow server that the training reports to."""

    url: WebUrl = Field(description="http://host:port of the server.")
    experiment: str = Field(default="elastic-ctr", min_length=1, max_length=250, description="Where its runs are kept.")


class MasterMember(TrainingMember):
    """Settings of the roles that get work from the master."""

    master_address: str
    tls_dir: str | None = Field(
        default=None,
        description="Folder of tls.crt, tls.key and ca.crt for mutual TLS between trainers and pservers; absent: no TLS.",
    )
    exit_when_done: bool = Field(
        default=True, description="Exit when the master has no more work. If false, wait and ask again."
    )


class MasterFile(TrainingMember):
    RIGHTS = (Right.INTERNAL, Right.OPERATE)

    # Only the master's file has these: trainers read the pinned statistics from the store.
    statistics: StatisticsText
    master: MasterConfig
    trainer: TrainerConfig
    pservers: Count
    intake_address: str | None = Field(
        default=None, description="Host and port of the release's own intake; absent: it has none."
    )
    restore: Restore = Restore()
    handover_seconds: float = Field(
        default=0,
        ge=0,
        description="How long a replaced training may run on to write a mid-pass checkpoint; at most the termination grace of "
        "its pods. 0: no such checkpoint.",
    )
    tracking: TrackingServerSettings | None = None


class TrainerFile(MasterMember):
    trainer: TrainerConfig
    tracking: TrackingServerSettings | None = None


class PserverFile(MasterMember):
    pserver: PserverConfig
    forwarded: bool = Field(
        default=True,
        description="Trainers are in other pods, and come through a forwarder at `pserver.port`. False: they are on this machine.",
    )
    pservers: Count
    pod_domain: str | None = Field(
        default=None, description="Others reach this pod as <POD_NAME>.<podDomain>; absent: at the host it listens on."
    )


class CubeServerFile(RoleFile):
    grace_seconds: float = Field(
        default=86_400, ge=0, description="The longest drain; the process may live for 10 more."
    )
    model: Model
    store: StoreConfig
    cube: CubePodConfig
    transfer_address: str
    pod_domain: str | None = Field(
        default=None, description="Others reach this pod as <POD_NAME>.<podDomain>; absent: at the host it listens on."
    )


class CubeTransferFile(RoleFile):
    """Settings of cube-transfer, and the only file with the numbers of shards and replicas."""

    RIGHTS = (Right.INTERNAL, Right.OPERATE)

    store: StoreConfig
    cube_transfer: CubeTransferConfig
    shards: Count
    replicas_per_shard: Count
    canary_minutes: float = Field(
        default=0, ge=0, description="How long a candidate answers a share of the requests before it goes live."
    )
    cube_domain: str | None = Field(default=None, description="Cube addresses must end in it; absent: 127.0.0.1 alone.")


class CubeBuilderFile(RoleFile):
    store: StoreConfig
    cube_transfer: CubeTransferConfig


class ServingFile(RoleFile):
    model: Model
    store: StoreConfig
    serving: ServingConfig
    cube: CubePodConfig
    transfer_address: str
    grace_seconds: float = Field(
        default=20,
        ge=0,
        description="Seconds for requests under way when serving is told to end; the process may live for 10 more.",
    )


class ScoringFile(RoleFile):
    """Settings of a pod of a scoring Job. The Job itself, not this file, names the hours to score."""

    data: Data
    store: StoreConfig
    scoring: ScoringConfig
    transfer_address: str


class IntakeFile(RoleFile):
    """Settings of the intake. `data` has the format of the lines, `features` the columns that an impression has and its click lacks."""

    RIGHTS = (Right.INTERNAL, Right.CLICKS)

    data: Data
    features: Features | None = None
    intake: IntakeConfig

    @model_validator(mode="after")
    def _knows_what_is_joined(self) -> "IntakeFile":
        if self.data.stream.join is not None and self.features is None:
            raise ValueError("features is missing; with data.stream.join, they say which columns an impression has")
        return self
