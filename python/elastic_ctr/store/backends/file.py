"""A store in a folder of this machine, or of a shared file system."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO
from urllib.parse import quote

from elastic_ctr.store.backends.backend import (
    AlreadyPublished,
    Body,
    NotInStore,
    Stat,
    StoreError,
    StoreUnavailable,
)
from elastic_ctr.store.backends.renaming import RenamingBackend
from elastic_ctr.store.backends.retry import RetryPolicy
from elastic_ctr.store.backends.store import Store

_BLOCK = 1 << 20
# Errors of the disk or the file server that may pass, and the way out of each.
_FULL = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room there")
_READ_ONLY = {errno.EROFS: "mount it for writing again"}
_AWAY = dict.fromkeys((errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN), "bring its file server back")
# A failing disk may be replaced, so a write is retried. An unreadable file may be damaged for good, so a read is not.
_FAILING = {errno.EIO: "mend the disk"}
# Retried only in a store that this process has written to before.
_FORBIDDEN = dict.fromkeys((errno.EACCES, errno.EPERM), "allow this user to write there again")
# Another process deleted the entry meanwhile, or it is a link that leads nowhere.
_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_WRITTEN, _DELETED = "written to", "deleted from"


class FileStore(Store):
    """A store below a folder. A put copies the file beside the target, syncs it, then links it into place."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        # No retries here: the caller waits for room on a full disk.
        super().__init__(LocalFiles(self.root), RetryPolicy(0))

    def local_path(self, path: str) -> Path | None:
        return self.root / self._at(path)


class LocalFiles(RenamingBackend):
    """The backend for a local folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._was_written = False
        self.url = f"file://{quote(str(root))}"

    def stat(self, path: str, deed: str = "looked up in") -> Stat:
        with self._asked(path, deed):
            return _stat_of((self._root / path).stat())

    def list(self, folder: str) -> list[tuple[str, Stat]]:
        found = []
        with self._asked(folder, "listed in"), os.scandir(self._root / folder) as entries:
            for each in entries:
                try:
                    found.append((each.name, _stat_of(each.stat())))
                except OSError as failed:  # noqa: PERF203 (one entry may fail)
                    if failed.errno not in _NOTHING_THERE:
                        raise
        return found

    @contextmanager
    def read(self, path: str, start: int) -> Iterator[Body]:
        with self._asked(path, "read from"), (self._root / path).open("rb") as stream:
            stream.seek(start)
            yield Body(_stat_of(os.fstat(stream.fileno())), start, iter(lambda: stream.read(_BLOCK), b""))

    def put(self, content: bytes | BinaryIO, path: str, target: str) -> None:
        file = self._root / path
        with self._asked(target, _WRITTEN, finds=False):
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("xb") as out:
                if isinstance(content, bytes):
                    out.write(content)
                else:
                    shutil.copyfileobj(content, out, 4 << 20)
                out.flush()
                os.fsync(out.fileno())
        self._was_written = True

    def move(self, source: str, target: str, *, overwrite: bool) -> None:
        there, here = self._root / source, self._root / target
        with self._asked(target, _WRITTEN, finds=False):
            if overwrite:
                there.replace(here)
            else:
                try:
                    # link, unlike rename, fails if the target exists: two writers cannot both succeed.
                    os.link(there, here)
                except FileExistsError as stands:
                    raise AlreadyPublished(f"{target} is already published in {self.url}") from stands
                there.unlink()
            sync_folder(here.parent)

    def delete(self, path: str) -> None:
        target = self._root / path
        # Another process may delete the same path.
        with suppress(NotInStore), self._asked(path, _DELETED):
            if target.is_dir():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)

    def close(self) -> None:
        """Do nothing: there are no connections."""

    @contextmanager
    def _asked(self, path: str, deed: str, *, finds: bool = True) -> Iterator[None]:
        """Turn an OSError into a StoreError; into NotInStore if `finds` and the path does not exist."""
        try:
            yield
        except StoreError:
            raise
        except OSError as failed:
            if finds and isinstance(failed, FileNotFoundError | NotADirectoryError):
                raise NotInStore(f"{path} is not in {self.url}") from failed
            cannot = f"{path or '/'} cannot be {deed} {self.url}: {failed.strerror or failed}"
            if way_out := self._passing(deed).get(failed.errno or 0):
                raise StoreUnavailable(f"{cannot}; {way_out}, and it is tried again") from failed
            raise StoreError(cannot) from failed

    def _passing(self, deed: str) -> dict[int, str]:
        """Return the errno values that are worth a retry, each with its way out."""
        if deed not in (_WRITTEN, _DELETED):
            return {**_FULL, **_AWAY}
        return {**_FULL, **_AWAY, **_READ_ONLY, **_FAILING, **(_FORBIDDEN if self._was_written else {})}


def _stat_of(found: os.stat_result) -> Stat:
    # Anything but a regular file counts as a folder: a read of a pipe would wait for ever.
    return Stat(
        found.st_size, found.st_mtime, folder=not S_ISREG(found.st_mode), identity=f"{found.st_dev}-{found.st_ino}"
    )


def sync_folder(folder: Path) -> None:
    """Sync a folder, without which a rename in it may be lost in a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
