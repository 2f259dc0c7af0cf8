"""Manifests: the content of a published folder, with checksums. A manifest is written last; writing it publishes the folder."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from elastic_ctr.formats.value_kind import ValueKind
from elastic_ctr.store.versions import layout

Kind = Literal["base", "delta"]
# Other programs may write these documents; the bounds keep arithmetic with their numbers from overflowing.
VersionId = Annotated[int, Field(gt=0, lt=10**layout.VERSION_DIGITS)]
Whole = Annotated[int, Field(ge=0, lt=2**63)]
UnixSeconds = Annotated[float, Field(ge=0, lt=1e11)]
Partition = Annotated[int, Field(ge=0, lt=1 << 16)]
PartitionCount = Annotated[int, Field(gt=0, le=1 << 16)]
Dim = Annotated[int, Field(gt=0, le=1 << 16)]


class Record(BaseModel):
    """A published, immutable JSON document with camelCase keys. Unknown keys are refused."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, allow_inf_nan=False
    )

    def to_json(self) -> bytes:
        return self.model_dump_json(by_alias=True, indent=1).encode() + b"\n"


class ManifestDamaged(ValueError):
    """A manifest is damaged. The message has its path and the reason."""


class FileEntry(Record):
    """One published file; `path` is relative to the store."""

    path: str
    bytes: Whole
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    records: Whole = 0


Rate = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0)]


class Decile(Record):
    """One tenth of the impressions by rising score."""

    predicted_ctr: Rate
    observed_ctr: Rate


class Quality(Record):
    """Quality of predictions against the clicks of the same impressions. training/model/evaluation.py has the formulas.

    A figure that is undefined, such as an AUC without a click, is None.
    """

    shows: Amount
    clicks: Amount
    auc: Rate | None
    logloss: Amount = Field(description="Mean negative log likelihood of an impression, in nats.")
    predicted_ctr: Rate
    observed_ctr: Rate
    calibration: Amount | None = Field(description="Predicted CTR / observed CTR: above 1, clicks were overestimated.")
    bucket_error: Amount | None = Field(
        description="Mean relative error of the CTR in groups of scores that are large enough to tell."
    )
    mae: Rate
    rmse: Rate
    gauc: Rate | None = Field(
        default=None,
        description="Mean of the AUCs of the groups by `data.group`, weighted by impressions, of a sample of the groups.",
    )
    groups: Whole | None = Field(
        default=None, description="Groups of the sample that have an AUC: a click, and a show without."
    )
    deciles: tuple[Decile, ...] = ()
    roc: tuple[Rate, ...] = Field(
        default=(),
        description="Share of clicks above the score that 0 %, 1 % … 100 % of the shows without click are above.",
    )


class PassQuality(Record):
    """The quality of predictions of a pass before and after it was trained; None if it had no impressions."""

    before: Quality | None = None
    after: Quality | None = None


class PassLearning(Record):
    """How much a pass was trained. Held-out records are in no epoch."""

    epochs: Whole = Field(default=0, description="Walks through the pass that were begun.")
    batch_sizes: tuple[Whole, ...] = Field(default=(), description="Of each round.")
    held_out: Whole = Field(default=0, description="Records that are never trained.")
    losses: tuple[Amount | None, ...] = Field(
        default=(),
        description="Logloss before training, then of the held-out records after each round; null where none is held out.",
    )
    shift: float | None = Field(
        default=None, description="What was added to all logits after training, to calibrate them; null before that."
    )


class Arrival(NamedTuple):
    """The interval, in Unix seconds, in which `records` of the pass `ordinal` of a stream arrived."""

    ordinal: Whole
    first: UnixSeconds
    last: UnixSeconds
    records: Whole


