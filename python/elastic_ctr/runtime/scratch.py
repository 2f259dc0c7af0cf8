"""Temporary folders. If a process is killed, the next one of the same prefix deletes its folder."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from elastic_ctr.runtime.lock import StateLock


@contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """Yield a new folder in the machine's temporary directory; it is deleted when the block ends.

    Folders of the same prefix that ended processes have left behind are deleted first. Raises OSError.
    """
    _sweep(prefix)
    # Until the folder is locked, it has a name that no sweep matches.
    hidden = Path(tempfile.mkdtemp(prefix=f".{prefix}"))
    folder = hidden.with_name(hidden.name.removeprefix("."))
    try:
        with StateLock(hidden):
            hidden.rename(folder)
            yield folder
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(prefix: str) -> None:
    for each in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        # A folder that is in use, or that another process sweeps, stays.
        with suppress(OSError):
            if each.is_symlink() or not each.is_dir() or each.stat().st_uid != os.getuid():
                continue
            with StateLock(each):
                shutil.rmtree(each, ignore_errors=True)
