"""The values file of the chart and of `elastic-ctr local`. Kubernetes' keys are read by the chart only and skipped here."""

import json
from difflib import get_close_matches
from typing import Any, ClassVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from elastic_ctr.config.addresses import OWN_INTAKE, WebUrl
from elastic_ctr.config.cube_settings import CubeSettings, CubeTransferSettings
from elastic_ctr.config.data import Data
from elastic_ctr.config.feature_rules import check_features, check_has_keys, check_late_clicks
from elastic_ctr.config.features import ALTERNATIVES, Features
from elastic_ctr.config.intake_settings import IntakeSettings
from elastic_ctr.config.model import Model
from elastic_ctr.config.networks import NETWORKS, refusal
from elastic_ctr.config.own_network import OWN, OwnNetwork
from elastic_ctr.config.scoring_settings import ScoringSettings
from elastic_ctr.config.section import ALTERNATIVE, Count, Section
from elastic_ctr.config.serving_settings import ServingSettings
from elastic_ctr.config.statistics import StatisticsText, check_statistics
from elastic_ctr.config.store_settings import Restore, StoreConfig, check_window
from elastic_ctr.config.training_settings import MasterSettings, PserverSettings, TrainerSettings

# Keys of the chart that the program does not read; a test of the chart compares them with its schema.
_KUBERNETES = frozenset([
    "address", "affinity", "autoscaling", "backoffLimit", "builderResources", "containerSecurityContext", "dnsConfig",
    "enabled", "extraContainers", "extraEnv", "extraVolumeMounts", "extraVolumes", "grpcIngress", "grpcRoute", "hostAliases",
    "httpRoute", "image", "ingress", "initContainers", "lifecycle", "networkPolicy", "nodeSelector", "pdb", "persistence",
    "podAnnotations", "podLabels", "podSecurityContext", "preStopSeconds", "priorityClassName", "probes", "resources",
    "revisionHistoryLimit", "runtimeClassName", "service", "terminationGracePeriodSeconds", "tolerations",
    "topologySpreadConstraints", "ttlSecondsAfterFinished",
])  # fmt: skip
_TOP = frozenset([
    "auth", "bucketSecret", "check", "clusterDomain", "commonAnnotations", "commonLabels", "dataSecret", "dataVolume", "enabled", "extraObjects",
    "fileServer", "fullnameOverride", "global", "image", "kerberos", "log", "metrics", "nameOverride", "networkPolicy", "podDefaults",
    "priorityClasses", "serviceAccount", "serviceDefaults", "tmpSizeLimit", "tolerationSeconds", "tracking", "training",
])  # fmt: skip


# The class of each tag that pydantic inserts into an error's `loc`.
_KINDS: dict[str, type[Section]] = {
    **ALTERNATIVES,
    **{f"{ALTERNATIVE}{name}": kind for name, kind in NETWORKS.items()},
    f"{ALTERNATIVE}{OWN}": OwnNetwork,
}


class Block(Section):
    """A component's block: `config` is the program's; Kubernetes' keys are taken out before it is read."""

    dropped: ClassVar[frozenset[str]] = _KUBERNETES

    @model_validator(mode="before")
    @classmethod
    def _without_kubernetes(cls, given: Any) -> Any:
        if isinstance(given, dict):
            return {key: value for key, value in given.items() if key not in cls.dropped}
        return given


class StoreBlock(Block):
    """store:"""

    config: StoreConfig = StoreConfig()


class MasterBlock(Block):
    """master:"""

    config: MasterSettings = MasterSettings()


class TrainerBlock(Block):
    """trainer:"""

    replicas: Count = Field(default=2, description="Number of trainers.")
    min_replicas: Count = Field(default=1, description="Trainers that must be schedulable before any trainer starts.")
    config: TrainerSettings = TrainerSettings()

    @model_validator(mode="after")
    def _enough(self) -> "TrainerBlock":
        if self.min_replicas > self.replicas:
            raise ValueError(f"minReplicas {self.min_replicas} is above replicas {self.replicas}; lower it")
        return self


