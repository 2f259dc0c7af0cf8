"""Settings of serving and of its workers."""

from pydantic import Field

from elastic_ctr.config.cube_settings import CubePodConfig
from elastic_ctr.config.section import EXACT, Count, OptionalPort, Port, Section, SlotName

MAX_ABS_DIFF = 1e-5
"""Above the rounding differences between machines for the same sample."""


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
