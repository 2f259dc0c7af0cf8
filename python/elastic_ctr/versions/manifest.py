"""What a published folder holds, with checksums. A manifest is written last: what has none is not published."""

import hashlib
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from elastic_ctr.store import NotInStore, Store, StoreError
from elastic_ctr.versions import layout

Kind = Literal["base", "delta"]


class Record(BaseModel):
    """A published JSON document: camelCase outside, unknown fields kept out, never changed once made."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)

    def to_json(self) -> bytes:
        return self.model_dump_json(by_alias=True, indent=1).encode() + b"\n"


class ManifestDamaged(ValueError):
    """A manifest cannot be read: which one, why."""


class FileEntry(Record):
    """One published file; path is relative to the store."""

    path: str
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    records: int = Field(default=0, ge=0)


class VersionManifest(Record):
    """The commit of a model version, written by the master at `output/versions/<version>.json`.

    `base` is the version whose base this one stands on (itself for a base), `parent` the version that a delta
    changes. `auc_live` is scored with the values pulled from the parameter servers, `auc_published` with the values
    in the files, both over the sample lines. `event_time_max` is unix seconds: the end of the newest split learned.
    """

    version: int = Field(gt=0)
    kind: Kind
    base: int
    parent: int | None
    pass_id: str
    event_time_max: int
    created_at: float
    partitions: int = Field(gt=0)
    dim: int = Field(gt=0)
    keys: int = Field(ge=0, description="Keys in this version's own files.")
    slots: tuple[str, ...]
    sparse_dim: int | None
    network: str
    cube_files: tuple[FileEntry, ...]
    model_files: tuple[FileEntry, ...]
    samples: int = Field(ge=0)
    auc_live: float | None
    auc_published: float | None
    left_out: int = Field(default=0, ge=0, description="Sample keys whose row or embedx the save left out.")


class DictionaryManifest(Record):
    """Written by transfer at `output/ctr_dict/<version>/manifest.json`: what a cube pod loads for a version.

    A version is full parts and at most one overlay. `full_version` names the version whose folder holds the full
    parts: the version itself when `kind` is full, its base otherwise.
    """

    version: int = Field(gt=0)
    kind: Literal["full", "overlay"]
    full_version: int
    base: int
    parent: int | None
    partitions: int = Field(gt=0)
    dim: int = Field(gt=0)
    keys: int = Field(ge=0, description="Keys in this folder's own parts.")
    files: tuple[FileEntry, ...]

    def part(self, partition: int) -> FileEntry:
        """Raises ManifestDamaged when it names none."""
        path = layout.dictionary_part(self.version, partition)
        for entry in self.files:
            if entry.path == path:
                return entry
        raise ManifestDamaged(f"the dictionary manifest of version {self.version} names no file {path}")


class CheckpointManifest(Record):
    """Paddle's own checkpoint, and what the ledger knew when it was taken."""

    name: str
    pass_id: str
    pass_ordinal: int
    follows_version: int | None = Field(description="The published version that the next delta will be a change of.")
    base_version: int | None
    created_at: float
    partitions: int
    rows: dict[int, int] = Field(description="Rows by partition: compared after every load.")
    files: tuple[FileEntry, ...]


def digest_of(path: Path) -> tuple[int, str]:
    """Bytes and sha256 of a file."""
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as stream:
        while block := stream.read(4 << 20):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def publish(store: Store, source: Path, path: str, records: int = 0) -> FileEntry:
    """Put one file and say what was put."""
    size, sha256 = digest_of(source)
    store.put(source, path)
    return FileEntry(path=path, bytes=size, sha256=sha256, records=records)


def fetch(store: Store, entry: FileEntry, target: Path) -> Path:
    """Get one file and check it. Raises ManifestDamaged if it is not what the manifest says."""
    store.get(entry.path, target)
    try:
        check(store, entry, target)
    except ManifestDamaged:
        target.unlink()
        raise
    return target


def check(store: Store, entry: FileEntry, path: Path) -> None:
    """Compare a file on this machine with its entry. Raises ManifestDamaged, OSError."""
    size, sha256 = digest_of(path)
    if (size, sha256) != (entry.bytes, entry.sha256):
        raise ManifestDamaged(
            f"{entry.path} in {store.url} is not what its manifest says ({size} bytes, sha256 {sha256[:12]}… instead of "
            f"{entry.bytes} bytes, {entry.sha256[:12]}…); delete the version and publish it again"
        )


def checked_file(store: Store, entry: FileEntry, folder: Path) -> Path:
    """The file itself where the store's files are on this machine, else a copy in folder; checked either way.

    Raises NotInStore, StoreError, ManifestDamaged.
    """
    local = store.local_path(entry.path)
    if local is None:
        return fetch(store, entry, folder / entry.path.replace("/", "-"))
    try:
        check(store, entry, local)
    except FileNotFoundError as gone:
        raise NotInStore(f"{entry.path} is not in {store.url}") from gone
    except OSError as failed:
        raise StoreError(f"{entry.path} cannot be read from {store.url}: {failed.strerror or failed}") from failed
    return local


def read_version(store: Store, version: int) -> VersionManifest:
    """Raises NotInStore, ManifestDamaged."""
    return _parsed(VersionManifest, store, layout.version_manifest(version))


def read_dictionary(store: Store, version: int) -> DictionaryManifest:
    """Raises NotInStore, ManifestDamaged."""
    return _parsed(DictionaryManifest, store, layout.dictionary_manifest(version))


def read_checkpoint(store: Store, name: str) -> CheckpointManifest:
    """Raises NotInStore, ManifestDamaged."""
    return _parsed(CheckpointManifest, store, layout.checkpoint_manifest(name))


def published_versions(store: Store) -> list[int]:
    """Ids of all versions with a manifest, oldest first."""
    names = (name.removesuffix(".json") for name in store.list(layout.VERSIONS) if name.endswith(".json"))
    return sorted(int(name) for name in names if name.isdigit())


R = TypeVar("R", bound=Record)


def _parsed(kind: type[R], store: Store, path: str) -> R:
    try:
        return kind.model_validate_json(store.get_bytes(path))
    except ValidationError as wrong:
        first = wrong.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        raise ManifestDamaged(f"{path} in {store.url} is damaged at {where or 'its start'}: {first['msg']}") from wrong
