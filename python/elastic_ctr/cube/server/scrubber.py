"""Verifies the mapped dictionary parts of a cube-server continuously at a low rate, because memory and disks lose bits.

A part is checked through the page cache, as lookups read it. Damage in memory is found within one round over all parts,
damage on the disk once the kernel reads those pages again.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from elastic_ctr.cube.dictionary.format import DictionaryDamaged, DictionaryPart

_log = logging.getLogger(__name__)

ROUND_PAUSE_SECONDS = 1.0
_LOWEST_PRIORITY = 19


class _Stopped(Exception):
    pass


class Scrubber:
    """One thread of the parent process, which calls `on_damage(path, sentence)`."""

    def __init__(self, megabytes_per_second: float, on_damage: Callable[[Path, str], None]) -> None:
        self.verified_bytes = 0
        self.round_finished_at: float | None = None
        self._seconds_per_byte = 1 / (megabytes_per_second * 1e6)
        self._on_damage = on_damage
        # The dict is replaced and never changed, because the thread reads it at any time.
        self._parts: dict[Path, DictionaryPart] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scrubber", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(5)

    @property
    def parts(self) -> Mapping[Path, DictionaryPart]:
        """Return the mapped parts that are being verified, by path."""
        return self._parts

    def watch(self, parts: Collection[DictionaryPart]) -> None:
        """Add parts to those that are verified."""
        self._parts = {**self._parts, **{part.path: part for part in parts}}

    def keep_only(self, files: Collection[Path]) -> None:
        """Stop verifying all other files."""
        if not self._parts.keys() <= set(files):
            self._parts = {path: part for path, part in self._parts.items() if path in files}

    def status(self) -> dict[str, object]:
        finished = self.round_finished_at
        return {
            "verifiedBytes": self.verified_bytes,
            "lastRoundSeconds": None if finished is None else round(time.monotonic() - finished, 3),
        }

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        try:
            while not self._stopping.wait(ROUND_PAUSE_SECONDS):
                for path in list(self._parts):
                    self._verify(path)
                self.round_finished_at = time.monotonic()
        except _Stopped:
            pass

    def _verify(self, path: Path) -> None:
        part = self._parts.get(path)
        if part is None:
            return
        try:
            part.verify(self._pace)
            part.release()
            # A worker that started after the file was replaced has mapped the new file.
            if path.exists() and path.stat().st_ino != part.inode:
                DictionaryPart.open(path).verify(self._pace)
        except DictionaryDamaged as damaged:
            self._say(path, str(damaged))
        except OSError as failed:
            self._say(path, f"dictionary part {path} cannot be read: {failed.strerror}; fetch it again")
        except _Stopped:
            raise
        except Exception:  # noqa: BLE001 - the other parts are still to be verified
            _log.exception("%s cannot be verified; the next round tries again", path)

    def _say(self, path: Path, sentence: str) -> None:
        if path in self._parts:
            _log.error("%s; it is answered no longer", sentence)
            self._on_damage(path, sentence)

    def _pace(self, count: int) -> None:
        self.verified_bytes += count
        if self._stopping.wait(count * self._seconds_per_byte):
            raise _Stopped
