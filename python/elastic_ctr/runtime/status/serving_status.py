"""The status of a serving pod."""

from pydantic import Field

from elastic_ctr.runtime.status.status_document import StatusDocument


class FreshnessQuantiles(StatusDocument):
    """Seconds from a click's arrival to the first answer that has learned from it, over the last five minutes."""

    p50: float = Field(description="Median.")
    p90: float = Field(description="90th percentile.")
    p99: float = Field(description="99th percentile.")
    max: float = Field(description="Largest.")
    records: int = Field(0, description="Records counted.")


class TransferConnection(StatusDocument):
    url: str = Field("", description="Its address.")
    error: str | None = Field(None, description="Why it does not answer.")


class WorkerStatus(StatusDocument):
    pid: int | None = Field(description="Its process.")
    version: int | None = Field(None, description="The version that it answers with.")
    listening: bool = Field(False, description="It accepts requests.")


class ServingStatus(StatusDocument):
    """Answered by the admin port of each serving pod."""

    ready: bool = Field(False, description="A worker answers with the live version.")
    stage: str = Field(description="The state as a sentence.")
    version: int | None = Field(None, description="The version that this pod answers with.")
    live: int | None = Field(None, description="The live version.")
    candidate: int | None = Field(None, description="The version that goes live next.")
    canary: int | None = Field(None, description="The candidate that answers a share of the requests.")
    event_time_max: int | None = Field(None, description="Unix seconds of the newest event in its version.")
    freshness_seconds: float | None = Field(None, description="Seconds since then.")
    click_freshness: FreshnessQuantiles | None = Field(
        None, description="Clicks of a stream; null without recent ones."
    )
    validated: dict[int, float] = Field({}, description="Largest difference of a sample, by validated version.")
    refused: dict[int, str] = Field({}, description="Reasons by version that was refused here.")
    last_refusal: str | None = Field(None, description="The last reason.")
    transfer: TransferConnection = Field(description="Address and errors of cube-transfer.")
    requests: int = Field(0, description="Requests answered.")
    rows: int = Field(description="Instances answered.")
    p50_seconds: float | None = Field(None, alias="p50Seconds", description="Upper bound of the median time.")
    p99_seconds: float | None = Field(None, alias="p99Seconds", description="Upper bound of the 99th percentile.")
    workers: tuple[WorkerStatus, ...] = Field((), description="The worker processes.")
    worker_restarts: int = Field(0, description="Workers that were started again.")
    address: str = Field("", description="The HTTP port for predictions, HOST:PORT.")
    grpc_address: str | None = Field(None, description="The gRPC port; null without one.")
