"""Which processes a values file means on one machine, and the config file of each."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elastic_ctr.config.load import ConfigRefused
from elastic_ctr.config.role_files import (
    Auth,
    CubeAgentFile,
    CubeBuilderFile,
    CubeServerFile,
    CubeTransferFile,
    MasterFile,
    PserverFile,
    RoleFile,
    ServingFile,
    TrainerFile,
)
from elastic_ctr.config.roles import StoreConfig
from elastic_ctr.config.values import Values

HOST = "127.0.0.1"
GENERATION_PORTS = 16
CUBE_PORTS = 3
SERVING_PORTS = 2
_LAST_PORT = 65535


def ports(values: Values) -> Iterator[tuple[str, range]]:
    """The key of each door and the ports that all its processes take on one machine."""
    master, transfer, cube, serving = (
        values.master.config,
        values.cube_transfer.config,
        values.cube.config,
        values.serving.config,
    )
    pservers, copies = values.pserver.replicas, values.cube.config.shards * values.cube.replicas_per_shard
    for name, first, count, step in (
        ("cubeTransfer.config.port", transfer.port, 1, 1),
        ("cubeTransfer.config.builderPort", transfer.builder_port, 1, 1),
        ("serving.config.port", serving.port, values.serving.replicas, SERVING_PORTS),
        ("serving.config.adminPort", serving.admin_port, values.serving.replicas, SERVING_PORTS),
        ("cube.config.port", cube.port, copies, CUBE_PORTS),
        ("cube.config.adminPort", cube.admin_port, copies, CUBE_PORTS),
        ("cube.config.agentPort", cube.agent_port, copies, CUBE_PORTS),
        ("master.config.port", master.port, 1, 1),
        ("master.config.statusPort", master.status_port, 1, 1),
        ("trainer.config.adminPort", values.trainer.config.admin_port, values.trainer.replicas, 1),
        ("pserver.config.adminPort", values.pserver.config.admin_port, pservers, 1),
        ("pserver.config.port", values.pserver.config.port, pservers * GENERATION_PORTS, 1),
    ):
        yield name, range(first, first + count * step, step)


@dataclass(frozen=True)
class Role:
    """One process: its name (a pod's name in the cluster), the command that runs it, its settings, where it says it is well."""

    name: str
    command: str
    file: RoleFile
    health: str | None
    ends: bool = False


@dataclass(frozen=True)
class Places:
    """Folders and addresses of one local run."""

    folder: Path
    values: Values

    def __post_init__(self) -> None:
        """Raises ConfigRefused when two processes would need the same port."""
        taken: dict[int, str] = {}
        for name, found in ports(self.values):
            for port in found:
                if port > _LAST_PORT:
                    raise ConfigRefused(f"{name} comes to port {port} on one machine, above {_LAST_PORT}; set it lower")
                if port in taken:
                    raise ConfigRefused(
                        f"{name} and {taken[port]} both come to port {port} on one machine; set one of them elsewhere"
                    )
                taken[port] = name

    @property
    def store_url(self) -> str:
        """The laptop's own store, unless the file names one."""
        given = self.values.store.config
        return given.url if "url" in given.model_fields_set else f"file://{self.folder}/store"

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    @property
    def master(self) -> str:
        return f"{HOST}:{self.values.master.config.port}"

    @property
    def master_status(self) -> str:
        return f"http://{HOST}:{self.values.master.config.status_port}"

    @property
    def transfer(self) -> str:
        return f"{HOST}:{self.values.cube_transfer.config.port}"

    @property
    def serving(self) -> str:
        return f"{HOST}:{self.values.serving.config.port}"

    def config_file(self, role: Role) -> Path:
        return self.folder / "config" / f"{role.name}.yaml"

    def log_file(self, role: Role) -> Path:
        return self.folder / "logs" / f"{role.name}.log"


def roles(places: Places) -> Iterator[Role]:
    """In the order in which they are started; nothing depends on it."""
    values, folder = places.values, places.folder
    store = StoreConfig(url=places.store_url)
    auth = Auth(token_file=str(places.token_file))
    scratch, state = folder / "scratch", folder / "state"

    master = values.master.config.model_copy(update={"state_dir": str(state / "master")})
    yield Role(
        "ctr-master-0",
        "master",
        MasterFile(
            data=values.data,
            model=values.model,
            store=store,
            master=master,
            trainer=values.trainer.config,
            pservers=values.pserver.replicas,
            host=HOST,
            auth=auth,
        ),
        f"{places.master_status}/healthz",
    )
    transfer = values.cube_transfer.config.model_copy(
        update={
            "state_dir": str(state / "cube-transfer"),
            "scratch_dir": str(scratch / "cube-builder"),
            "listen_seconds": min(values.cube_transfer.config.listen_seconds, 2),
        }
    )
    yield Role(
        "ctr-cube-transfer-0",
        "cube-transfer",
        CubeTransferFile(
            store=store,
            cube_transfer=transfer,
            shards=values.cube.config.shards,
            replicas_per_shard=values.cube.replicas_per_shard,
            host=HOST,
            auth=auth,
        ),
        f"http://{places.transfer}/healthz",
    )
    yield Role(
        "ctr-cube-builder-0",
        "cube-builder",
        CubeBuilderFile(store=store, cube_transfer=transfer, host=HOST, auth=auth),
        f"http://{HOST}:{transfer.builder_port}/healthz",
    )
    for index in range(values.pserver.replicas):
        given = values.pserver.config
        pserver = given.model_copy(
            update={
                "port": given.port + GENERATION_PORTS * index,
                "admin_port": given.admin_port + index,
                "scratch_dir": str(scratch / f"pserver-{index}"),
            }
        )
        yield Role(
            f"ctr-pserver-{index}",
            "pserver",
            PserverFile(
                data=values.data,
                model=values.model,
                store=store,
                pserver=pserver,
                pservers=values.pserver.replicas,
                master_address=places.master,
                host=HOST,
                auth=auth,
            ),
            f"http://{HOST}:{pserver.admin_port}/healthz",
            ends=True,
        )
    for index in range(values.trainer.replicas):
        given_trainer = values.trainer.config
        trainer = given_trainer.model_copy(
            update={
                "admin_port": given_trainer.admin_port + index,
                "scratch_dir": str(scratch / f"trainer-{index}"),
            }
        )
        yield Role(
            f"ctr-trainer-{index}",
            "trainer",
            TrainerFile(
                data=values.data,
                model=values.model,
                store=store,
                trainer=trainer,
                master_address=places.master,
                host=HOST,
                auth=auth,
            ),
            f"http://{HOST}:{trainer.admin_port}/healthz",
            ends=True,
        )
    number = 0
    for shard in range(values.cube.config.shards):
        for replica in range(values.cube.replicas_per_shard):
            name = f"ctr-cube-s{shard}-{replica}"
            given_cube = values.cube.config.of_pod
            cube = given_cube.model_copy(
                update={
                    "port": given_cube.port + CUBE_PORTS * number,
                    "admin_port": given_cube.admin_port + CUBE_PORTS * number,
                    "agent_port": given_cube.agent_port + CUBE_PORTS * number,
                    # Nobody but this run's own readers asks, and they end with it.
                    "quiet_seconds": min(given_cube.quiet_seconds, 0.5),
                    "cache_dir": str(state / name),
                }
            )
            number += 1
            yield Role(
                f"{name}.server",
                "cube-server",
                CubeServerFile(model=values.model, cube=cube, host=HOST, auth=auth),
                f"http://{HOST}:{cube.admin_port}/healthz",
            )
            yield Role(
                f"{name}.agent",
                "cube-agent",
                CubeAgentFile(store=store, cube=cube, transfer_address=places.transfer, host=HOST, auth=auth),
                f"http://{HOST}:{cube.agent_port}/healthz",
            )
    for index in range(values.serving.replicas):
        given_serving = values.serving.config
        serving = given_serving.model_copy(
            update={
                "port": given_serving.port + SERVING_PORTS * index,
                "admin_port": given_serving.admin_port + SERVING_PORTS * index,
                "scratch_dir": str(scratch / f"serving-{index}"),
            }
        )
        yield Role(
            f"ctr-serving-{index}",
            "serving",
            ServingFile(
                model=values.model,
                store=store,
                serving=serving,
                cube=values.cube.config.of_pod,
                transfer_address=places.transfer,
                host=HOST,
                auth=auth,
            ),
            f"http://{HOST}:{serving.admin_port}/healthz",
        )


def pod_of(role: Role) -> str:
    """The pod's name: two containers of one pod share it."""
    return role.name.partition(".")[0]
