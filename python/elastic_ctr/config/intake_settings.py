"""Settings of the intake."""

from pydantic import Field

from elastic_ctr.config.section import EXACT, Hours, Port, Section


class IntakeSettings(Section):
    """The log of clicks that come over HTTP."""

    port: Port = Field(default=8310, description="Clicks, the log, health, metrics and status (HTTP).")
    retention_hours: Hours = Field(
        default=72,
        description="Hours that a click is kept. What training has not read by then is lost to it, unless the clicks are those "
        "of a topic: they are kept until they are read.",
    )
    max_bytes: int = Field(
        default=4 << 30,
        ge=128 << 20,
        le=EXACT,
        description="Bytes of the disk that clicks take: the oldest go first. The volume needs a fifth more.",
    )
    max_impression_bytes: int = Field(
        default=512 << 20,
        ge=1 << 20,
        le=EXACT,
        description="With `data.stream.join`: bytes of the disk that impressions take. While there are more the oldest are forgotten before "
        "`windowSeconds`, and counted. The volume needs half as much again for them.",
    )
    max_body_bytes: int = Field(
        default=4 << 20, ge=1 << 10, le=64 << 20, description="Bytes of one request, at most; a larger one is refused."
    )
    skip_damaged: bool = Field(
        default=False, description="Whether training goes on without lines whose checksum is wrong; else it waits."
    )


class IntakeConfig(IntakeSettings):
    """Settings in the intake's role file."""

    dir: str = "/var/lib/elastic-ctr/intake"
