"""Sources of click logs: read-only access by folder and by byte range."""

import hashlib
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from elastic_ctr.store.backends.backend import NotInStore, Stat, StoreError, relative
from elastic_ctr.store.backends.file import LocalFiles
from elastic_ctr.store.backends.retry import RetryPolicy
from elastic_ctr.store.backends.store import Reading, Tree

_BUFFER = 1 << 20
_ADDRESS = re.compile(r"(?:([a-z0-9]+):)?(?://([^/]*))?(/.+)", re.DOTALL)
_SCHEMES = {"": "file", "s3a": "s3", "s3n": "s3"}


class FolderListing(NamedTuple):
    """The files of a folder.

    `files` are (path below the folder, bytes), sorted. `fingerprint` changes if a file is added, removed or written. `changed_at` is the
    newest time of change of an entry, in Unix seconds; 0 without an entry. `written` is by file another text once it is written again.
    """

    files: list[tuple[str, int]]
    fingerprint: str
    changed_at: float
    written: dict[str, str]


def is_partition(name: str) -> bool:
    """True if a folder's name is `key=value`, as those of Hive's partitions."""
    return "=" in name[1:] and not name.startswith((".", "_"))


class Source(Tree):
    """A tree of files that another system writes. Paths may begin and end with a slash."""

    def _at(self, path: str) -> str:
        return relative(path.strip("/") or ".")

    def folders(self, folder: str) -> list[str]:
        """Return the sorted names of the folders directly in a folder, [] if it is absent. Raises StoreError."""
        return sorted(name for name, stat in self._found(folder) if stat.folder)

    def listing(self, folder: str) -> FolderListing:
        """List a folder and those below it that are partitions, `key=value`. An absent folder is empty. Raises StoreError."""
        files: list[tuple[str, Stat]] = []
        changed_at, folders = 0.0, [""]
        while folders:
            below = folders.pop()
            for name, stat in self._found(f"{folder.strip('/')}/{below}".strip("/") or "."):
                changed_at = max(changed_at, stat.modified_at)
                if not stat.folder:
                    files.append((f"{below}{name}", stat))
                elif is_partition(name):
                    folders.append(f"{below}{name}/")
        # A bucket's times are whole seconds: two objects of one size and second differ in their identities.
        found = sorted((name, stat.size, stat.modified_at, stat.identity) for name, stat in files)
        digest = hashlib.sha256(repr(found).encode()).hexdigest()
        written = {name: f"{at} {identity}" for name, _, at, identity in found}
        return FolderListing([(name, size) for name, size, *_ in found], digest, changed_at, written)

    def changed_at(self, folder: str) -> float:
        """Return the Unix seconds at which an entry of a folder was added or removed, 0 if it is absent. Raises StoreError."""
        try:
            return self._stat(folder).modified_at
        except NotInStore:
            return 0.0

    def open(self, path: str, start: int = 0) -> BinaryIO:
        """Return a stream from byte `start` on. Raises NotInStore, StoreError."""
        found = self._stat(path)
        if found.folder:
            raise StoreError(f"{path} in {self.url} cannot be read: it is a folder")
        raw = _RemoteFile(Reading(self._backend, self._at(path), self._retry, found), found.size)
        stream = io.BufferedReader(raw, _BUFFER)
        stream.seek(start)
        return cast("BinaryIO", stream)


class FileSource(Source):
    """A source in a local folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        super().__init__(LocalFiles(root), RetryPolicy(0))

    def open(self, path: str, start: int = 0) -> BinaryIO:
        try:
            stream = (self.root / self._at(path)).open("rb")
        except FileNotFoundError as gone:
            raise NotInStore(f"{path} is not in {self.url}") from gone
        except OSError as failed:
            raise StoreError(f"{path} in {self.url} cannot be read: {failed.strerror or failed}") from failed
        stream.seek(start)
        return stream


class AddressedFiles(Source):
    """Files by their whole addresses, as an Iceberg table names them, such as s3://bucket/table/data/part.parquet; nothing is listed."""

    def __init__(self, url: str, opened: Callable[[str], Source]) -> None:
        self.url = url
        self._opened = opened
        self._roots: dict[str, Source] = {}

    def open(self, path: str, start: int = 0) -> BinaryIO:
        root, file = self._parted(path)
        return root.open(file, start)

    def size(self, path: str) -> int:
        root, file = self._parted(path)
        return root.size(file)

    def exists(self, path: str) -> bool:
        root, file = self._parted(path)
        return root.exists(file)

    def close(self) -> None:
        for root in self._roots.values():
            root.close()

    def _parted(self, path: str) -> tuple[Source, str]:
        """Return the source of the file's file system, and its path there. Raises StoreError."""
        parts = _ADDRESS.fullmatch(path)
        if parts is None:
            raise StoreError(f"{path[:200]!r} is no address of a file, such as s3://bucket/table/data/part.parquet")
        scheme, host, file = parts.groups(default="")
        # Hadoop's clients for S3 have schemes of their own; Iceberg names local files with and without one.
        root = f"{_SCHEMES.get(scheme, scheme)}://{host}/"
        if root not in self._roots:
            self._roots[root] = self._opened(root)
        return self._roots[root], file


class _RemoteFile(io.RawIOBase):
    """A seekable remote file. A seek sends no request; the next read does."""

    def __init__(self, reading: Reading, size: int) -> None:
        self._reading = reading
        self._size = size
        self._at = 0
        self._blocks: Iterator[bytes] | None = None
        self._held = memoryview(b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        wanted = max(0, base + offset)
        if wanted != self._at:
            self._drop()
            self._at = wanted
        return self._at

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        if self._blocks is None:
            self._blocks = self._reading.blocks(self._at)
        while not self._held:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._held = memoryview(block)
        count = min(len(buffer), len(self._held))
        buffer[:count] = self._held[:count]
        self._held = self._held[count:]
        self._at += count
        return count

    def _drop(self) -> None:
        blocks, self._blocks, self._held = self._blocks, None, memoryview(b"")
        if blocks is not None:
            blocks.close()  # type: ignore[attr-defined]

    def close(self) -> None:
        self._drop()
        super().close()
