"""The donefiles of versions: JSON lines that announce a version. Only its manifest decides whether it is published.

The format is that of ElasticCTR and paddle-suite: one object a line, with `id` the version, `key` the version of its base
(its own for a base), `input` the folder of its SequenceFiles. `base.txt` lists bases, `patch.txt` deltas.
"""

import json
import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from elastic_ctr.runtime.documents import DocumentDamaged, read_document
from elastic_ctr.store.backends import FileTooLarge, NotInStore, Store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import ManifestDamaged, VersionId, VersionManifest
from elastic_ctr.store.versions.published_files import published_versions, read_version

log = logging.getLogger(__name__)

_LINE_LIMIT = 1 << 16
# The most damaged lines that are reported one by one; the others are counted.
_NAMED = 3


class Announcement(BaseModel):
    """One line of a donefile. Other fields belong to other systems and are ignored. Older writers wrote ids as strings."""

    model_config = ConfigDict(frozen=True)

    id: VersionId
    key: VersionId
    input: str

    def to_line(self) -> str:
        return _line_of(self)


# A stream publishes versions often, and most lines of its donefiles stay the same.
@lru_cache(maxsize=4096)
def _line_of(announcement: Announcement) -> str:
    return json.dumps(announcement.model_dump())


def announcement_of(manifest: VersionManifest) -> Announcement:
    folder = layout.cube_folder(manifest.version, manifest.kind)
    return Announcement(id=manifest.version, key=manifest.base, input=f"/{folder}")


class Donefile(NamedTuple):
    """The lines that can be read, in file order, and a sentence for each of the first few that cannot."""

    lines: tuple[Announcement, ...]
    problems: tuple[str, ...]


# One entry for each of the two files: cube-transfer polls them, and they seldom change between two polls.
@lru_cache(maxsize=2)
def parse_donefile(data: bytes, path: str) -> Donefile:
    """Return the readable lines of any bytes: a damaged line does not keep other versions from going live."""
    found: list[Announcement] = []
    problems: list[str] = []
    unread = 0
    for number, text in enumerate(data.split(b"\n"), 1):
        if not text.strip():
            continue
        try:
            found.append(read_document(Announcement, text, _LINE_LIMIT))
        except DocumentDamaged:
            unread += 1
            if unread <= _NAMED:
                shown = text[:80].decode("utf-8", "replace")
                problems.append(
                    f"{path} line {number} is not a JSON object with id, key and input: {shown!r}; mend or remove the line"
                )
    if unread > _NAMED:
        problems.append(f"{path} has {unread - _NAMED} more such lines")
    return Donefile(tuple(found), tuple(problems))


def read_donefile(store: Store, path: str) -> Donefile:
    """Return the lines of a donefile, none if it is missing. Raises StoreError."""
    try:
        return parse_donefile(store.get_bytes(path), path)
    except NotInStore:
        return Donefile((), ())
    except FileTooLarge as large:
        return Donefile((), (str(large),))


def announce(store: Store, known: Mapping[int, Announcement] | None = None) -> dict[int, Announcement]:
    """Write both donefiles anew from the manifests in the store. Only the master calls this.

    A version whose manifest is damaged keeps its present line. Return the line of each version whose manifest was read; if it is
    passed as `known` to the next call, these manifests are not read again, because they never change.
    """
    lines: dict[str, list[str]] = {layout.BASE_DONEFILE: [], layout.PATCH_DONEFILE: []}
    before = {path: _bytes_of(store, path) for path in lines}
    found: dict[int, Announcement] = {}
    for version in published_versions(store):
        try:
            line = (known or {}).get(version) or announcement_of(read_version(store, version))
        except NotInStore:
            continue  # deleted since
        except ManifestDamaged as damaged:
            log.warning("version %d is announced as before: %s", version, damaged)
            for path, text in before.items():
                lines[path] += [line.to_line() for line in parse_donefile(text, path).lines if line.id == version]
            continue
        found[version] = line
        lines[layout.BASE_DONEFILE if line.id == line.key else layout.PATCH_DONEFILE].append(line.to_line())
    for path, those in lines.items():
        text = "".join(f"{line}\n" for line in those).encode()
        if text != before[path]:
            store.put_bytes(text, path, overwrite=True)
    return found


def _bytes_of(store: Store, path: str) -> bytes:
    try:
        return store.get_bytes(path)
    except (NotInStore, FileTooLarge):
        return b""
