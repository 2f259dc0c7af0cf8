"""The status of the master."""

from pydantic import Field

from elastic_ctr.runtime.status.status_document import PublishingHold, StatusDocument


class PserverStatus(StatusDocument):
    index: int = Field(description="Its number, from 0.")
    serving: bool = Field(False, description="It serves its part of the sparse table.")
    error: str = Field("", description="Its current error; empty without one.")
    memory_bytes: int | None = Field(None, description="Resident memory of its process; null if it is unknown.")


class TrainerStatus(StatusDocument):
    id: int = Field(description="Its number, which no other trainer of the training gets.")
    name: str = Field("", description="The name of its pod.")


class StartedFromStatus(StatusDocument):
    """The checkpoint of another model that this training began with."""

    store: str = Field("", description="The store of the other model.")
    version: int | None = Field(None, description="Its version.")
    checkpoint: str = Field("", description="The name of its checkpoint.")
    network: str = Field("", description="The parts of its network that were taken over; empty before they are loaded.")
    ignored: str = Field("", description="Why `model.startFrom` has no effect; empty if it has.")


class ArchiveStatus(StatusDocument):
    """The copies of bases in the bucket of `store.config.archive`."""

    url: str = Field(description="Its address.")
    version: int | None = Field(
        None, description="The newest base that it has with its checkpoint; null: none is known."
    )
    checkpoint: str = Field(
        "", description="The checkpoint that was copied last, or found there; its name begins with its last pass."
    )
    failures: int = Field(0, description="Failed attempts to copy a base since the master started.")
    error: str = Field("", description="Why the newest base is not archived yet; empty if it is, or is being copied.")


class StreamWindow(StatusDocument):
    """The quality of a stream's newest passes together, of which each record was predicted before it was learned."""

    passes: int = Field(description="The number of passes.")
    shows: float = Field(0.0, description="Their impressions.")
    clicks: float = Field(description="Their clicks.")
    auc: float = Field(description="Mean AUC, weighted by clicks.")
    calibration: float = Field(description="Mean of predicted CTR / observed CTR, weighted by clicks.")


class CurrentPass(StatusDocument):
    id: str = Field(alias="pass", description="Its name.")
    state: str = Field(description="waiting, analyzing, checking, checked, training, evaluating, saving or stopped.")
    epoch: int = Field(1, description="Its epoch, from 1; 0 before it is trained.")
    reason: str = Field("", description="Why it is stopped.")


class QualityFigures(StatusDocument):
    """The quality of predictions against the clicks of the same impressions; null: undefined."""

    shows: float = Field(0.0, description="Impressions.")
    clicks: float = Field(0.0, description="Clicks.")
    auc: float | None = Field(None, description="Area under the ROC curve.")
    logloss: float | None = Field(None, description="Mean negative log likelihood of an impression, in nats.")
    predicted_ctr: float | None = Field(None, description="Mean predicted probability.")
    observed_ctr: float | None = Field(None, description="Clicks / impressions.")
    calibration: float | None = Field(None, description="Predicted CTR / observed CTR.")
    bucket_error: float | None = Field(None, description="Mean relative error of the CTR in groups of scores.")
    mae: float | None = Field(None, description="Mean absolute error.")
    rmse: float | None = Field(None, description="Root of the mean squared error.")
    gauc: float | None = Field(None, description="Mean AUC of the groups by `data.group`, weighted by impressions.")
    groups: int | None = Field(None, description="Groups of the sample that have an AUC.")


class QualityOfPass(StatusDocument):
    """The quality of a pass; null: it has no impressions, or is not predicted yet."""

    before: QualityFigures | None = Field(None, description="Before it was trained.")
    after: QualityFigures | None = Field(None, description="After it was trained.")

    @property
    def moments(self) -> tuple[QualityFigures, QualityFigures]:
        """The figures before and after training; empty figures if there are none."""
        return self.before or QualityFigures(), self.after or QualityFigures()


class LearningOfPass(StatusDocument):
    epochs: int = Field(0, description="Epochs that were begun.")
    batch_sizes: tuple[int, ...] = Field((), description="The batch size of each epoch.")
    held_out: int = Field(0, description="Records that are never trained.")
    losses: tuple[float | None, ...] = Field((), description="Logloss before training and after each epoch.")
    shift: float | None = Field(None, description="The shift of all logits after training, to calibrate them.")


class TablePartStatus(StatusDocument):
    """The part of the sparse table at one pserver after the save of a pass; null: unknown."""

    rows: int = Field(description="Rows after the save.")
    new: int | None = Field(None, description="Rows that were created since the save before.")
    expired: int | None = Field(None, description="Rows that this save's shrink deleted.")
    bytes: int | None = Field(None, description="Bytes of its partitions in the checkpoint.")


