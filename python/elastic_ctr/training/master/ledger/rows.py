"""The content of the ledger: single values, and the rows of its tables.

States of a pass: waiting -> checking -> checked -> training -> evaluating -> saving -> done, or stopped with a reason. Analyzing
precedes checking if features need statistics that are not pinned yet. A task is todo, leased, done, or parked in the current epoch
of its pass.
"""

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Json, TypeAdapter

from elastic_ctr.features.statistics.drift import Drift
from elastic_ctr.store.versions.safeguards import Hold
from elastic_ctr.training.model.evaluation import histogram_of

Histogram = npt.NDArray[np.float64]
Columns = Mapping[str, Any]
Sample = tuple[str, int, int]
"""A line without show and click, its show, its click."""
HISTOGRAMS = ("positives", "negatives")
"""The columns of a task with its predictions of clicked and of other records."""


class _Checked(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SaverLease(_Checked):
    """The lease of the trainer that saves, from which a restarted master continues."""

    trainer: int
    attempt: str
    began: float
    heard: float


class HandoverState(_Checked):
    """A mid-pass handover. `mid`: the columns of the pass when its mid-pass save was ordered."""

    before: str
    pservers: int
    ordinal: int
    ends: float
    mid: dict[str, Any] | None = None


class StartedFrom(_Checked):
    """The checkpoint of another model that this ledger began with.

    Attributes:
        store, version, checkpoint: the original.
        name: the name of its copy in this model's store.
        dense: True if the dense values are loaded unchanged; else the network is taken over as far as it fits.
        copied: True if the copy is complete.
        shift: the shift of the version's logits.
        taken_over: the trainer's report of the parts of the network that it took over.
        statistics: digest of the other model's statistics, whose series stay unchanged; empty if it had none.
        given: digest of the statistics in the values file at the start.
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
    """The interval, in Unix seconds, in which `offsets` of a pass of a stream arrived."""

    ordinal: int
    first: float
    last: float
    offsets: int


class WindowQuality(NamedTuple):
    """The figures of a Quality by which windows are compared."""

    shows: float
    clicks: float
    auc: float
    calibration: float


class CompactionRow(_Checked):
    """A compaction under way.

    Attributes:
        log_of: the checkpoint by log that is compacted; it was made with the version `follows` after pass `ordinal`.
        name, version: the checkpoint and the base that the compaction makes.
        committed_at: Unix seconds at which both were in the store; the next save adopts the base.
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
    """The positions in a stream at which the next pass begins.

    Attributes:
        following: by partition, the first offset that no pass has.
        gone: the number of offsets that the stream deleted before a pass read them.
        arrivals: the arrivals of the last passes.
        day: the newest day of the passes, YYYYMMDD.
        files: by partition of a followed folder, the identity of its file.
    """

    following: dict[str, int]
    files: dict[str, str] = {}
    gone: int = 0
    arrivals: tuple[Came, ...] = ()
    day: str = ""


class TablePlace(_Checked):
    """The place in a table's log behind which the next pass begins.

    Attributes:
        commit: the last commit that a pass has, or that has no new rows.
        mark: shows later whether the table with this commit was made anew.
        start: data.start when the place was set.
        day: the newest day of the passes, YYYYMMDD.
        notices: sentences on the last commits that were left out, and the number of all of them.
    """

    commit: str
    mark: str
    start: str
    day: str = ""
    notices: tuple[str, ...] = ()
    left_out: int = 0


class HoldRow(_Checked):
    """A publishing hold since pass `since`. `announced`: its file is in the store."""

    hold: Hold
    since: int
    announced: bool = False


class Facts(_Checked):
    """The single values of the ledger. The defaults are those of a new ledger.

    Attributes:
        used: the last generation that a trainer was ordered to initialise, so its servers may have rows.
        initialised: the last generation that is ready to be trained.
        initialised_by: the last generation with values in its servers, and the trainer that pushed them.
        follows, base: the version that the next delta changes, and its base.
        base_due: the reason why the next version must be a base; empty if it need not.
        pservers: the incarnation of each pserver's supervisor, by index.
        taken_back: counts of passes that were read or trained again.
        statistics: the digest of the pinned column statistics; empty before.
        statistics_of: the pass of which they were computed; 0 if the values file has them.
        offset: added to every logit for the model's life: the log-odds of a click in the first pass; None before.
        table_rows: rows at each pserver after the last save or load; empty if not counted.
        started_from: the checkpoint of another model that this one began with, if any.
        stream: None for hours, and before the first poll of a stream.
        table: None unless training reads a table, and before its first look.
        hold: the present publishing hold, if any.
        last_hold: the number of the last hold.
        compared_from: the first pass whose figures are compared: the first one after the last hold.
        windows_before: figures of the windows of the model that this one began with, the newest first.
        clock_moved: the sum, in seconds, of the clock's jumps while a master ran. All times in the ledger are wall time minus this.
        compaction: the compaction of a stream's log that is under way, if any.
        table_saved_at: Unix seconds of the last save of the whole table; 0 if unknown.
        dropped, dropped_passes: the counts of the passes that the ledger has dropped, and their number.
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
    table: TablePlace | None = None
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
    """The drift of a pass's columns from the pinned statistics, over a sample of `rows` rows."""

    rows: int
    columns: tuple[Drift, ...]

    def worst(self, count: int) -> list[Drift]:
        """Return the `count` columns that moved most, in order. A column that has lost its values comes first."""

        def moved(each: Drift) -> float:
            if each.psi is None:
                return math.inf if each.missing > each.pinned_missing else 0.0
            return each.psi

        return sorted(self.columns, key=moved, reverse=True)[:count]


@dataclass(frozen=True)
class Pass:
    """Splits that are trained together. `id` is the last split, the newest data that the model then knows.

    A micro-pass has offset ranges in place of splits, a pass of a table its commits; both have a number in their id.
    """

    ordinal: int
    id: str
    splits: Json[tuple[str, ...]]
    event_time_max: int
    ends_day: bool


@dataclass(frozen=True)
class PassRow(Pass):
    """A row of the table of passes. `seconds` has the time of each stage."""

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
    """A row of the table of tasks, without histograms. `failures` and `lost_leases` are consecutive, in the current epoch of the pass.

    `leased_at` is when its trainer began it; None while that trainer works on another task and has leased this one ahead.
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
    """The save after a pass. Its `stage` is ordered -> begun -> saved -> written -> exported -> scored -> done.

    `saved` is the saver's control.SaveResult, `written` a control.PserverState with the results of all pservers.
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
        """True if the delta is made of the touched keys, pulled from the servers, without a walk through the table."""
        return "touched" in self.steps

    @property
    def keeps_table(self) -> bool:
        """True if no step changes the tables, so that the save may be begun again."""
        return self.steps == ("touched",)


def packed(histogram: Histogram) -> bytes:
    """Return the content of a column: little-endian float64, deflated, because most buckets are empty."""
    return zlib.compress(np.ascontiguousarray(histogram, "<f8").tobytes(), 1)


def unpacked(blob: bytes) -> Histogram:
    return histogram_of(np.frombuffer(zlib.decompress(blob), "<f8"))


class Learning(_Checked):
    """How much a pass was trained.

    Attributes:
        batch_sizes: records a step, by epoch.
        losses: logloss before training, then after each epoch. With `data.holdout` all are over the held-out records; without, those
            after an epoch are None.
        holdout: the share of held-out records; None before the first task.
        shift: added to all logits after training, so that the predicted clicks are those observed.
    """

    batch_sizes: tuple[int, ...] = ()
    losses: tuple[float | None, ...] = ()
    holdout: float | None = None
    shift: float = 0.0


class TablePart(_Checked):
    """One pserver's part of the sparse table after a save.

    Attributes:
        rows: rows in the table after the save.
        new: rows created since the previous save or the load of a checkpoint; None if there was no count then.
        expired: rows deleted by the shrink of this save; None if there was no count before it.
        bytes: bytes in the store of its partitions in this save's checkpoint; None if the save has none.
    """

    rows: int
    new: int | None
    expired: int | None
    bytes: int | None


Tables = tuple[TablePart, ...]
"""By pserver."""
TABLES: TypeAdapter[Tables] = TypeAdapter(Tables)
