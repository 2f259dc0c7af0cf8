"""A trainer's own disk. What fails there says nothing of its task: another trainer may well do it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from elastic_ctr.store import StoreError


class ScratchFailed(OSError):
    """This trainer cannot go on; its task can."""


@contextmanager
def on_scratch(place: Path) -> Iterator[None]:
    """Around what touches no other disk. Raises ScratchFailed for every OSError but a store's."""
    try:
        yield
    except (StoreError, ScratchFailed):
        raise
    except OSError as failed:
        raise ScratchFailed(
            f"{failed.filename or place}: {failed.strerror or failed}; "
            "trainer.config.scratchDir must have room and be writable"
        ) from failed


class ScratchFile:
    """A file that is written while something else is read, whose errors are not its own. Raises ScratchFailed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with on_scratch(path):
            self._out: BinaryIO = path.open("wb")

    def write(self, data: bytes) -> None:
        with on_scratch(self._path):
            self._out.write(data)

    def close(self) -> None:
        """What is still in memory is written now."""
        with on_scratch(self._path):
            self._out.close()
