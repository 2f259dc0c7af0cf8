"""A store on another machine: whatever is lost on the way, a put is done once, whole, or not at all."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, TypeVar

from elastic_ctr.store.interface import AlreadyPublished, NotInStore, StoreError, StoreUnavailable, small, walked
from elastic_ctr.store.remote import FileChanged, Reading, Remote, Stat, relative
from elastic_ctr.store.retry import RetryPolicy
from elastic_ctr.store.temporary import appearing, is_temporary, temporary_beside

T = TypeVar("T")
Content = Callable[[], AbstractContextManager[bytes | BinaryIO]]
"""The bytes of a file, from their beginning, as often as they have to be sent."""

_READ_AGAIN = 4


class RemoteStore:
    """The Store over any Remote."""

    def __init__(self, remote: Remote, retry: RetryPolicy) -> None:
        self.url = remote.url
        self._remote = remote
        self._retry = retry

    def _with_retries(self, ask: Callable[[], T]) -> T:
        for attempt in self._retry.attempts():
            with attempt:
                return ask()
        raise AssertionError("an attempt either returns or raises")

    # -- writing -----------------------------------------------------------------------------------------------------

    def put(self, source: Path, path: str, *, overwrite: bool = False) -> None:
        self._publish(lambda: _opened(source, path), path, overwrite=overwrite)

    def put_bytes(self, data: bytes, path: str, *, overwrite: bool = False) -> None:
        self._publish(lambda: nullcontext(data), path, overwrite=overwrite)

    def _publish(self, content: Content, path: str, *, overwrite: bool) -> None:
        target = relative(path)
        if not overwrite and self.exists(path):
            raise AlreadyPublished(f"{path} is already published in {self.url}; published files are never changed")
        left: list[str] = []
        try:
            for attempt in self._retry.attempts():
                with attempt:
                    # A new name each time: a write that was given up may still happen, much later.
                    temporary = temporary_beside(target)
                    left.append(temporary)
                    arrived = self._upload(content, temporary, target)
                    self._move(temporary, target, arrived, overwrite=overwrite)
                    left.remove(temporary)
        except Exception:
            self._sweep(left)
            raise
        self._sweep(left)

    def _upload(self, content: Content, temporary: str, target: str) -> Stat:
        with content() as stream:
            self._remote.put(stream, temporary, target)
            sent = _length(stream)
        try:
            arrived = self._with_retries(lambda: self._remote.stat(temporary))
        except NotInStore as gone:
            raise self._lost(target) from gone
        if arrived.size != sent:
            raise StoreUnavailable(
                f"{target} cannot be written to {self.url}: {arrived.size} of {sent} bytes arrived; try again"
            )
        return arrived

    def _lost(self, target: str) -> StoreUnavailable:
        return StoreUnavailable(f"{target} cannot be written to {self.url}: the upload was lost there; try again")

    def _move(self, temporary: str, target: str, arrived: Stat, *, overwrite: bool) -> None:
        """Raises AlreadyPublished, StoreUnavailable, StoreError.

        A refusal may be the answer to a second try, here or in a library, after a first one that was done and not heard of.
        """
        try:
            self._with_retries(lambda: self._remote.move(temporary, target, overwrite=overwrite))
        except (AlreadyPublished, NotInStore) as refused:
            if self._has_become(temporary, target, arrived):
                return
            if isinstance(refused, AlreadyPublished):
                raise
            raise self._lost(target) from refused

    def _has_become(self, temporary: str, target: str, arrived: Stat) -> bool:
        """Only this writer knows the temporary name: if it is gone, the same file at the target came from it."""
        try:
            self._with_retries(lambda: self._remote.stat(temporary))
        except NotInStore:
            pass
        else:
            return False
        try:
            found = self._with_retries(lambda: self._remote.stat(target))
        except NotInStore:
            return False
        return (found.size, found.identity) == (arrived.size, arrived.identity)

    def _sweep(self, left: list[str]) -> None:
        """Best effort, one try: a temporary file disturbs no reader, and is deleted with its folder."""
        try:
            for temporary in left:
                self._remote.delete(temporary)
        except StoreError:
            pass  # the first error is raised already

    def delete(self, path: str) -> None:
        target = relative(path)
        if not target:
            raise StoreError(f"{path!r} is the whole of {self.url}, which is not deleted; name what to delete")
        self._with_retries(lambda: self._remote.delete(target))

    # -- reading -----------------------------------------------------------------------------------------------------

    def get(self, path: str, target: Path) -> None:
        blocks = self.read_from(path)
        try:
            with appearing(target) as out:
                for block in blocks:
                    out.write(block)
        except StoreError:
            raise
        except OSError as failed:
            raise StoreError(
                f"{path} cannot be fetched from {self.url} to {target}: {failed.strerror or failed}"
            ) from failed

    def read_from(self, path: str, offset: int = 0) -> Iterator[bytes]:
        yield from Reading(self._remote, relative(path), self._retry).blocks(offset)

    def get_bytes(self, path: str) -> bytes:
        for _ in range(_READ_AGAIN):
            try:
                return small(self.read_from(path), path)
            except FileChanged:  # noqa: PERF203 (a donefile was replaced in between: rare)
                continue
        return small(self.read_from(path), path)

    def exists(self, path: str) -> bool:
        try:
            self._stat(path)
        except NotInStore:
            return False
        return True

    def list(self, folder: str) -> list[str]:
        try:
            found = self._with_retries(lambda: self._remote.list(relative(folder)))
        except NotInStore:
            return []
        return sorted(f"{name}/" if stat.folder else name for name, stat in found if not is_temporary(name))

    def walk(self, folder: str) -> Iterator[str]:
        return walked(self.list, folder)

    def _stat(self, path: str) -> Stat:
        target = relative(path)
        return self._with_retries(lambda: self._remote.stat(target))

    def size(self, path: str) -> int:
        found = self._stat(path)
        if found.folder:
            raise StoreError(f"{path} in {self.url} is a folder; only files have a size")
        return found.size

    def modified_at(self, path: str) -> float:
        return self._stat(path).modified_at

    def local_path(self, path: str) -> Path | None:
        relative(path)
        return None

    def close(self) -> None:
        self._remote.close()


@contextmanager
def _opened(source: Path, path: str) -> Iterator[BinaryIO]:
    try:
        stream = source.open("rb")
    except OSError as failed:
        raise StoreError(f"{source} cannot be published as {path}: {failed.strerror or failed}") from failed
    with stream:
        yield stream


def _length(content: bytes | BinaryIO) -> int:
    return len(content) if isinstance(content, bytes) else os.fstat(content.fileno()).st_size
