"""A store in a folder of this machine, or of a shared file system."""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from elastic_ctr.store.interface import (
    AlreadyPublished,
    NotInStore,
    StoreError,
    StoreUnavailable,
    checked_path,
    small,
    walked,
)
from elastic_ctr.store.temporary import appearing

_TEMPORARY = ".put-"
_BLOCK = 1 << 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class FileStore:
    """Published files under one folder; a put is a copy beside the target, synced, then linked into place."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.url = f"file://{quote(str(self.root))}"

    def _at(self, path: str) -> Path:
        return self.root / checked_path(path)

    def put(self, source: Path, path: str, *, overwrite: bool = False) -> None:
        try:
            with source.open("rb") as stream:
                self._publish(path, lambda out: shutil.copyfileobj(stream, out, 4 << 20), overwrite=overwrite)
        except FileNotFoundError as gone:
            raise StoreError(f"{source} cannot be published as {path}: {gone.strerror}") from gone

    def put_bytes(self, data: bytes, path: str, *, overwrite: bool = False) -> None:
        self._publish(path, lambda out: out.write(data), overwrite=overwrite)

    def _publish(self, path: str, write: Callable[[BinaryIO], object], *, overwrite: bool) -> None:
        target = self._at(path)
        temporary = ""
        try:
            if not overwrite and target.exists():
                raise AlreadyPublished(f"{path} is already published in {self.url}; published files are never changed")
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=target.parent)
            with os.fdopen(handle, "wb") as out:
                write(out)
                out.flush()
                os.fsync(out.fileno())
            Path(temporary).chmod(0o644)
            if overwrite:
                Path(temporary).replace(target)
            else:
                # link, unlike rename, refuses an existing target: two writers cannot both succeed.
                os.link(temporary, target)
                Path(temporary).unlink()
            _sync_folder(target.parent)
        except StoreError:
            raise
        except OSError as failed:
            if temporary:
                # If this fails too, the temporary file stays; no reader sees it.
                with suppress(OSError):
                    Path(temporary).unlink(missing_ok=True)
                if isinstance(failed, FileExistsError):
                    raise AlreadyPublished(f"{path} is already published in {self.url}") from failed
            cannot = f"{path} cannot be written to {self.url}: {failed.strerror or failed}"
            if failed.errno in _NO_ROOM:
                raise StoreUnavailable(f"{cannot}; make room there, and it is tried again") from failed
            raise StoreError(cannot) from failed

    @contextmanager
    def _refusing(self, cannot: str, path: str | None = None) -> Iterator[None]:
        """An OSError becomes NotInStore where `path` is absent, else StoreError."""
        try:
            yield
        except StoreError:
            raise
        except (FileNotFoundError, NotADirectoryError) as gone:
            if path is None:
                raise StoreError(f"{cannot}: {gone.strerror or gone}") from gone
            raise NotInStore(f"{path} is not in {self.url}") from gone
        except OSError as failed:
            raise StoreError(f"{cannot}: {failed.strerror or failed}") from failed

    def get(self, path: str, target: Path) -> None:
        with self._refusing(f"{path} cannot be fetched from {self.url} to {target}"), appearing(target) as out:
            for block in self.read_from(path):
                out.write(block)

    def read_from(self, path: str, offset: int = 0) -> Iterator[bytes]:
        with self._refusing(f"{path} cannot be read from {self.url}", path), self._at(path).open("rb") as stream:
            stream.seek(offset)
            while block := stream.read(_BLOCK):
                yield block

    def get_bytes(self, path: str) -> bytes:
        return small(self.read_from(path), path)

    def exists(self, path: str) -> bool:
        return self._at(path).exists()

    def list(self, folder: str) -> list[str]:
        try:
            with self._refusing(f"{folder} cannot be listed in {self.url}", folder):
                found = sorted(self._at(folder).iterdir())
        except NotInStore:
            return []
        return [
            f"{each.name}/" if each.is_dir() else each.name for each in found if not each.name.startswith(_TEMPORARY)
        ]

    def walk(self, folder: str) -> Iterator[str]:
        return walked(self.list, folder)

    def delete(self, path: str) -> None:
        target = self._at(path)
        # Another process may delete the same path.
        with suppress(NotInStore), self._refusing(f"{path} cannot be deleted from {self.url}", path):
            if target.is_dir():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)

    def size(self, path: str) -> int:
        return self._stat(path).st_size

    def modified_at(self, path: str) -> float:
        return self._stat(path).st_mtime

    def _stat(self, path: str) -> os.stat_result:
        with self._refusing(f"{path} cannot be looked up in {self.url}", path):
            return self._at(path).stat()

    def local_path(self, path: str) -> Path | None:
        return self._at(path)

    def close(self) -> None:
        """There is nothing to let go of."""


def _sync_folder(folder: Path) -> None:
    """A rename survives a power cut only when its folder was synced too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