class ColumnDrift(StatusDocument):
    """How far the values of a column moved from the pinned statistics; null: undefined."""

    column: str = Field(description="Its name.")
    kind: str = Field("", description="text or number.")
    psi: float | None = Field(description="Population stability index: above 0.1 some drift, above 0.25 much.")
    pinned_missing: float = Field(description="Share of the pinned rows without a value.")
    missing: float = Field(description="Share of the pass's rows without a value.")
    pinned_unseen: float | None = Field(None, description="Share of pinned values outside the list of frequent ones.")
    unseen: float | None = Field(None, description="Share of the pass's values outside that list.")


class PassStatus(StatusDocument):
    """A pass. Records are counted once, whatever the number of epochs."""

    id: str = Field(alias="pass", description="Its name: the first split, or the number of a stream's window.")
    ordinal: int = Field(description="Its number, from 1.")
    state: str = Field(description="As in `current`, or done.")
    epoch: int = Field(1, description="The current or last epoch.")
    reason: str = Field("", description="Why it is stopped.")
    records: int = Field(0, description="Accepted records.")
    refused: int = Field(0, description="Refused lines.")
    ignored: int = Field(0, description="Ignored features.")
    padding: int = Field(0, description="Features that only fill up a slot.")
    repeated: int = Field(0, description="Records that were trained twice in an epoch after a trainer was lost.")
    tasks: int = Field(0, description="Tasks.")
    parked: int = Field(0, description="Tasks that failed again and again.")
    tasks_done: int = Field(0, description="Tasks done in this phase.")
    auc_before: float | None = Field(None, description="AUC before training.")
    auc: float | None = Field(None, description="AUC after training.")
    quality: QualityOfPass = Field(QualityOfPass(), description="More figures of quality.")
    learning: LearningOfPass = Field(LearningOfPass(), description="Epochs, batch sizes and shift.")
    table: tuple[TablePartStatus, ...] | None = Field(
        None, description="The sparse table, by pserver; null: not saved."
    )
    trained_at: float | None = Field(None, description="Unix seconds at which it was trained.")
    done_at: float | None = Field(None, description="Unix seconds at which it was done.")
    seconds: dict[str, float] = Field({}, description="Seconds by stage.")
    drift: tuple[ColumnDrift, ...] | None = Field(None, description="The columns that moved most.")
    version: int | None = Field(None, description="The version that has learned it.")
    kind: str | None = Field(None, description="base or delta.")
    keys: int = Field(0, description="Keys in the version's own files.")


class DecileStatus(StatusDocument):
    predicted_ctr: float = Field(description="Mean predicted probability.")
    observed_ctr: float = Field(description="Clicks / impressions.")


class CurveStatus(StatusDocument):
    deciles: tuple[DecileStatus, ...] = Field((), description="Calibration by deciles of the score.")
    roc: tuple[float, ...] = Field((), description="True positive rate at false positive rates of 0, 0.01 … 1.")


class CurvesOfPass(StatusDocument):
    id: str = Field(alias="pass", description="Its name.")
    before: CurveStatus | None = Field(None, description="Before training.")
    after: CurveStatus | None = Field(None, description="After training.")

    @property
    def moments(self) -> dict[str, CurveStatus]:
        """The curves that there are, by the name of their moment."""
        found = {"before training": self.before, "after training": self.after}
        return {name: each for name, each in found.items() if each is not None}


class DriftOfPass(StatusDocument):
    """The drift of all columns in the last pass that was compared with the pinned statistics."""

    id: str | None = Field(alias="pass", description="The pass; null if it is not shown.")
    rows: int = Field(description="Rows of the sample.")
    columns: tuple[ColumnDrift, ...] = Field(description="The columns.")


class VersionStatus(StatusDocument):
    id: int = Field(description="Its number, the Unix seconds at which it was begun.")
    kind: str = Field("", description="base or delta.")
    base: int | None = Field(None, description="The base that it depends on; its own number for a base.")
    parent: int | None = Field(None, description="The version that a delta changes.")
    ordinal: int = Field(0, alias="pass", description="The ordinal of its pass.")
    state: str = Field(description="published, refused or abandoned.")
    keys: int = Field(0, description="Keys in its own files.")
    at: float | None = Field(None, description="Unix seconds at which it was saved.")
    reason: str = Field("", description="Why the master refused it.")


