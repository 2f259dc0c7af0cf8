"""The donefiles of versions: JSON lines that announce. The manifest decides.

Format (of ElasticCTR and paddle-suite): one object a line, `id` the version, `key` the version of the base it stands
on (its own for a base), `input` the folder of its SequenceFiles. `base.txt` lists bases, `patch.txt` deltas.
"""

import json
import logging
from typing import NamedTuple

from elastic_ctr.store import NotInStore, Store
from elastic_ctr.versions import layout
from elastic_ctr.versions.manifest import ManifestDamaged, VersionManifest, published_versions, read_version

log = logging.getLogger(__name__)


class DonefileDamaged(ValueError):
    """A donefile has a line that cannot be read: which, why."""


class Announcement(NamedTuple):
    """One line of a donefile."""

    id: int
    key: int
    input: str

    def to_line(self) -> str:
        return json.dumps({"id": self.id, "key": self.key, "input": self.input})


def announcement_of(manifest: VersionManifest) -> Announcement:
    return Announcement(manifest.version, manifest.base, "/" + layout.cube_folder(manifest.version, manifest.kind))


def parse_donefile(text: str, path: str) -> list[Announcement]:
    """Lines in file order; fields beyond the three are somebody else's and ignored. Raises DonefileDamaged."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            # Older writers gave ids as strings.
            found.append(Announcement(int(fields["id"]), int(fields["key"]), str(fields["input"])))
        except (ValueError, KeyError, TypeError) as wrong:
            raise DonefileDamaged(
                f"{path} line {number} is not a JSON object with id, key and input: {line[:80]!r}; mend or remove the line"
            ) from wrong
    return found


def read_donefile(store: Store, path: str) -> list[Announcement]:
    """A missing donefile means nothing new. Raises DonefileDamaged."""
    try:
        text = store.get_bytes(path).decode("utf-8", "replace")
    except NotInStore:
        return []
    return parse_donefile(text, path)


def announce(store: Store) -> None:
    """Write both donefiles whole from the manifests in the store. The master is the only caller.

    A version whose manifest cannot be read keeps the line it has: the others are announced all the same.
    """
    lines: dict[str, list[str]] = {layout.BASE_DONEFILE: [], layout.PATCH_DONEFILE: []}
    before = {path: _bytes_of(store, path) for path in lines}
    for version in published_versions(store):
        try:
            manifest = read_version(store, version)
        except NotInStore:
            continue  # deleted since
        except ManifestDamaged as damaged:
            log.warning("version %d is announced as before: %s", version, damaged)
            for path, text in before.items():
                lines[path] += [line.to_line() for line in _readable(text, path) if line.id == version]
            continue
        path = layout.BASE_DONEFILE if manifest.kind == "base" else layout.PATCH_DONEFILE
        lines[path].append(announcement_of(manifest).to_line())
    for path, those in lines.items():
        text = "".join(f"{line}\n" for line in those).encode()
        if text != (before[path] or b""):
            store.put_bytes(text, path, overwrite=True)


def _bytes_of(store: Store, path: str) -> bytes | None:
    try:
        return store.get_bytes(path)
    except NotInStore:
        return None


def _readable(text: bytes | None, path: str) -> list[Announcement]:
    """The lines of a donefile that is about to be written anew; none of one that is damaged."""
    try:
        return parse_donefile((text or b"").decode("utf-8", "replace"), path)
    except DonefileDamaged:
        return []
