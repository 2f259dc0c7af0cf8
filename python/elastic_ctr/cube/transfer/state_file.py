"""The file with cube-transfer's state: one JSON document, replaced as a whole."""

import logging
import os
from pathlib import Path

from pydantic import Field

from elastic_ctr.cube.release import AgentReport
from elastic_ctr.cube.transfer.state import ReleaseState
from elastic_ctr.runtime.documents import DOCUMENT_LIMIT, DocumentDamaged, Numbered, read_document
from elastic_ctr.store.backends.file import sync_folder
from elastic_ctr.store.versions.manifest import Record, Whole

log = logging.getLogger(__name__)

SCHEMA = 1
# Revisions are reserved in advance, so that most of them need no write.
RESERVED = 1000


class PersistedState(Record):
    """`revisions`: an upper bound of the published revisions.

    `agents` are the last reports, without which the first document after a restart would list no holders. `schema_number` rises with
    every change of the file that an older cube-transfer cannot read; a file without it has 1.
    """

    schema_number: Whole = Field(default=SCHEMA, exclude_if=lambda number: number == 1)
    state: ReleaseState
    revisions: Whole
    agents: tuple[AgentReport, ...] = ()


def _parsed(data: bytes) -> PersistedState:
    if (number := read_document(Numbered, data).schema_number) > SCHEMA:
        raise DocumentDamaged(
            f"it has schema number {number} and this release knows up to {SCHEMA}, because a newer release has written it"
        )
    return read_document(PersistedState, data)


class StateFile:
    """The state file, which is written before its content is published."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "release.json"
        self.error: str | None = None

    def read(self) -> PersistedState | None:
        """Return None without a readable file. A damaged file is kept under another name, which `error` reports. Raises OSError."""
        try:
            with self.path.open("rb") as file:
                data = file.read(DOCUMENT_LIMIT + 1)
        except FileNotFoundError:
            return None
        try:
            return _parsed(data)
        except DocumentDamaged as wrong:
            aside = self.path.with_name(f"{self.path.name}.damaged")
            self.path.replace(aside)
            self.error = (
                f"{self.path} could not be read ({wrong}); it is kept as {aside.name}, "
                "and the release is learned anew from what pods carry"
            )
            log.warning("%s", self.error)
            return None

    def write(self, state: PersistedState) -> None:
        """Replace the file. Raises OSError; the old file is kept then."""
        temporary = self.path.with_suffix(".new")
        with temporary.open("wb") as out:
            out.write(state.to_json())
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(self.path)
        sync_folder(self.path.parent)