class PserverBlock(Block):
    """pserver:"""

    replicas: int = Field(
        default=2, ge=1, le=1024, description="Number of parameter servers; a change replaces the training."
    )
    config: PserverSettings = PserverSettings()


class CubeBlock(Block):
    """cube:"""

    replicas_per_shard: int = Field(default=1, ge=1, le=64, description="Replicas of each shard.")
    config: CubeSettings = CubeSettings()


class CubeTransferBlock(Block):
    """cubeTransfer:"""

    config: CubeTransferSettings = CubeTransferSettings()


class IntakeBlock(Block):
    """intake:"""

    dropped: ClassVar[frozenset[str]] = _KUBERNETES - {"enabled"}

    enabled: bool = Field(
        default=False,
        description="Whether this release takes clicks over HTTP; then `data.source.url` is `intake://`, or a topic whose clicks the "
        "intake joins by `data.stream.join`.",
    )
    config: IntakeSettings = IntakeSettings()


class ServingBlock(Block):
    """serving:"""

    replicas: Count = Field(default=1, description="Number of serving pods.")
    config: ServingSettings = ServingSettings()


class ScoringBlock(Block):
    """scoring:"""

    config: ScoringSettings = ScoringSettings()


class Local(Section):
    """A run on one machine, by `elastic-ctr local`; the chart reads nothing of it."""

    port_base: int | None = Field(
        default=None,
        ge=1024,
        le=60000,
        description="First port of the run: every port that is not set itself moves with it. A second run on the same machine "
        "needs another base, 1000 higher. Absent: 8300.",
    )
    tracking_url: WebUrl | None = Field(
        default=None,
        description="http://host:port of an MLflow server that is told of the run, in an experiment named after the folder of "
        "the run. Absent: http://127.0.0.1:5000 where `tracking.enabled` is true, else none.",
    )


