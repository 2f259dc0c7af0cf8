"""Names of files that are not complete yet."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

# With a dot, because nginx's listings and Hadoop's own tools then hide the file.
_PREFIX = ".part-"


def temporary_beside(path: str) -> str:
    """Return a unique new name in the folder of `path`."""
    folder, slash, _ = path.rpartition("/")
    return f"{folder}{slash}{_PREFIX}{secrets.token_hex(8)}"


def is_temporary(name: str) -> bool:
    return name.startswith(_PREFIX)


@contextmanager
def appearing(target: Path) -> Iterator[BinaryIO]:
    """Yield a stream into a local file, which appears whole if the block succeeds, else not at all. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # Not mkstemp, whose files have mode 0600: this file's mode follows the umask, as for any other file.
    part = Path(temporary_beside(str(target)))
    try:
        with part.open("xb") as out:
            yield out
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
