"""Publishing where a file has to be renamed to appear whole: on file systems and servers that have them below."""

import os
from abc import abstractmethod
from contextlib import suppress
from typing import BinaryIO

from elastic_ctr.store.backends.backend import (
    AlreadyPublished,
    Backend,
    Content,
    NotInStore,
    Stat,
    StoreError,
    StoreUnavailable,
)
from elastic_ctr.store.backends.retry import RetryPolicy
from elastic_ctr.store.backends.temporary import temporary_beside


class RenamingBackend(Backend):
    """A backend that writes a temporary file beside the target, then renames it."""

    @abstractmethod
    def put(self, content: bytes | BinaryIO, path: str, target: str) -> None:
        """Write a file that will be moved to `target`, and create its folders. If this raises, a partial file may remain."""

    @abstractmethod
    def move(self, source: str, target: str, *, overwrite: bool) -> None:
        """Rename in one step. Raises NotInStore without a source, AlreadyPublished for a target unless overwriting.

        After StoreUnavailable the rename may have happened.
        """

    def walk(self, folder: str) -> list[tuple[str, Stat]]:
        found: list[tuple[str, Stat]] = []
        with suppress(NotInStore):
            for name, stat in self.list(folder):
                path = f"{folder}/{name}" if folder else name
                found += self.walk(path) if stat.folder else [(path, stat)]
        return found

    def verify(self, retry: RetryPolicy) -> None:
        """Do nothing: a rename needs no proof."""

    def create(self, content: Content, path: str, retry: RetryPolicy) -> None:
        # Before the upload, which may be long.
        with suppress(NotInStore):
            retry.call(lambda: self.stat(path, "written to"))
            raise AlreadyPublished(f"{path} is already published in {self.url}; published files are never changed")
        _Upload(self, content, path, retry).publish(overwrite=False)

    def replace(self, content: Content, path: str, retry: RetryPolicy) -> None:
        _Upload(self, content, path, retry).publish(overwrite=True)


class _Upload:
    """One file on its way to its name."""

    def __init__(self, backend: RenamingBackend, content: Content, target: str, retry: RetryPolicy) -> None:
        self._backend = backend
        self._content = content
        self._target = target
        self._retry = retry

    def publish(self, *, overwrite: bool) -> None:
        left: list[str] = []
        try:
            for attempt in self._retry.attempts():
                with attempt:
                    # A new name for each attempt: a write that timed out may still take effect much later.
                    temporary = temporary_beside(self._target)
                    left.append(temporary)
                    arrived = self._upload(temporary)
                    self._move(temporary, arrived, overwrite=overwrite)
                    left.remove(temporary)
        except Exception:
            self._sweep(left)
            raise
        self._sweep(left)

    def _upload(self, temporary: str) -> Stat:
        with self._content() as stream:
            self._backend.put(stream, temporary, self._target)
            sent = len(stream) if isinstance(stream, bytes) else os.fstat(stream.fileno()).st_size
        try:
            arrived = self._stat(temporary)
        except NotInStore as gone:
            raise self._lost() from gone
        if arrived.size != sent:
            raise StoreUnavailable(
                f"{self._target} cannot be written to {self._backend.url}: {arrived.size} of {sent} bytes arrived; try again"
            )
        return arrived

    def _stat(self, path: str) -> Stat:
        return self._retry.call(lambda: self._backend.stat(path))

    def _lost(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self._target} cannot be written to {self._backend.url}: the upload was lost there; try again"
        )

    def _move(self, temporary: str, arrived: Stat, *, overwrite: bool) -> None:
        """Raises AlreadyPublished, StoreUnavailable, StoreError.

        A refusal may answer a second try, here or in a library, after a first one that succeeded but whose answer was lost.
        """
        try:
            self._retry.call(lambda: self._backend.move(temporary, self._target, overwrite=overwrite))
        except (AlreadyPublished, NotInStore) as refused:
            if self._has_become(temporary, arrived):
                return
            if isinstance(refused, AlreadyPublished):
                raise
            raise self._lost() from refused

    def _has_become(self, temporary: str, arrived: Stat) -> bool:
        """True if the temporary file was moved to the target: it is gone, and the target has its size and identity."""
        with suppress(NotInStore):
            self._stat(temporary)
            return False
        try:
            found = self._stat(self._target)
        except NotInStore:
            return False
        return (found.size, found.identity) == (arrived.size, arrived.identity)

    def _sweep(self, left: list[str]) -> None:
        """Delete temporary files, with one try: a leftover disturbs no reader, and is deleted with its folder."""
        with suppress(StoreError):
            for temporary in left:
                self._backend.delete(temporary)
