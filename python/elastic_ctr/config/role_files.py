"""The one `config.yaml` of each role: what the chart renders and `elastic-ctr local` writes, and what the role loads."""

from pydantic import Field

from elastic_ctr.config.data import Data
from elastic_ctr.config.model import Model
from elastic_ctr.config.roles import (
    CubeConfig,
    CubeTransferConfig,
    MasterConfig,
    PserverConfig,
    ServingConfig,
    StoreConfig,
    TrainerConfig,
)
from elastic_ctr.config.section import Count, Section


class Auth(Section):
    """The token that every call needs which changes something."""

    token_file: str | None = Field(default=None, description="A mounted file; absent: nobody is asked.")


class MasterFile(Section):
    """master"""

    data: Data
    model: Model
    store: StoreConfig
    master: MasterConfig
    trainer: TrainerConfig
    pservers: Count
    auth: Auth = Auth()


class TrainerFile(Section):
    """trainer"""

    data: Data
    model: Model
    store: StoreConfig
    trainer: TrainerConfig
    master_address: str
    auth: Auth = Auth()


class PserverFile(Section):
    """pserver"""

    data: Data
    model: Model
    store: StoreConfig
    pserver: PserverConfig
    pservers: Count
    master_address: str
    auth: Auth = Auth()


class CubeServerFile(Section):
    """cube-server"""

    model: Model
    cube: CubeConfig
    auth: Auth = Auth()


class CubeAgentFile(Section):
    """cube-agent"""

    store: StoreConfig
    cube: CubeConfig
    transfer_address: str
    auth: Auth = Auth()


class CubeTransferFile(Section):
    """cube-transfer: the only file that knows shards and replicas."""

    store: StoreConfig
    cube_transfer: CubeTransferConfig
    shards: Count
    replicas_per_shard: Count
    cube_domain: str | None = Field(default=None, description="Cube addresses must end in it; absent: 127.0.0.1 alone.")
    auth: Auth = Auth()


class CubeBuilderFile(Section):
    """cube-builder"""

    store: StoreConfig
    cube_transfer: CubeTransferConfig
    auth: Auth = Auth()


class ServingFile(Section):
    """serving"""

    model: Model
    store: StoreConfig
    serving: ServingConfig
    cube: CubeConfig
    transfer_address: str
    auth: Auth = Auth()
