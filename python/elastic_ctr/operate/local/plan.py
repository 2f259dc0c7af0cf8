"""The processes of a values file on one machine, and the config file of each."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from pydantic.alias_generators import to_camel

from elastic_ctr.config.cube_settings import CubePodConfig, CubeTransferConfig
from elastic_ctr.config.data import Data
from elastic_ctr.config.intake_settings import IntakeConfig
from elastic_ctr.config.load import ConfigRefused
from elastic_ctr.config.role_files import (
    Auth,
    CubeBuilderFile,
    CubeServerFile,
    CubeTransferFile,
    IntakeFile,
    MasterFile,
    PserverFile,
    RoleFile,
    ServingFile,
    TrackingServerSettings,
    TrainerFile,
)
from elastic_ctr.config.section import Section
from elastic_ctr.config.serving_settings import ServingConfig
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.config.training_settings import MasterConfig, PserverConfig, TrainerConfig
from elastic_ctr.config.values_file import Values
from elastic_ctr.operate.local.run_folder import TOKENS, RunInfo
from elastic_ctr.runtime.auth import Right

HOST = "127.0.0.1"
CUBE_PORTS = 2
SERVING_PORTS = 4
_FIRST_PORT = CubeTransferConfig().port
_LAST_PORT = 65535
S = TypeVar("S", bound=Section)


def _ports_of(config: Section) -> dict[str, int]:
    """Return the ports among the fields; 0 is a port that is not opened."""
    return {field: getattr(config, field) for field in type(config).model_fields if field.endswith("port")}


def ports(values: Values) -> Iterator[tuple[str, range]]:
    """Yield the key of each port setting, and the ports that all its processes take on one machine."""
    pservers = values.pserver.replicas
    if values.intake.enabled:
        yield "intake.config.port", range(values.intake.config.port, values.intake.config.port + 1)
    for block, count, step in (
        ("cube_transfer", 2, 1),
        ("serving", values.serving.replicas, SERVING_PORTS),
        ("cube", values.cube.config.shards * values.cube.replicas_per_shard, CUBE_PORTS),
        ("master", 1, 1),
        ("trainer", values.trainer.replicas, 1),
        ("pserver", pservers, 1),
    ):
        for field, first in _ports_of(getattr(values, block).config).items():
            # Pservers listen on Unix sockets instead of their port.
            if first and (block, field) != ("pserver", "port"):
                yield f"{to_camel(block)}.config.{to_camel(field)}", range(first, first + count * step, step)


def at_port_base(values: Values) -> Values:
    """Return the values with every port that the file does not set moved to `local.portBase`."""
    base = values.local.port_base
    if base is None:
        return values
    blocks = {}
    for name in ("master", "trainer", "pserver", "cube", "cube_transfer", "intake", "serving"):
        block = getattr(values, name)
        moved = {
            field: port - _FIRST_PORT + base
            for field, port in _ports_of(block.config).items()
            if field not in block.config.model_fields_set
        }
        blocks[name] = block.model_copy(update={"config": block.config.model_copy(update=moved)})
    return values.model_copy(update=blocks)


@dataclass(frozen=True)
class Role:
    """One process: its name (a pod's name in the cluster), its command, its settings, and the address of its health endpoint."""

    name: str
    command: str
    file: RoleFile
    health: str | None
    ends: bool = False


@dataclass(frozen=True)
class RunPlaces:
    """Folders and addresses of one local run."""

    folder: Path
    values: Values

    def __post_init__(self) -> None:
        """Raises ConfigRefused if two processes would need the same port."""
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
        """The store in the run's folder, unless the file names one."""
        given = self.values.store.config
        return given.url if "url" in given.model_fields_set else f"file://{self.folder}/store"

    @property
    def store(self) -> StoreConfig:
        return self.values.store.config.moved(self.store_url)

    def auth(self, kind: type[RoleFile]) -> Auth:
        """Return the token files that a role needs."""
        return Auth.of(str(self.folder / TOKENS), kind.RIGHTS)

    def common(self, kind: type[RoleFile]) -> dict[str, Any]:
        """Return the settings of every role that opens the store."""
        return {"host": HOST, "auth": self.auth(kind), "store": self.store}

    def training(self, kind: type[RoleFile]) -> dict[str, Any]:
        """Return the settings of every role that trains."""
        return {**self.common(kind), "data": self.data, "features": self.values.features, "model": self.values.model}

    @property
    def data(self) -> Data:
        """The data as training reads them: from the intake, if the run has one."""
        if not self.values.intake.enabled:
            return self.values.data
        return self.values.data.of_intake(self.intake, str(self.folder / TOKENS / Right.INTERNAL.value))

    @property
    def tracking(self) -> TrackingServerSettings | None:
        """The tracking settings, with the folder as the experiment, because all trainings on one machine have the same name."""
        url = self.values.local.tracking_url
        return None if url is None else TrackingServerSettings(url=url, experiment=f"elastic-ctr {self.folder}"[-250:])

    def state(self, role: str) -> str:
        """Return the folder of state that outlives the role's process."""
        return str(self.folder / "state" / role)

    def scratch(self, role: str) -> str:
        """Return the folder of files that are only needed while the role's process runs."""
        return str(self.folder / "scratch" / role)

    @property
    def master(self) -> str:
        return f"{HOST}:{self.values.master.config.port}"

    @property
    def transfer(self) -> str:
        return f"{HOST}:{self.values.cube_transfer.config.port}"

    @property
    def intake(self) -> str:
        return f"{HOST}:{self.values.intake.config.port}"

    @property
    def serving(self) -> str:
        return f"{HOST}:{self.values.serving.config.port}"

    @property
    def info(self) -> RunInfo:
        """The addresses of the run, to be written to its folder."""
        serving = self.values.serving.config
        return RunInfo(
            master=f"{HOST}:{self.values.master.config.status_port}",
            transfer=self.transfer,
            serving_admin=f"{HOST}:{serving.admin_port}",
            predictions=[f"{HOST}:{serving.port + SERVING_PORTS * n}" for n in range(self.values.serving.replicas)],
            model=serving.model_name,
        )

    def config_file(self, role: Role) -> Path:
        return self.folder / "config" / f"{role.name}.yaml"

    def log_file(self, role: Role) -> Path:
        return self.folder / "logs" / f"{role.name}.log"


def roles(places: RunPlaces) -> Iterator[Role]:
    """Yield the roles in the order of their start, on which nothing depends."""
    yield from _of_training(places)
    yield from _of_cube(places)
    values = places.values
    if values.intake.enabled:
        intake = _role(IntakeConfig, values.intake.config, dir=places.state("intake"))
        file: RoleFile = IntakeFile(
            host=HOST, auth=places.auth(IntakeFile), data=values.data, features=values.features, intake=intake
        )
        yield Role("ctr-intake-0", "intake", file, _well(intake.port))
    of_cube = {"model": values.model, "cube": values.cube.config.of_pod, "transfer_address": places.transfer}
    for index in range(values.serving.replicas):
        name = f"serving-{index}"
        serving = _role(ServingConfig, values.serving.config, SERVING_PORTS * index, scratch_dir=places.scratch(name))
        file = ServingFile(**places.common(ServingFile), **of_cube, serving=serving)
        yield Role(f"ctr-{name}", "serving", file, _well(serving.admin_port))


def _of_training(places: RunPlaces) -> Iterator[Role]:
    values, pservers = places.values, places.values.pserver.replicas
    master = _role(MasterConfig, values.master.config, state_dir=places.state("master"))
    of_workers = {"trainer": _role(TrainerConfig, values.trainer.config), "pservers": pservers}
    intake_address = places.intake if values.intake.enabled else None
    of_master = {
        "statistics": values.statistics,
        "master": master,
        "tracking": places.tracking,
        "restore": values.restore,
    }
    file: RoleFile = MasterFile(**places.training(MasterFile), **of_workers, **of_master, intake_address=intake_address)
    yield Role("ctr-master-0", "master", file, _well(master.status_port))

    for index in range(pservers):
        name = f"pserver-{index}"
        pserver = _role(PserverConfig, values.pserver.config, index, scratch_dir=places.scratch(name))
        of_pserver = {"pserver": pserver, "forwarded": False, "pservers": pservers}
        file = PserverFile(**places.training(PserverFile), **of_pserver, master_address=places.master)
        yield Role(f"ctr-{name}", "pserver", file, _well(pserver.admin_port), ends=True)

    for index in range(values.trainer.replicas):
        name = f"trainer-{index}"
        trainer = _role(TrainerConfig, values.trainer.config, index, scratch_dir=places.scratch(name))
        of_trainer = {"trainer": trainer, "tracking": places.tracking}
        file = TrainerFile(**places.training(TrainerFile), **of_trainer, master_address=places.master)
        yield Role(f"ctr-{name}", "trainer", file, _well(trainer.admin_port), ends=True)


def _of_cube(places: RunPlaces) -> Iterator[Role]:
    values = places.values
    shards, copies, canary = values.cube.config.shards, values.cube.replicas_per_shard, values.serving.config.canary
    transfer = _role(
        CubeTransferConfig,
        values.cube_transfer.config,
        builder_port=values.cube_transfer.config.port + 1,
        state_dir=places.state("cube-transfer"),
        scratch_dir=places.scratch("cube-builder"),
        state_recovery_seconds=2,
    )
    of_cube = {"shards": shards, "replicas_per_shard": copies, "canary_minutes": canary.minutes if canary.share else 0}
    file: RoleFile = CubeTransferFile(**places.common(CubeTransferFile), cube_transfer=transfer, **of_cube)
    yield Role("ctr-cube-transfer-0", "cube-transfer", file, _well(transfer.port))
    file = CubeBuilderFile(**places.common(CubeBuilderFile), cube_transfer=transfer)
    yield Role("ctr-cube-builder-0", "cube-builder", file, _well(transfer.builder_port))

    for number, (shard, replica) in enumerate(product(range(shards), range(copies))):
        pod = f"ctr-cube-s{shard}-{replica}"
        # A short drain, because the only readers belong to this run and end with it.
        chosen = {"drain_idle_seconds": 0.5, "cache_dir": places.state(pod)}
        cube = _role(CubePodConfig, values.cube.config.of_pod, CUBE_PORTS * number, **chosen)
        common = places.common(CubeServerFile)
        file = CubeServerFile(**common, model=values.model, cube=cube, transfer_address=places.transfer)
        yield Role(pod, "cube-server", file, _well(cube.admin_port))


def _role(kind: type[S], config: Section, ports_on: int = 0, **chosen: object) -> S:
    """Return the settings of one of several processes in its role file, with each open port moved by `ports_on`."""
    moved = {field: port + ports_on for field, port in _ports_of(config).items() if port}
    return kind.model_validate({**config.model_dump(exclude_unset=True), **moved, **chosen})


def _well(port: int) -> str:
    return f"http://{HOST}:{port}/healthz"
