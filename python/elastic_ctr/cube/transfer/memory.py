"""The file that transfer's state survives in: one JSON document, replaced as a whole."""

import os
from pathlib import Path

from pydantic import Field, ValidationError

from elastic_ctr.cube.release import AgentReport
from elastic_ctr.cube.transfer.state import ReleaseState
from elastic_ctr.versions.manifest import Record

# Revisions are published from a reserve, so that not every one costs a write.
RESERVED = 1000


class StateDamaged(ValueError):
    """The state file cannot be read: which, why, and what to do."""


class Memory(Record):
    """`revisions`: no published revision is above it, whatever was published after the last write.

    `agents` are the reports heard last: without them the first document after a restart would name no holder, and
    readers would have nobody to ask.
    """

    state: ReleaseState
    revisions: int = Field(ge=0)
    agents: tuple[AgentReport, ...] = ()


class MemoryFile:
    """Written before anything it says is published."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "release.json"

    def read(self) -> Memory | None:
        """None when there is no file. Raises StateDamaged, OSError."""
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return Memory.model_validate_json(text)
        except ValidationError as wrong:
            raise StateDamaged(
                f"{self.path} cannot be read ({wrong.errors()[0]['msg']}); remove it: what pods carry is taken up again"
            ) from wrong

    def write(self, memory: Memory) -> None:
        """Raises OSError; then the old file stands."""
        temporary = self.path.with_suffix(".new")
        with temporary.open("wb") as out:
            out.write(memory.to_json())
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(self.path)
        handle = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
