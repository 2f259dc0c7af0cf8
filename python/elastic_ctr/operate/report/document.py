"""The parts of the answers of master and cube-transfer that the page shows.

A master of an earlier release omits fields, so each has a default.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class _Answer(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


class Figures(_Answer):
    """The figures of a pass's quality before or after its training."""

    auc: float | None = None
    gauc: float | None = None
    logloss: float | None = None
    calibration: float | None = None


class Quality(_Answer):
    before: Figures | None = None
    after: Figures | None = None

    @property
    def moments(self) -> tuple[Figures, Figures]:
        """The figures before and after training; empty figures if there are none."""
        return self.before or Figures(), self.after or Figures()


class Learning(_Answer):
    epochs: int = 0
    batch_sizes: tuple[int, ...] = ()
    held_out: int = 0
    losses: tuple[float | None, ...] = ()
    shift: float | None = None


class TablePart(_Answer):
    """The part of the sparse table at one pserver after the save of a pass. None: unknown."""

    rows: int
    new: int | None = None
    expired: int | None = None
    bytes: int | None = None


class Pass(_Answer):
    id: str = Field(alias="pass")
    ordinal: int
    state: str
    reason: str = ""
    records: int = 0
    refused: int = 0
    auc_before: float | None = None
    auc: float | None = None
    quality: Quality = Quality()
    learning: Learning = Learning()
    table: tuple[TablePart, ...] | None = None
    seconds: dict[str, float] = {}
    done_at: float | None = None
    version: int | None = None


class Decile(_Answer):
    predicted_ctr: float
    observed_ctr: float


class Curve(_Answer):
    deciles: tuple[Decile, ...] = ()
    roc: tuple[float, ...] = ()


class Curves(_Answer):
    """The curves of one pass."""

    id: str = Field(alias="pass")
    before: Curve | None = None
    after: Curve | None = None


class Version(_Answer):
    id: int
    kind: str
    parent: int | None = None
    ordinal: int = Field(alias="pass")
    state: str
    keys: int = 0
    at: float | None = None
    reason: str = ""


class Recovery(_Answer):
    role: str
    reason: str
    at: float
    seconds: float | None = None
    rolled_back: int = Field(default=0, alias="rolled_back")


class Current(_Answer):
    id: str = Field(alias="pass")
    state: str
    reason: str = ""


class Pserver(_Answer):
    index: int
    memory_bytes: int | None = None


class Window(_Answer):
    """The quality of a stream's newest passes together."""

    passes: int
    clicks: float
    auc: float
    calibration: float


class Training(_Answer):
    """The master's status."""

    passes: tuple[Pass, ...]
    earlier_passes: int = 0
    curves: tuple[Curves, ...] = ()
    versions: tuple[Version, ...] = ()
    ledger: dict[str, int]
    recoveries: tuple[Recovery, ...] = ()
    pservers: tuple[Pserver, ...] = ()
    current: Current | None = None
    window: Window | None = None
    offset: float | None = None
    finished: bool = False
    generation: int = 0
    waits_for: str = ""
    error: str = ""

    @property
    def done(self) -> tuple[Pass, ...]:
        return tuple(each for each in self.passes if each.state == "done")


class Times(_Answer):
    seconds_to_live: float | None = None


class Release(_Answer):
    """The status of cube-transfer."""

    live: int | None = None
    previous: int | None = None
    promotion_paused: bool = False
    refused: dict[int, str] = {}
    versions: dict[int, Times] = {}
    problems: tuple[str, ...] = ()


class Freshness(_Answer):
    """Seconds from a click's arrival to the first answer that has learned from it, as counted by a serving pod."""

    p50: float
    p90: float
    p99: float
    max: float
    records: int


class Report(_Answer):
    """`source` names the run or release. `release` is None if cube-transfer did not answer, `freshness` if no serving pod has any."""

    source: str
    training: Training
    release: Release | None = None
    freshness: Freshness | None = None

    @classmethod
    def of(cls, source: str, answers: dict[str, Any]) -> "Report":
        """Return the report of the answers by role. Raises pydantic.ValidationError if one does not have the role's form."""
        return cls(
            source=source,
            training=answers["master"],
            release=answers.get("transfer"),
            freshness=answers.get("serving", {}).get("clickFreshness"),
        )
