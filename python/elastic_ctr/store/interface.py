"""The interface of every store. A path is relative, with slashes, and never leaves the store."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Protocol, runtime_checkable


class StoreError(OSError):
    """The store could not do what was asked: which path, why, and what to do."""


class NotInStore(StoreError):
    """No file stands at the path."""


class AlreadyPublished(StoreError):
    """A file stands at the path already; published files are immutable."""


class FileTooLarge(StoreError):
    """A file that should be small is not: which, and how large it may be."""


class StoreUnavailable(StoreError):
    """The store is unreachable or busy: a retry may succeed. `after` are seconds that the store asked for."""

    def __init__(self, sentence: str, after: float | None = None) -> None:
        super().__init__(sentence)
        self.after = after


@runtime_checkable
class Store(Protocol):
    """Published files are immutable: a put refuses to overwrite unless the file is a donefile, which alone may change.

    A put is complete or absent: written under a temporary name, then renamed.
    """

    url: str

    def put(self, source: Path, path: str, *, overwrite: bool = False) -> None:
        """Publish a local file. Raises AlreadyPublished, StoreError."""

    def put_bytes(self, data: bytes, path: str, *, overwrite: bool = False) -> None:
        """Publish bytes. Raises AlreadyPublished, StoreError."""

    def get(self, path: str, target: Path) -> None:
        """Fetch into a local file, which appears whole or not at all. Raises NotInStore, StoreError."""

    def read_from(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """The bytes of a file from an offset on, in blocks: for a fetch that goes on where it was cut off.

        Raises NotInStore, StoreError, as the blocks are taken.
        """

    def get_bytes(self, path: str) -> bytes:
        """Fetch a small file. Raises NotInStore, FileTooLarge, StoreError."""

    def exists(self, path: str) -> bool: ...

    def list(self, folder: str) -> list[str]:
        """Names directly in a folder, sorted; a folder's name ends in a slash. An absent folder is empty."""

    def walk(self, folder: str) -> Iterator[str]:
        """Paths of all files below a folder, relative to the store, sorted."""

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all it holds. Absent is done."""

    def size(self, path: str) -> int:
        """Bytes of a file. Raises NotInStore."""

    def modified_at(self, path: str) -> float:
        """Unix seconds of a file's or folder's last change. Raises NotInStore."""

    def local_path(self, path: str) -> Path | None:
        """The file on this machine if the store's files are on this machine: it can be mapped without a copy."""

    def close(self) -> None:
        """Let go of connections; the store may be used again all the same."""


SMALL_FILE_LIMIT = 256 << 20


def small(blocks: Iterable[bytes], path: str, limit: int = SMALL_FILE_LIMIT) -> bytes:
    """The blocks as one piece. Raises FileTooLarge before more than `limit` bytes are kept."""
    found = bytearray()
    for block in blocks:
        found += block
        if len(found) > limit:
            raise FileTooLarge(f"{path} has more than {limit} bytes, far more than such a file needs; is it damaged?")
    return bytes(found)


def checked_path(path: str) -> PurePosixPath:
    """A path that stays inside the store. Raises StoreError for an absolute one, `..`, or an empty one."""
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise StoreError(f"{path!r} is not a path inside the store; give a relative one without '..'")
    return pure


def walked(list_folder: Callable[[str], list[str]], folder: str) -> Iterator[str]:
    """Paths of all files below a folder, by a store's `list`."""
    for name in list_folder(folder):
        path = f"{folder.rstrip('/')}/{name}"
        if name.endswith("/"):
            yield from walked(list_folder, path.rstrip("/"))
        else:
            yield path
