"""Sources of click logs: read only, by folder and by byte range."""

import hashlib
import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol, cast
from urllib.parse import unquote, urlsplit

from elastic_ctr.store.interface import NotInStore, StoreError, checked_path
from elastic_ctr.store.remote import Reading, Remote, Stat, relative
from elastic_ctr.store.retry import RetryPolicy

_BUFFER = 1 << 20


class Source(Protocol):
    """A tree of files that another system writes."""

    url: str

    def list(self, folder: str) -> list[tuple[str, int]]:
        """Files directly in a folder with their bytes, sorted by name. An absent folder is empty. Raises StoreError."""

    def fingerprint(self, folder: str) -> str:
        """Differs when a file directly in a folder was added, removed or written. Raises StoreError."""

    def exists(self, path: str) -> bool: ...

    def open(self, path: str, start: int = 0) -> BinaryIO:
        """A stream from byte `start`. Raises NotInStore, StoreError."""


class FileSource:
    """A folder of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = f"file://{root}"

    def _at(self, path: str) -> Path:
        return self.root / checked_path(path.strip("/") or ".")

    def _files(self, folder: str) -> list[tuple[str, os.stat_result]]:
        try:
            return sorted((each.name, each.stat()) for each in self._at(folder).iterdir() if each.is_file())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as failed:
            raise StoreError(f"{folder} in {self.url} cannot be listed: {failed.strerror or failed}") from failed

    def list(self, folder: str) -> list[tuple[str, int]]:
        return [(name, stat.st_size) for name, stat in self._files(folder)]

    def fingerprint(self, folder: str) -> str:
        return _fingerprint_of((name, stat.st_size, stat.st_mtime) for name, stat in self._files(folder))

    def exists(self, path: str) -> bool:
        return self._at(path).exists()

    def open(self, path: str, start: int = 0) -> BinaryIO:
        try:
            stream = self._at(path).open("rb")
        except FileNotFoundError as gone:
            raise NotInStore(f"{path} is not in {self.url}") from gone
        except OSError as failed:
            raise StoreError(f"{path} in {self.url} cannot be read: {failed.strerror or failed}") from failed
        stream.seek(start)
        return stream


class RemoteSource:
    """The Source over any Remote."""

    def __init__(self, remote: Remote, retry: RetryPolicy) -> None:
        self.url = remote.url
        self._remote = remote
        self._retry = retry

    def list(self, folder: str) -> list[tuple[str, int]]:
        return sorted((name, stat.size) for name, stat in self._files(folder))

    def fingerprint(self, folder: str) -> str:
        return _fingerprint_of((name, stat.size, stat.modified_at) for name, stat in self._files(folder))

    def _files(self, folder: str) -> Iterable[tuple[str, Stat]]:
        path = relative(folder.strip("/") or ".")
        for attempt in self._retry.attempts():
            with attempt:
                try:
                    found = self._remote.list(path)
                except NotInStore:
                    return []
        return [(name, stat) for name, stat in found if not stat.folder]

    def exists(self, path: str) -> bool:
        try:
            self._stat(relative(path.strip("/") or "."))
        except NotInStore:
            return False
        return True

    def open(self, path: str, start: int = 0) -> BinaryIO:
        at = relative(path.strip("/") or ".")
        found = self._stat(at)
        if found.folder:
            raise StoreError(f"{path} in {self.url} cannot be read: it is a folder")
        raw = _RemoteFile(Reading(self._remote, at, self._retry), found.size)
        stream = io.BufferedReader(raw, _BUFFER)
        stream.seek(start)
        return cast("BinaryIO", stream)

    def _stat(self, path: str) -> Stat:
        for attempt in self._retry.attempts():
            with attempt:
                return self._remote.stat(path)
        raise AssertionError("an attempt either returns or raises")

    def close(self) -> None:
        self._remote.close()


class _RemoteFile(io.RawIOBase):
    """A file that is read on from wherever it was sought to; nothing is asked for before the first byte is wanted."""

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


def _fingerprint_of(files: Iterable[tuple[str, int, float]]) -> str:
    """Of names, bytes and times of the last change."""
    return hashlib.sha256(repr(sorted(files)).encode()).hexdigest()


def open_source(url: str, user: str, retry: RetryPolicy | None = None) -> Source:
    """The source behind an address; nothing is asked of it yet. The user is for HDFS; files have no such check.

    Raises StoreError for an address that no source here understands.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return FileSource(Path(unquote(parts.path)))
    if parts.scheme in {"hdfs", "webhdfs"}:
        from elastic_ctr.store.hdfs import HdfsSource

        return HdfsSource(url, user, retry)
    raise StoreError(
        f"data.source.url {url!r} is not understood; give file:///a/folder or hdfs://namenode:9000/a/folder"
    )
