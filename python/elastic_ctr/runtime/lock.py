"""One owner for a state directory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from typing_extensions import Self


class StateInUse(OSError):
    """Another process owns the state directory. The message has its pid and the way out."""


class StateLock:
    """An exclusive lock on a directory; the kernel frees it when the process ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._handle: int | None = None

    def acquire(self) -> Self:
        """Raises StateInUse if another process has the lock, OSError if the folder cannot be written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / ".lock"
        # Children do not inherit the descriptor: a child that outlives its parent would keep the lock.
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as taken:
            owner = os.read(handle, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(handle)
            raise StateInUse(
                f"{self.folder} is used by another process (pid {owner}); two owners would undo each other's work: "
                "end that process, or set another state directory"
            ) from taken
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        self._handle = handle
        return self

    def owner(self) -> int | None:
        """Return the pid of the lock's owner, or None."""
        try:
            handle = os.open(self.folder / ".lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            # An owner that has only just locked the file has not written its pid yet.
            return int(os.read(handle, 32).strip() or b"0") or None
        finally:
            os.close(handle)
        return None

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
