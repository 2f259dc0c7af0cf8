"""The processes of a values file on one machine, and the config file of each."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

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
    Tracking,
    TrainerFile,
)
from elastic_ctr.config.roles import GENERATION_PORTS, CubeTransferConfig, StoreConfig
from elastic_ctr.config.values_file import Values
from elastic_ctr.local.run_folder import RunInfo

HOST = "127.0.0.1"
CUBE_PORTS = 3
SERVING_PORTS = 4
_FIRST_PORT = CubeTransferConfig().port
_LAST_PORT = 65535


def ports(values: Values) -> Iterator[tuple[str, range]]:
    """The key of each port setting, and the ports that all its processes take on one machine."""
    master, transfer = values.master.config, values.cube_transfer.config
    cube, serving = values.cube.config, values.serving.config
    pservers, copies = values.pserver.replicas, cube.shards * values.cube.replicas_per_shard
    for name, first, count, step in (
        ("cubeTransfer.config.port", transfer.port, 1, 1),
        ("cubeTransfer.config.builderPort", transfer.builder_port, 1, 1),
        ("serving.config.port", serving.port, values.serving.replicas, SERVING_PORTS),
        ("serving.config.adminPort", serving.admin_port, values.serving.replicas, SERVING_PORTS),
        ("serving.config.grpcPort", serving.grpc_port, values.serving.replicas, SERVING_PORTS),
        ("cube.config.port", cube.port, copies, CUBE_PORTS),
        ("cube.config.adminPort", cube.admin_port, copies, CUBE_PORTS),
        ("cube.config.agentPort", cube.agent_port, copies, CUBE_PORTS),
        ("master.config.port", master.port, 1, 1),
        ("master.config.statusPort", master.status_port, 1, 1),
        ("trainer.config.adminPort", values.trainer.config.admin_port, values.trainer.replicas, 1),
        ("pserver.config.adminPort", values.pserver.config.admin_port, pservers, 1),
        ("pserver.config.port", values.pserver.config.port, pservers * GENERATION_PORTS, 1),
    ):
        # 0 is a port that is not opened.
        if first:
            yield name, range(first, first + count * step, step)


def at_port_base(values: Values) -> Values:
    """With every port that the file does not set moved to `local.portBase`."""
    base = values.local.port_base
    if base is None:
        return values
    blocks = {}
    for name in ("master", "trainer", "pserver", "cube", "cube_transfer", "serving"):
        block = getattr(values, name)
        config = block.config
        moved = {
            field: getattr(config, field) - _FIRST_PORT + base
            for field in type(config).model_fields
            if field.endswith("port") and field not in config.model_fields_set
        }
        blocks[name] = block.model_copy(update={"config": config.model_copy(update=moved)})
    return values.model_copy(update=blocks)


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
        object.__setattr__(self, "values", at_port_base(self.values))
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
    def store(self) -> StoreConfig:
        return StoreConfig(url=self.store_url, user=self.values.store.config.user)

    @property
    def auth(self) -> Auth:
        return Auth(token_file=str(self.token_file))

    @property
    def common(self) -> dict[str, Any]:
        """Settings of every role that opens the store."""
        return {"host": HOST, "auth": self.auth, "store": self.store}

    @property
    def training(self) -> dict[str, Any]:
        """Settings of every role that trains."""
        return {**self.common, "data": self.values.data, "model": self.values.model}

    @property
    def tracking(self) -> Tracking | None:
        """Each folder is an experiment: all trainings on one machine bear the same name."""
        url = self.values.local.tracking_url
        return None if url is None else Tracking(url=url, experiment=f"elastic-ctr {self.folder}"[-250:])

    def state(self, role: str) -> str:
        """The folder of state that outlives the role's process."""
        return str(self.folder / "state" / role)

    def scratch(self, role: str) -> str:
        """The folder of files that need not."""
        return str(self.folder / "scratch" / role)

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

    @property
    def info(self) -> RunInfo:
        """The addresses of the run, for its folder."""
        serving = self.values.serving.config
        return RunInfo(
            master=self.master_status.removeprefix("http://"),
            transfer=self.transfer,
            serving_admin=f"{HOST}:{serving.admin_port}",
            predictions=[f"{HOST}:{serving.port + SERVING_PORTS * n}" for n in range(self.values.serving.replicas)],
            model=serving.model_name,
        )

    def config_file(self, role: Role) -> Path:
        return self.folder / "config" / f"{role.name}.yaml"

    def log_file(self, role: Role) -> Path:
        return self.folder / "logs" / f"{role.name}.log"