class Values(Block):
    """The whole file."""

    dropped: ClassVar[frozenset[str]] = _TOP

    data: Data
    features: Features | None = Field(
        default=None,
        description="The meaning of the columns of rows, by name; for `data.format: clicks` there is none.",
    )
    statistics: StatisticsText
    model: Model = Model()
    store: StoreBlock = StoreBlock()
    restore: Restore = Restore()
    master: MasterBlock = MasterBlock()
    trainer: TrainerBlock = TrainerBlock()
    pserver: PserverBlock = PserverBlock()
    cube: CubeBlock = CubeBlock()
    cube_transfer: CubeTransferBlock = CubeTransferBlock()
    intake: IntakeBlock = IntakeBlock()
    serving: ServingBlock = ServingBlock()
    scoring: ScoringBlock = ScoringBlock()
    local: Local = Local()

    @model_validator(mode="after")
    def _together(self) -> "Values":
        check_features(self.data, self.features, self.model)
        for setting, name in (
            ("data.group", self.data.group),
            ("serving.config.canary.feature", self.serving.config.canary.feature),
        ):
            check_has_keys(setting, name, self.data, self.features)
        check_late_clicks(self.data, self.model)
        check_window(self.data, self.store.config)
        check_statistics(self.features, self.statistics)
        self._check_intake()
        self._check_ports()
        ready, copies = self.cube_transfer.config.min_ready_replicas, self.cube.replicas_per_shard
        if ready > copies:
            raise ValueError(
                f"cubeTransfer.config.minReadyReplicas {ready} is above cube.replicasPerShard {copies}, so no version would ever go live; "
                "lower the one or raise the other"
            )
        if self.cube.config.shards > self.model.partitions:
            raise ValueError(
                f"cube.config.shards {self.cube.config.shards} is above model.partitions {self.model.partitions}: some shards "
                "would hold nothing; lower shards"
            )
        if self.pserver.replicas > self.model.partitions:
            raise ValueError(
                f"pserver.replicas {self.pserver.replicas} is above model.partitions {self.model.partitions}; lower replicas"
            )
        # Paddle gives each pserver as many partitions as the first until none is left; a pserver without any cannot be saved.
        each = -(-self.model.partitions // self.pserver.replicas)
        used = -(-self.model.partitions // each)
        if used < self.pserver.replicas:
            raise ValueError(
                f"pserver.replicas {self.pserver.replicas} would leave some without any of {self.model.partitions} "
                f"model.partitions, {each} for each of the first {used}; set it to {used}"
            )
        return self

    def _check_ports(self) -> None:
        """Containers of one pod share its ports."""
        for block, config, names in (
            ("master", self.master.config, ("port", "status_port")),
            ("pserver", self.pserver.config, ("port", "admin_port")),
            ("cube", self.cube.config, ("port", "admin_port")),
            ("serving", self.serving.config, ("port", "admin_port", "grpc_port")),
        ):
            taken: dict[int, str] = {}
            for name in names:
                key = type(config).model_fields[name].alias or name
                port = getattr(config, name)
                if port and port in taken:
                    raise ValueError(
                        f"{block}.config.{key} and {block}.config.{taken[port]} are both {port}, in one pod; set one of them elsewhere"
                    )
                taken[port] = key

    def _check_intake(self) -> None:
        url = self.data.source.url
        if url == OWN_INTAKE and not self.intake.enabled:
            raise ValueError(
                "data.source.url is intake://, the intake of this release, which is off: set intake.enabled to true, or give the address of "
                "another one as intake://host:port"
            )
        topic, joins = self.data.source.is_topic, self.data.stream.join is not None
        if topic and joins and not self.intake.enabled:
            raise ValueError(
                "data.stream.join is done by the intake, which is off: set intake.enabled to true, and it reads the topic, or leave join out"
            )
        if self.intake.enabled and url != OWN_INTAKE and not (topic and joins):
            raise ValueError(
                f"intake.enabled is true, and data.source.url is {self.data.source.url}: nothing would read the clicks; set it to intake://, or "
                "turn the intake off"
            )


def sentences(wrong: ValidationError, kind: type[BaseModel]) -> list[str]:
    """Return one sentence for each error, with the key as in the file; `kind` is the class that raised `wrong`."""
    found = []
    for error in wrong.errors():
        place = tuple(step for step in error["loc"] if not str(step).startswith(ALTERNATIVE))
        where = ".".join(map(str, place)) or "the file"
        if error["type"] == "extra_forbidden":
            [near, *_] = [*get_close_matches(str(place[-1]), _settings_beside(kind, error["loc"]), 1), None]
            section = str(error["loc"][-2]) if len(error["loc"]) > 1 else ""
            network = section.removeprefix(ALTERNATIVE)
            if section != network and (network in NETWORKS or network == OWN):
                found.append(f"{where} {refusal(network, str(place[-1]), near)}")
            else:
                way_out = f"did you mean {near}?" if near else "remove it or mend its spelling"
                found.append(f"{where} is not a setting; {way_out}")
        elif error["type"] == "missing":
            found.append(f"{where} is missing")
        elif error["input"] is None and error["type"].endswith("_type"):
            found.append(f"{where} is null, which takes a default away that is needed; leave it out, or give a value")
        elif error["type"] == "string_type" and isinstance(error["input"], (bool, int, float)):
            found.append(f"{where}: {json.dumps(error['input'])} is no text to YAML; write it in quotes")
        elif error["type"] == "value_error":
            # The message of a rule over several blocks names them itself.
            found.append(f"{where}: {error['ctx']['error']}" if error["loc"] else str(error["ctx"]["error"]))
        else:
            shown = repr(error["input"])
            found.append(f"{where}: {error['msg'][0].lower()}{error['msg'][1:]}, not {shown[:80]}")
    return found


def _settings_beside(kind: type[BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """Return the names of all settings of the section in which an unknown key stands."""
    section: type[BaseModel] = kind
    steps = list(map(str, place[:-1]))
    if known := [number for number, step in enumerate(steps) if step in _KINDS]:
        section = _KINDS[steps[known[-1]]]
        steps = steps[known[-1] + 1 :]
    for step in steps:
        below = {field.alias or name: field.annotation for name, field in section.model_fields.items()}.get(step)
        if not (isinstance(below, type) and issubclass(below, BaseModel)):
            return []
        section = below
    return [field.alias or name for name, field in section.model_fields.items()]
