"""The files of an archive on the web, for the other imports or as hours: `elastic-ctr import archive`."""

import hashlib
import re
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from http.client import HTTPException
from lzma import LZMAError
from pathlib import Path
from typing import BinaryIO
from urllib.request import urlopen

from elastic_ctr.formats.imports.importers import ImportRefused
from elastic_ctr.operate.cli.progress import progress_of

_TIMEOUT_SECONDS = 60
_BLOCK = 1 << 20
_NEW = 0o755


class _Counted:
    """A download whose bytes are counted and digested as they are read."""

    def __init__(self, raw: BinaryIO, report: Callable[[int, str], None]) -> None:
        self._raw = raw
        self._report = report
        self.bytes = 0
        self.sha256 = hashlib.sha256()

    def read(self, size: int) -> bytes:
        block = self._raw.read(size)
        self.bytes += len(block)
        self.sha256.update(block)
        self._report(len(block), f"{self.bytes:,} bytes have come")
        return block


def fetched(url: str, out: Path, sha256: str | None = None) -> str:
    """Unpack an archive, and return a sentence on its files. Raises ImportRefused."""
    if re.match("(https?|ftp)://[^/@]+/", url) is None:
        raise ImportRefused(
            f"{url.partition('@')[2] or url} is no address of an archive; give http://, https:// or ftp:// without a password."
        )
    if not hasattr(tarfile, "data_filter"):
        raise ImportRefused(
            "this release of Python unpacks archives outside of their folder, too; take 3.10.12, 3.11.4 or a newer one, or unpack it with tar."
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ImportRefused(f"{out} is there and no empty folder; name another one.")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as staging:
        files = Path(staging) / "files"
        try:
            with urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310 (checked above; redirects stay on the web)
                announced = answer.headers.get("Content-Length")
                with progress_of(int(announced or 0), "the first files are unpacked") as report:
                    counted = _Counted(answer, report)
                    with tarfile.open(fileobj=counted, mode="r|*") as tar:  # type: ignore[call-overload]
                        tar.extractall(files, filter="data")
                    # The rest behind the last file, which the digest counts.
                    while counted.read(_BLOCK):
                        pass
        except (tarfile.TarError, EOFError, LZMAError, zlib.error) as damaged:
            raise ImportRefused(f"{url} is no whole tar archive ({damaged}); is the address right?") from damaged
        except (OSError, HTTPException) as failed:
            raise ImportRefused(f"{url} cannot be unpacked into {out}: {failed}; try again.") from failed
        if announced is not None and counted.bytes != int(announced):
            raise ImportRefused(f"{url} broke off after {counted.bytes} of {announced} bytes; try again.")
        if sha256 is not None and counted.sha256.hexdigest() != sha256.lower():
            raise ImportRefused(f"{url} has the digest {counted.sha256.hexdigest()}, not {sha256}; nothing was kept.")
        files.chmod(_NEW)
        found = [each for each in files.rglob("*") if each.is_file()]
        files.replace(out)
    return f"{len(found)} files of {url} are in {out}; sha256 {counted.sha256.hexdigest()}"
