"""Settings of jobs that score."""

from pydantic import Field

from elastic_ctr.config.section import Section


class ScoringSettings(Section):
    """Jobs that score hours with a version in the store."""

    processes: int = Field(default=1, ge=1, le=256, description="Processes of a pod that score, one a core.")


class ScoringConfig(ScoringSettings):
    """Settings in the role file of scoring."""

    scratch_dir: str = "/var/lib/elastic-ctr/scoring"