def roles(places: Places) -> Iterator[Role]:
    """In the order in which they are started; nothing depends on it."""
    yield _master(places)
    yield from _transfer(places)
    yield from (_pserver(places, index) for index in range(places.values.pserver.replicas))
    yield from (_trainer(places, index) for index in range(places.values.trainer.replicas))
    copies = product(range(places.values.cube.config.shards), range(places.values.cube.replicas_per_shard))
    for number, (shard, replica) in enumerate(copies):
        yield from _cube_pod(places, f"ctr-cube-s{shard}-{replica}", number)
    yield from (_serving(places, index) for index in range(places.values.serving.replicas))


def _well(port: int) -> str:
    return f"http://{HOST}:{port}/healthz"


def _master(places: Places) -> Role:
    values = places.values
    master = values.master.config.model_copy(update={"state_dir": places.state("master")})
    file = MasterFile(
        **places.training,
        master=master,
        trainer=values.trainer.config,
        pservers=values.pserver.replicas,
        tracking=places.tracking,
    )
    return Role("ctr-master-0", "master", file, _well(master.status_port))


def _transfer(places: Places) -> Iterator[Role]:
    """Transfer and its builder."""
    given, cube = places.values.cube_transfer.config, places.values.cube
    transfer = given.model_copy(
        update={
            "state_dir": places.state("cube-transfer"),
            "scratch_dir": places.scratch("cube-builder"),
            "state_recovery_seconds": min(given.state_recovery_seconds, 2),
        }
    )
    file = CubeTransferFile(
        **places.common,
        cube_transfer=transfer,
        shards=cube.config.shards,
        replicas_per_shard=cube.replicas_per_shard,
    )
    builder = CubeBuilderFile(**places.common, cube_transfer=transfer)
    yield Role("ctr-cube-transfer-0", "cube-transfer", file, _well(transfer.port))
    yield Role("ctr-cube-builder-0", "cube-builder", builder, _well(transfer.builder_port))


def _pserver(places: Places, index: int) -> Role:
    given, name = places.values.pserver.config, f"pserver-{index}"
    pserver = given.model_copy(
        update={
            "port": given.port + GENERATION_PORTS * index,
            "admin_port": given.admin_port + index,
            "scratch_dir": places.scratch(name),
        }
    )
    pservers = places.values.pserver.replicas
    file = PserverFile(**places.training, pserver=pserver, pservers=pservers, master_address=places.master)
    return Role(f"ctr-{name}", "pserver", file, _well(pserver.admin_port), ends=True)


def _trainer(places: Places, index: int) -> Role:
    given, name = places.values.trainer.config, f"trainer-{index}"
    trainer = given.model_copy(update={"admin_port": given.admin_port + index, "scratch_dir": places.scratch(name)})
    file = TrainerFile(**places.training, trainer=trainer, master_address=places.master, tracking=places.tracking)
    return Role(f"ctr-{name}", "trainer", file, _well(trainer.admin_port), ends=True)


def _cube_pod(places: Places, pod: str, number: int) -> Iterator[Role]:
    """A server and its agent."""
    given = places.values.cube.config.of_pod
    cube = given.model_copy(
        update={
            "port": given.port + CUBE_PORTS * number,
            "admin_port": given.admin_port + CUBE_PORTS * number,
            "agent_port": given.agent_port + CUBE_PORTS * number,
            # Only readers of this run ask, and they end with it.
            "drain_idle_seconds": min(given.drain_idle_seconds, 0.5),
            "cache_dir": places.state(pod),
        }
    )
    server = CubeServerFile(host=HOST, auth=places.auth, model=places.values.model, cube=cube)
    agent = CubeAgentFile(**places.common, cube=cube, transfer_address=places.transfer)
    yield Role(f"{pod}.server", "cube-server", server, _well(cube.admin_port))
    yield Role(f"{pod}.agent", "cube-agent", agent, _well(cube.agent_port))


def _serving(places: Places, index: int) -> Role:
    values, given = places.values, places.values.serving.config
    name = f"serving-{index}"
    serving = given.model_copy(
        update={
            "port": given.port + SERVING_PORTS * index,
            "admin_port": given.admin_port + SERVING_PORTS * index,
            "grpc_port": given.grpc_port and given.grpc_port + SERVING_PORTS * index,
            "scratch_dir": places.scratch(name),
        }
    )
    file = ServingFile(
        **places.common,
        model=values.model,
        serving=serving,
        cube=values.cube.config.of_pod,
        transfer_address=places.transfer,
    )
    return Role(f"ctr-{name}", "serving", file, _well(serving.admin_port))


def pod_of(role: Role) -> str:
    """The pod's name: two containers of one pod share it."""
    return role.name.partition(".")[0]
