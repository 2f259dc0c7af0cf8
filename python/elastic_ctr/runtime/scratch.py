"""Temporary folders that do not outlive their process for long, even if it was killed."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from elastic_ctr.runtime.lock import StateLock


@contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """A new folder of this process in the machine's folder for temporary files; it is deleted when the block ends.

    Folders of the same prefix whose process has ended without that are deleted first. Raises OSError.
    """
    _sweep(prefix)
    # Until it is locked it has a name that no sweep looks for.
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
        # One that is in use, or that another process sweeps, stays.
        with suppress(OSError):
            if each.is_symlink() or not each.is_dir() or each.stat().st_uid != os.getuid():
                continue
            with StateLock(each):
                shutil.rmtree(each, ignore_errors=True)
