"""Sources of click logs: read only, by folder and by byte range."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

from elastic_ctr.store.interface import NotInStore, StoreError, checked_path
from elastic_ctr.store.retry import RetryPolicy


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

    def list(self, folder: str) -> list[tuple[str, int]]:
        try:
            found = sorted(self._at(folder).iterdir())
            return [(each.name, each.stat().st_size) for each in found if each.is_file()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as failed:
            raise StoreError(f"{folder} in {self.url} cannot be listed: {failed.strerror or failed}") from failed

    def fingerprint(self, folder: str) -> str:
        try:
            found = [(each.name, each.stat()) for each in self._at(folder).iterdir() if each.is_file()]
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except OSError as failed:
            raise StoreError(f"{folder} in {self.url} cannot be listed: {failed.strerror or failed}") from failed
        return fingerprint_of((name, stat.st_size, stat.st_mtime) for name, stat in found)

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


def fingerprint_of(files: Iterable[tuple[str, int, float]]) -> str:
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
