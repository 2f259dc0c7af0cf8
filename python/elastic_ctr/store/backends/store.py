"""The store over any backend. Whatever fails on the way, a put takes effect once and whole, or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import BinaryIO

from elastic_ctr.store.backends.backend import (
    Backend,
    Content,
    FileTooLarge,
    NotInStore,
    Stat,
    StoreError,
    StoreUnavailable,
    relative,
)
from elastic_ctr.store.backends.retry import RetryPolicy, resumed
from elastic_ctr.store.backends.temporary import appearing, is_temporary

SMALL_FILE_LIMIT = 256 << 20
_READ_AGAIN = 4


class FileChanged(StoreError):
    """The file was replaced while it was read."""


class Tree:
    """Files behind a backend. A call is retried while the backend is unavailable."""

    def __init__(self, backend: Backend, retry: RetryPolicy | None = None) -> None:
        self.url = backend.url
        self._backend = backend
        self._retry = retry or RetryPolicy()

    def _at(self, path: str) -> str:
        """Return the path for the backend. Raises StoreError if it leads out of the store."""
        return relative(path)

    def _stat(self, path: str, deed: str = "looked up in") -> Stat:
        at = self._at(path)
        return self._retry.call(lambda: self._backend.stat(at, deed))

    def _found(self, folder: str) -> list[tuple[str, Stat]]:
        """Return the entries of a folder, [] if it is absent."""
        at = self._at(folder)
        try:
            return self._retry.call(lambda: self._backend.list(at))
        except NotInStore:
            return []

    def exists(self, path: str) -> bool:
        try:
            self._stat(path)
        except NotInStore:
            return False
        return True

    def size(self, path: str) -> int:
        """Return the bytes of a file. Raises NotInStore."""
        found = self._stat(path)
        if found.folder:
            raise StoreError(f"{path} in {self.url} is a folder; only files have a size")
        return found.size

    def close(self) -> None:
        """Close idle connections. The object can be used again afterwards."""
        self._backend.close()


class Store(Tree):
    """Published files are immutable: a put does not replace a file unless `overwrite` is set, as for donefiles.

    A put is atomic. A path is relative, with slashes, and never leads out of the store.
    """

    # -- writing -----------------------------------------------------------------------------------------------------

    def put(self, source: Path, path: str, *, overwrite: bool = False) -> None:
        """Publish a local file. Raises AlreadyPublished, StoreError."""
        self._publish(lambda: _opened(source, path), path, overwrite=overwrite)

    def put_bytes(self, data: bytes, path: str, *, overwrite: bool = False) -> None:
        """Publish bytes. Raises AlreadyPublished, StoreError."""
        self._publish(lambda: nullcontext(data), path, overwrite=overwrite)

    def _publish(self, content: Content, path: str, *, overwrite: bool) -> None:
        publish = self._backend.replace if overwrite else self._backend.create
        publish(content, self._at(path), self._retry)

    def verify(self) -> None:
        """Check at start that the store can keep its promises. Raises StoreError with the reason."""
        self._backend.verify(self._retry)

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its content. An absent path is no error."""
        target = self._at(path)
        if not target:
            raise StoreError(f"{path!r} is the whole of {self.url}, which is not deleted; name what to delete")
        self._retry.call(lambda: self._backend.delete(target))

    def sweep(self, folder: str) -> None:
        """Delete the temporary files of interrupted puts directly in a folder. A put under way there begins again."""
        for name, _ in self._found(folder):
            if is_temporary(name):
                self.delete(f"{folder}/{name}")

    # -- reading -----------------------------------------------------------------------------------------------------

    def get(self, path: str, target: Path) -> None:
        """Fetch into a local file, which appears whole or not at all. Raises NotInStore, StoreError."""
        try:
            with appearing(target) as out:
                for block in self.read_from(path):
                    out.write(block)
        except StoreError:
            raise
        except OSError as failed:
            raise StoreError(
                f"{path} cannot be fetched from {self.url} to {target}: {failed.strerror or failed}"
            ) from failed

    def read_from(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the bytes of a file from `offset` on, in blocks, so that an interrupted fetch can be resumed.

        Raises NotInStore, StoreError while the blocks are consumed.
        """
        yield from Reading(self._backend, self._at(path), self._retry).blocks(offset)

    def get_bytes(self, path: str) -> bytes:
        """Fetch a small file. Raises NotInStore, FileTooLarge, StoreError."""
        for _ in range(_READ_AGAIN):
            try:
                return self._small(path)
            except FileChanged:  # noqa: PERF203 (a donefile was replaced in between: rare)
                continue
        return self._small(path)

    def _small(self, path: str) -> bytes:
        found = bytearray()
        for block in self.read_from(path):
            found += block
            if len(found) > SMALL_FILE_LIMIT:
                raise FileTooLarge(
                    f"{path} has more than {SMALL_FILE_LIMIT} bytes, far more than such a file needs; is it damaged?"
                )
        return bytes(found)

    def list(self, folder: str) -> list[str]:
        """Return the sorted names directly in a folder, [] if it is absent. A folder's name ends in a slash."""
        found = self._found(folder)
        return sorted(f"{name}/" if stat.folder else name for name, stat in found if not is_temporary(name))

    def walk(self, folder: str) -> dict[str, Stat]:
        """Return the files below a folder by their paths in the store, sorted, {} if it is absent. Raises StoreError."""
        at = self._at(folder)
        found = self._retry.call(lambda: self._backend.walk(at))
        return {path: stat for path, stat in sorted(found) if not is_temporary(path.rpartition("/")[2])}

    def newest(self, folder: str) -> float:
        """Return the Unix seconds of the newest change below a folder, 0 if it is absent. A put under way counts. Raises StoreError."""
        at = self._at(folder)
        if found := self._retry.call(lambda: self._backend.walk(at)):
            return max(stat.modified_at for _, stat in found)
        with suppress(NotInStore):
            return self.modified_at(folder)
        return 0.0

    def modified_at(self, path: str) -> float:
        """Return the Unix seconds of a file's or folder's last change. Raises NotInStore."""
        return self._stat(path).modified_at

    def local_path(self, path: str) -> Path | None:
        """Return the local path of a file, which can be memory-mapped without a copy, or None if the store is remote."""
        self._at(path)
        return None


class Reading:
    """Reads of one file. If it is replaced after it was looked up as `stat`, or after the first byte arrived, a later read raises
    FileChanged.
    """

    def __init__(self, backend: Backend, path: str, retry: RetryPolicy, stat: Stat | None = None) -> None:
        self._backend = backend
        self._path = path
        self._retry = retry
        self._seen = None if stat is None else (stat.size, stat.identity)

    def blocks(self, start: int = 0) -> Iterator[bytes]:
        """Return an iterator of the bytes from `start` on. Raises NotInStore, FileChanged, StoreError."""
        return resumed(self._part, start, self._retry)

    def _part(self, start: int) -> Iterator[bytes]:
        with self._backend.read(self._path, start) as body:
            file = (body.stat.size, body.stat.identity)
            if self._seen not in (None, file) or body.first > start:
                raise FileChanged(f"{self._path} in {self._backend.url} was changed while it was read; read it again")
            self._seen = file
            reached = body.first
            for block in body.blocks:
                fresh = block[max(0, start - reached) :]
                reached += len(block)
                if fresh:
                    yield fresh
            if reached < body.stat.size:
                raise StoreUnavailable(
                    f"{self._path} cannot be read from {self._backend.url}: it broke off before the end; try again"
                )


@contextmanager
def _opened(source: Path, path: str) -> Iterator[BinaryIO]:
    try:
        stream = source.open("rb")
    except OSError as failed:
        raise StoreError(f"{source} cannot be published as {path}: {failed.strerror or failed}") from failed
    with stream:
        yield stream
