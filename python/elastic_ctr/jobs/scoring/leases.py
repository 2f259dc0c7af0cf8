"""Leases of tasks as files of a store: processes of several machines share work without a master.

The lease of task 17 is the file `17.1`; a process that takes it over writes `17.2`, and so on. A put that refuses to overwrite is
atomic in every store, so each of these files has one writer. Its holder rewrites the file several times per lease. Other processes
treat a lease as lost if its content has not changed for the lease's length by their own clock, so clocks need not agree. The end of a
holder on the same machine is detected at once.

A slow holder continues beside the process that took its lease: a task may be scored twice, and the first result is kept.
"""

import os
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from elastic_ctr.runtime.documents import DocumentDamaged, read_document
from elastic_ctr.store import AlreadyPublished, FileTooLarge, NotInStore, Store, StoreError
from elastic_ctr.store.versions.manifest import Record, Whole

LEASE_SECONDS = 10.0
_BEATS = 3


class Holder(Record):
    """A process: `machine` is the same for processes in one pid namespace, `started` distinguishes two processes with the same pid."""

    machine: str
    pid: Whole
    started: Whole
    beat: Whole = 0


def this_process() -> Holder:
    return Holder(machine=_machine(), pid=os.getpid(), started=_started(os.getpid()) or 0)


def _machine() -> str:
    # Pids are unique within one boot of a kernel and one namespace.
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"


def _started(pid: int) -> int | None:
    """Return the clock ticks after boot at which a process began; None if it has ended, even if it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def _has_ended(holder: Holder) -> bool:
    """True if the holder was a process of this machine that has ended."""
    return holder.machine == _machine() and _started(holder.pid) != holder.started


class Lease:
    """The lease of a task, which a thread renews until `release`."""

    def __init__(self, store: Store, path: str, holder: Holder, seconds: float) -> None:
        self._store = store
        self._path = path
        self._holder = holder
        self._pause = seconds / _BEATS
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        beat = 0
        while not self._over.wait(self._pause):
            beat += 1
            # If the store is unreachable, the lease may be lost at worst, and the task is scored twice.
            with suppress(StoreError):
                self._store.put_bytes(
                    self._holder.model_copy(update={"beat": beat}).to_json(), self._path, overwrite=True
                )

    def release(self) -> None:
        self._over.set()
        self._thread.join()
        with suppress(StoreError):
            self._store.delete(self._path)


@dataclass
class _Seen:
    content: bytes
    since: float


class Leases:
    """The leases in a folder of a store, as one process sees them."""

    def __init__(
        self, store: Store, folder: str, seconds: float = LEASE_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._folder = folder
        self._seconds = seconds
        self._clock = clock
        self._holder = this_process()
        self._seen: dict[str, _Seen] = {}

    def take(self, tasks: Collection[int]) -> tuple[int, Lease] | None:
        """Take the first task without a holder, or whose holder is lost. Return None if each has a holder. Raises StoreError."""
        held = self._held()
        free = [task for task in tasks if task not in held]
        for task in [*free, *(task for task in tasks if task in held)]:
            number = held.get(task, 0)
            if number and not self._is_lost(self._path(task, number)):
                continue
            path = self._path(task, number + 1)
            with suppress(AlreadyPublished):
                self._store.put_bytes(self._holder.to_json(), path)
                if number:
                    with suppress(StoreError):
                        self._store.delete(self._path(task, number))
                return task, Lease(self._store, path, self._holder, self._seconds)
        return None

    def _path(self, task: int, number: int) -> str:
        return f"{self._folder}/{task}.{number}"

    def _held(self) -> dict[int, int]:
        """Return the number of the newest lease of each task that has one."""
        held: dict[int, int] = {}
        for name in self._store.list(self._folder):
            task, dot, number = name.partition(".")
            if dot and task.isdigit() and number.isdigit():
                held[int(task)] = max(held.get(int(task), 0), int(number))
        return held

    def _is_lost(self, path: str) -> bool:
        try:
            content = self._store.get_bytes(path)
        except (NotInStore, FileTooLarge):
            # The lease was released since it was listed. The next holder checks if the task is done.
            return True
        seen = self._seen.get(path)
        if seen is None or seen.content != content:
            self._seen[path] = seen = _Seen(content, self._clock())
        with suppress(DocumentDamaged):
            if _has_ended(read_document(Holder, content)):
                return True
        return self._clock() - seen.since >= self._seconds