class VersionManifest(Record):
    """The commit of a model version, written by the master at `output/versions/<version>.json`.

    `base` is the base that this version depends on (itself for a base), `parent` the version that a delta changes. Both AUCs are over
    the sample lines: `auc_live` with the values pulled from the parameter servers, `auc_published` with those in the files as a
    dictionary returns them. `event_time_max` is the end of the newest trained split, in Unix seconds.
    """

    version: VersionId
    kind: Kind
    base: VersionId
    parent: VersionId | None
    pass_id: str
    event_time_max: Whole
    created_at: float
    partitions: PartitionCount
    dim: Dim
    keys: Whole = Field(description="Keys in this version's own files.")
    slots: tuple[str, ...]
    averaged: tuple[str, ...] = Field(default=(), description="Slots whose keys' vectors are averaged, not summed.")
    numbers: tuple[str, ...] = Field(
        default=(), description="Numbers that the network takes beside the slots, in order."
    )
    features: str | None = Field(
        default=None, description="Digest of features.json among the model's files; none where requests hold feasigns."
    )
    sparse_dim: int | None
    network: str
    cube_files: tuple[FileEntry, ...]
    model_files: tuple[FileEntry, ...]
    samples: Whole
    auc_live: float | None
    auc_published: float | None
    left_out: Whole = Field(default=0, description="Sample keys whose row or embedx the save left out.")
    values: ValueKind = Field(
        default="float32", description="How dictionaries store this version's values; the files have float32."
    )
    quantised_diff: float = Field(
        default=0,
        description="The largest change of a sample's score by that: values of the files against stored ones.",
    )
    quality: PassQuality | None = Field(default=None, description="Of the pass that the version was published after.")
    learning: PassLearning | None = Field(default=None, description="Of the same pass.")
    offsets: dict[str, tuple[Whole, Whole]] = Field(
        default={},
        description="Of a stream: the first offset of the same pass and the one after its last, by partition. What the passes "
        "before it had is known, too.",
    )

    arrivals: tuple[Arrival, ...] = Field(
        default=(), description="Of a stream: when the records of this pass and of the passes before it came."
    )
    counts: FileEntry | None = Field(default=None, description="Of a delta by key: the shows and clicks of its keys.")
    compacts: VersionId | None = Field(
        default=None,
        exclude_if=lambda version: version is None,
        description="Of a base that is merged from published files: the version whose keys and network it has. It never goes live.",
    )

    @property
    def in_one_file(self) -> bool:
        """True if one file has the keys of several partitions, as in a stream's delta."""
        return self.partitions > 1 and [each.path for each in self.cube_files] == [
            layout.cube_file(self.version, self.kind, 0, 1)
        ]


class OverlayBelow(Record):
    """The one-file overlay of an older version, looked up after the version's own overlay."""

    version: VersionId
    file: FileEntry

    @model_validator(mode="after")
    def _is_its_own(self) -> "OverlayBelow":
        if self.file.path != layout.dictionary_overlay(self.version):
            raise ValueError(f"{self.file.path} is not the overlay of version {self.version}")
        return self


class DictionaryManifest(Record):
    """The files that a cube pod loads for a version, written by cube-transfer at `output/ctr_dict/<version>/manifest.json`.

    A version has full parts and at most two overlays. `full_version` is the version whose folder has the full parts: the version
    itself if `kind` is full, else an older one.
    """

    version: VersionId
    kind: Literal["full", "overlay"]
    full_version: VersionId
    base: VersionId
    parent: VersionId | None
    partitions: PartitionCount
    dim: Dim
    keys: Whole = Field(description="Keys in this folder's own parts.")
    files: tuple[FileEntry, ...]
    values: ValueKind = Field(
        default="float32", description="How its parts store values, the full parts below them too."
    )

    folded: bool = Field(
        default=False,
        description="Its full parts are those that the overlay of `full_version` was merged into later: fold.json names them.",
    )

    below: OverlayBelow | None = Field(
        default=None,
        exclude_if=lambda below: below is None,
        description="The overlay that its own lies over, which then has the keys of the last versions of a stream alone.",
    )

    fold_ahead: VersionId | None = Field(
        default=None,
        exclude_if=lambda version: version is None,
        description="The version with a fold.json that later versions will lie over: cube pods fetch its full parts beforehand.",
    )

    @property
    def in_one_file(self) -> bool:
        """True if the overlay is one file over the full parts of all partitions."""
        return [each.path for each in self.files] == [layout.dictionary_overlay(self.version)]

    @property
    def others(self) -> frozenset[int]:
        """Return the other versions whose files this one needs."""
        return frozenset({self.full_version, *([] if self.below is None else [self.below.version])}) - {self.version}

    def overlays(self, partition: int) -> tuple[FileEntry, ...]:
        """Return the overlays over the full part of a partition, the lowest first. Raises ManifestDamaged if a file is missing in it."""
        if self.kind == "full":
            return ()
        own = self.part(partition)
        return (own,) if self.below is None else (self.below.file, own)

    def part(self, partition: int) -> FileEntry:
        """Return this version's own file with the keys of a partition. Raises ManifestDamaged if the manifest lacks it."""
        if self.in_one_file:
            return self.files[0]
        path = layout.dictionary_part(self.version, partition)
        for entry in self.files:
            if entry.path == path:
                return entry
        raise ManifestDamaged(f"the dictionary manifest of version {self.version} names no file {path}")