class LineCounts(StatusDocument):
    """Lines of all files, each counted once."""

    files: int = Field(0, description="Files read.")
    trained: int = Field(0, description="Trained records.")
    refused: int = Field(0, description="Refused lines.")
    parked: int = Field(0, description="Records of parked tasks.")
    repeated: int = Field(0, description="Records that were trained twice in an epoch after a trainer was lost.")
    held_out: int = Field(0, description="Records that are never trained.")
    records: int = Field(0, description="All lines.")
    rolled_back: int = Field(0, description="Records that were trained in vain before a recovery.")


class DamagedCheckpoint(StatusDocument):
    name: str = Field(description="Its name.")
    reason: str = Field(description="Its damage.")


class RecoveryStatus(StatusDocument):
    role: str = Field(description="trainer, pserver, master, store or training.")
    reason: str = Field(description="The event.")
    at: float = Field(description="Unix seconds at which it was noticed.")
    seconds: float | None = Field(description="Seconds until training went on; null: under way.")
    rolled_back: int = Field(0, alias="rolled_back", description="Trained records that were lost.")


class StreamPartition(StatusDocument):
    """A partition of a stream, in offsets."""

    first: int = Field(0, description="The first that is kept.")
    end: int = Field(0, description="The end.")
    following: int = Field(0, description="The first that no pass has.")
    away: bool = Field(False, description="No broker leads it, so it cannot be read.")


class TopicStatus(StatusDocument):
    url: str = Field(description="Its address.")
    lag: int | None = Field(description="Messages that are not in the intake yet; null: unknown.")
    error: str | None = Field(description="Why it, or a part of it, cannot be read.")


class StreamStatus(StatusDocument):
    url: str = Field(description="Its address.")
    unit: str = Field(description="The unit of an offset: records or bytes.")
    lag: int = Field(description="Offsets that no pass has yet.")
    partitions: dict[str, StreamPartition] = Field({}, description="By name.")
    topic_before: TopicStatus | None = Field(None, description="The topic that fills the intake's log.")
    notices: tuple[str, ...] = Field((), description="Sentences on files that are not read.")


class TableStatus(StatusDocument):
    commit: str = Field(description="The last commit that a pass has, or that was left out.")
    left_out: int = Field(0, description="Commits that were left out because they delete or change rows.")
    notices: tuple[str, ...] = Field((), description="Sentences on the last of these.")


class TrainingStatus(StatusDocument):
    """Answered by the master. The page of a run that has ended has only the fields that are in its ledger."""

    ready: bool = Field(False, description="The pservers are initialised.")
    pservers: tuple[PserverStatus, ...] = Field((), description="Pservers that have registered.")
    handover: str | None = Field(None, description="The training that is being replaced.")
    started_from: StartedFromStatus | None = Field(None, description="The model that this one began with.")
    trainers: tuple[TrainerStatus, ...] = Field((), description="Trainers that work.")
    generation: int = Field(0, description="Sets of pserver processes so far.")
    finished: bool = Field(False, description="Everything up to `data.end` is trained and saved.")
    base_due: str = Field("", description="Why the next version must be a base; empty if it need not.")
    offset: float | None = Field(None, description="The model's offset, which is added to every logit.")
    window: StreamWindow | None = Field(None, description="The quality of a stream's newest passes.")
    hold: PublishingHold | None = Field(None, description="The present pause of publishing.")
    stream_gone: int = Field(0, description="Offsets that the stream had dropped before they were read.")
    current: CurrentPass | None = Field(None, description="The pass under way.")
    passes: tuple[PassStatus, ...] = Field(description="The last thousand, the oldest first.")
    earlier_passes: int = Field(0, description="Passes before these, all of them done.")
    curves: tuple[CurvesOfPass, ...] = Field((), description="Calibration and ROC of the last passes.")
    drift: DriftOfPass | None = Field(None, description="The last comparison with the pinned statistics.")
    versions: tuple[VersionStatus, ...] = Field((), description="The oldest first.")
    ledger: LineCounts = Field(description="Lines by outcome.")
    damaged_checkpoints: tuple[DamagedCheckpoint, ...] = Field((), description="Set aside, the oldest first.")
    recoveries: tuple[RecoveryStatus, ...] = Field((), description="The oldest first.")
    waits_for: str = Field("", description="The file or copy that training waits for.")
    late_files: int = Field(
        0,
        description="Files that came or changed after their pass was listed, seen since the master started; they are not trained.",
    )
    stream: StreamStatus | None = Field(None, description="Absent unless training reads a stream.")
    table: TableStatus | None = Field(None, description="Absent unless training reads a table.")
    archive: ArchiveStatus | None = Field(None, description="Absent without `store.config.archive`.")
    error: str = Field("", description="An error that is retried.")

    @property
    def done(self) -> list[PassStatus]:
        return [each for each in self.passes if each.state == "done"]
