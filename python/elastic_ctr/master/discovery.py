"""Looking for hours: a pass is complete when every one of its splits has its donefile."""

import time
from collections.abc import Callable

from elastic_ctr.config.data import Data
from elastic_ctr.master.ledger_rows import PassRow
from elastic_ctr.master.passes import cut
from elastic_ctr.store.source import Source

# Zipped text cannot be cut.
_WHOLE = (".gz",)
# Times data.sleepSeconds: the longest time between two looks at a stopped pass.
_RARELY = 16


def look(source: Source, data: Data, splits: tuple[str, ...]) -> tuple[dict[str, int], str]:
    """Files of a pass with their bytes, and the first split whose donefile is missing ("" when complete).

    Paths are relative to the source. Hidden files and the donefile itself are no data. Raises StoreError.
    """
    files: dict[str, int] = {}
    for split in splits:
        folder = f"{data.path.strip('/')}/{split}".lstrip("/")
        listed = dict(source.list(folder))
        if data.donefile not in listed:
            return {}, split
        files.update(
            {
                f"{folder}/{name}": size
                for name, size in listed.items()
                if name != data.donefile and not name.startswith((".", "_"))
            }
        )
    return files, ""


def missing_folder(source: Source, data: Data) -> str:
    """A sentence where the folder that holds the days does not exist; else empty. Raises StoreError."""
    folder = data.path.strip("/")
    if source.exists(folder):
        return ""
    return f"the folder {source.url.rstrip('/')}/{folder} does not exist: is data.source.url or data.path right?"


class ChangedFiles:
    """Finds out when the files of a stopped pass were changed since the master read their names."""

    def __init__(self, source: Source, data: Data, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._data = data
        self._clock = clock
        self._ordinal = 0
        self._known: list[str] = []
        self._changed: list[str] = []
        self._pause = 0.0
        self._next = 0.0

    def _fingerprint(self, one: PassRow) -> list[str]:
        return [self._source.fingerprint(f"{self._data.path.strip('/')}/{split}".lstrip("/")) for split in one.splits]

    def remember(self, one: PassRow) -> None:
        """To be called before a pass is read. Raises StoreError."""
        self._known = self._changed = self._fingerprint(one)
        self._ordinal = one.ordinal
        self._pause = self._data.sleep_seconds
        self._next = self._clock() + self._pause

    def look(self, stopped: PassRow) -> bool:
        """Whether they were changed, and not again between two looks; looks become rarer. Raises StoreError."""
        if self._ordinal != stopped.ordinal:
            self.remember(stopped)
        now = self._clock()
        if now < self._next:
            return False
        found = self._fingerprint(stopped)
        done = found != self._known and found == self._changed
        writing = found != self._changed
        self._changed = found
        self._pause = self._data.sleep_seconds if writing else min(2 * self._pause, _RARELY * self._data.sleep_seconds)
        self._next = now + self._pause
        return done


def ranges(files: dict[str, int], task_bytes: int) -> list[tuple[str, int, int]]:
    """The tasks of a pass: (path, first byte, byte after the last; 0: to the end). An empty file makes no task."""
    return [
        (path, start, stop)
        for path, size in sorted(files.items())
        if size
        for start, stop in cut(size, task_bytes, whole=path.endswith(_WHOLE))
    ]