class TrainedModel(Record):
    """The model of a checkpoint: the settings that a model that starts from it must share, and the inputs that it may take over."""

    embedding_dim: Dim
    sparse_dim: int | None
    embed_rule: str
    embedx_rule: str
    network: str = Field(description="Digest of the dense network's settings and inputs; empty: unknown.")
    slots: tuple[str, ...]
    numbers: tuple[str, ...] = ()


class Origin(Record):
    """The source of a checkpoint that was copied for `model.startFrom`."""

    store: str
    version: VersionId
    checkpoint: str
    dense: bool = Field(
        description="The dense values are in it as Paddle saved them. If not, `network/` has the version's exported network."
    )


class StreamPosition(Record):
    """The position of a checkpoint in a stream: `following` has the next offset of each partition, `files` the identities of the files
    of a followed folder.
    """

    url: str
    following: dict[str, Whole]
    files: dict[str, str] = {}


class CheckpointManifest(Record):
    """A checkpoint of Paddle's tables, with the state of the ledger at that time."""

    name: str
    pass_id: str
    pass_ordinal: Whole
    follows_version: VersionId | None = Field(
        description="The published version that the next delta will be a change of."
    )
    base_version: VersionId | None
    created_at: float
    partitions: PartitionCount
    rows: dict[Partition, Whole] = Field(description="Rows by partition: compared after every load.")
    files: tuple[FileEntry, ...]
    mid: bool = Field(default=False, description="It was made in the middle of its pass.")
    offset: float = Field(default=0.0, description="Added to every logit for the model's life.")
    shift: float = Field(default=0.0, description="Added to the logits of this pass's version, to calibrate it.")
    model: TrainedModel | None = Field(default=None, description="None: written before manifests named it.")
    origin: Origin | None = None
    stands_on: str = Field(
        default="",
        description="Of a checkpoint by log: the saved one whose tables it loads, with the deltas of `log` on them and the network of "
        "`follows_version`. All their files are among `files`. Its own name: its tables were merged from such a checkpoint, and "
        "the dense values are those of the same network.",
    )
    log: tuple[VersionId, ...] = Field(default=(), description="Versions in their order.")
    # Absent if the data is hours: older releases refuse unknown keys.
    stream: StreamPosition | None = Field(default=None, exclude_if=lambda position: position is None)


def digest_of(path: Path) -> tuple[int, str]:
    """Return the bytes and the sha256 of a file."""
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as stream:
        while block := stream.read(4 << 20):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def next_version(now: float, known: Iterable[int]) -> int:
    """Return the Unix seconds `now`, or one more than the greatest known id if that is more: an id is never used twice."""
    return max(int(now), max(known, default=0) + 1)


def freshness_seconds(event_time_max: float, now: float) -> float:
    """Return the seconds since the newest event that a version has learned; 0 if this machine's clock is behind the event's."""
    return max(0.0, now - event_time_max)
