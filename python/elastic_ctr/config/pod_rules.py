"""The chart's rules for folders, ports and replicas, so that `elastic-ctr local` refuses the same values files."""

import re

from elastic_ctr.config.roles import CubeConfig, CubeTransferConfig, MasterConfig, PserverConfig, ServingConfig
from elastic_ctr.config.section import Section

# Settings that the chart's templates read, so a null is refused.
NEEDED_BY_TEMPLATES = frozenset([
    "cube.config.adminPort", "cube.config.agentPort", "cube.config.cacheDir", "cube.config.port", "cube.config.shards",
    "cube.replicasPerShard", "cubeTransfer.config.builderPort", "cubeTransfer.config.minReadyReplicas", "cubeTransfer.config.port",
    "cubeTransfer.config.scratchDir", "cubeTransfer.config.stateDir", "data.splitInterval", "data.stream", "intake.config.dir", "intake.config.maxBytes",
    "intake.config.port", "intake.enabled", "master.config.port", "master.config.stateDir", "master.config.statusPort", "model.partitions",
    "pserver.config.adminPort", "pserver.config.port", "pserver.config.scratchDir", "pserver.replicas", "scoring.config.scratchDir",
    "serving.config.adminPort", "serving.config.grpcPort", "serving.config.port", "serving.config.scratchDir", "serving.replicas", "store.config",
    "trainer.config.adminPort", "trainer.config.scratchDir", "trainer.minReplicas", "trainer.replicas",
])  # fmt: skip
_MOUNTED = re.compile(r"/[^:\s]+")
_FOLDERS = ("state_dir", "scratch_dir", "cache_dir", "dir")


def check_folders(block: str, config: Section) -> None:
    """Raises ValueError for a folder that cannot be the mount path of a volume."""
    for name in _FOLDERS:
        folder = getattr(config, name, None)
        if isinstance(folder, str) and not _MOUNTED.fullmatch(folder):
            key = next(field.alias or each for each, field in type(config).model_fields.items() if each == name)
            raise ValueError(
                f"{block}.config.{key} {folder!r} is no place of a volume; give an absolute path without blank and colon"
            )


def check_ports(
    master: MasterConfig, pserver: PserverConfig, cube: CubeConfig, transfer: CubeTransferConfig, serving: ServingConfig
) -> None:
    """Raises ValueError if two servers of one pod would listen on the same port."""
    for block, config, names in (
        ("master", master, ("port", "status_port")),
        ("pserver", pserver, ("port", "admin_port")),
        ("cube", cube, ("port", "admin_port", "agent_port")),
        ("cubeTransfer", transfer, ("port", "builder_port")),
        ("serving", serving, ("port", "admin_port", "grpc_port")),
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


def check_ready(transfer: CubeTransferConfig, replicas: int) -> None:
    """Raises ValueError if `minReadyReplicas` exceeds the replicas of a shard: no version would ever go live."""
    if transfer.min_ready_replicas > replicas:
        raise ValueError(
            f"cubeTransfer.config.minReadyReplicas {transfer.min_ready_replicas} is above cube.replicasPerShard {replicas}, so no version "
            "would ever go live; lower the one or raise the other"
        )
