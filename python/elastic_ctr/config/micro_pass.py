"""`data.stream:` in the values file: the windows of a stream."""

from pydantic import Field

from elastic_ctr.config.section import EXACT, Count, Seconds, Section


class Join(Section):
    """Clicks that carry only the key of their impression, which the intake makes late clicks of."""

    key: str = Field(min_length=1, description="Column with the impression's id, in its row and in that of its click.")
    window_seconds: Seconds = Field(
        default=600,
        description="How long an impression is remembered; a click that comes later is dropped and counted.",
    )


class MicroPass(Section):
    """How much of a stream is one pass."""

    window_ms: int = Field(
        default=300,
        ge=10,
        le=3_600_000,
        description="Milliseconds from the first record of a pass to its end, if it is not full before. While passes take longer, "
        "the next one has all that came meanwhile.",
    )
    max_records: Count = Field(default=250_000, description="Messages of a topic, or lines of an intake, in one pass.")
    max_bytes: int = Field(
        default=48 << 20, ge=1, le=EXACT, description="Bytes of the files of a followed folder in one pass, at most."
    )
    checkpoint_seconds: Seconds = Field(
        default=86_400,
        description="Seconds from one save of the table to the next, for which passes wait. Checkpoints between are made of the deltas since; "
        "after a recovery the optimizer's state is that of the last save.",
    )
    compact_versions: Count = Field(
        default=500,
        description="Versions on one base before pservers merge them into a new base. Fewer make recoveries faster, and more compactions.",
    )
    late_clicks: bool = Field(
        default=False,
        description="Whether a line may have show 0 and clicks of impressions that came before with click 0. Not with adagrad rules.",
    )
    join: Join | None = Field(
        default=None,
        description="For clicks with only the id of their impression: the intake makes late clicks of them. `key` is the column with the id, "
        "and an impression is remembered for `windowSeconds` (600). Absent: lines are taken as they are.",
    )
