"""The content of the ledger: single values, and the rows of its tables.

States of a pass: waiting -> checking -> checked -> training -> evaluating -> saving -> done, or stopped with a reason; analyzing
before checking where features need statistics that are not pinned yet. A task's state is that of the present epoch of its pass:
todo, leased, done, or parked.
"""

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Json

from elastic_ctr.features.statistics.drift import Drift
from elastic_ctr.store.versions.holds import Hold
from elastic_ctr.training.model.evaluation import histogram_of

Histogram = npt.NDArray[np.float64]
Columns = Mapping[str, Any]


class _Checked(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SaverLease(_Checked):
    """The lease of the trainer that saves, for a master that is started in this one's place."""

    trainer: int
    attempt: str
    began: float
    heard: float


class HandoverState(_Checked):
    """A mid-pass handover. `mid`: the columns of the pass when its save was ordered."""

    before: str
    pservers: int
    ordinal: int
    ends: float
    mid: dict[str, Any] | None = None


class StartedFrom(_Checked):
    """The checkpoint of another model that this ledger began with.

    Attributes:
        store, version, checkpoint: what it was there.
        name: of its copy in this model's store.
        dense: the dense values were loaded as they were; else the network was taken over as far as it fits.
        copied: the copy is complete.
        shift: of the version's logits.
        taken_over: what became of the network, as the trainer says it.
        statistics: digest of the other model's statistics; its series stay as they are. Empty: it had none.
        given: digest of the statistics that the values file gave at the start.
    """

    store: str
    version: int
    checkpoint: str
    name: str
    dense: bool
    copied: bool = False
    shift: float = 0.0
    taken_over: str = ""
    statistics: str = ""
    given: str = ""


class Came(NamedTuple):
    """Offsets of a pass of a stream came between two unix seconds."""

    ordinal: int
    first: float
    last: float
    offsets: int


class WindowQuality(NamedTuple):
    """Of the figures of a Quality those that windows are compared by."""

    shows: float
    clicks: float
    auc: float
    calibration: float


class CompactionRow(_Checked):
    """A compaction under way.

    Attributes:
        log_of: the checkpoint by log that it began with, made with the version `follows` after pass `ordinal`.
        name, version: of the checkpoint and the base that it makes.
        committed_at: unix seconds; both are in the store then, and the base is adopted with the next save.
    """

    log_of: str
    name: str
    version: int
    follows: int
    ordinal: int
    generation: int
    began: float
    committed_at: float | None = None


class StreamPlaces(_Checked):
    """Where the next pass of a stream begins.

    Attributes:
        following: by partition, the offset after the last one that a pass has.
        gone: offsets that the stream no longer kept when their pass was begun.
        arrivals: of the last passes.
        day: the newest day of the passes, YYYYMMDD.
        files: by partition of a followed folder, what its file is known by.
    """

    following: dict[str, int]
    files: dict[str, str] = {}
    gone: int = 0
    arrivals: tuple[Came, ...] = ()
    day: str = ""


class HoldRow(_Checked):
    """Publishing is held since pass `since`. `announced`: the store has it."""

    hold: Hold
    since: int
    announced: bool = False


class Facts(_Checked):
    """The single values of the ledger, as a new ledger has them.

    Attributes:
        used: the last generation that a trainer was told to initialise, so its servers may hold rows.
        initialised: the last generation that is ready to be trained.
        initialised_by: the last generation with values in its servers, and the trainer that put them there.
        follows, base: the version that the next delta changes, and its base.
        base_due: why the next version is a base.
        pservers: the process of each pserver's supervisor, by index.
        taken_back: counts of passes that were read or trained again.
        statistics: the digest of the pinned statistics of the columns; empty before.
        statistics_of: the pass that they were made of; 0 if they were given.
        offset: added to every logit for the model's life: the log-odds of a click in the first pass; None before.
        table_rows: rows at each pserver after the last save or load; empty where they were not counted.
        started_from: where the model began; None where it began with nothing.
        stream: None where hours are trained, and before the first look at a stream.
        hold: publishing is held; None: it is not.
        last_hold: the number of the last hold.
        compared_from: the first pass whose figures count in comparisons of quality: the first one after the last hold.
        windows_before: figures of the windows of the model that this one began with, the newest first.
        clock_moved: seconds by which the machine's clock was set while a master ran. Every time in the ledger is that much behind it.
        compaction: of a stream's log; None: none is under way.
        table_saved_at: unix seconds of the last save of the whole table; 0: none that is known.
        dropped, dropped_passes: counts of the passes that the ledger has dropped, and how many they are.
    """

    id: str = ""
    made_with: dict[str, Any] | None = None
    training: str = ""
    generation: int = 1
    used: int = 0
    initialised: int = 0
    initialised_by: tuple[int, int] = (0, 0)
    load_failures: int = 0
    save_failures: int = 0
    save_lost_leases: int = 0
    follows: int | None = None
    base: int | None = None
    base_due: str = ""
    last_version: int = 0
    finished: bool = False
    resumed_at: float = 0
    pservers: dict[str, str] = {}
    handover: HandoverState | None = None
    saver: SaverLease | None = None
    attempts: int = 0
    looks: int = 0
    last_trainer: int = 0
    rolled_back: int = 0
    taken_back: dict[str, int] = {}
    statistics: str = ""
    statistics_of: int = 0
    offset: float | None = None
    table_rows: tuple[int, ...] = ()
    started_from: StartedFrom | None = None
    stream: StreamPlaces | None = None
    compaction: CompactionRow | None = None
    table_saved_at: float = 0.0
    hold: HoldRow | None = None
    last_hold: int = 0
    compared_from: int = 0
    windows_before: tuple[WindowQuality, ...] = ()
    clock_moved: float = 0
    dropped: dict[str, int] = {}
    dropped_passes: int = 0


class DriftRow(_Checked):
    """How far the columns of a pass have moved from the pinned statistics, by a sample of so many of its rows."""

    rows: int
    columns: tuple[Drift, ...]

    def worst(self, count: int) -> list[Drift]:
        """Those that moved most, in order; one that has lost its values before all others."""

        def moved(each: Drift) -> float:
            if each.psi is None:
                return math.inf if each.missing > each.pinned_missing else 0.0
            return each.psi

        return sorted(self.columns, key=moved, reverse=True)[:count]


@dataclass(frozen=True)
class Pass:
    """Splits that are trained together. `id` is its last split: the newest data that the model knows after it.

    A micro-pass has ranges of offsets instead of splits, and a number as its id.
    """

    ordinal: int
    id: str
    splits: Json[tuple[str, ...]]
    event_time_max: int
    ends_day: bool


@dataclass(frozen=True)
class PassRow(Pass):
    """One pass as the ledger has it. `seconds` is the time of each stage."""

    state: str = "waiting"
    epoch: int = 0
    reason: str = ""
    auc_before: float | None = None
    auc: float | None = None
    training_at: float | None = None
    trained_at: float | None = None
    done_at: float | None = None
    version: int | None = None
    seconds: Json[dict[str, float]] | None = None


@dataclass(frozen=True)
class TaskRow:
    """One task as the ledger has it, without its histograms. failures, lost_leases: in a row, in the present epoch of its pass.

    leased_at: when its trainer began it; None while that trainer works on another task and has leased this one ahead.
    """

    id: str
    ordinal: int
    path: str
    start: int
    stop: int
    state: str
    failures: int
    lost_leases: int
    attempt: str
    trainer: int | None
    lease_ends: float
    leased_at: float | None
    running: bool
    records: int
    trained: int


@dataclass(frozen=True)
class SaveRow:
    """The save after a pass. stage: ordered -> begun -> saved -> written -> exported -> scored -> done.

    saved: the saver's control.SaveResult; written: a control.PserverState with the results of all pservers.
    """

    ordinal: int
    generation: int
    steps: Json[tuple[str, ...]]
    kind: str | None
    version: int | None
    checkpoint: str | None
    began_at: float
    stage: str = "ordered"
    saved: bytes | None = None
    written: bytes | None = None

    @property
    def by_key(self) -> bool:
        """Its delta has the keys that were trained, as the servers had them; the save does not walk the table for it."""
        return "touched" in self.steps

    @property
    def keeps_table(self) -> bool:
        """No step of it changes the tables: it may be begun again."""
        return self.steps == ("touched",)


def packed(histogram: Histogram) -> bytes:
    """The content of a column: little-endian f64, deflated; most buckets are empty."""
    return zlib.compress(np.ascontiguousarray(histogram, "<f8").tobytes(), 1)


def unpacked(blob: bytes) -> Histogram:
    return histogram_of(np.frombuffer(zlib.decompress(blob), "<f8"))
