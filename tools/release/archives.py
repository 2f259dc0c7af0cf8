"""Archives whose bytes depend on their content and one time alone: sorted, without owners, compressed without a date."""

import gzip
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, cast

# zlib's levels above it take twice the time of an image for 1 % of its size.
_LEVEL = 6


@contextmanager
def compressed(target: Path) -> Iterator[IO[bytes]]:
    """A stream into a gzip file without name and date."""
    with target.open("wb") as file, gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as stream:
        yield cast("IO[bytes]", stream)


def decompressed(source: IO[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", gzip.GzipFile(fileobj=source))


def write_tar(files: Mapping[str, bytes | Path], target: IO[bytes], time: int) -> None:
    """A tar of these files, sorted by name. `time`: seconds since 1970, that of all files."""
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.mtime = time
            if isinstance(content, bytes):
                entry.size = len(content)
                archive.addfile(entry, BytesIO(content))
            else:
                entry.size = content.stat().st_size
                with content.open("rb") as stream:
                    archive.addfile(entry, stream)


def repack(source: Path, target: Path, time: int) -> None:
    """Write a .tar.gz or .tgz of source files again: sorted, of root, and with the modes that git knows."""
    with (
        tarfile.open(source) as given,
        compressed(target) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for entry in sorted(given.getmembers(), key=lambda each: each.name):
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            entry.mtime = time
            archive.addfile(_of_root(entry), given.extractfile(entry) if entry.isreg() else None)


def redate(source: IO[bytes], target: IO[bytes], time_of: Callable[[int], int]) -> None:
    """Copy the tar of a layer, in its order and with its owners and modes. `time_of` maps each time of a file, in seconds."""
    with (
        tarfile.open(fileobj=source, mode="r|") as given,
        tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for entry in given:
            entry.mtime = time_of(int(entry.mtime))
            # Capabilities of files are such headers; times of the build are, too.
            entry.pax_headers = {
                key: text for key, text in entry.pax_headers.items() if key.startswith("SCHILY.xattr.")
            }
            archive.addfile(entry, given.extractfile(entry) if entry.isreg() else None)


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.pax_headers = {}
    return entry
