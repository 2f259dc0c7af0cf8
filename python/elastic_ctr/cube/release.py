"""The release document: wanted versions, the live one, placement and holders; and the reports about them.

cube-transfer publishes it; agents and readers (serving) follow it and report back, over HTTP as camelCase JSON:

    GET  /release?after=<revision>&wait=<seconds>   the document; with `after`, once its revision is higher (long poll,
                                                    304 after the wait, 503 while a new cube-transfer collects reports)
    POST /agents                                    an AgentReport; answers 204
    POST /readers                                   a ReaderReport; answers 204
    POST /rollback  {"version": V} | {"resume": true}   a RollbackOrder; 409 with the reason if it is refused

The POSTs need a token of the right `internal`, a rollback one of `operate`.
"""

from typing import Annotated

from pydantic import Field

from elastic_ctr.store.versions.manifest import Partition, PartitionCount, Record, VersionId, Whole

_LARGEST = 2**63 - 1
Generation = Annotated[int, Field(ge=1, le=_LARGEST)]


def following(number: int, by: int = 1) -> int:
    """Return the next generation or revision, within the range that readers of a document accept."""
    return min(number + by, _LARGEST)


class Placement(Record):
    """The placement, which only agents read: every pod of shard `p % shards` must load partition p. Readers never compute a shard."""

    shards: PartitionCount
    replicas: PartitionCount = 1
    up: tuple[Partition, ...] = Field(
        default=(),
        description="Shards, in order, that have a pod up and not draining: they also owe what the rest owes.",
    )


class Holder(Record):
    """The partitions of one version that one cube-server answers."""

    partitions: tuple[Partition, ...]
    draining: bool = False
    shard: Partition | None = Field(
        default=None, description="For agents: who owes a partition need not ask who holds it."
    )


class ReleaseDocument(Record):
    """The state that all roles agree on. Agents and readers ignore a document of a lower generation.

    `generation` rises when transfer starts without its state, `revision` with every change, over generations too.
    `wanted` is live, previous and candidate. `holders`: version -> address of a cube-server -> what it answers.
    `refused`: version -> reason, final. `canary`: serving pods that have validated the candidate answer a share of the requests with it.
    """

    generation: Generation
    revision: Whole
    placement: Placement
    wanted: tuple[VersionId, ...] = ()
    candidate: VersionId | None = None
    # Left out if it is false: readers of an older release reject an unknown key.
    canary: bool = Field(default=False, exclude_if=lambda canary: not canary)
    live: VersionId | None = None
    previous: VersionId | None = None
    promotion_paused: bool = Field(default=False, description="After a rollback nothing is promoted until `--resume`.")
    refused: dict[VersionId, str] = Field(default_factory=dict)
    holders: dict[VersionId, dict[str, Holder]] = Field(default_factory=dict)

    def is_newer_than(self, other: "ReleaseDocument | None") -> bool:
        return other is None or (self.generation, self.revision) > (other.generation, other.revision)

    def addresses(self) -> dict[int, dict[str, tuple[int, ...]]]:
        """Version -> address -> partitions, for readers.

        It lists a wanted version even without holders, such as while a cube-transfer that lost its state collects
        reports, because readers drop the holders of a version that is not listed.
        """
        return {
            version: {address: each.partitions for address, each in self.holders.get(version, {}).items()}
            for version in sorted({*self.holders, *self.wanted})
        }

    def draining(self) -> set[str]:
        """Return the addresses of draining pods, which readers use only without another holder."""
        return {address for holders in self.holders.values() for address, each in holders.items() if each.draining}


class AgentReport(Record):
    """The report of one cube pod. `loaded` is what its server answers."""

    pod: str = Field(
        min_length=1, max_length=253, description="The shard is read from the name: `…-s<shard>-<replica>`."
    )
    address: str = Field(description="host:port of the pod's cube-server.")
    shard: Partition
    loaded: dict[VersionId, tuple[Partition, ...]] = Field(default_factory=dict)
    draining: bool = False
    document: ReleaseDocument | None = Field(
        default=None, description="The newest one known; a new transfer learns it."
    )
    refused: dict[VersionId, str] = Field(
        default_factory=dict, description="Versions whose parts in the store are not what their manifest says."
    )
    errors: tuple[str, ...] = ()


class ReaderReport(Record):
    """The report of one serving pod: versions it validated, refused, or answers with (`pinned`)."""

    pod: str = Field(min_length=1, max_length=253)
    validated: tuple[VersionId, ...] = ()
    refused: dict[VersionId, str] = Field(default_factory=dict)
    pinned: tuple[VersionId, ...] = ()
    max_abs_diff: dict[VersionId, float] = Field(
        default_factory=dict, description="Served minus recorded, over the samples."
    )
    document: ReleaseDocument | None = None


class RollbackOrder(Record):
    """An order to make an earlier live version live again and pause promotion, or to resume promotion."""

    version: VersionId | None = None
    resume: bool = False


class BuildOrder(Record):
    version: VersionId
    mend: bool = Field(default=False, description="Build damaged parts of a version again that is built already.")


class BuildProgress(Record):
    """Stages: idle, planning, building, merging, mending, publishing, done, failed. `final`: a retry cannot help."""

    version: VersionId | None = None
    mend: bool = False
    stage: str = "idle"
    partitions_done: int = 0
    partitions: int = 0
    seconds: float = 0.0
    seconds_by_stage: dict[str, float] = Field(
        default_factory=dict, description="Reading, building, publishing: summed over partitions built side by side."
    )
    error: str | None = None
    final: bool = False
